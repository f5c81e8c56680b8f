// The daily work on the schema and on what is only kept for a time: partitions ahead, ended sessions,
// retention. Every step may be repeated or cut short; the next run takes up what is left.
import { sqlState, type Database, type Queryable } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { checkpoint } from './sealing.ts'

export interface Maintained {
  sessions: number
  refreshTokens: number
  alerts: number
  webhookDeliveries: number
  terminals: number
  /** Names of the partitions that retention dropped. */
  dropped: string[]
}

/** Does all of it. `owner` may drop partitions; everything else is the hub's own right. */
export async function maintain(db: Database, owner: Database): Promise<Maintained> {
  await db.query('select make_partitions($1::date, $2)', [
    new Date().toISOString().slice(0, 10),
    limits.partitionMonthsAhead,
  ])
  const sessions = await inBatches(() => db.query(sessionsSql, [limits.sweepBatchMax]))
  const refreshTokens = await inBatches(() => db.query(tokensSql, [limits.sweepBatchMax]))
  const alerts = await inBatches(() =>
    db.query(alertsSql, [limits.sweepBatchMax, limits.resolvedAlertDays]),
  )
  const webhookDeliveries = await inBatches(() =>
    db.query(deliveriesSql, [limits.webhookDeliveryDays, limits.sweepBatchMax]),
  )
  await inBatches(() => db.query(recordingsSql, [limits.sweepBatchMax]))
  const terminals = await inBatches(() => db.query(terminalsSql, [limits.sweepBatchMax]))
  const days = await retentionDays(db)
  const dropped = days === null ? [] : await dropOldPartitions(owner, days)
  if (days !== null) {
    await inBatches(() => db.query(executionsSql, [limits.sweepBatchMax, days]))
    // One by one: each takes up to all devices with it.
    while ((await db.query(rolloutsSql, [days])).length > 0);
  }
  return { sessions, refreshTokens, alerts, webhookDeliveries, terminals, dropped }
}

async function inBatches(batch: () => Promise<unknown[]>): Promise<number> {
  let count = 0
  for (;;) {
    const rows = await batch()
    count += rows.length
    if (rows.length < limits.sweepBatchMax) return count
  }
}

/** Sessions stay a month after their end for whoever asks who was signed in; their tokens go along. */
const sessionsSql = `
delete from sessions where id = any(array(
  select id from sessions
  where ends_at <= now() - interval '30 days' or revoked_at <= now() - interval '30 days'
  limit $1
  for update skip locked
))
returning true as gone`

/** An expired token is refused exactly as one that is not there. */
const tokensSql = `
delete from refresh_tokens where token_hash = any(array(
  select token_hash from refresh_tokens
  where expires_at <= now()
  limit $1
  for update skip locked
))
returning true as gone`

/** Alerts that were resolved as long ago as their organization keeps things. What is open stays. */
const alertsSql = `
delete from alerts where id = any(array(
  select a.id from alerts a left join organizations o on o.id = a.org_id
  where a.resolved_at <= now()
    - make_interval(days => coalesce((o.settings->>'retentionDays')::int, $2))
  order by a.resolved_at
  limit $1
  for update of a skip locked
))
returning true as gone`

/** Ended terminals as old as their organization keeps things; without a wish they stay. $1 rows */
const oldTerminals = `
  select t.id from organizations o join terminals t on t.org_id = o.id
  where o.settings ? 'retentionDays'
    and t.ended_at <= now() - make_interval(days => (o.settings->>'retentionDays')::int)`

/** Their recordings first: a session's may be 64 MiB, too much to go along with many others in one statement. */
const recordingsSql = `
delete from terminal_recordings r using (
  select r.terminal_id, r.seq from (${oldTerminals}) t join terminal_recordings r on r.terminal_id = t.id
  limit $1
) gone
where r.terminal_id = gone.terminal_id and r.seq = gone.seq
returning true as gone`

const terminalsSql = `
delete from terminals where id = any(array(${oldTerminals} limit $1))
returning true as gone`

/** Executions go with their commands, which are as old. $1 rows, $2 days */
const executionsSql = `
delete from executions where id = any(array(
  select id from executions
  where id < uuid7_floor(now() - make_interval(days => $2)) and completed_at is not null
    and completed_at <= now() - make_interval(days => $2)
  order by id limit $1
  for update skip locked
))
returning true as gone`

/** $1 days */
const rolloutsSql = `
delete from rollouts where id = any(array(
  select r.id from rollouts r
  where r.completed_at <= now() - make_interval(days => $1) and not exists (
    select from rollout_devices x
    where x.rollout_id = r.id and x.status in ('pending', 'running'))
  order by r.completed_at limit 1
  for update skip locked
))
returning true as gone`

/** What still waits is never older than a day and some retries. */
const deliveriesSql = `
delete from webhook_deliveries where id = any(array(
  select id from webhook_deliveries
  where id < uuid7_floor(now() - make_interval(days => $1)) and status <> 'pending'
  order by id limit $2
  for update skip locked
))
returning true as gone`

/**
 * Days that rows must be kept: the longest wish of any organization, since they share partitions. Null,
 * which is for ever, while one of them has none.
 */
export async function retentionDays(db: Queryable): Promise<number | null> {
  const [row] = await db.query<{ days: number | null }>(
    `select case when bool_and(settings ? 'retentionDays')
       then max((settings->>'retentionDays')::int) end as days
     from organizations`,
  )
  return row?.days ?? null
}

/**
 * Drops the partitions of commands, events and audit that hold nothing younger than `days`. One with an
 * open command stays, so does one of the audit that is not sealed to its end, and one whose lock is not to be
 * had at once: dropping waits for readers of the table, and writers would wait behind it. Returns the names
 * of those it dropped.
 */
export async function dropOldPartitions(owner: Database, days: number): Promise<string[]> {
  const dropped: string[] = []
  for (const { name } of await owner.query<{ name: string }>(oldPartitionsSql, [days])) {
    if (name.startsWith('commands_') && (await hasOpenCommand(owner, name))) continue
    if (await drop(owner, name)) dropped.push(name)
  }
  return dropped
}

const oldPartitionsSql = `
select name from (
  select c.relname::text as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent in ('commands'::regclass, 'events'::regclass, 'audit'::regclass)
    and c.relname ~ '^(commands|events|audit)_[0-9]{6}$'
) p
where to_date(right(name, 6), 'YYYYMM') + interval '1 month' <= now() - make_interval(days => $1)
order by name`

async function hasOpenCommand(owner: Database, name: string): Promise<boolean> {
  const rows = await owner.query(
    `select true as open from ${name} where completed_at is null limit 1`,
  )
  return rows.length > 0
}

async function drop(owner: Database, name: string): Promise<boolean> {
  try {
    return await owner.transaction(async (tx) => {
      await tx.query(`set local lock_timeout = '500ms'`)
      if (name.startsWith('audit_') && !(await checkpoint(tx, name))) return false
      await tx.query(`drop table ${name}`)
      return true
    })
  } catch (error) {
    if (sqlState(error) === lockNotAvailable) return false
    throw error
  }
}

const lockNotAvailable = '55P03'
