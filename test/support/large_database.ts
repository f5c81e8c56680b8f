// A database as large as the largest installation, made by rows: what is rarely asked for lies at the old end,
// where a list that begins with the newest comes last.
import { newId } from '../../src/ids.ts'
import { textArray, type Database } from '../../src/db.ts'

export interface Sizes {
  devices: number
  commands: number
  audit: number
  alerts: number
  /** Of each list of rows that people make: sites, users, scripts, executions, deliveries, keys. */
  others: number
}

export interface LargeDatabase {
  /** 60 %, 30 % and 10 % of the devices. */
  orgIds: [string, string, string]
  /** Sites of the first organization: they hold a third of its devices. */
  siteIds: string[]
  /** Has a tenth of all commands. */
  deviceId: string
  /** Of the first organization, with a tenth of all commands. */
  executionId: string
  scriptId: string
  webhookId: string
  /** Over all devices of the first organization, in three groups. */
  rolloutId: string
  /** Wrote a thousandth of the audit. */
  actorId: string
}

/** The id of row `n` of `count`, one of the last 20 days' in order; kinds of rows differ in their last digits. */
export const idSql = (n: string, count: number) =>
  `(left(uuid7_floor(${timeSql(n, count)})::text, 14) || '7000-8000-' || lpad(to_hex(${n}), 12, '0'))::uuid`
export const timeSql = (n: string, count: number) =>
  `(now() - interval '20 days' + (${n}) * interval '20 days' / ${count})`

/** As if many transactions had written them: what is sealed and read by transaction finds few rows in each. */
const xidSql = (n: string, count: number) => `(10 + ${n}::bigint * 600 / ${count})::text::xid8`

/** Fills an empty database; `db` is the owner's. */
export async function fillLarge(db: Database, sizes: Sizes): Promise<LargeDatabase> {
  const orgIds: [string, string, string] = [newId(), newId(), newId()]
  const orgSql = `('${textArray(orgIds).replaceAll('"', '')}'::uuid[])[case n % 10 when 9 then 3 when 8 then 2 when 7 then 2 when 6 then 2 else 1 end]`
  const { devices, commands, audit, alerts, others } = sizes
  const series = (count: number) => `generate_series(0, ${count - 1}) as n`
  await db.query(`select make_partitions((now() - interval '1 month')::date, 1)`)
  await db.query(
    `insert into organizations (id, name, slug)
     select id, 'org', id::text from unnest($1::uuid[]) as id
     union all select ${idSql('n', others)}, 'org', 'org-' || n from ${series(others)}`,
    [orgIds],
  )
  await db.query(
    `insert into sites (id, org_id, name) select ${idSql('n', others)}, ${orgSql}, 'site' from ${series(others)}`,
  )
  // Without the trigger: it would rewrite the same counters for every row of one transaction.
  await db.query('alter table devices disable trigger count_device')
  // A site's devices were enrolled together and are named alike. Every thirtieth site is one of `siteIds`.
  await db.query(
    `with s as (select array_agg(id order by id) as ids, org_id from sites group by org_id)
     insert into devices (id, org_id, site_id, hostname, display_name, os, arch, tags, token_hash)
     select ${idSql('n', devices)}, s.org_id,
       s.ids[1 + case when n % 3 = 0 then n % 5 else n * 100 / ${devices} end],
       case when n < ${devices / 20} then 'Lab-' else 'Host-' end || lpad((n * 7919 % ${devices})::text, 6, '0'),
       case when n % 50 = 0 then 'Till ' || n end,
       case when n < ${devices / 200} then 'darwin' when n % 5 = 0 then 'windows' else 'linux' end, 'amd64',
       case when n < ${devices / 30} then '{lab,prod}' when n % 2 = 0 then '{prod,till}' else '{}' end::text[],
       sha256(n::text::bytea)
     from ${series(devices)} join s on s.org_id = ${orgSql}`,
  )
  await db.query('alter table devices enable trigger count_device')
  await db.query(
    `insert into device_counts (scope_id, slot, devices)
     select org_id, 0, count(*) from devices group by 1 union all
     select site_id, 0, count(*) from devices group by 1`,
  )
  // Their hub lives: else the sweep of whoever starts on this database would turn them offline while it is read.
  const nodeId = newId()
  await db.query(
    `insert into nodes (id, version, lease_until) values ($1, '0.0.0', now() + interval '1 day')`,
    [nodeId],
  )
  await db.query(
    `insert into device_presence (device_id, org_id, status, node_id)
     select id, org_id, status, case when status = 'online' then $1::uuid end
     from (
       select id, org_id, case when n < ${devices / 200} then 'decommissioned' when n < ${devices / 20} then 'offline'
         else 'online' end as status
       from (select id, org_id, row_number() over (order by id) as n from devices) as d
     ) as s`,
    [nodeId],
  )
  const [made] = await db.query<Omit<LargeDatabase, 'orgIds'>>(
    `select (select array_agg(id) from (select id from sites where org_id = $1 order by id limit 5) s) as "siteIds",
       (select id from devices where org_id = $1 order by id limit 1) as "deviceId",
       gen_random_uuid() as "executionId", gen_random_uuid() as "webhookId", gen_random_uuid() as "actorId",
       gen_random_uuid() as "scriptId"`,
    [orgIds[0]],
  )
  if (!made) throw new Error('nothing was made')
  const executionId = newIdAt(Date.now() - 25 * 86_400_000)
  const rolloutId = newIdAt(Date.now() - 20 * 86_400_000)
  const large = { ...made, orgIds, executionId, rolloutId }
  await fillScripts(db, large, others, orgSql, series(others))
  await fillRollouts(db, large, others, orgSql, series(others))
  await db.query(
    `with d as (select array_agg(id order by id) as ids from devices where org_id = $1)
     insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds, execution_id,
       created_at, expires_at, completed_at)
     select ${idSql('n', commands)}, case when n % 10 = 0 then $2 else ids[1 + n % cardinality(ids)] end, $1, 'ping',
       '{}', case when n > ${commands - 50} then 'pending' when n < ${commands / 100} then 'failed' else 'completed' end,
       300, case when n % 10 = 1 then $3::uuid end, ${timeSql('n', commands)}, now() + interval '1 day',
       case when n > ${commands - 50} then null else now() end
     from ${series(commands)}, d`,
    [orgIds[0], large.deviceId, executionId],
  )
  await db.query(
    `with d as (select array_agg(id order by id) as ids, org_id from devices group by org_id)
     insert into audit (id, xid, org_id, at, actor_type, actor_id, action, resource_type, resource_id, device_id, result)
     select ${idSql('n', audit)}, ${xidSql('n', audit)}, d.org_id, ${timeSql('n', audit)}, 'user',
       case when n < ${audit / 20} and n % 50 = 0 then $1::uuid else md5((n % 100)::text)::uuid end,
       case when n < ${audit / 20} then 'site.update' when n % 4 = 0 then 'device.update' else 'command.create' end,
       case when n < ${audit / 20} then 'site' when n % 4 = 0 then 'device' else 'command' end,
       gen_random_uuid(), ids[1 + n % cardinality(ids)],
       case when n < ${audit / 100} then 'denied' else 'success' end
     from ${series(audit)} join d on d.org_id = ${orgSql}`,
    [large.actorId],
  )
  await db.query(
    `with d as (
       select array_agg(id order by id) as ids, array_agg(site_id order by id) as sites, org_id
       from devices group by org_id)
     insert into alerts (id, org_id, site_id, device_id, kind, severity, status, title, message, context,
       dedupe_key, occurrences, resolved_at)
     select ${idSql('n', alerts)}, d.org_id, sites[1 + n % cardinality(ids)], ids[1 + n % cardinality(ids)],
       case when n < ${alerts / 100} then 'disk_high' else 'cpu_high' end,
       case when n < ${alerts / 100} then 'critical' else 'low' end,
       case when n < ${alerts / 100} then 'acknowledged' when n % 20 = 0 then 'active' else 'resolved' end,
       '', '', '{}', n::text, 1, case when n >= ${alerts / 100} and n % 20 > 0 then now() end
     from ${series(alerts)} join d on d.org_id = ${orgSql}`,
  )
  await db.query('vacuum (analyze)')
  return large
}

async function fillScripts(
  db: Database,
  large: LargeDatabase,
  others: number,
  orgSql: string,
  series: string,
): Promise<void> {
  const { orgIds, siteIds, executionId, scriptId, webhookId } = large
  await db.query(
    `insert into users (id, org_id, email, role, status)
     select ${idSql('n', others)}, ${orgSql}, 'user' || n || '@example.net',
       case when n < ${others / 100} then 'auditor' else 'viewer' end,
       case when n < ${others / 100} then 'invited' else 'active' end
     from ${series}`,
  )
  await db.query(
    `insert into enrollment_keys (id, org_id, site_id, key_hash)
     select ${idSql('n', others)}, $1, $2, sha256(n::text::bytea) from ${series}`,
    [orgIds[0], siteIds[0]],
  )
  await db.query(
    `insert into scripts (id, org_id, name)
     select ${idSql('n', others)}, case when n % 20 > 0 then ${orgSql} end, 'script' from ${series}`,
  )
  await db.query(`insert into scripts (id, org_id, name) values ($1, $2, 'script')`, [
    scriptId,
    orgIds[0],
  ])
  await db.query(
    `insert into script_versions (script_id, version, language, content, content_bytes, os, timeout_seconds, sha256)
     select id, 1, 'sh', 'true', 4, '{linux}', 300, '' from scripts`,
  )
  await db.query(
    `insert into executions (id, org_id, script_id, version, status, timeout_seconds, expires_at, site_ids, fanned_out_at)
     select ${idSql('n', others)}, ${orgSql}, case when n % 4 = 0 then $1 else ids[1 + n] end, 1, 'completed', 300, now(),
       case when n % 3 = 0 then $2::uuid[] end, now()
     from ${series}, (select array_agg(id) as ids from scripts) s`,
    [scriptId, siteIds.slice(0, 1)],
  )
  await db.query(
    `insert into executions (id, org_id, script_id, version, status, timeout_seconds, expires_at, fanned_out_at)
     values ($1, $2, $3, 1, 'completed', 300, now(), now())`,
    [executionId, orgIds[0], scriptId],
  )
  await db.query(
    `insert into terminals (id, org_id, device_id, user_email, node_id, cols, rows, ended_at)
     select ${idSql('n', others)}, $1, $2, 'user@example.net', gen_random_uuid(), 80, 24, now() from ${series}`,
    [orgIds[0], large.deviceId],
  )
  await db.query(
    `insert into webhooks (id, org_id, url, events, secret)
     select $1::uuid, $2::uuid, 'https://example.net', '{device.online}'::text[], ''::bytea union all
     select ${idSql('n', others)}, ${orgSql}, 'https://example.net', '{device.online}', '' from ${series}`,
    [webhookId, orgIds[0]],
  )
  await db.query(
    `insert into webhook_deliveries (id, webhook_id, event_id, event_type, body, status)
     select ${idSql('n', others)}, $1, gen_random_uuid(), 'device.online', '{}', 'succeeded' from ${series}`,
    [webhookId],
  )
}

async function fillRollouts(
  db: Database,
  { orgIds, rolloutId }: LargeDatabase,
  others: number,
  orgSql: string,
  series: string,
): Promise<void> {
  const columns =
    '(id, org_id, version, filter, platforms, timeout_seconds, expires_in_seconds, status, due_at)'
  await db.query(
    `insert into rollouts ${columns}
     select $1::uuid, $2::uuid, '2.0.0', '{}'::jsonb, '{}'::text[], 900, 60, 'running', null::timestamptz union all
     select ${idSql('n', others)}, ${orgSql}, '2.0.0', '{}', '{}', 900, 60, 'completed', null from ${series}`,
    [rolloutId, orgIds[0]],
  )
  await db.query(
    `insert into rollout_devices (rollout_id, group_number, device_id, status)
     select $1, case when place <= 600 then 1 when place <= 6000 then 2 else 3 end, id,
       case when place <= 500 then 'failed' when place < 20000 then 'completed' else 'pending' end
     from (select id, row_number() over (order by md5(id::text)) as place from devices where org_id = $2) d`,
    [rolloutId, orgIds[0]],
  )
  await db.query(
    `insert into rollout_groups (rollout_id, number, percent, success_threshold, error_threshold, devices)
     select r.id, n, 50, 100, 100, 1 from rollouts r, generate_series(1, 2) as n`,
  )
}

function newIdAt(ms: number): string {
  const hex = ms.toString(16).padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}${newId().slice(13)}`
}
