// Terminals of devices: opening one, tickets for its socket, which there were and what they showed. The sockets
// are `../terminal_sockets.ts`, what passes through them `../terminals.ts`.
import { Type, type Static } from 'typebox'
import type { Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageQuery, type PageRow } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { isTerminalId, sizeMax, type TerminalSize } from '../terminal_frames.ts'
import { deviceOffline, terminalEnded } from '../terminal_ends.ts'
import { endReasons, type EndReason } from '../terminal_rows.ts'
import type { IssuedTicket } from '../terminal_messages.ts'
import type { TerminalDevice } from '../terminals.ts'
import { withinScope } from './devices.ts'
import { Id, nullable, Time } from './shapes.ts'

const terminalIdPattern = '^term-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
const TerminalId = Type.String({ pattern: terminalIdPattern, description: '`term-` and a UUID.' })
const terminalParams = Type.Object({ id: TerminalId })

const side = Type.Integer({ minimum: 1, maximum: sizeMax })
const NewTerminal = Type.Object({ cols: side, rows: side })

const Ticket = Type.Object({
  id: TerminalId,
  ticket: Type.String({ description: `Good once, for ${limits.ticketSeconds} seconds.` }),
  websocketUrl: Type.String({
    description: 'Offer the subprotocols `muster-terminal.v1` and `ticket.` with the ticket.',
  }),
  expiresAt: Time,
})

export const Terminal = Type.Object({
  id: TerminalId,
  deviceId: Id,
  userId: nullable(Id),
  userEmail: Type.String(),
  cols: Type.Integer(),
  rows: Type.Integer(),
  startedAt: Time,
  endedAt: nullable(Time),
  endReason: nullable(Type.Enum([...endReasons])),
  exitCode: nullable(Type.Integer({ description: 'Of the shell; -1 when a signal ended it.' })),
  bytesIn: nullable(Type.Integer({ description: 'Typed; known at the end.' })),
  bytesOut: nullable(Type.Integer({ description: 'Shown; known at the end.' })),
  recordingComplete: nullable(
    Type.Boolean({ description: 'Whether all of it is in the recording; known at the end.' }),
  ),
})

const tag = 'terminals'

export const terminalRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/devices/:id/terminals',
    name: 'createTerminal',
    tag,
    summary: 'Open a terminal; the shell starts when its socket is there',
    may: 'terminals.write',
    params: idParams,
    body: NewTerminal,
    responses: { 201: Ticket },
    handle: createTerminal,
  }),
  route({
    method: 'GET',
    path: '/devices/:id/terminals',
    name: 'listTerminals',
    tag,
    summary: 'Terminals of the device, newest first',
    may: 'recordings.read',
    params: idParams,
    query: Type.Object(pageQuery),
    responses: { 200: pageOf(Terminal) },
    handle: listTerminals,
  }),
  route({
    method: 'POST',
    path: '/terminals/:id/tickets',
    name: 'createTerminalTicket',
    tag,
    summary: 'A new ticket for one’s own terminal, to go on with it',
    may: 'terminals.write',
    params: terminalParams,
    body: Type.Object({}),
    bodyOptional: true,
    responses: { 201: Ticket },
    handle: createTicket,
  }),
  route({
    method: 'GET',
    path: '/terminals/:id/recording',
    name: 'getTerminalRecording',
    tag,
    summary: 'What the terminal showed, as an asciicast (version 2); of an open one, so far',
    may: 'recordings.read',
    params: terminalParams,
    responses: { 200: null },
    handle: getRecording,
  }),
]

// ---- opening ---------------------------------------------------------------------------------

async function createTerminal(
  ctx: Context,
  call: Call<{ id: string }, undefined, TerminalSize>,
): Promise<Reply> {
  const { nodeId, ...device } = await connectedDevice(ctx, call.actor, call.params.id)
  if (nodeId !== ctx.nodeId) {
    return ticketReply(ctx, await ctx.relay.open(nodeId, call, device, call.body))
  }
  const { session, ticket, expiresMs } = await ctx.terminals.open(call, device, call.body)
  return ticketReply(ctx, { id: session.id, ticket, expiresMs })
}

interface DeviceRow extends Row {
  id: string
  orgId: string
  siteId: string
  status: string
  nodeId: string | null
}

/** The device and the hub that has it, when a terminal can be opened on it. Throws what is in the way. */
async function connectedDevice(
  ctx: Context,
  scope: Scope,
  id: string,
): Promise<TerminalDevice & { nodeId: string }> {
  const where = withinScope(new Where().and('d.id = ?', id), scope)
  const [device] = await ctx.db.query<DeviceRow>(
    `select d.id, d.org_id as "orgId", d.site_id as "siteId", p.status, p.node_id as "nodeId"
     from devices d join device_presence p on p.device_id = d.id ${where.text()}`,
    where.values,
  )
  if (device === undefined) throw new AppError('NOT_FOUND', 'there is no such device')
  if (device.status === 'decommissioned') {
    throw new AppError('DEVICE_DECOMMISSIONED', 'the device is decommissioned')
  }
  const { nodeId } = device
  const isThere =
    nodeId === ctx.nodeId ? await ctx.terminals.arrival(device.id) : device.status === 'online'
  if (nodeId !== null && isThere) return { ...device, nodeId }
  throw deviceOffline()
}

async function createTicket(
  ctx: Context,
  call: Call<{ id: string }, undefined, object>,
): Promise<Reply> {
  const { actor } = call
  const id = call.params.id.toLowerCase()
  const terminal = await findTerminal(ctx.db, actor, id)
  const session = ctx.terminals.find(id)
  // One that is this hub's and not here any more has ended, though its row may not say so yet.
  const isOver = terminal.ended || (session === undefined && ctx.terminals.isOwn(terminal.nodeId))
  if (isOver) throw terminalEnded(terminal.endReason)
  if (terminal.userId !== actor.userId) {
    throw new AppError('FORBIDDEN', 'this terminal is another user’s; open one of your own')
  }
  if (session === undefined) {
    return ticketReply(ctx, await ctx.relay.ticket(terminal.nodeId, actor, id))
  }
  return ticketReply(ctx, { id, ...session.issueTicket(actor, Date.now()) })
}

function ticketReply(ctx: Context, { id, ticket, expiresMs }: IssuedTicket): Reply {
  const websocketUrl = `${ctx.publicOrigin.replace(/^http/, 'ws')}/api/v1/terminals/${id}/ws`
  const expiresAt = new Date(expiresMs).toISOString()
  return {
    status: 201,
    body: { id, ticket, websocketUrl, expiresAt } satisfies Static<typeof Ticket>,
    // What there is to get of it by its id.
    headers: { Location: `/api/v1/terminals/${id}/recording` },
  }
}

// ---- reading ---------------------------------------------------------------------------------

const columns = `'term-' || t.id as id, t.device_id as "deviceId", t.user_id as "userId",
  t.user_email as "userEmail", t.cols, t.rows, iso(t.started_at) as "startedAt", iso(t.ended_at) as "endedAt",
  t.end_reason as "endReason", t.exit_code as "exitCode", t.bytes_in as "bytesIn", t.bytes_out as "bytesOut",
  t.recording_complete as "recordingComplete"`

const tables = 'terminals t join devices d on d.id = t.device_id'

async function listTerminals(
  ctx: Context,
  { actor, params, query }: Call<{ id: string }, PageQuery, undefined>,
): Promise<Reply> {
  const where = withinScope(new Where().and('d.id = ?', params.id), actor)
  const found = await ctx.db.query(
    `select true as found from devices d ${where.text()}`,
    where.values,
  )
  if (found.length === 0) throw new AppError('NOT_FOUND', 'there is no such device')
  const page = pager(ctx.cursorKey, ['terminals', params.id, actor.orgId, actor.siteIds], query)
  const of = withinScope(new Where().and('t.device_id = ?', params.id), actor)
  if (page.after) of.and('t.id < ?::uuid', page.after[0])
  const limit = of.value(page.limit + 1)
  const rows = await ctx.db.query<PageRow>(
    `select row_to_json(p)::text as item, array[substr(p.id, 6)] as keys from (
       select ${columns} from ${tables} ${of.text()} order by t.id desc limit ${limit}) p
     order by p.id desc`,
    of.values,
  )
  return { status: 200, json: page.envelope(rows) }
}

interface TerminalRow extends Row {
  uuid: string
  userId: string | null
  cols: number
  rows: number
  startedSeconds: number
  hostname: string
  nodeId: string
  ended: boolean
  endReason: EndReason | null
}

/** A session in the scope. Throws NOT_FOUND. */
async function findTerminal(db: Queryable, scope: Scope, id: string): Promise<TerminalRow> {
  const uuid = isTerminalId(id) ? id.slice('term-'.length) : null
  const where = withinScope(new Where().and('t.id = ?', uuid), scope)
  const [row] = await db.query<TerminalRow>(
    `select t.id as uuid, t.user_id as "userId", t.cols, t.rows, d.hostname,
       t.node_id as "nodeId",
       floor(extract(epoch from t.started_at))::float8 as "startedSeconds", t.ended_at is not null as ended,
       t.end_reason as "endReason"
     from ${tables} ${where.text()}`,
    where.values,
  )
  if (row) return row
  throw new AppError('NOT_FOUND', 'there is no such terminal')
}

async function getRecording(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
): Promise<Reply> {
  const terminal = await findTerminal(ctx.db, call.actor, call.params.id.toLowerCase())
  return {
    status: 200,
    stream: { type: 'application/x-asciicast', chunks: asciicast(ctx, terminal) },
  }
}

async function* asciicast(ctx: Context, terminal: TerminalRow): AsyncGenerator<string> {
  const { cols, rows, startedSeconds, hostname } = terminal
  const head = { version: 2, width: cols, height: rows, timestamp: startedSeconds, title: hostname }
  let text = `${JSON.stringify({ ...head, env: { TERM: 'xterm-256color' } })}\n`
  for (let after = -1; ;) {
    const chunks = await ctx.db.query<{ seq: number; lines: string }>(
      `select seq, lines from terminal_recordings where terminal_id = $1 and seq > $2
       order by seq limit ${limits.recordingChunksRead}`,
      [terminal.uuid, after],
    )
    for (const { seq, lines } of chunks) {
      text += lines
      after = seq
    }
    if (text !== '') yield text
    if (chunks.length < limits.recordingChunksRead) return
    text = ''
  }
}
