// What the hub tells of upgrades of agents: how far an open one is, and the events of its start and its end.
// SQL alone; the rules of an upgrade stand in the actor and in the agent.
import { eventIdSql, newEventId, siteSql } from './events.ts'

/** SQL: of the open commands `c` of a device, the upgrade that comes first, for shownUpgradeSql; an aggregate. */
export const firstUpgradeSql = `(array_agg(
    jsonb_build_object('commandId', c.id, 'version', c.payload->>'version', 'phase',
      case c.status when 'running' then 'starting' else 'pending' end) order by c.id
  ) filter (where c.action = 'upgrade_agent'))[1]`

/**
 * SQL: the upgrade that the device `d` is at or waits for, or null. Its open command (`o.upgrade`) says whether
 * there is one, so that nothing is to be cleared when it ends, however it does; `d.upgrade` keeps what the
 * agent said last, and of which command.
 */
export const shownUpgradeSql = `case
    when o.upgrade->>'phase' = 'starting' and d.upgrade->>'commandId' = o.upgrade->>'commandId'
      then o.upgrade || jsonb_build_object('phase', d.upgrade->>'phase')
    else o.upgrade end`

/**
 * SQL: columns `upgrade` (the version, null where the command `c` is no upgrade) and `reason` (why it did not
 * succeed: the agent's code, else the status), for the CTE that upgradeEndsSql reads.
 */
export const upgradeColumns = `
    case when c.action = 'upgrade_agent' then c.payload->>'version' end as upgrade,
    case when c.action = 'upgrade_agent' and c.status <> 'completed' then ${reasonSql('c')} end
      as reason`

/** SQL: the machine-readable reason of the ended upgrade `c`. */
export function reasonSql(c: string): string {
  return `coalesce(substring(${c}.result->'data'->>'reason' from '^[a-z_]{1,40}$'), ${c}.status)`
}

/**
 * SQL: event rows of the upgrades that ended among the rows of a CTE, which has id, org_id, device_id, status,
 * started_at, completed_at and upgradeColumns. One that never began has nothing to roll back.
 */
export function upgradeEndsSql(ended: string): string {
  return `select ${newEventId}, c.org_id,
    case c.status when 'completed' then 'agent.upgrade.succeeded' else 'agent.upgrade.rolled_back' end,
    c.completed_at, d.site_id, jsonb_strip_nulls(jsonb_build_object('deviceId', c.device_id,
      'commandId', c.id, 'version', c.upgrade, 'reason', c.reason))
  from ${ended} c cross join lateral ${siteSql('c.device_id')} d
  where c.upgrade is not null and c.started_at is not null and c.completed_at is not null`
}

/** SQL: event rows of the upgrades of such a CTE that have just begun: its column `begun` says which. */
export function upgradeStartsSql(changed: string): string {
  // A quick upgrade ends in the statement that tells of its start, which comes first.
  const id = eventIdSql(`clock_timestamp() - interval '1 millisecond'`)
  return `select ${id}, c.org_id, 'agent.upgrade.started', c.started_at, d.site_id,
    jsonb_build_object('deviceId', c.device_id, 'commandId', c.id, 'version', c.upgrade)
  from ${changed} c cross join lateral ${siteSql('c.device_id')} d
  where c.upgrade is not null and c.begun`
}
