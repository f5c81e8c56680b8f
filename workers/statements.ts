// The statements of the write-behind store: many rows each, epochs checked inside, events beside the
// change they tell of. PostgreSQL 15 and newer. Plans are made once, for ten rows in tables of any size: a join alone
// may read a whole table, as suits it while it is empty, one with `= any(…)` beside it sorts that array again for
// each row, and one of two CTEs may compare every row with every other. So what is read for each row is a lateral
// look-up behind `offset 0`, CTEs carry along what comes after them needs, and `= any(…)` stands where rows are few.
import { commandColumns, isOpenSql } from '../src/command_row.ts'
import { countEndsSql } from '../src/execution_ends.ts'
import { siteSql } from '../src/events.ts'
import { elsewhereSql } from '../src/handoff_sql.ts'
import { upgradeColumns, upgradeEndsSql, upgradeStartsSql } from '../src/upgrades.ts'

/** A command as the claim finds it in PostgreSQL; times in ms since 1970. */
export interface StoredCommand {
  id: string
  action: string
  payload: string
  status: 'pending' | 'sent' | 'delivered' | 'running'
  attempts: number
  timeoutSeconds: number
  createdMs: number
  expiresMs: number
  deliveredMs: number | null
  startedMs: number | null
  cancelRequested: boolean
  executionId: string | null
}

// The same in SQL; `o` is the row.
const storedCommand = `json_build_object(
    'id', o.id, 'action', o.action, 'payload', o.payload::text, 'status', o.status,
    'attempts', o.attempts, 'timeoutSeconds', o.timeout_seconds,
    'createdMs', floor(extract(epoch from o.created_at) * 1000),
    'expiresMs', floor(extract(epoch from o.expires_at) * 1000),
    'deliveredMs', floor(extract(epoch from o.delivered_at) * 1000),
    'startedMs', floor(extract(epoch from o.started_at) * 1000),
    'cancelRequested', o.cancel_requested_at is not null, 'executionId', o.execution_id)`

/** Of these commands, those that are open. $1 ids */
export const checkSql = `
select o.device_id as "deviceId", ${storedCommand} as command
from (select * from commands c where c.id = any($1::uuid[]) and ${isOpenSql}) o`

/**
 * A connection becomes the device's own: epoch up, node and status set, in id order against deadlocks. Another
 * hub that held it is to look, and is returned as `from`.
 * $1 device ids, $2 addresses, $3 new token used, $4 event ids, $5 node
 */
export const claimSql = `
with i as (
  select * from unnest($1::uuid[], $2::text[], $3::boolean[], $4::uuid[])
    as i(device_id, ip, rotated, event_id)
), p as (
  select p.device_id, p.status, ${elsewhereSql('$5::uuid')} as held_by, i.ip, i.rotated, i.event_id
  from device_presence p
  join i using (device_id)
  where p.status <> 'decommissioned'
  order by p.device_id
  for update of p
), claimed as (
  update device_presence d
  set epoch = d.epoch + 1, node_id = $5, status = 'online', last_seen_at = now(), ip_address = coalesce(p.ip, d.ip_address),
    absent = false,
    status_at = case when p.status = 'online' then d.status_at else now() end
  from p
  where d.device_id = p.device_id
  returning d.device_id, d.org_id, d.epoch, p.status as was, p.held_by, p.event_id, p.rotated
), rotated as (
  update devices d set token_hash = d.next_token_hash, next_token_hash = null,
    replaced_token_hash = null, token_made_at = now()
  where d.id = any(array(select device_id from claimed where rotated)) and d.next_token_hash is not null
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select c.event_id, c.org_id, 'device.online', now(), d.site_id,
    jsonb_build_object('deviceId', c.device_id)
  from claimed c cross join lateral ${siteSql('c.device_id')} d
  where c.was <> 'online'
), handed as (
  insert into handoffs (node_id, device_id)
  select held_by, device_id from claimed where held_by is not null
)
select device_id as id, epoch::text as epoch, held_by as "from" from claimed`

/**
 * New tokens beside the old ones, for connections that are still the device's own, in id order.
 * $1 device ids, $2 epochs, $3 hashes of the tokens
 */
export const renewSql = `
with d as (
  select d.id, i.hash from unnest($1::uuid[], $2::bigint[], $3::bytea[]) as i(device_id, epoch, hash)
  join device_presence p on p.device_id = i.device_id and p.epoch = i.epoch
  join devices d on d.id = i.device_id
  where p.status <> 'decommissioned'
  order by d.id
  for no key update of d
)
update devices set next_token_hash = d.hash
from d where devices.id = d.id
returning devices.id`

/**
 * What devices have open: commands, threshold alerts, terminals elsewhere; no row for those that have nothing, which
 * is most of a fleet that comes back. Commands and terminals are found device by device, since for `= any(…)`
 * PostgreSQL 15 reads an index of all that is open; hence the bounds by sub-select, which is evaluated once, not for
 * each device. Without the upper one the partitions made for months to come are looked into; it is past what any hub's
 * clock calls now.
 * $1 ids, $2 oldest open command in days, $3 node
 */
export const loadSql = `
with c as (
  select d.id as device_id, json_agg(o.command order by o.id) as commands
  from unnest($1::uuid[]) as d(id)
  cross join lateral (
    select o.id, ${storedCommand} as command
    from commands o
    where o.device_id = d.id and o.completed_at is null
      and o.id >= (select uuid7_floor(now() - make_interval(days => $2)))
      and o.id < (select uuid7_floor(now() + interval '1 day'))
    order by o.id
  ) o
  group by d.id
), a as (
  select device_id, json_agg(kind) as high from alerts
  where device_id = any($1::uuid[]) and status <> 'resolved'
    and kind in ('cpu_high', 'memory_high', 'disk_high')
  group by device_id
), t as (
  select d.id as device_id, json_agg(json_build_object('id', o.id, 'home', o.node_id)) as terminals
  from unnest($1::uuid[]) as d(id)
  cross join lateral (
    select id, node_id from terminals
    where device_id = d.id and ended_at is null and node_id <> $3 offset 0
  ) o
  group by d.id
)
select device_id as id, commands, high, terminals
from c full join a using (device_id) full join t using (device_id)`

/**
 * The socket of this epoch is gone, and with it comes what was heard on it last. `is true` keeps the index of all that
 * is online out of it.
 * $1–$5 as in seenSql, $6 event ids
 */
export const offlineSql = `
with i as (
  select * from unnest($1::uuid[], $2::bigint[], $3::float8[], $4::text[], $5::text[], $6::uuid[])
    as i(device_id, epoch, at_ms, metrics, version, event_id)
), p as (
  select p.device_id, i.event_id, i.at_ms, i.metrics, i.version from device_presence p
  join i on i.device_id = p.device_id and i.epoch = p.epoch
  where (p.status = 'online') is true
  order by p.device_id
  for update of p
), gone as (
  update device_presence d set status = 'offline', status_at = now(), node_id = null,
    absent = d.offline_alert_id is null,
    last_seen_at = greatest(d.last_seen_at, to_timestamp(p.at_ms / 1000)),
    metrics = coalesce(p.metrics::jsonb, d.metrics)
  from p where d.device_id = p.device_id
  returning d.device_id, d.org_id, p.event_id
), versions as (
  update devices d set agent_version = p.version, updated_at = now()
  from p where d.id = p.device_id and p.version is not null
    and d.agent_version is distinct from p.version
)
insert into events (id, org_id, type, at, site_id, data)
select g.event_id, g.org_id, 'device.offline', now(), d.site_id,
  jsonb_build_object('deviceId', g.device_id)
from gone g cross join lateral ${siteSql('g.device_id')} d`

/**
 * lastSeenAt and metrics, and the agent's version where it changed. What waited until after the device
 * went offline may be older than what came with that.
 * $1 device ids, $2 epochs, $3 ms since 1970, $4 metrics or null, $5 agent versions or null
 */
export const seenSql = `
with i as (
  select device_id, max(epoch) as epoch, max(at_ms) as at_ms,
    (array_agg(metrics order by at_ms desc) filter (where metrics is not null))[1] as metrics,
    (array_agg(version order by at_ms desc) filter (where version is not null))[1] as version
  from unnest($1::uuid[], $2::bigint[], $3::float8[], $4::text[], $5::text[])
    as i(device_id, epoch, at_ms, metrics, version)
  group by device_id
), versions as (
  update devices d set agent_version = i.version, updated_at = now()
  from i where d.id = i.device_id and d.agent_version is distinct from i.version
    and i.version is not null
)
update device_presence p
set last_seen_at = greatest(p.last_seen_at, to_timestamp(i.at_ms / 1000)),
  metrics = case when p.status = 'online' or to_timestamp(i.at_ms / 1000) >= p.last_seen_at
    then coalesce(i.metrics::jsonb, p.metrics) else p.metrics end
from i where p.device_id = i.device_id and p.epoch = i.epoch
returning p.device_id as id`

/**
 * What agents said last of their upgrades; of a superseded connection nothing.
 * $1 device ids, $2 epochs, $3 command ids, $4 phases
 */
export const phaseSql = `
with i as (
  select i.* from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[])
    as i(device_id, epoch, command_id, phase)
  join device_presence p on p.device_id = i.device_id and p.epoch = i.epoch
), d as (
  select d.id, i.command_id, i.phase from devices d join i on i.device_id = d.id
  order by d.id
  for no key update of d
)
update devices set upgrade = jsonb_build_object('commandId', d.command_id, 'phase', d.phase)
from d where devices.id = d.id`

/** $1 device ids, $2 inventories as JSON texts */
export const inventorySql = `
insert into device_inventory (device_id, inventory, updated_at)
select device_id, inventory::jsonb, now()
from unnest($1::uuid[], $2::text[]) as i(device_id, inventory)
order by device_id
on conflict (device_id) do update set inventory = excluded.inventory, updated_at = now()`

/**
 * Results for ids that are not open at their actor: kept beside the first end where the command is the
 * device's own, audited where it is another's.
 * $1 command ids, $2 device ids, $3 organizations of those devices, $4 results, $5 audit ids
 */
export const straySql = `
with i as (
  select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[])
    as i(id, device_id, org_id, result, audit_id)
), late as (
  update commands c set late_result = i.result::jsonb
  from i where c.id = i.id and c.device_id = i.device_id
    and c.completed_at is not null and c.late_result is null
    and c.result is distinct from i.result::jsonb - 'status'
)
insert into audit (id, org_id, at, actor_type, actor_id, action, resource_type, resource_id,
  device_id, result, details)
select i.audit_id, i.org_id, now(), 'agent', i.device_id, 'command.result', 'command', i.id::text,
  i.device_id, 'denied', jsonb_build_object('reason', 'the command belongs to another device')
from i cross join lateral (
  select from commands c where c.id = i.id and c.device_id <> i.device_id offset 0
) c`

/**
 * States and ends of commands. An end counts once: only while `completed_at` is null; a row of an old
 * epoch counts not at all. With a completed upgrade, which the device's heartbeats have proved, its version.
 * No bounds on the ids here, though they would spare the partitions of other months:
 * where PostgreSQL 18 removes partitions before it starts and again for each row of a join, it loses the row
 * that somebody else has just changed, and with it an end.
 * Returns what took the change, and what is of an old epoch; whatever else there was had ended before.
 * $1 ids, $2 device ids, $3 epochs, $4 statuses, $5 results or null, $6 attempts, $7–$10 sent, delivered,
 * started and completed in ms since 1970 or null, $11 event ids, $12 whether the ended row is wanted
 */
export const commandsSql = commandsStatement(true)

/** The same where none is an upgrade or of an execution: a fifth less for a statement of one row. */
export const plainCommandsSql = commandsStatement(false)

function commandsStatement(all: boolean): string {
  const columns = all
    ? `c.execution_id, c.started_at, c.started_at = to_timestamp(i.started / 1000) as begun,
    ${upgradeColumns},`
    : ''
  const upgrades = all
    ? `
  union all
  ${upgradeStartsSql('changed')}
  union all
  ${upgradeEndsSql('changed')}`
    : ''
  const more = all
    ? `, versions as (
  update devices d set agent_version = c.upgrade, updated_at = now()
  from changed c
  where d.id = c.device_id and c.status = 'completed'
    and d.agent_version is distinct from c.upgrade and c.upgrade is not null
), counted as (
  ${countEndsSql('changed')}
)`
    : ''
  return `
with i as materialized (
  select i.*, coalesce(p.epoch = i.epoch, false) as fresh
  from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::int[],
    $7::float8[], $8::float8[], $9::float8[], $10::float8[], $11::uuid[], $12::boolean[])
    as i(id, device_id, epoch, status, result, attempts, sent, delivered, started, completed,
      event_id, awaited)
  left join lateral (
    select p.epoch from device_presence p where p.device_id = i.device_id offset 0
  ) p on true
), changed as (
  update commands c set
    status = i.status,
    result = i.result::jsonb,
    attempts = greatest(c.attempts, i.attempts),
    sent_at = coalesce(to_timestamp(i.sent / 1000), c.sent_at),
    delivered_at = coalesce(c.delivered_at, to_timestamp(i.delivered / 1000)),
    started_at = coalesce(c.started_at, to_timestamp(i.started / 1000)),
    completed_at = to_timestamp(i.completed / 1000)
  from i
  where c.id = i.id and c.device_id = i.device_id and ${isOpenSql} and i.fresh
  returning c.id, c.org_id, c.device_id, c.action, c.status, c.completed_at, ${columns}
    i.event_id, case when i.awaited then (
      select row_to_json(t)::text from (select ${commandColumns}, null as "blockedBy") t
    ) end as row
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select c.event_id, c.org_id, 'command.' || c.status, c.completed_at, d.site_id,
    jsonb_build_object('commandId', c.id, 'deviceId', c.device_id, 'action', c.action,
      'status', c.status)
  from changed c cross join lateral ${siteSql('c.device_id')} d
  where c.completed_at is not null${upgrades}
)${more}
select id, true as applied, row from changed
union all
select id, false, null from i where not fresh`
}
