// The large statements of roll-outs: a batch of commands, the ends of upgrades, and commands taken back.
import { isOpenSql } from '../src/command_row.ts'
import { newEventId } from '../src/events.ts'
import { devicesSql, elsewhereSql } from '../src/handoff_sql.ts'
import { addingSql, queueFullSql } from './adding.ts'
import { withoutActor } from './sweeps.ts'

/**
 * Adds the commands of a batch and marks its devices, each of which is pending; the caller holds the
 * roll-out's row. Who needs no command by now is skipped.
 * $1 roll-out, $2 device ids in order, $3 command ids, $4 audit ids, $5 event ids, $6 now in ms, $7 and $8
 * bounds of ids of open commands, $9 open commands per device, $10 the first command id, $11 this hub
 */
export const addBatchSql = `
with r as materialized (
  select * from rollouts where id = $1
), i as (
  select i.*, r.version, r.platforms, r.timeout_seconds, r.created_by, r.created_email, r.ip,
    r.user_agent, r.request_id, to_timestamp($6::float8 / 1000) as at,
    to_timestamp($6::float8 / 1000) + make_interval(secs => r.expires_in_seconds) as expires_at
  from r, unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[])
    as i(device_id, id, audit_id, event_id)
), ${devicesSql({
  ids: '$2::uuid[]',
  node: '$11::uuid',
  more: ['os', 'arch', 'agent_version'],
})}, t as (
  select i.*, d.org_id as device_org, d.site_id, d.here, d.elsewhere,
    case when d.id is null or d.gone then 'decommissioned'
      when d.agent_version = i.version then 'already_installed'
      when d.os || '/' || d.arch <> all(i.platforms) then 'no_binary'
      when d.suspended then 'suspended'
      when ${queueFullSql('$7', '$8', '$9')} then 'queue_full'
    end as skip
  from i left join d on d.id = i.device_id
), ${addingSql({
  action: 'upgrade_agent',
  payload: `jsonb_build_object('version', version)`,
  executionId: 'null',
  source: 'rolloutId',
})}, marked as (
  update rollout_devices x set status = case when t.skip is null then 'running' else 'skipped' end,
    reason = t.skip, command_id = case when t.skip is null then t.id end, withdrawn_at = null,
    ended_at = case when t.skip is not null then t.at end
  from t
  where x.rollout_id = $1 and x.device_id = t.device_id and x.device_id = any($2::uuid[])
    and x.status = 'pending'
  returning x.group_number, x.status
), counted as (
  update rollout_groups g set running = g.running + m.running, skipped = g.skipped + m.skipped
  from (
    select group_number, count(*) filter (where status = 'running') as running,
      count(*) filter (where status = 'skipped') as skipped
    from marked group by group_number
  ) m
  where g.rollout_id = $1 and g.number = m.group_number
), moved as (
  update rollouts set batch_floor = least(batch_floor, $10::uuid) where id = $1
)
select t.device_id as "deviceId", t.id, t.here, t.elsewhere, jsonb_build_object('version', version)::text as payload,
  t.timeout_seconds as "timeoutSeconds", $6::float8 as "createdMs",
  floor(extract(epoch from t.expires_at) * 1000)::float8 as "expiresMs"
from t where t.skip is null order by t.device_id`

/** SQL: the event `e` tells of the end of an upgrade. */
export const upgradeEndSql = `e.type in ('command.completed', 'command.failed', 'command.timeout', 'command.expired',
    'command.cancelled') and e.data->>'action' = 'upgrade_agent'`

/** $1 and $2 after which event, $3 rows. Only what no open transaction can still precede. */
export const upgradeEndsSql = `
select e.xid::text as xid, e.id as "eventId", e.data->>'commandId' as "commandId",
  e.data->>'status' as status
from events e
where ${upgradeEndSql} and (e.xid, e.id) > ($1::xid8, $2::uuid)
  and e.xid < pg_snapshot_xmin(hub_snapshot())
order by e.xid, e.id
limit $3`

/** Locks the roll-outs of these commands, in order: whoever changes devices of one holds its row. $1 ids */
export const lockEndedSql = `
select r.id from rollouts r
where r.id in (select rollout_id from rollout_devices where command_id = any($1::uuid[]))
order by r.id
for update`

/**
 * Ends devices with their commands. One whose command was taken back waits for the next, unless the
 * roll-out was aborted. $1 command ids, $2 statuses
 */
export const endDevicesSql = `
with i as materialized (
  select i.command_id, i.status, x.status = 'running' as open,
    i.status = 'cancelled' and x.withdrawn_at is not null and r.status <> 'aborted' as waits
  from unnest($1::uuid[], $2::text[]) as i(command_id, status)
  join rollout_devices x on x.command_id = i.command_id and x.command_id = any($1::uuid[])
  join rollouts r on r.id = x.rollout_id
), ended as (
  update rollout_devices x set status = case when i.waits then 'pending' else i.status end,
    command_id = case when not i.waits then x.command_id end,
    ended_at = case when not i.waits then now() end
  from i where x.command_id = i.command_id and x.command_id = any($1::uuid[]) and i.open
  returning x.rollout_id, x.group_number, x.status
), counted as (
  update rollout_groups g set running = g.running - e.ends, completed = g.completed + e.completed,
    failed = g.failed + e.failed, timeout = g.timeout + e.timeout, expired = g.expired + e.expired,
    cancelled = g.cancelled + e.cancelled
  from (
    select rollout_id, group_number, count(*) as ends,
      count(*) filter (where status = 'completed') as completed,
      count(*) filter (where status = 'failed') as failed,
      count(*) filter (where status = 'timeout') as timeout,
      count(*) filter (where status = 'expired') as expired,
      count(*) filter (where status = 'cancelled') as cancelled
    from ended group by rollout_id, group_number
  ) e
  where g.rollout_id = e.rollout_id and g.number = e.group_number
)
update rollouts r set due_at = now() where r.id in (select rollout_id from ended)`

/** Devices of an aborted roll-out that have no command are free at once. $1 roll-out, $2 rows */
export const cancelPendingSql = `
with cancelled as (
  update rollout_devices set status = 'cancelled', ended_at = now()
  where rollout_id = $1 and status = 'pending' and device_id = any(array(
    select device_id from rollout_devices
    where rollout_id = $1 and status = 'pending'
    order by group_number, device_id limit $2))
  returning group_number
), counted as (
  update rollout_groups g set cancelled = g.cancelled + c.count
  from (select group_number, count(*) as count from cancelled group by group_number) c
  where g.rollout_id = $1 and g.number = c.group_number
)
select true as done from cancelled`

/**
 * Asks for commands back that their devices have not confirmed. Those that nobody holds, or whose actor did
 * not do it when asked before, are cancelled here; the actors of the others are to be asked.
 * $1 roll-out, $2 rows, $3 seconds until an actor is asked again, $4 this hub
 */
export const withdrawSql = `
with m as materialized (
  select x.group_number, x.device_id, x.command_id,
    c.status = 'pending' and (x.withdrawn_at is not null or ${withoutActor('x.device_id')}) as ends
  from rollout_devices x cross join lateral (
    select c.status from commands c
    where c.id = x.command_id and ${isOpenSql}
      and c.status in ('pending', 'sent')
    for update skip locked
  ) c
  where x.rollout_id = $1 and x.status = 'running'
    and (x.withdrawn_at is null or x.withdrawn_at <= now() - make_interval(secs => $3))
  order by x.group_number, x.device_id
  limit $2
), marked as (
  update rollout_devices x set withdrawn_at = now()
  from m where x.command_id = m.command_id and x.command_id = any(array(select command_id from m))
), asked as (
  update commands c set cancel_requested_at = coalesce(c.cancel_requested_at, now()),
    status = case when m.ends then 'cancelled' else c.status end,
    completed_at = case when m.ends then now() end,
    result = case when m.ends then jsonb_build_object('exitCode', null, 'stdout', '', 'stderr', '',
      'truncated', false, 'error', 'its roll-out took it back before the device confirmed it',
      'durationMs', null) end
  from m where c.id = m.command_id and c.id = any(array(select command_id from m))
  returning c.id, c.org_id, c.device_id, c.completed_at is not null as ended
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select ${newEventId}, a.org_id, 'command.cancelled', now(), d.site_id,
    jsonb_build_object('commandId', a.id, 'deviceId', a.device_id, 'action', 'upgrade_agent',
      'status', 'cancelled')
  from asked a join devices d on d.id = a.device_id
  where a.ended and d.id = any(array(select device_id from m))
), there as (
  select a.id, a.device_id, ${elsewhereSql('$4::uuid')} as elsewhere
  from asked a join device_presence p on p.device_id = a.device_id
  where p.device_id = any(array(select device_id from m))
), handed as (
  insert into handoffs (node_id, device_id, command_id)
  select elsewhere, device_id, id from there where elsewhere is not null
)
select a.device_id as "deviceId", a.id, a.ended, t.elsewhere
from asked a left join there t on t.id = a.id`
