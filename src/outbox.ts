// Reading the outbox in its one order, (xid, id), never past a transaction that is still open: what is
// read once is complete up to there. Knows no subscriber.
import type { Role, Scope } from './auth.ts'
import { Where, type Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { eventTypes, mayHear, type EventType } from './events.ts'
import { idFloor, isUuid, newId } from './ids.ts'

/** A place in the order: everything up to it is past. */
export interface Position {
  /** A 64-bit number as text. */
  readonly xid: string
  /** An event's, or one made at the time of a position that is no event's. */
  readonly id: string
}

export interface OutboxEvent extends Position {
  readonly type: EventType
  readonly orgId: string | null
  readonly siteId: string | null
  /** The envelope as JSON text, in one line. */
  readonly text: string
}

/** Who listens; without a role, the hub itself. */
export interface Listener extends Scope {
  readonly role?: Role
}

export interface EventFilter {
  /** Of this organization alone. */
  orgId?: string | undefined
  /** Of these types alone. */
  types?: readonly EventType[] | undefined
}

/** The envelope of an event `e` as JSON text: `{id, type, at, orgId, data}`. */
export const envelopeSql = `(select row_to_json(t)::text from
  (select e.id, e.type, iso(e.at) as at, e.org_id as "orgId", e.data) t)`

/** As one token, for `Last-Event-ID`. */
export function positionText({ xid, id }: Position): string {
  return `${xid}-${id}`
}

/** Reads what `positionText` wrote. Throws INVALID_CURSOR. */
export function positionOf(text: string): Position {
  const [xid = '', ...rest] = text.split('-')
  const id = rest.join('-').toLowerCase()
  // 2^63 has 19 digits; PostgreSQL takes no more than 64 bits.
  if (/^\d{1,19}$/.test(xid) && isUuid(id)) return { xid: String(BigInt(xid)), id }
  throw new AppError('INVALID_CURSOR', notOurs)
}

const notOurs = 'Last-Event-ID is not one that this hub sent; start again without it'

/** Below zero when `a` comes before `b`. */
export function comparePositions(a: Position, b: Position): number {
  if (a.xid.length !== b.xid.length) return a.xid.length - b.xid.length
  if (a.xid !== b.xid) return a.xid < b.xid ? -1 : 1
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0
}

/** True when what the listener may see and the filter let an event through. */
export function shows(scope: Listener, filter: EventFilter, event: OutboxEvent): boolean {
  if (scope.role !== undefined && !mayHear(scope.role, event.type)) return false
  if (scope.orgId !== null && event.orgId !== scope.orgId) return false
  if (filter.orgId !== undefined && event.orgId !== filter.orgId) return false
  if (filter.types !== undefined && !filter.types.includes(event.type)) return false
  if (scope.siteIds === null) return true
  return event.siteId !== null && scope.siteIds.includes(event.siteId)
}

/**
 * Now: what commits from here on comes after it. The id carries the time, by which it is known later
 * whether retention has been here.
 */
export async function currentPosition(db: Queryable): Promise<Position> {
  const [row] = await db.query<{ xid: string }>(
    'select pg_snapshot_xmin(hub_snapshot())::text as xid',
  )
  return { xid: String(BigInt(row?.xid ?? '1') - 1n), id: newId() }
}

/** Throws INVALID_CURSOR for a place that no event has reached, or after which some may have been dropped by retention. */
export async function requireKept(db: Queryable, position: Position): Promise<void> {
  const [row] = await db.query<{ month: string | null; ahead: boolean }>(
    `select min(right(c.relname, 6)) as month, $1::xid8 >= pg_snapshot_xmax(hub_snapshot()) as ahead
     from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'events'::regclass and c.relname ~ '^events_[0-9]{6}$'`,
    [position.xid],
  )
  if (row?.ahead) throw new AppError('INVALID_CURSOR', notOurs)
  const month = row?.month ?? '197001'
  if (position.id >= idFloor(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(4)) - 1)))
    return
  const message = 'events after this Last-Event-ID are no longer kept; start again without it'
  throw new AppError('INVALID_CURSOR', message)
}

export interface OutboxBatch {
  /** What scope and filter let through, in order. */
  events: OutboxEvent[]
  /** Up to where it was read; undefined when there was nothing. */
  last: Position | undefined
  /** Rows looked at, whoever they concern. */
  scanned: number
}

interface OutboxRow extends Record<string, unknown> {
  xid: string
  id: string
  type: EventType
  orgId: string | null
  siteId: string | null
  text: string
  shown: boolean
  scanned: number
}

/** The types that a listener hears of and asked for; undefined: all. */
function typesOf({ role }: Listener, { types }: EventFilter): readonly EventType[] | undefined {
  if (role === undefined) return types
  const heard = (types ?? eventTypes).filter((type) => mayHear(role, type))
  return types === undefined && heard.length === eventTypes.length ? undefined : heard
}

/**
 * Reads up to `limit` rows after a position, and of these what the listener may see. The bound is on rows
 * looked at, so that a filter which matches little never makes a long statement.
 */
export async function readOutbox(
  db: Queryable,
  scope: Listener,
  filter: EventFilter,
  after: Position,
  limit: number,
): Promise<OutboxBatch> {
  const inner = new Where()
  inner.and('(xid, id) > (?::xid8, ?::uuid)', after.xid, after.id)
  inner.and('xid < pg_snapshot_xmin(hub_snapshot())')
  const rowsMax = inner.value(limit)
  const shown = ['true']
  if (scope.orgId !== null) shown.push(`org_id = ${inner.value(scope.orgId)}::uuid`)
  if (filter.orgId !== undefined) shown.push(`org_id = ${inner.value(filter.orgId)}::uuid`)
  const types = typesOf(scope, filter)
  if (types) shown.push(`type = any(${inner.value(types)}::text[])`)
  if (scope.siteIds !== null) shown.push(`site_id = any(${inner.value(scope.siteIds)}::uuid[])`)
  const rows = await db.query<OutboxRow>(
    `with scanned as materialized (
       select * from events ${inner.text()} order by xid, id limit ${rowsMax}
     ), judged as (
       select *, coalesce(${shown.join(' and ')}, false) as shown,
         row_number() over (order by xid, id) as place, count(*) over ()::int as scanned
       from scanned
     )
     select e.xid::text as xid, e.id, e.type, e.org_id as "orgId", e.site_id as "siteId",
       case when e.shown then ${envelopeSql} else '' end as text, e.shown, e.scanned
     from judged e where e.shown or e.place = e.scanned order by e.xid, e.id`,
    inner.values,
  )
  const last = rows.at(-1)
  const position = last && { xid: last.xid, id: last.id }
  return { events: rows.filter((row) => row.shown), last: position, scanned: last?.scanned ?? 0 }
}
