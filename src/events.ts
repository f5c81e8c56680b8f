// The outbox: what happened, written in the transaction of the change and read by SSE, webhooks and
// alerts afterwards. Rows are only ever added; retention drops them by partition.
import { can, type Operation, type Role } from './auth.ts'
import { jsonText } from './clean.ts'
import { plainArray, textArray, type Queryable } from './db.ts'
import { newId } from './ids.ts'

export const eventTypes = [
  'device.enrolled',
  'device.online',
  'device.offline',
  'device.updated',
  'device.decommissioned',
  'command.queued',
  'command.completed',
  'command.failed',
  'command.timeout',
  'command.expired',
  'command.cancelled',
  'script.started',
  'script.completed',
  'alert.triggered',
  'alert.acknowledged',
  'alert.resolved',
  'agent.upgrade.started',
  'agent.upgrade.succeeded',
  'agent.upgrade.rolled_back',
  'terminal.started',
  'terminal.ended',
  'user.invited',
  'user.login',
  'user.login_failed',
  'audit.exported',
] as const

/** SQL: a new id. The order of events is by transaction first, so random bits suffice behind the time. */
export const newEventId = eventIdSql('clock_timestamp()')

/** SQL: an id of this time, for an event that comes before others of its statement. */
export function eventIdSql(at: string): string {
  return `overlay(overlay(gen_random_uuid()::text
    placing left(uuid7_floor(${at})::text, 13) from 1) placing '7' from 15)::uuid`
}

/** SQL: the row of a device with its `site_id`, looked up by itself, for a lateral join. */
export function siteSql(deviceId: string): string {
  return `(select site_id from devices where id = ${deviceId} offset 0)`
}

export type EventType = (typeof eventTypes)[number]

/** Events about people and their work: for those who may read it otherwise. */
const needs: Partial<Record<EventType, Operation>> = {
  'user.invited': 'users.read',
  'user.login': 'users.read',
  'user.login_failed': 'users.read',
  'audit.exported': 'audit.read',
}

/** Whether a role hears of events of this type. */
export function mayHear(role: Role, type: EventType): boolean {
  const operation = needs[type]
  return operation === undefined || can(role, operation)
}

export interface NewEvent {
  /** Null: only the platform's subscribers see it. */
  readonly orgId: string | null
  /** The site of the device it is about: subscribers narrowed to other sites don't see it. */
  readonly siteId?: string | null
  readonly type: EventType
  /** Never a secret: it leaves the hub by webhook. */
  readonly data: Readonly<Record<string, unknown>>
}

/** Adds events in the caller's transaction, all with the same time. */
export async function insertEvents(tx: Queryable, events: readonly NewEvent[]): Promise<void> {
  if (events.length > 0) await tx.query(`insert into events ${eventRows(1)}`, eventValues(events))
}

/**
 * Column list and select of an event insert whose first placeholder is `$first`, for statements that
 * write events beside other rows. Its values are `eventValues`.
 */
export function eventRows(first: number): string {
  const arrays = ['uuid', 'uuid', 'text', 'timestamptz', 'uuid', 'jsonb']
    .map((type, index) => `$${first + index}::${type}[]`)
    .join(', ')
  return `(id, org_id, type, at, site_id, data) select * from unnest(${arrays})`
}

/** The values of `eventRows`, one array literal per column. */
export function eventValues(events: readonly NewEvent[], atMs = Date.now()): string[] {
  const at = new Date(atMs).toISOString()
  return [
    plainArray(events.map(() => newId())),
    plainArray(events.map((event) => event.orgId)),
    plainArray(events.map((event) => event.type)),
    plainArray(events.map(() => at)),
    plainArray(events.map((event) => event.siteId ?? null)),
    textArray(events.map((event) => jsonText(event.data))),
  ]
}
