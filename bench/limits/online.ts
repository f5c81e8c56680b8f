// The least that a storm of agents can cost a program on uWebSockets.js that knows who they are and keeps who is online:
// the token looked up, the device's row and the event written, all in one statement for those who came together, before
// the upgrade; then the welcome. No locks in order, no rates, no queue, nobody to hand over to, one thread.
import type { HttpResponse, us_socket_context_t, WebSocket } from 'uWebSockets.js'
import { hash } from 'node:crypto'
import pg from 'pg'
import { Batcher } from '../../src/batch.ts'
import { plainArray, textArray } from '../../src/db.ts'
import { newId } from '../../src/ids.ts'
import { agentSubprotocol } from '../../src/protocol.ts'
import { uWS } from '../../src/uws.ts'
import { fail, serve } from './serve.ts'

interface Agent {
  id: string
}
interface Asking {
  res: HttpResponse
  context: us_socket_context_t
  id: string
  tokenHash: string
  key: string
  extensions: string
  isGone: boolean
}

/** As large as the hub's batches may become. */
const rowsMax = 512
const queueMax = 100_000
const nodeId = newId()

let opened: WebSocket<Agent> | undefined
const online = await connect()
const offline = await connect()
const asking = new Batcher<Asking>({ rowsMax, queueMax, inFlight: 1, write: letIn })
const leaving = new Batcher<string>({ rowsMax, queueMax, inFlight: 1, write: storeOffline })

const app = uWS.App().ws<Agent>('/api/v1/agents/:deviceId/ws', {
  idleTimeout: 120,
  maxPayloadLength: 4 * 1024 * 1024,
  upgrade: (res, req, context) => {
    const one: Asking = {
      res,
      context,
      id: req.getParameter(0) ?? '',
      tokenHash: hash('sha256', req.getHeader('authorization').slice('Bearer '.length), 'hex'),
      key: req.getHeader('sec-websocket-key'),
      extensions: req.getHeader('sec-websocket-extensions'),
      isGone: false,
    }
    res.onAborted(() => {
      one.isGone = true
    })
    if (!asking.push(one)) fail(new Error('too many agents wait'))
  },
  open: (ws) => {
    opened = ws
  },
  close: (ws) => {
    if (!leaving.push(ws.getUserData().id)) fail(new Error('too many agents leave'))
  },
})
serve(app)

async function letIn(items: Asking[]): Promise<void> {
  const { rows } = await online
    .query<{ id: string }>({
      name: 'online',
      text: onlineSql,
      values: [
        plainArray(items.map(({ id }) => id)),
        textArray(items.map(({ tokenHash }) => `\\x${tokenHash}`)),
        plainArray(items.map(() => newId())),
        nodeId,
      ],
    })
    .catch(fail)
  const good = new Set(rows.map(({ id }) => id))
  const welcome = `{"type":"welcome","serverTime":"${new Date().toISOString()}","heartbeatIntervalSeconds":30}`
  for (const { res, context, id, key, extensions, isGone } of items) {
    if (isGone) leaving.push(id)
    else if (good.has(id)) {
      // Alone in the cork, as the hub's own.
      res.cork(() => res.upgrade({ id }, key, agentSubprotocol, extensions, context))
      opened?.send(welcome)
      opened = undefined
    } else res.cork(() => res.writeStatus('401 Unauthorized').end())
  }
}

async function storeOffline(ids: string[]): Promise<void> {
  await offline.query({ name: 'offline', text: offlineSql, values: [plainArray(ids)] }).catch(fail)
}

async function connect(): Promise<pg.Client> {
  // As the hub's: plans are kept, and never those of an empty table.
  const options = '-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off'
  const client = new pg.Client({ connectionString: process.env['DATABASE_URL'], options })
  client.on('error', fail)
  await client.connect()
  return client
}

const onlineSql = `
with claimed as (
  update device_presence p set epoch = p.epoch + 1, node_id = $4, status = 'online', status_at = now(),
    last_seen_at = now(), ip_address = '127.0.0.1', absent = false
  from unnest($1::uuid[], $2::bytea[], $3::uuid[]) as i(device_id, hash, event_id)
  join devices d on d.id = i.device_id and d.token_hash = i.hash
  where p.device_id = i.device_id
  returning p.device_id, p.org_id, d.site_id, i.event_id
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select event_id, org_id, 'device.online', now(), site_id, jsonb_build_object('deviceId', device_id)
  from claimed
)
select device_id as id from claimed`

const offlineSql = `
update device_presence set status = 'offline', status_at = now(), node_id = null
where device_id = any($1::uuid[])`
