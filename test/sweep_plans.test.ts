// The sweeps come every two seconds: they must not read what has ended, nor what is old.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { dueSql, returnedSql } from '../workers/absences.ts'
import { failedEndsSql } from '../workers/failures.ts'
import { alertsLookSql, executionsLookSql, rolloutsLookSql } from '../workers/looks.ts'
import { orphansSql } from '../workers/nodes.ts'
import { upgradeEndsSql } from '../workers/rollout_statements.ts'
import { expiredSql, keysSql, timeoutSql } from '../workers/sweeps.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addDevice, addPlace } from './support/rows.ts'

let database: TestDatabase
let db: Database
let orgId: string

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'plans', connections: 1, role: 'owner' })
  await fill()
})
after(async () => {
  await db.close()
  await database.drop()
})

/** Ended commands of five months, a few open ones, some of them running. */
async function fill(): Promise<void> {
  const place = await addPlace(db)
  orgId = place.orgId
  const deviceId = await addDevice(db, place)
  await db.query(`select make_partitions((now() - interval '5 months')::date, 5)`)
  await db.query(
    `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds,
       created_at, expires_at, delivered_at, completed_at)
     select overlay(gen_random_uuid()::text placing left(uuid7_floor(t)::text, 13) from 1)::uuid,
       $1, $2, 'ping', '{}', 'completed', 300, t, t + interval '1 day', t, t
     from (select now() - random() * interval '120 days' as t from generate_series(1, 20000)) as times`,
    [deviceId, place.orgId],
  )
  await db.query(
    `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds,
       created_at, expires_at, delivered_at)
     select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
       $1, $2, 'ping', '{}', case n % 2 when 0 then 'pending' else 'running' end, 300, now(),
       now() + interval '1 day', case n % 2 when 0 then null else now() end
     from generate_series(1, 100) as n`,
    [deviceId, place.orgId],
  )
  await db.query(
    `insert into idempotency_keys (user_id, key, body_hash, command_id)
     select $1, n::text, '', $1 from generate_series(1, 5000) as n`,
    [place.orgId],
  )
  // A fleet of which a few are away, some of them told of, and a history of events and alerts.
  await db.query(
    `with d as (
       insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
       select gen_random_uuid(), $1, $2, 'host', 'linux', 'amd64', sha256(n::text::bytea)
       from generate_series(1, 5000) as n returning id
     )
     insert into device_presence (device_id, org_id, status, absent, offline_alert_id, status_at)
     select id, $1, case when n < 4500 then 'online' else 'offline' end, n > 4990,
       case when n between 4500 and 4990 then id end, now() - interval '1 h'
     from (select id, row_number() over () as n from d) as d`,
    [place.orgId, place.siteId],
  )
  await db.query(
    `insert into events (id, org_id, type, at, site_id, data)
     select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
       $1, case when n % 100 = 0 then 'command.failed' else 'command.completed' end, now(), $2, '{}'
     from generate_series(1, 20000) as n`,
    [place.orgId, place.siteId],
  )
  await db.query(
    `insert into alerts (id, org_id, site_id, device_id, kind, severity, status, title, message,
       context, dedupe_key, occurrences)
     select gen_random_uuid(), $1, $2, $1, 'cpu_high', 'low',
       case when n % 8 = 0 then 'active' else 'resolved' end, '', '', '{}', n::text, 1
     from generate_series(1, 20000) as n`,
    [place.orgId, place.siteId],
  )
  await db.query('analyze')
}

interface Plan {
  'Node Type': string
  'Relation Name'?: string
  'Index Name'?: string
  'Subplans Removed'?: number
  Plans?: Plan[]
}

async function plan(sql: string, values: unknown[]): Promise<Plan[]> {
  const rows = await db.query<{ 'QUERY PLAN': { Plan: Plan }[] }>(
    `explain (analyze, format json) ${sql}`,
    values,
  )
  const nodes = (node: Plan): Plan[] => [node, ...(node.Plans ?? []).flatMap(nodes)]
  return rows.flatMap((row) => row['QUERY PLAN'].flatMap(({ Plan: root }) => nodes(root)))
}

const month = new Date().toISOString().slice(0, 7).replace('-', '')
const indexes = (nodes: Plan[]) => new Set(nodes.map((node) => node['Index Name']))

function prunesAndSeeks(nodes: Plan[]): void {
  assert.ok(nodes.some((node) => (node['Subplans Removed'] ?? 0) >= 3))
  const scanned = nodes.filter((node) => node['Node Type'] === 'Seq Scan')
  assert.ok(!scanned.some((node) => node['Relation Name'] === `commands_${month}`))
}

test('expired commands are found by the index of open ones', async () => {
  const nodes = await plan(expiredSql, [1000, limits.openCommandDaysMax, 60])
  prunesAndSeeks(nodes)
  assert.ok(indexes(nodes).has(`commands_${month}_expires_at_idx`))
})

test('overdue runs are found by the index of delivered ones', async () => {
  const nodes = await plan(timeoutSql, [1000, limits.openCommandDaysMax, 60, 30])
  prunesAndSeeks(nodes)
  assert.ok(indexes(nodes).has(`commands_${month}_coalesce_idx`))
})

test('commands of lost devices are found by device', async () => {
  const nodes = await plan(orphansSql, ['00000000-0000-0000-0000-000000000000', 1000, 33])
  prunesAndSeeks(nodes)
})

test('old idempotency keys are found by their age and removed by their place', async () => {
  const nodes = await plan(keysSql, [1000, 24])
  assert.ok(indexes(nodes).has('idempotency_keys_by_age'))
  assert.ok(nodes.some((node) => node['Node Type'] === 'Tid Scan'))
})

test('absences are found among those that are away, and returns among those that were told of', async () => {
  const due = await plan(dueSql, [1000, 60, 1e6, 75])
  assert.ok(indexes(due).has('device_presence_absent'))
  const returned = await plan(returnedSql, [1000])
  assert.ok(indexes(returned).has('device_presence_returned'))
  for (const node of [...due, ...returned]) {
    assert.ok(node['Node Type'] !== 'Seq Scan' || node['Relation Name'] !== 'device_presence')
  }
})

test('failed ends are found by their own index of the outbox', async () => {
  const nodes = await plan(failedEndsSql, ['0', '00000000-0000-0000-0000-000000000000', 256])
  const events = nodes.filter((node) => node['Relation Name'] === `events_${month}`)
  assert.ok(events.length > 0)
  for (const node of events) assert.match(node['Index Name'] ?? '', /^events_\d+_xid_id_idx1$/)
})

test('ends of upgrades are found by their own index of the outbox', async () => {
  const nodes = await plan(upgradeEndsSql, ['0', '00000000-0000-0000-0000-000000000000', 1000])
  const events = nodes.filter((node) => node['Relation Name'] === `events_${month}`)
  assert.ok(events.length > 0)
  for (const node of events) assert.match(node['Index Name'] ?? '', /^events_\d+_xid_id_idx2$/)
})

test('a look before the sweeps reads no large table', async () => {
  await db.query(
    `update alert_cursors k set (xid, id) = (select xid, id from events order by xid desc, id desc limit 1)`,
  )
  const looks: [sql: string, values: unknown[]][] = [
    [executionsLookSql, [10]],
    [rolloutsLookSql, []],
    [alertsLookSql, [1, 60, 1e6, 75]],
  ]
  const tables = ['device_presence', 'devices', 'commands', 'events']
  const large = new Set(tables.flatMap((name) => [name, `${name}_${month}`]))
  for (const [sql, values] of looks) {
    for (const node of await plan(sql, values)) {
      if (node['Node Type'] !== 'Seq Scan') continue
      assert.ok(!large.has(node['Relation Name'] ?? ''), `${node['Relation Name']} is read`)
    }
  }
})

test('every list of alerts is read in its order, open ones by their own indexes', async () => {
  const open = `a.status <> 'resolved' and a.status = 'active'`
  const lists: [condition: string, index: string][] = [
    ['true', 'alerts_pkey'],
    [`a.org_id = '${orgId}'`, 'alerts_by_org'],
    [open, 'alerts_open'],
    [`a.org_id = '${orgId}' and ${open}`, 'alerts_open_by_org'],
  ]
  for (const [condition, index] of lists) {
    const nodes = await plan(
      `select * from alerts a where ${condition} order by a.id desc limit 51`,
      [],
    )
    assert.ok(!nodes.some((node) => node['Node Type'] === 'Sort'), condition)
    assert.ok(indexes(nodes).has(index), `${condition}: ${[...indexes(nodes)].join()}`)
  }
})
