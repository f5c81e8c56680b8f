// The plain rival: what a good engineer writes in a day with Fastify, ws and pg, in one file, and with
// care: prepared statements, one pool, no needless work. It speaks as much of the hub's contract as the
// bench needs. Without batching each command is one committed row, each end one committed update; the
// hub has to be better than this, not than something worse.
import { createHash, randomBytes, randomUUID, randomUUIDv7 } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import Fastify from 'fastify'
import { jwtVerify, SignJWT } from 'jose'
import { Pool } from 'pg'
import { WebSocketServer, type WebSocket } from 'ws'
import type { AgentFrame, HeartbeatFrame, ResultFrame } from '../src/protocol.ts'

const env = process.env
const jwtKey = await crypto.subtle.importKey(
  'raw',
  randomBytes(32),
  { name: 'HMAC', hash: 'SHA-256' },
  false,
  ['sign', 'verify'],
)
/** Tokens already verified; a lookup costs a tenth of a verification. */
const verified = new Map<string, { subject: string; expiresMs: number }>()

const pool = new Pool({ connectionString: env['DATABASE_URL'], max: 16 })
pool.on('error', () => undefined)
await pool.query(`
  create table if not exists devices (
    id uuid primary key,
    token_hash bytea not null,
    hostname text not null,
    os text not null,
    arch text not null,
    enrolled_at timestamptz not null default now(),
    last_seen_at timestamptz,
    metrics jsonb
  );
  create table if not exists commands (
    id uuid primary key,
    device_id uuid not null references devices (id),
    action text not null,
    payload jsonb not null,
    status text not null default 'pending',
    result jsonb,
    created_by text not null,
    created_at timestamptz not null default now(),
    delivered_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz
  );
  create index if not exists commands_open on commands (device_id, id)
    where status = 'pending';`)

interface Agent {
  socket: WebSocket
  lastSeenMs: number
  metrics: HeartbeatFrame['metrics']
  flushedMs: number
}
interface Command {
  id: string
  deviceId: string
  action: string
  payload: unknown
  status: string
  createdAt: string
  result: unknown
}
interface Progress {
  command: Command | undefined
  deliveredMs: number | null
  startedMs: number | null
  waiter: ((command: Command) => void) | undefined
}

/** Connected agents, by device id. */
const agents = new Map<string, Agent>()
/** Commands sent and not ended, by command id. */
const open = new Map<string, Progress>()
let heartbeats = 0

// ---- operators -------------------------------------------------------------------------------

const app = Fastify({ logger: false })

app.get('/health/ready', () => ({ status: 'ok' }))

app.get('/metrics', () => `muster_heartbeats_total ${heartbeats}\n`)

app.post('/api/v1/auth/login', async (request, reply) => {
  const { email, password } = request.body as { email: string; password: string }
  if (email !== env['ADMIN_EMAIL'] || password !== env['ADMIN_PASSWORD']) {
    return reply.code(401).send({ error: { code: 'INVALID_CREDENTIALS', message: 'no' } })
  }
  const accessToken = await new SignJWT({})
    .setProtectedHeader({ alg: 'HS256' })
    .setSubject(email)
    .setExpirationTime('15 minutes')
    .sign(jwtKey)
  return { accessToken }
})

app.post<{ Body: { enrollmentSecret: string; hostname: string; os: string; arch: string } }>(
  '/api/v1/agents/enroll',
  async (request, reply) => {
    const { enrollmentSecret, hostname, os, arch } = request.body
    if (enrollmentSecret !== env['AGENT_ENROLLMENT_SECRET']) {
      return reply.code(401).send({ error: { code: 'INVALID_ENROLLMENT_SECRET', message: 'no' } })
    }
    const deviceId = randomUUID()
    const agentToken = `mst_${randomBytes(32).toString('base64url')}`
    await pool.query({
      name: 'enroll',
      text: 'insert into devices (id, token_hash, hostname, os, arch) values ($1, $2, $3, $4, $5)',
      values: [deviceId, sha256(agentToken), hostname, os, arch],
    })
    return reply.code(201).send({ deviceId, agentToken })
  },
)

const commandSchema = {
  params: { type: 'object', properties: { id: { type: 'string', format: 'uuid' } } },
  querystring: {
    type: 'object',
    properties: { wait: { type: 'integer', minimum: 0, maximum: 60, default: 0 } },
  },
  body: {
    type: 'object',
    required: ['action'],
    additionalProperties: false,
    properties: {
      action: { type: 'string', enum: ['ping', 'run_command', 'list_processes'] },
      payload: { type: 'object', default: {} },
    },
  },
}

app.post<{
  Params: { id: string }
  Querystring: { wait: number }
  Body: { action: string; payload: object }
}>('/api/v1/devices/:id/commands', { schema: commandSchema }, async (request, reply) => {
  const operator = await authenticate(request.headers.authorization)
  if (!operator) {
    return reply.code(401).send({ error: { code: 'UNAUTHENTICATED', message: 'no' } })
  }
  const command: Command = {
    // Ordered ids keep the primary key's index warm, as the hub's do.
    id: randomUUIDv7(),
    deviceId: request.params.id,
    action: request.body.action,
    payload: request.body.payload,
    status: 'pending',
    createdAt: new Date().toISOString(),
    result: null,
  }
  await pool.query({
    name: 'command',
    text: `insert into commands (id, device_id, action, payload, created_by, created_at)
           values ($1, $2, $3, $4, $5, $6)`,
    values: [
      command.id,
      command.deviceId,
      command.action,
      JSON.stringify(command.payload),
      operator,
      command.createdAt,
    ],
  })
  // Committed first, sent after: an agent may answer before this function returns.
  const ended = request.query.wait > 0 ? waitForEnd(command, request.query.wait) : undefined
  send(command)
  return reply.code(202).send((await ended) ?? command)
})

async function authenticate(header = ''): Promise<string | undefined> {
  const token = header.slice('Bearer '.length)
  const known = verified.get(token)
  if (known && known.expiresMs > Date.now()) return known.subject
  const { payload } = await jwtVerify(token, jwtKey).catch(() => ({ payload: undefined }))
  if (!payload?.sub || !payload.exp) return undefined
  verified.set(token, { subject: payload.sub, expiresMs: payload.exp * 1000 })
  return payload.sub
}

function waitForEnd(command: Command, seconds: number): Promise<Command> {
  return new Promise((resolve) => {
    const late = setTimeout(() => resolve(command), seconds * 1000)
    progressOf(command.id).waiter = (ended) => {
      clearTimeout(late)
      resolve(ended)
    }
  })
}

// ---- agents ----------------------------------------------------------------------------------

const sockets = new WebSocketServer({
  noServer: true,
  perMessageDeflate: false,
  maxPayload: 4 * 1024 * 1024,
})

app.server.on('upgrade', (request, socket, head) => {
  accept(request, socket, head).catch(() => socket.destroy())
})

async function accept(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
  const deviceId = /^\/api\/v1\/agents\/([0-9a-f-]{36})\/ws$/.exec(request.url ?? '')?.[1]
  const token = request.headers.authorization?.slice('Bearer '.length) ?? ''
  const { rowCount } = await pool.query({
    name: 'token',
    text: 'select 1 from devices where id = $1 and token_hash = $2',
    values: [deviceId, sha256(token)],
  })
  if (rowCount !== 1 || deviceId === undefined) {
    socket.end('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n')
    return
  }
  sockets.handleUpgrade(request, socket, head, (upgraded) => welcome(deviceId, upgraded))
}

function welcome(deviceId: string, socket: WebSocket): void {
  agents.get(deviceId)?.socket.close(4002)
  // The first flush of presence is spread over a minute, or all agents of a storm would share one.
  const agent = {
    socket,
    lastSeenMs: Date.now(),
    metrics: undefined,
    flushedMs: Date.now() - Math.random() * presenceFlushMs,
  }
  agents.set(deviceId, agent)
  socket.on('error', () => socket.terminate())
  socket.once('close', () => {
    if (agents.get(deviceId) === agent) agents.delete(deviceId)
  })
  socket.on('message', (data) => {
    // nodebuffer is the default binaryType, so a message is one Buffer.
    take(agent, JSON.parse((data as Buffer).toString()) as AgentFrame)
  })
  const serverTime = new Date().toISOString()
  socket.send(JSON.stringify({ type: 'welcome', serverTime, heartbeatIntervalSeconds: 30 }))
  sendPending(deviceId).catch(tell)
}

async function sendPending(deviceId: string): Promise<void> {
  const { rows } = await pool.query<Command>({
    name: 'pending',
    text: `select id, device_id as "deviceId", action, payload, status, created_at as "createdAt"
             from commands where device_id = $1 and status = 'pending' order by id`,
    values: [deviceId],
  })
  for (const command of rows) send(command)
}

function send(command: Command): void {
  const agent = agents.get(command.deviceId)
  if (!agent) return
  progressOf(command.id).command = command
  const { id, action, payload } = command
  agent.socket.send(
    JSON.stringify({ type: 'command', id, action, payload, attempt: 1, timeoutSeconds: 300 }),
  )
}

function take(agent: Agent, frame: AgentFrame): void {
  switch (frame.type) {
    case 'heartbeat':
      heartbeats++
      agent.lastSeenMs = Date.now()
      if (frame.metrics && areMetrics(frame.metrics)) agent.metrics = frame.metrics
      break
    case 'delivered':
      progressOf(frame.id).deliveredMs = Date.now()
      break
    case 'started':
      progressOf(frame.id).startedMs = Date.now()
      break
    case 'result':
      storeResult(agent, frame).catch(tell)
      break
    default:
      break
  }
}

function areMetrics(metrics: Record<string, unknown>): boolean {
  for (const name in metrics) if (!Number.isFinite(metrics[name])) return false
  return true
}

/** One update for the whole course of the command: its states in between were kept in memory. */
async function storeResult(agent: Agent, frame: ResultFrame): Promise<void> {
  const progress = progressOf(frame.id)
  const { type: _, id, status, ...result } = frame
  await pool.query({
    name: 'result',
    text: `update commands set status = $2, result = $3, completed_at = now(),
             delivered_at = to_timestamp($4 / 1000.0), started_at = to_timestamp($5 / 1000.0)
           where id = $1 and status = 'pending'`,
    values: [id, status, JSON.stringify(result), progress.deliveredMs, progress.startedMs],
  })
  open.delete(id)
  agent.socket.send(JSON.stringify({ type: 'ack', id }))
  if (progress.command) progress.waiter?.({ ...progress.command, status, result })
}

function progressOf(id: string): Progress {
  let progress = open.get(id)
  if (!progress) {
    progress = { command: undefined, deliveredMs: null, startedMs: null, waiter: undefined }
    open.set(id, progress)
  }
  return progress
}

const presenceFlushMs = 60_000

/** lastSeenAt and metrics, once a minute per device, many devices in one statement. */
async function flushPresence(): Promise<void> {
  const dueMs = Date.now() - presenceFlushMs
  const due = [...agents].filter(([, agent]) => agent.flushedMs < dueMs)
  if (due.length === 0) return
  for (const [, agent] of due) agent.flushedMs = Date.now()
  await pool.query({
    name: 'presence',
    text: `update devices d set last_seen_at = to_timestamp(p.ms / 1000.0), metrics = p.metrics
             from unnest($1::uuid[], $2::float8[], $3::jsonb[]) as p (id, ms, metrics)
            where d.id = p.id`,
    values: [
      due.map(([id]) => id),
      due.map(([, agent]) => agent.lastSeenMs),
      due.map(([, agent]) => JSON.stringify(agent.metrics ?? {})),
    ],
  })
}

setInterval(() => {
  flushPresence().catch(tell)
}, 1000)

function tell(error: unknown): void {
  process.stderr.write(`${String(error)}\n`)
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

await app.listen({ host: env['HOST'] ?? '127.0.0.1', port: Number(env['PORT']) })
process.on('SIGUSR2', () => globalThis.gc?.())
process.once('SIGTERM', () => process.exit(0))
