// The least that a hub on uWebSockets.js can do for commands: takes them over HTTP, stores the hub's rows in
// batches, answers 202 once they are committed, passes them to the agent's socket, and with ?wait answers when the
// end is committed; and pages of devices. Nobody is checked. Without DATABASE_URL it stores nothing: what any message
// broker does.
import type { HttpResponse, WebSocket } from 'uWebSockets.js'
import pg from 'pg'
import { Batcher } from '../../src/batch.ts'
import { newId } from '../../src/ids.ts'
import { agentSubprotocol, type AgentFrame } from '../../src/protocol.ts'
import { uWS } from '../../src/uws.ts'
import { storeCommands, storeEnds, type EndedCommand, type NewCommand } from './command_rows.ts'
import { serveDevicePages } from './device_page.ts'
import { fail, reply, serve } from './serve.ts'

interface Agent {
  id: string
}
interface Place {
  id: string
  orgId: string
  siteId: string
}
interface Open extends NewCommand {
  createdAt: string
  /** Answers the caller; absent for one who does not wait. */
  answerEnd: ((status: string, result: string | null) => void) | undefined
}
interface Stored<T> {
  item: T
  done: () => void
}

const databaseUrl = process.env['DATABASE_URL']
const bodyBytesMax = 64 * 1024
/** As large as the hub's batches may become; under these loads nothing gets near. */
const rowsMax = 256
const queueMax = 100_000

const agents = new Map<string, WebSocket<Agent>>()
const open = new Map<string, Open>()
const places = new Map<string, Place>()
let placesRead: Promise<void> | undefined
const accepted = await lane<NewCommand>(storeCommands)
const ended = await lane<EndedCommand>(storeEnds)
const lookup = databaseUrl === undefined ? undefined : await connect(databaseUrl)

const app = uWS
  .App()
  .ws<Agent>('/api/v1/agents/:deviceId/ws', {
    idleTimeout: 120,
    maxPayloadLength: 4 * 1024 * 1024,
    upgrade: (res, req, context) => {
      res.upgrade(
        { id: req.getParameter(0) ?? '' },
        req.getHeader('sec-websocket-key'),
        agentSubprotocol,
        req.getHeader('sec-websocket-extensions'),
        context,
      )
    },
    open: (ws) => {
      agents.set(ws.getUserData().id, ws)
    },
    message: (_ws, message) => {
      take(JSON.parse(Buffer.from(message).toString()) as AgentFrame)
    },
    close: (ws) => {
      if (agents.get(ws.getUserData().id) === ws) agents.delete(ws.getUserData().id)
    },
  })
  .post('/api/v1/auth/login', (res) => {
    readBody(res, () => reply(res, '200 OK', '{"accessToken":"none"}'))
  })
  .post('/api/v1/devices/:id/commands', (res, req) => {
    const deviceId = req.getParameter(0) ?? ''
    const waits = req.getQuery('wait') !== undefined
    readBody(res, (body, isGone) => {
      accept(deviceId, body, waits, (json) => {
        if (!isGone()) reply(res, '202 Accepted', json)
      }).catch(fail)
    })
  })

if (databaseUrl !== undefined) serveDevicePages(app, databaseUrl)
serve(app)

async function accept(
  deviceId: string,
  body: string,
  waits: boolean,
  answer: (json: string) => void,
): Promise<void> {
  const { action, payload } = JSON.parse(body) as { action: string; payload: object }
  const { orgId, siteId } = await placeOf(deviceId)
  const command: Open = {
    id: newId(),
    deviceId,
    orgId,
    siteId,
    action,
    payload: JSON.stringify(payload),
    createdAt: new Date().toISOString(),
    answerEnd: undefined,
  }
  await accepted(command)
  if (waits) {
    command.answerEnd = (status, result) => answer(jsonOf(command, status, result))
    open.set(command.id, command)
  } else answer(jsonOf(command, 'pending', null))
  const { id } = command
  agents
    .get(deviceId)
    ?.send(
      `{"type":"command","id":"${id}","action":"${action}","payload":${command.payload},"attempt":1,"timeoutSeconds":300}`,
    )
}

function take(frame: AgentFrame): void {
  // States before the end are stored with it, as the hub does for what is quick.
  if (frame.type !== 'result') return
  const { id, status } = frame
  const result = JSON.stringify({
    exitCode: frame.exitCode,
    stdout: frame.stdout,
    stderr: frame.stderr,
    truncated: frame.truncated,
    error: frame.error,
    durationMs: frame.durationMs,
  })
  void finish({ id, status, result }).catch(fail)
}

async function finish(end: EndedCommand): Promise<void> {
  await ended(end)
  const command = open.get(end.id)
  if (!command) return
  open.delete(end.id)
  agents.get(command.deviceId)?.send(`{"type":"ack","id":"${end.id}"}`)
  command.answerEnd?.(end.status, end.result)
}

/** A lane that commits what came together in one statement; without a database it is over at once. */
async function lane<T>(
  store: (client: pg.Client, items: readonly T[]) => Promise<void>,
): Promise<(item: T) => Promise<void>> {
  if (databaseUrl === undefined) return () => Promise.resolve()
  const client = await connect(databaseUrl)
  const batcher = new Batcher<Stored<T>>({
    rowsMax,
    queueMax,
    inFlight: 1,
    write: async (waiting) => {
      await store(
        client,
        waiting.map(({ item }) => item),
      ).catch(fail)
      for (const { done } of waiting) done()
    },
  })
  return (item) =>
    new Promise((done, reject) => {
      if (!batcher.push({ item, done })) reject(new Error('too many commands wait'))
    })
}

async function connect(connectionString: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString })
  client.on('error', fail)
  await client.connect()
  return client
}

/** All devices at once when one is unknown: they came after this program started. */
async function placeOf(deviceId: string): Promise<Place> {
  if (lookup && !places.has(deviceId)) await (placesRead ??= readPlaces(lookup))
  const place = places.get(deviceId) ?? { id: deviceId, orgId: '', siteId: '' }
  if (lookup && place.orgId === '') throw new Error(`there is no device ${deviceId}`)
  return place
}

/** One look-up for all who wait for it. */
async function readPlaces(client: pg.Client): Promise<void> {
  const { rows } = await client.query<Place>(
    'select id, org_id as "orgId", site_id as "siteId" from devices',
  )
  for (const place of rows) places.set(place.id, place)
  placesRead = undefined
}

/** What the hub answers of a command. */
function jsonOf(command: Open, status: string, result: string | null): string {
  const { id, deviceId, orgId, action, payload, createdAt } = command
  return (
    `{"id":"${id}","deviceId":"${deviceId}","orgId":"${orgId}","action":"${action}","payload":${payload},` +
    `"status":"${status}","result":${result},"createdAt":"${createdAt}"}`
  )
}

function readBody(res: HttpResponse, onBody: (body: string, isGone: () => boolean) => void): void {
  let gone = false
  const parts: Buffer[] = []
  let bytes = 0
  res.onAborted(() => {
    gone = true
  })
  res.onData((chunk, isLast) => {
    // Copied: the chunk is only there during this call.
    parts.push(Buffer.from(Buffer.from(chunk)))
    bytes += chunk.byteLength
    if (bytes > bodyBytesMax) fail(new Error('a body too large'))
    if (isLast) onBody(Buffer.concat(parts).toString(), () => gone)
  })
}
