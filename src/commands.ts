// Accepting commands: group commit of command, audit row, event and idempotency key in one statement, and
// the waiting for ends. What a command is stands in `actions.ts`; what becomes of it, in the actor.
import type { Actor } from './auth.ts'
import { sha256 } from './auth.ts'
import { Batcher } from './batch.ts'
import { plainArray, textArray, type Database } from './db.ts'
import { AppError } from './errors.ts'
import { devicesSql } from './handoff_sql.ts'
import { idFloor, newId } from './ids.ts'
import { limits } from './limits.ts'
import { isConcurrent } from './protocol.ts'
import type { Shards } from './shards.ts'

export interface NewCommand {
  deviceId: string
  action: string
  /** JSON text of an object. */
  payload: string
  timeoutSeconds: number
  expiresInSeconds: number
  idempotencyKey: string | null
  /** The caller waits for the end. */
  awaited: boolean
  actor: Actor
  ip: string
  userAgent: string | null
  requestId: string
}

/** What a commit says of one command. */
export interface Accepted {
  id: string
  /** False: the Idempotency-Key had accepted it before, and `id` is that first command. */
  fresh: boolean
  /** Only of a first command that was found: it has ended, nothing is to be waited for. */
  ended: boolean
  createdMs: number
  expiresMs: number
  blockedBy: { reason: 'offline' | 'busy' | 'suspended'; commandId?: string } | null
}

interface Waiting {
  command: NewCommand
  id: string
  bodyHash: string | null
  createdMs: number
  resolve: (accepted: Accepted) => void
  reject: (error: unknown) => void
}

type Waker = (row?: string) => void

interface AcceptRow extends Record<string, unknown> {
  n: number
  gone: boolean
  open: number
  first: string | null
  accepted: boolean
  status: string
  suspended: boolean
  /** The device is connected to this hub. */
  here: boolean
  /** The other hub that it was handed to. */
  elsewhere: string | null
}

export interface CommandsOptions {
  nodeId: string
  db: Database
  shards: Shards
  /** Commands were handed to these hubs, and committed. */
  onHanded: (nodes: Iterable<string>) => void
  onAccepted: (count: number) => void
}

export class Commands {
  private readonly batcher: Batcher<Waiting>
  private readonly waiters = new Map<string, Set<Waker>>()
  private waiterCount = 0
  private released = false
  private readonly options: CommandsOptions

  constructor(options: CommandsOptions) {
    this.options = options
    this.batcher = new Batcher<Waiting>({
      rowsMax: limits.commandBatchMax,
      bytesMax: limits.commandBatchBytesMax,
      bytesOf: ({ command }) => command.payload.length,
      queueMax: limits.commandQueueMax,
      inFlight: limits.commandBatchesInFlight,
      write: (items) => this.commit(items),
    })
    options.shards.onEnded((ids, rows) => {
      for (const id of ids) for (const wake of this.waiters.get(id) ?? []) wake(rows.get(id))
    })
  }

  get queued(): number {
    return this.batcher.queued
  }

  /**
   * Resolves once the command is committed, told to its actor and answered for. Throws NOT_FOUND,
   * DEVICE_DECOMMISSIONED, QUEUE_FULL, IDEMPOTENCY_KEY_REUSED, UNAVAILABLE, OVERLOADED.
   */
  accept(command: NewCommand): Promise<Accepted> {
    const bodyHash =
      command.idempotencyKey === null ? null : sha256(sameBody(command)).toString('hex')
    return new Promise((resolve, reject) => {
      const createdMs = Date.now()
      const id = newId(createdMs)
      const pushed = this.batcher.push({ command, id, bodyHash, createdMs, resolve, reject })
      if (pushed) return
      reject(new AppError('OVERLOADED', 'too many commands wait', { retryAfterSeconds: 1 }))
    })
  }

  /**
   * Resolves when the command has ended on this hub, the time is over, or the caller has gone; with the
   * ended command as JSON text when the end brought it along.
   */
  async ended(
    id: string,
    seconds: number,
    onAbort: (gone: () => void) => void,
  ): Promise<string | undefined> {
    if (this.released || this.waiterCount >= limits.waitersMax) return undefined
    this.waiterCount++
    const wakers = this.waiters.get(id) ?? new Set()
    this.waiters.set(id, wakers)
    const row = await new Promise<string | undefined>((resolve) => {
      const wake: Waker = (text) => {
        clearTimeout(timer)
        // Others may wait for the same command, and longer.
        wakers.delete(wake)
        if (wakers.size === 0 && this.waiters.get(id) === wakers) this.waiters.delete(id)
        resolve(text)
      }
      const timer = setTimeout(() => wake(), seconds * 1000)
      wakers.add(wake)
      onAbort(() => wake())
    })
    this.waiterCount--
    return row
  }

  /** What requests wait for, the longest first, as many as one statement may look for. */
  awaited(): string[] {
    return Array.from(this.waiters.keys()).slice(0, limits.waitersReadMax)
  }

  /** Answers everyone who waits with what there is: the hub goes down. */
  release(): void {
    this.released = true
    for (const wakers of this.waiters.values()) for (const wake of wakers) wake()
  }

  async drained(): Promise<void> {
    await this.batcher.drained()
  }

  private async commit(items: Waiting[]): Promise<void> {
    try {
      const { db, nodeId, onHanded } = this.options
      const rows = await db.query<AcceptRow>(acceptSql, acceptValues(items, nodeId))
      const byNumber = new Map(rows.map((row) => [row.n, row]))
      let count = 0
      const repeats: Waiting[] = []
      const handed = new Set<string>()
      for (const [n, item] of items.entries()) {
        const row = byNumber.get(n)
        if (row?.accepted) {
          count++
          // Whoever claims a device that nobody holds reads its queue then.
          if (row.here) this.tell(item)
          else if (row.elsewhere !== null) handed.add(row.elsewhere)
          item.resolve(acceptedOf(item, row))
        } else if (item.bodyHash !== null) {
          repeats.push(item)
        } else {
          item.reject(refusalOf(row))
        }
      }
      if (handed.size > 0) onHanded(handed)
      this.options.onAccepted(count)
      if (repeats.length > 0) await this.answerRepeats(repeats, byNumber, items)
    } catch (error) {
      // The statement is one: when it failed, nobody's row is there. What one row spoiled must not
      // reach the callers of the others.
      if (items.length === 1 || error instanceof AppError) {
        if (isInDoubt(error)) this.doubt(items)
        for (const item of items) item.reject(error)
        return
      }
      const middle = items.length >> 1
      await this.commit(items.slice(0, middle))
      await this.commit(items.slice(middle))
    }
  }

  /** Callers whose key was taken: the first command, or a clear refusal. */
  private async answerRepeats(
    repeats: Waiting[],
    byNumber: Map<number, AcceptRow>,
    items: Waiting[],
  ): Promise<void> {
    const rows = await this.options.db.query<{
      n: number
      same: boolean
      ended: boolean
      id: string
      createdMs: number
      expiresMs: number
    }>(repeatsSql, [
      plainArray(repeats.map((_, n) => n)),
      plainArray(repeats.map((item) => item.command.actor.userId)),
      textArray(repeats.map((item) => item.command.idempotencyKey)),
      textArray(repeats.map((item) => item.bodyHash)),
    ])
    const found = new Map(rows.map((row) => [row.n, row]))
    for (const [n, item] of repeats.entries()) {
      const first = found.get(n)
      if (first === undefined) {
        item.reject(refusalOf(byNumber.get(items.indexOf(item))))
      } else if (first.same) {
        const { id, ended, createdMs, expiresMs } = first
        // Whoever accepted it may not have lived to tell.
        if (!ended) this.options.shards.check(item.command.deviceId, id)
        item.resolve({ id, fresh: false, ended, createdMs, expiresMs, blockedBy: null })
      } else {
        item.reject(
          new AppError(
            'IDEMPOTENCY_KEY_REUSED',
            'this Idempotency-Key was used for another command in the last 24 hours; take a new one',
          ),
        )
      }
    }
  }

  /**
   * The answer was lost, which says nothing of the commit: the devices' actors look, now and once more when a
   * statement that was given up has run at the latest. Their callers repeat under an Idempotency-Key, or ask.
   */
  private doubt(items: readonly Waiting[]): void {
    const look = () => {
      for (const { command, id } of items) this.options.shards.check(command.deviceId, id)
    }
    look()
    setTimeout(look, limits.doubtMs).unref()
  }

  private tell({ command, id, createdMs }: Waiting): void {
    this.options.shards.tellCommand(command.deviceId, {
      id,
      action: command.action,
      payload: command.payload,
      timeoutSeconds: command.timeoutSeconds,
      createdMs,
      expiresMs: createdMs + command.expiresInSeconds * 1000,
      concurrent: isConcurrent(command.action),
      awaited: command.awaited,
      executionId: null,
    })
  }
}

/** What must be the same for a repeat to be one; the device too, since it is in the path. */
function sameBody({ deviceId, action, payload, timeoutSeconds, expiresInSeconds }: NewCommand) {
  return JSON.stringify([deviceId, action, payload, timeoutSeconds, expiresInSeconds])
}

function acceptedOf(item: Waiting, row: AcceptRow): Accepted {
  const { id, createdMs, command } = item
  const ahead = row.open > 0 && row.first !== null && !isConcurrent(command.action)
  const blockedBy = row.suspended
    ? ({ reason: 'suspended' } as const)
    : row.status !== 'online'
      ? ({ reason: 'offline' } as const)
      : ahead
        ? { reason: 'busy' as const, commandId: row.first as string }
        : null
  const expiresMs = createdMs + command.expiresInSeconds * 1000
  return { id, fresh: true, ended: false, createdMs, expiresMs, blockedBy }
}

/** False where the statement was not even begun. */
function isInDoubt(error: unknown): boolean {
  return error instanceof AppError && error.code === 'UNAVAILABLE'
}

function refusalOf(row: AcceptRow | undefined): AppError {
  if (row === undefined) return new AppError('NOT_FOUND', 'there is no such device')
  if (row.gone) {
    return new AppError(
      'DEVICE_DECOMMISSIONED',
      'the device is decommissioned; it takes no commands',
    )
  }
  return new AppError(
    'QUEUE_FULL',
    `${limits.openCommandsMax} commands of this device are open; cancel some or wait`,
  )
}

function acceptValues(items: readonly Waiting[], nodeId: string): unknown[] {
  // Where a command stands among those of its device in this very batch: the count of open ones in
  // PostgreSQL does not see its neighbours.
  const seen = new Map<string, number>()
  const places = items.map(({ command }) => {
    const place = seen.get(command.deviceId) ?? 0
    seen.set(command.deviceId, place + 1)
    return place
  })
  const commands = items.map((item) => item.command)
  return [
    plainArray(items.map((item) => item.id)),
    plainArray(commands.map((command) => command.deviceId)),
    plainArray(commands.map((command) => command.actor.orgId)),
    textArray(commands.map(({ actor }) => actor.siteIds && plainArray(actor.siteIds))),
    textArray(commands.map((command) => command.action)),
    textArray(commands.map((command) => command.payload)),
    plainArray(commands.map((command) => command.timeoutSeconds)),
    plainArray(commands.map((command) => command.expiresInSeconds)),
    plainArray(items.map((item) => item.createdMs)),
    plainArray(commands.map((command) => command.actor.userId)),
    textArray(commands.map((command) => command.actor.email)),
    textArray(commands.map((command) => command.ip)),
    textArray(commands.map((command) => command.userAgent)),
    textArray(commands.map((command) => command.requestId)),
    textArray(commands.map((command) => command.idempotencyKey)),
    textArray(items.map((item) => item.bodyHash)),
    plainArray(places),
    plainArray(items.map(() => newId())),
    plainArray(items.map(() => newId())),
    idFloor(Date.now() - limits.openCommandDaysMax * 86_400_000),
    // Past what any hub's clock calls now.
    idFloor(Date.now() + 3_600_000),
    limits.openCommandsMax,
    plainArray(commands.map((command) => command.awaited)),
    nodeId,
  ]
}

/**
 * Accepts many commands at once. A device that is missing or out of the caller's scope yields no row.
 * A command for another hub comes with a row for it. Both bounds of the count matter: without the upper one every
 * partition made for months to come is looked into.
 */
export const acceptSql = `
with i as (
  select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[],
    $7::int[], $8::int[], $9::float8[], $10::uuid[], $11::text[], $12::text[], $13::text[],
    $14::text[], $15::text[], $16::text[], $17::int[], $18::uuid[], $19::uuid[], $23::boolean[])
    with ordinality as i(id, device_id, org_id, site_ids, action, payload, timeout_seconds,
      expires_in, created_ms, user_id, email, ip, user_agent, request_id, key, body_hash, place,
      audit_id, event_id, awaited, n)
), ${devicesSql({ ids: '$2::uuid[]', node: '$24::uuid' })}, t as (
  select i.*, d.org_id as device_org, d.site_id, d.gone, d.status, d.suspended, d.here, d.elsewhere, q.open, q.first,
    to_timestamp(i.created_ms / 1000) as at,
    not d.gone and q.open + i.place < $22 as takes
  from i join d on d.id = i.device_id
    and (i.org_id is null or d.org_id = i.org_id)
    and (i.site_ids is null or d.site_id = any(i.site_ids::uuid[]))
  cross join lateral (
    select count(*)::int as open, (array_agg(o.id))[1] as first from (
      select c.id from commands c
      where c.device_id = i.device_id and c.completed_at is null and c.id >= $20 and c.id < $21
      order by c.id limit $22
    ) o
  ) q
), k as (
  insert into idempotency_keys (user_id, key, body_hash, command_id)
  select user_id, key, decode(body_hash, 'hex'), id from t where key is not null and takes
  order by user_id, key
  on conflict do nothing
  returning command_id
), a as (
  select t.*, takes and (key is null or id in (select command_id from k)) as accepted from t
), c as (
  insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_by,
    created_at, expires_at)
  select id, device_id, device_org, action, payload::jsonb, timeout_seconds, user_id, at,
    at + make_interval(secs => expires_in)
  from a where accepted
), u as (
  insert into audit (id, org_id, at, actor_type, actor_id, actor_email, action, resource_type,
    resource_id, device_id, result, ip, user_agent, request_id, details)
  select audit_id, device_org, at, 'user', user_id, email, 'command.create', 'command', id::text,
    device_id, 'success', ip, user_agent, request_id,
    jsonb_build_object('after', jsonb_build_object('action', action, 'deviceId', device_id)
      || case action when 'upgrade_agent' then payload::jsonb else '{}' end)
  from a where accepted
), e as (
  insert into events (id, org_id, type, at, site_id, data)
  select event_id, device_org, 'command.queued', at, site_id,
    jsonb_build_object('commandId', id, 'deviceId', device_id, 'action', action,
      'status', 'pending')
  from a where accepted
), h as (
  insert into handoffs (node_id, device_id, command_id, origin)
  select elsewhere, device_id, id, case when awaited then $24::uuid end
  from a where accepted and elsewhere is not null
  order by id
)
select (n - 1)::int as n, gone, open + place as open, first, accepted, status, suspended, here,
  elsewhere
from a`

export const repeatsSql = `
select i.n, k.body_hash = decode(i.body_hash, 'hex') as same, k.command_id as id,
  c.completed_at is not null as ended,
  floor(extract(epoch from c.created_at) * 1000)::float8 as "createdMs",
  floor(extract(epoch from c.expires_at) * 1000)::float8 as "expiresMs"
from unnest($1::int[], $2::uuid[], $3::text[], $4::text[]) as i(n, user_id, key, body_hash)
join idempotency_keys k on k.user_id = i.user_id and k.key = i.key
join commands c on c.id = k.command_id`
