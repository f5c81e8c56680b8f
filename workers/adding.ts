// How a job adds commands to many devices: pieces of the one statement that also marks how far the job is.

/** SQL: whether the device `d` has all the open commands it may have. */
export function queueFullSql(lowestId: string, highestId: string, most: string): string {
  return `(
        select count(*) from (
          select from commands c
          where c.device_id = d.id and c.completed_at is null and c.id >= ${lowestId} and c.id < ${highestId}
          order by c.id limit ${most}
        ) o
      ) >= ${most}`
}

/** Where a device is, as the statements that add commands tell it: on this hub, on another one, or on none. */
export interface Placed {
  here: boolean
  elsewhere: string | null
}

/** The hubs to wake after the commit. */
export function nodesOf(rows: readonly Pick<Placed, 'elsewhere'>[]): string[] {
  return [...new Set(rows.flatMap(({ elsewhere }) => elsewhere ?? []))]
}

interface Adding {
  action: string
  /** SQL of the payload, from a row of `t`. */
  payload: string
  /** SQL of the execution whose script the commands run. */
  executionId: string
  /** What the audit calls `$1`, the job that adds them. */
  source: 'executionId' | 'rolloutId'
}

/**
 * CTEs that add a command, its audit row and its event for each row of `t` whose `skip` is null, and a row for the
 * other hub that holds the device. `t` has the ids of the first three, device_id, device_org, site_id, elsewhere,
 * at, expires_at, timeout_seconds, and who asked for it.
 */
export function addingSql({ action, payload, executionId, source }: Adding): string {
  return `c as (
  insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_by,
    execution_id, created_at, expires_at)
  select id, device_id, device_org, '${action}', ${payload}, timeout_seconds, created_by,
    ${executionId}, at, expires_at
  from t where skip is null
), u as (
  insert into audit (id, org_id, at, actor_type, actor_id, actor_email, action, resource_type,
    resource_id, device_id, result, ip, user_agent, request_id, details)
  select audit_id, device_org, at, 'user', created_by, created_email, 'command.create', 'command',
    id::text, device_id, 'success', ip, user_agent, request_id,
    jsonb_build_object('after', jsonb_build_object('action', '${action}', 'deviceId', device_id,
      '${source}', $1::uuid))
  from t where skip is null
), n as (
  insert into events (id, org_id, type, at, site_id, data)
  select event_id, device_org, 'command.queued', at, site_id,
    jsonb_build_object('commandId', id, 'deviceId', device_id, 'action', '${action}',
      'status', 'pending')
  from t where skip is null
), h as (
  insert into handoffs (node_id, device_id, command_id)
  select elsewhere, device_id, id from t where skip is null and elsewhere is not null
  order by id
)`
}
