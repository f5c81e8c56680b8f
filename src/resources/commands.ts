// Commands of devices: shape, queries and routes. Accepting them is `../commands.ts`; what becomes of them
// after that is the actor's.
import { Type } from 'typebox'
import { findAction, payloadErrors } from '../actions.ts'
import { can, type Scope } from '../auth.ts'
import { commandColumns } from '../command_row.ts'
import type { Accepted, NewCommand } from '../commands.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import type { Platform } from '../executable.ts'
import { handOver } from '../handoff_sql.ts'
import { isUuid } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager } from '../page.ts'
import { isConcurrentSql } from '../protocol.ts'
import { idParams, invalid, refusal, route, type Call, type Context, type Route } from '../route.ts'
import { cancel } from './cancel.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { withinScope } from './devices.ts'

const uuid = Type.String({ format: 'uuid' })
const time = Type.Union([Type.String(), Type.Null()])
const statuses = [
  'pending',
  'sent',
  'delivered',
  'running',
  'completed',
  'failed',
  'timeout',
  'cancelled',
  'expired',
] as const
const status = Type.Enum([...statuses])
const anything = Type.Record(Type.String(), Type.Unknown())

export const Command = Type.Object({
  id: uuid,
  deviceId: uuid,
  action: Type.String(),
  payload: anything,
  status,
  result: Type.Union([anything, Type.Null()]),
  lateResult: Type.Union([anything, Type.Null()], {
    description: 'A result that arrived after the end; the first end stands.',
  }),
  createdAt: Type.String(),
  sentAt: time,
  deliveredAt: time,
  startedAt: time,
  completedAt: time,
  expiresAt: Type.String(),
  timeoutSeconds: Type.Integer(),
  attempts: Type.Integer(),
  createdBy: Type.Union([uuid, Type.Null()]),
  executionId: Type.Union([uuid, Type.Null()]),
  blockedBy: Type.Union([
    Type.Object({
      reason: Type.Enum(['offline', 'busy', 'suspended']),
      commandId: Type.Optional(uuid),
    }),
    Type.Null(),
  ]),
})

const createBody = Type.Object({
  action: Type.String({ minLength: 1, maxLength: 64 }),
  payload: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  timeoutSeconds: Type.Optional(
    Type.Integer({ minimum: 1, maximum: limits.commandTimeoutSecondsMax }),
  ),
  expiresInSeconds: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.expiresSecondsMax })),
})

const waitQuery = Type.Object({
  wait: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: limits.waitSecondsMax,
      description: 'Hold the answer until the command ends, or this many seconds.',
    }),
  ),
})

// ---- queries ---------------------------------------------------------------------------------

// A command waits for its device, for its organization, or for the one before it.
const blockedBySql = `case
  when c.completed_at is not null or c.status not in ('pending', 'sent') then null
  when o.status = 'suspended' then json_build_object('reason', 'suspended')
  when p.status <> 'online' then json_build_object('reason', 'offline')
  when ${isConcurrentSql('c')} then null
  else (
    select json_build_object('reason', 'busy', 'commandId', b.id) from commands b
    where b.device_id = c.device_id and b.completed_at is null and b.id < c.id and not ${isConcurrentSql('b')}
      and b.id >= uuid7_floor(c.created_at - interval '${limits.openCommandDaysMax} days')
    order by b.id limit 1)
  end`

// Literals, so that the planner sees that the index of open commands, or of rare ends, will do.
const open = (name: string) => `c.completed_at is null and c.status = '${name}'`
const otherEnd = (name: string) =>
  `c.completed_at is not null and c.status <> 'completed' and c.status = '${name}'`
const statusSql = {
  pending: open('pending'),
  sent: open('sent'),
  delivered: open('delivered'),
  running: open('running'),
  completed: `c.status = 'completed'`,
  failed: otherEnd('failed'),
  timeout: otherEnd('timeout'),
  cancelled: otherEnd('cancelled'),
  expired: otherEnd('expired'),
}

const columns = `${commandColumns}, ${blockedBySql} as "blockedBy"`

const tables = `commands c
  join devices d on d.id = c.device_id
  join device_presence p on p.device_id = c.device_id
  join organizations o on o.id = d.org_id`

export const commandSource: Source = { columns, tables, id: 'c.id' }

/** One command as JSON text; throws NOT_FOUND outside the scope. */
async function findCommand(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = withinScope(new Where().and('c.id = ?', id), scope)
  const item = await findItem(db, commandSource, where)
  if (item !== undefined) return item
  throw new AppError('NOT_FOUND', 'there is no such command')
}

async function requireDevice(db: Queryable, scope: Scope, id: string): Promise<void> {
  const where = withinScope(new Where().and('d.id = ?', id), scope)
  const rows = await db.query(`select 1 as found from devices d ${where.text()}`, where.values)
  if (rows.length === 0) throw new AppError('NOT_FOUND', 'there is no such device')
}

// ---- routes ----------------------------------------------------------------------------------

const tag = 'commands'
const listQuery = Type.Object({ ...pageQuery, status: Type.Optional(status) })
const termParams = Type.Object({ id: Type.String({ maxLength: 64 }) })

export const commandRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/devices/:id/commands',
    name: 'createCommand',
    tag,
    summary: 'Send a command to the device; it waits when the device is off',
    may: 'commands.write',
    params: idParams,
    query: waitQuery,
    body: createBody,
    headers: ['idempotency-key'],
    responses: { 202: Command },
    handle: createCommand,
  }),
  route({
    method: 'GET',
    path: '/devices/:id/commands',
    name: 'listCommands',
    tag,
    summary: 'Commands of the device, newest first',
    may: 'commands.read',
    params: idParams,
    query: listQuery,
    responses: { 200: pageOf(Command) },
    handle: async (ctx, { actor, params, query }) => {
      await requireDevice(ctx.commandDb, actor, params.id)
      const binding = ['commands', params.id, query.status ?? null, actor.orgId, actor.siteIds]
      const page = pager(ctx.cursorKey, binding, query)
      const where = withinScope(new Where().and('c.device_id = ?', params.id), actor)
      if (query.status !== undefined) where.and(statusSql[query.status])
      // All of one device are found by one index, whatever the limit: to plan that anew would be two thirds of a page.
      const db = query.status === undefined ? ctx.commandDb : ctx.db
      return { status: 200, json: page.envelope(await newestFirst(db, commandSource, where, page)) }
    },
  }),
  route({
    method: 'GET',
    path: '/commands/:id',
    name: 'getCommand',
    tag,
    summary: 'One command with its result',
    may: 'commands.read',
    params: termParams,
    responses: { 200: Command },
    handle: async (ctx, { actor, params }) => ({
      status: 200,
      json: await findCommand(ctx.commandDb, actor, commandId(params.id)),
    }),
  }),
  route({
    method: 'POST',
    path: '/commands/:id/cancel',
    name: 'cancelCommand',
    tag,
    summary: 'Cancel: at once while pending, by asking the agent once it was sent',
    may: 'commands.write',
    params: termParams,
    body: Type.Object({}),
    bodyOptional: true,
    responses: { 200: Command },
    handle: cancelCommand,
  }),
]

/** Terminals' ids are no commands: answered without a look at the database. */
function commandId(id: string): string {
  if (id.startsWith('term-')) {
    throw new AppError('NOT_FOUND', 'this is a terminal session, not a command')
  }
  if (!isUuid(id)) {
    throw invalid('/id', 'must be a UUID')
  }
  return id.toLowerCase()
}

interface CreateBody {
  action: string
  payload?: Record<string, unknown>
  timeoutSeconds?: number
  expiresInSeconds?: number
}

async function createCommand(
  ctx: Context,
  call: Call<{ id: string }, { wait?: number }, CreateBody>,
) {
  const command = checkedCommand(call)
  if (command.action === 'upgrade_agent') await requireBinary(ctx, call, command)
  const accepted = await ctx.commands.accept(command)
  const { wait } = call.query
  const headers = { Location: `/api/v1/commands/${accepted.id}` }
  if (command.awaited && !accepted.ended) {
    const ending = ctx.commands.ended(accepted.id, wait ?? 0, call.onAbort)
    // What was handed over with the first request tells of that one's hub alone.
    if (!accepted.fresh) await askForEnd(ctx, command.deviceId, accepted.id)
    const row = await ending
    if (row !== undefined) return { status: 202, json: row, headers }
  } else if (accepted.fresh) {
    return { status: 202, json: acceptedJson(command, accepted), headers }
  }
  return { status: 202, json: await findCommand(ctx.commandDb, call.actor, accepted.id), headers }
}

/** Has the hub that holds the device tell this one, too, when the command ends. */
async function askForEnd(ctx: Context, deviceId: string, id: string): Promise<void> {
  ctx.handoffs.wake(await handOver(ctx.commandDb, ctx.nodeId, [{ deviceId, commandId: id }]))
}

function checkedCommand(call: Call<{ id: string }, { wait?: number }, CreateBody>): NewCommand {
  const { actor, body, params } = call
  const action = findAction(body.action)
  if (!can(actor.role, action.may)) throw forbidden(actor.role)
  const payload = body.payload ?? {}
  const wrong = payloadErrors(body.action, payload)
  if (wrong.length > 0) {
    throw refusal(wrong.map(({ path, message }) => ({ path: `/payload${path}`, message })))
  }
  const json = JSON.stringify(payload)
  if (Buffer.byteLength(json) > limits.payloadJsonBytesMax) {
    throw invalid('/payload', `may hold at most ${limits.payloadJsonBytesMax} bytes as JSON`)
  }
  return {
    deviceId: params.id,
    action: body.action,
    payload: json,
    timeoutSeconds: body.timeoutSeconds ?? action.timeoutSeconds,
    expiresInSeconds: body.expiresInSeconds ?? limits.expiresSecondsDefault,
    idempotencyKey: call.header('idempotency-key') || null,
    awaited: (call.query.wait ?? 0) > 0,
    actor,
    ip: call.ip,
    userAgent: call.userAgent,
    requestId: call.requestId,
  }
}

/** Throws NOT_FOUND for the device, AGENT_BINARY_NOT_FOUND where it could not get that version from here. */
async function requireBinary(
  ctx: Context,
  { actor }: Call<{ id: string }, unknown, CreateBody>,
  { deviceId, payload, idempotencyKey }: NewCommand,
): Promise<void> {
  const where = withinScope(new Where().and('d.id = ?', deviceId), actor)
  const [device] = await ctx.commandDb.query<Platform & Record<string, unknown>>(
    `select d.os, d.arch from devices d ${where.text()}`,
    where.values,
  )
  if (device === undefined) throw new AppError('NOT_FOUND', 'there is no such device')
  // Checked against the schema of the action before.
  const { version } = JSON.parse(payload) as { version: string }
  try {
    ctx.releases.require(device, version)
  } catch (error) {
    // A retry gets the first answer, whatever became of the release since.
    if (idempotencyKey === null || !(await wasAccepted(ctx, actor.userId, idempotencyKey))) {
      throw error
    }
  }
}

async function wasAccepted(ctx: Context, userId: string, key: string): Promise<boolean> {
  const rows = await ctx.commandDb.query(
    'select 1 as found from idempotency_keys where user_id = $1 and key = $2',
    [userId, key],
  )
  return rows.length > 0
}

function forbidden(role: string): AppError {
  return new AppError('FORBIDDEN', `your role ${role} may not send this command`)
}

/** The answer to a new command: what was just inserted, so no second statement reads it back. */
function acceptedJson(command: NewCommand, accepted: Accepted): string {
  const { id, createdMs, expiresMs, blockedBy } = accepted
  const { deviceId, action, payload, timeoutSeconds, actor } = command
  return (
    `{"id":"${id}","deviceId":"${deviceId}","action":"${action}","payload":${payload}` +
    `,"status":"pending","result":null,"lateResult":null` +
    `,"createdAt":"${new Date(createdMs).toISOString()}","sentAt":null,"deliveredAt":null` +
    `,"startedAt":null,"completedAt":null,"expiresAt":"${new Date(expiresMs).toISOString()}"` +
    `,"timeoutSeconds":${timeoutSeconds},"attempts":0,"createdBy":"${actor.userId}"` +
    `,"executionId":null,"blockedBy":${JSON.stringify(blockedBy)}}`
  )
}

async function cancelCommand(ctx: Context, call: Call<{ id: string }, undefined, object>) {
  const id = commandId(call.params.id)
  await cancel(ctx, call, id)
  return { status: 200, json: await findCommand(ctx.commandDb, call.actor, id) }
}
