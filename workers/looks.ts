// One look before a round of sweeps. Most rounds find nothing, and to learn that in the sweeps' own transactions would
// be five statements each, several times a second, on every idle hub.
import type { Queryable, Row } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { dueSql, type Uptime } from './absences.ts'
import { failedEndSql } from './failures.ts'
import { upgradeEndSql } from './rollout_statements.ts'

/** What a look found to be done. */
type Found<Work extends string> = Record<Work, boolean>

/** Executions with ends that nobody has looked at, and those whose fan-out stopped. */
export function lookForExecutions(db: Queryable): Promise<Found<'ends' | 'stalled'>> {
  return look(db, executionsLookSql, [limits.executionStallSeconds])
}

/** Ends of upgrades that are not noted, and roll-outs that are due. */
export function lookForRollouts(db: Queryable): Promise<Found<'ends' | 'due'>> {
  return look(db, rolloutsLookSql, [])
}

/** Devices that are back, absences to be judged, and failed ends to be told of. */
export function lookForAlerts(
  db: Queryable,
  uptime: Uptime,
): Promise<Found<'returns' | 'absences' | 'failures'>> {
  const { seconds, graceSeconds } = uptime
  return look(db, alertsLookSql, [1, limits.offlineGraceSecondsDefault, seconds, graceSeconds])
}

async function look<Work extends string>(
  db: Queryable,
  sql: string,
  values: unknown[],
): Promise<Found<Work>> {
  const [found] = await db.query<Row & Found<Work>>(sql, values)
  if (found === undefined) throw new Error('a look has one row')
  return found
}

/** SQL: whether the outbox has such an event behind the cursor, that no open transaction can still precede. */
function isBehind(cursor: string, isWanted: string): string {
  return `exists (
    select from alert_cursors k cross join lateral (
      select from events e
      where ${isWanted} and (e.xid, e.id) > (k.xid, k.id) and e.xid < pg_snapshot_xmin(hub_snapshot())
      order by e.xid, e.id limit 1
    ) e
    where k.name = '${cursor}')`
}

/** $1 seconds without a move */
export const executionsLookSql = `
select exists (select from execution_ends where fresh) as ends,
  exists (
    select from executions
    where fanned_out_at is null and touched_at < now() - make_interval(secs => $1)) as stalled`

export const rolloutsLookSql = `
select ${isBehind('upgrade_ends', upgradeEndSql)} as ends,
  exists (select from rollouts where due_at <= now()) as due`

/**
 * The order of `returns` names its index: of columns that it takes for independent, PostgreSQL expects a match in each
 * few rows, where there is none in the whole table. $1–$4 as in dueSql
 */
export const alertsLookSql = `
select (
    select p.device_id from device_presence p
    where p.offline_alert_id is not null and p.status <> 'offline'
    order by p.device_id limit 1) is not null as returns,
  exists (${dueSql}) as absences,
  ${isBehind('failed_ends', failedEndSql)} as failures`
