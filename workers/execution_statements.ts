// The two large statements of executions: a batch of the fan-out, and the end.
import { endColumns } from '../src/execution_ends.ts'
import { devicesSql } from '../src/handoff_sql.ts'
import { addingSql, queueFullSql } from './adding.ts'

const payload = `jsonb_build_object('scriptId', script_id, 'version', version, 'language', language)`
const skipped = (reason: string) => `(select count(*) from t where skip = '${reason}')`

/**
 * Adds the commands of a batch with their audit rows and events, counts who is skipped and why, and moves
 * the cursor, or does nothing at all when the cursor is not where the caller left it. Two forms steer a plan
 * that is made once away from the wrong index: the order of open commands, and how `fanned_out_at` is compared.
 * $1 execution, $2 cursor, $3 device ids in order, $4 command ids, $5 audit ids, $6 event ids, $7 now in
 * ms, $8 and $9 bounds of ids of open commands, $10 open commands per device, $11 the new cursor, $12 the
 * first command id, $13 this hub
 */
export const acceptBatchSql = `
with e as materialized (
  select * from executions
  where id = $1 and device_cursor is not distinct from $2::uuid
    and coalesce(fanned_out_at, 'infinity') = 'infinity'
  for update
), i as (
  select i.*, e.script_id, e.version, e.scope_org_id, e.scope_site_ids, e.timeout_seconds,
    e.expires_at, e.created_by, e.created_email, e.ip, e.user_agent, e.request_id,
    to_timestamp($7::float8 / 1000) as at
  from e, unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[])
    as i(device_id, id, audit_id, event_id)
), ${devicesSql({ ids: '$3::uuid[]', node: '$13::uuid', more: ['os'] })}, t as (
  select i.*, d.org_id as device_org, d.site_id, d.here, d.elsewhere, v.language,
    case when d.id is null then 'gone'
      when d.gone then 'decommissioned'
      when d.os <> all(v.os) then 'os'
      when d.suspended then 'suspended'
      when ${queueFullSql('$8', '$9', '$10')} then 'queue_full'
    end as skip
  from i
  join script_versions v on v.script_id = i.script_id and v.version = i.version
  left join d on d.id = i.device_id
    and (i.scope_org_id is null or d.org_id = i.scope_org_id)
    and (i.scope_site_ids is null or d.site_id = any(i.scope_site_ids))
), ${addingSql({ action: 'run_script', payload, executionId: '$1', source: 'executionId' })}, moved as (
  update executions x set status = 'running', started_at = coalesce(x.started_at, now()),
    touched_at = now(), device_cursor = $11, batch_floor = $12,
    total = case when x.device_ids is null then x.total + (select count(*) from t) else x.total end,
    started = x.started + (select count(*) from t where skip is null),
    skipped_suspended = x.skipped_suspended + ${skipped('suspended')},
    skipped_decommissioned = x.skipped_decommissioned + ${skipped('decommissioned')},
    skipped_queue_full = x.skipped_queue_full + ${skipped('queue_full')},
    skipped_os = x.skipped_os + ${skipped('os')},
    skipped_gone = x.skipped_gone + ${skipped('gone')}
  from e where x.id = e.id
)
select device_id as "deviceId", id, skip, here, elsewhere,
  ${payload}::text as payload,
  timeout_seconds as "timeoutSeconds",
  floor(extract(epoch from expires_at) * 1000)::float8 as "expiresMs", $1::uuid as "executionId"
from t order by device_id`

const sums = endColumns.map((column) => `coalesce(sum(n.${column}), 0)::int as ${column}`)
const all = endColumns.map((column) => `s.${column}`).join(' + ')

/**
 * Ends executions that were dealt with in full and whose commands have all ended, with their counts and an
 * event; secrets go with the end. $1 ids, $2 event ids
 */
export const completeSql = `
with s as (
  select i.id, i.event_id, ${sums.join(', ')}
  from unnest($1::uuid[], $2::uuid[]) as i(id, event_id)
  left join execution_ends n on n.execution_id = i.id
  group by i.id, i.event_id
), done as (
  update executions e set status = case when e.error is null then 'completed' else 'failed' end,
    completed_at = now(), secrets = null,
    ${endColumns.map((column) => `${column} = s.${column}`).join(', ')}
  from s
  where e.id = s.id and e.completed_at is null and e.fanned_out_at is not null
    and e.started = ${all}
  returning e.*, s.event_id
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select d.event_id, d.org_id, 'script.completed', now(),
    case when cardinality(d.site_ids) = 1 then d.site_ids[1] end,
    jsonb_build_object('executionId', d.id, 'scriptId', d.script_id, 'version', d.version,
      'status', d.status, 'error', d.error, 'started', d.started,
      ${endColumns.map((column) => `'${column}', d.${column}`).join(', ')})
  from done d
)
select id from done`
