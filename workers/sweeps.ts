// What becomes due by the clock alone: commands nobody took or ended in time, and old idempotency keys. One
// batch per call, in one statement with its events; rows that others hold are left for the next sweep.
import type { Queryable, Row } from '../src/db.ts'
import { newEventId, siteSql } from '../src/events.ts'
import { countEndsSql } from '../src/execution_ends.ts'
import { limits } from '../src/limits.ts'
import type { EndedCommand } from '../src/queue.ts'
import { upgradeColumns, upgradeEndsSql } from '../src/upgrades.ts'

/** Ends commands that expired while they waited or were on their way; `days` bounds their age. */
export function endExpired(db: Queryable, days: number): Promise<EndedCommand[]> {
  return db.query<Row & EndedCommand>(expiredSql, [limits.sweepBatchMax, days, actorSeconds])
}

/** Ends commands whose device reported no end in time; `days` bounds their age. */
export function endTimedOut(db: Queryable, days: number): Promise<EndedCommand[]> {
  const values = [limits.sweepBatchMax, days, actorSeconds, limits.timeoutGraceSeconds]
  return db.query<Row & EndedCommand>(timeoutSql, values)
}

/** Frees the keys whose time is over; returns how many. */
export async function forgetIdempotencyKeys(db: Queryable): Promise<number> {
  const rows = await db.query(keysSql, [limits.sweepBatchMax, limits.idempotencyHours])
  return rows.length
}

/** The device's own actor ends a command to the second; after this long it is not going to. */
const actorSeconds = 2 * limits.timeoutGraceSeconds

/** False while the actor of a connected device may still end the command itself. */
function notTheActors(dueAt: string): string {
  return `(${dueAt} <= now() - make_interval(secs => $3) or ${withoutActor('c.device_id')})`
}

/** SQL: whether the device is connected to no hub that lives; one that is offline names no hub. */
export function withoutActor(deviceId: string): string {
  return `coalesce((
      select n.lease_until <= now() from device_presence p join nodes n on n.id = p.node_id
      where p.device_id = ${deviceId}), true)`
}

/** An open command's id is as old as the command, which leaves old partitions alone. */
const recent = 'c.id >= uuid7_floor(now() - make_interval(days => $2))'

// Locked first, then named one by one: joined, a planner that expects many rows reads whole partitions.
function endSql(status: 'expired' | 'timeout', isDue: string, error: string): string {
  return `
with due as materialized (
  select c.id from commands c
  where c.completed_at is null and ${recent} and ${isDue}
  limit $1
  for update of c skip locked
), ended as (
  update commands c set status = '${status}', completed_at = now(),
    result = jsonb_build_object('exitCode', null, 'stdout', '', 'stderr', '', 'truncated', false,
      'error', ${error}, 'durationMs', null)
  where c.id = any(array(select id from due)) and ${recent}
  returning c.id, c.org_id, c.device_id, c.action, c.status, c.execution_id, c.completed_at,
    c.started_at, ${upgradeColumns}
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select ${newEventId}, c.org_id, 'command.' || c.status, now(), d.site_id,
    jsonb_build_object('commandId', c.id, 'deviceId', c.device_id, 'action', c.action,
      'status', c.status)
  from ended c cross join lateral ${siteSql('c.device_id')} d
  union all
  ${upgradeEndsSql('ended')}
), counted as (
  ${countEndsSql('ended')}
)
select device_id as "deviceId", id from ended`
}

/** $1 rows, $2 days, $3 seconds for the actor */
export const expiredSql = endSql(
  'expired',
  `c.status in ('pending', 'sent') and c.expires_at <= now()
    and ${notTheActors('c.expires_at')}`,
  `case c.status when 'sent'
        then 'it was sent, but the device did not confirm it before it expired'
        else 'it expired before the device took it' end`,
)

const since = 'coalesce(c.started_at, c.delivered_at)'
const deadline = `${since} + make_interval(secs => c.timeout_seconds + $4)`

/** $1 rows, $2 days, $3 seconds for the actor, $4 seconds of grace after the agent's own deadline */
export const timeoutSql = endSql(
  'timeout',
  // The first bound, the shortest timeout there is, is the one the index knows.
  `c.status in ('delivered', 'running') and c.delivered_at is not null
    and ${since} <= now() - make_interval(secs => 1 + $4)
    and ${deadline} <= now()
    and ${notTheActors(deadline)}`,
  `format('the device reported no end within %s s', c.timeout_seconds)`,
)

/** $1 rows, $2 hours. By place instead of key: a locked row does not move. */
export const keysSql = `
delete from idempotency_keys where ctid = any(array(
  select ctid from idempotency_keys
  where created_at <= now() - make_interval(hours => $2)
  order by created_at
  limit $1
  for update skip locked
))
returning true as gone`
