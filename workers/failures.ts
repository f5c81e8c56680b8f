// Failed ends of commands as alerts. Read from the outbox, so that it is all the same who ended a command,
// a shard or a sweep; the place is kept in the transaction that raises, so each counts once.
import { raiseAlerts, type AlertKind, type NewAlert } from '../src/alerts.ts'
import type { Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { reasonSql } from '../src/upgrades.ts'
import { takeTurn } from './turns.ts'

interface FailedEnd extends Record<string, unknown> {
  xid: string
  eventId: string
  orgId: string
  deviceId: string
  commandId: string
  action: string
  status: 'failed' | 'timeout'
  executionId: string | null
  exitCode: number | null
  /** Of an upgrade: the code that says why. */
  reason: string | null
  /** Of an upgrade: the version that was asked for. */
  version: string | null
  hostname: string
}

interface Cursor extends Record<string, unknown> {
  xid: string
  id: string
}

/** Raises what failed since the last time; returns how many ends it read, at most a batch. */
export function raiseFailures(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    if (!(await takeTurn(tx, 'failures'))) return 0
    const [cursor] = await tx.query<Cursor>(cursorSql)
    if (!cursor) return 0
    const ends = await tx.query<FailedEnd>(failedEndsSql, [
      cursor.xid,
      cursor.id,
      limits.alertBatchMax,
    ])
    const last = ends.at(-1)
    if (!last) return 0
    await raiseAlerts(tx, ends.map(alertOf))
    await tx.query(`update alert_cursors set xid = $1::xid8, id = $2 where name = 'failed_ends'`, [
      last.xid,
      last.eventId,
    ])
    return ends.length
  })
}

function alertOf(end: FailedEnd): NewAlert {
  const { orgId, deviceId, commandId, action, status, executionId, exitCode, hostname } = end
  const { reason, version } = end
  const kind = kindOf(end)
  const what = kind === 'script_failed' ? 'A script' : action
  const how = status === 'timeout' ? 'did not end in time' : 'failed'
  const code = exitCode === null ? '' : ` with exit code ${exitCode}`
  const why = reason === null ? '' : `: ${reason}`
  const to = version === null ? '' : ` to ${version}`
  return {
    kind,
    severity: kind === 'upgrade_failed' ? 'high' : 'medium',
    title: `${what} ${how} on ${hostname}${why}`,
    // Not what the command said: that may hold what only its readers should see.
    message: `${what}${to} ${how}${code} on ${hostname}${why}; command ${commandId} has its output.`,
    context: {
      commandId,
      action,
      status,
      exitCode,
      executionId,
      ...(reason === null ? {} : { reason }),
      ...(version === null ? {} : { version }),
    },
    // One for a device and what it was to do: a job that fails each night counts up.
    dedupeKey: kind === 'command_failed' ? `${kind}:${deviceId}:${action}` : `${kind}:${deviceId}`,
    deviceId,
    orgId,
  }
}

function kindOf({ action, executionId }: FailedEnd): AlertKind {
  if (action === 'upgrade_agent') return 'upgrade_failed'
  return executionId === null ? 'command_failed' : 'script_failed'
}

const cursorSql = `
select xid::text as xid, id
from alert_cursors where name = 'failed_ends'`

/** SQL: the event `e` tells of a failed end. */
export const failedEndSql = `e.type in ('command.failed', 'command.timeout')`

/** $1 and $2 after which event, $3 rows. Only what no open transaction can still precede. */
export const failedEndsSql = `
select e.xid::text as xid, e.id as "eventId", e.org_id as "orgId", d.id as "deviceId",
  e.data->>'commandId' as "commandId", e.data->>'action' as action, e.data->>'status' as status,
  c.execution_id as "executionId", (c.result->>'exitCode')::float8 as "exitCode",
  case when c.action = 'upgrade_agent' then ${reasonSql('c')} end as reason,
  case when c.action = 'upgrade_agent' then c.payload->>'version' end as version, d.hostname
from (
  select e.* from events e
  where ${failedEndSql} and (e.xid, e.id) > ($1::xid8, $2::uuid)
    and e.xid < pg_snapshot_xmin(hub_snapshot())
  order by e.xid, e.id
  limit $3
) e
join devices d on d.id = (e.data->>'deviceId')::uuid
left join commands c on c.id = (e.data->>'commandId')::uuid
order by e.xid, e.id`
