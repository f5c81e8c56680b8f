// The pools of commands, connects and shards plan a statement once per connection. A hub that starts on an
// empty database, or meets the first command of a month, must not keep what suits an empty table: a plan
// that reads the whole of it, again for every row, until PostgreSQL happens to analyze it. Nor what
// suits the one in two hundred that is guessed to be open where nothing is known, or a hundred devices of a trial.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { lockSql, raiseSql, resolveKeysSql } from '../src/alerts.ts'
import { acceptSql, repeatsSql } from '../src/command_statements.ts'
import { openDatabase, Where, type Database, type Queryable } from '../src/db.ts'
import { openIdsSql } from '../src/command_row.ts'
import { newId } from '../src/ids.ts'
import { commandSource } from '../src/resources/commands.ts'
import { walkedPage, type DeviceFilters } from '../src/resources/device_pages.ts'
import { newestFirst } from '../src/resources/rows.ts'
import { handOverSql, takenSql, takeSql } from '../src/handoff_sql.ts'
import { acceptBatchSql } from '../workers/execution_statements.ts'
import {
  addBatchSql,
  cancelPendingSql,
  endDevicesSql,
  lockEndedSql,
  withdrawSql,
} from '../workers/rollout_statements.ts'
import { scriptsSql } from '../workers/script_frames.ts'
import {
  checkSql,
  claimSql,
  commandsSql,
  loadSql,
  offlineSql,
  phaseSql,
  plainCommandsSql,
  renewSql,
  seenSql,
  straySql,
} from '../workers/statements.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addDevice, addPlace } from './support/rows.ts'

const statements: Record<string, string> = {
  acceptSql,
  repeatsSql,
  checkSql,
  openIdsSql,
  claimSql,
  loadSql,
  takeSql,
  takenSql,
  handOverSql,
  commandsSql,
  plainCommandsSql,
  offlineSql,
  phaseSql,
  renewSql,
  seenSql,
  straySql,
  lockSql,
  raiseSql,
  resolveKeysSql,
  scriptsSql,
  acceptBatchSql,
  addBatchSql,
  cancelPendingSql,
  withdrawSql,
  lockEndedSql,
  endDevicesSql,
}

/** Whose batches are as large as a storm makes them. */
const large: Record<string, string> = {
  acceptSql,
  acceptBatchSql,
  handOverSql,
  takeSql,
  claimSql,
  loadSql,
  commandsSql,
  plainCommandsSql,
  offlineSql,
  seenSql,
  renewSql,
  phaseSql,
  straySql,
}

for (const [name, filters] of Object.entries<DeviceFilters>({
  devices: {},
  devicesOfOrganization: { orgId: newId() },
  devicesOnline: { status: 'online' },
  devicesOfSystem: { os: 'linux', orgId: newId() },
  devicesOnlineOfSystem: { status: 'online', os: 'linux', orgId: newId() },
  devicesOnlineWithTag: { status: 'online', tag: 'kiosk' },
  devicesWithTag: { tag: 'kiosk', orgId: newId() },
})) {
  const page = { limit: 50, after: undefined }
  const walk = walkedPage({ orgId: null, siteIds: null }, filters, page)
  statements[name] = walk?.text ?? ''
}

interface Plan {
  'Node Type': string
  'Index Name'?: string
  'Relation Name'?: string
  'Index Cond'?: string
  'Join Filter'?: string
  Plans?: Plan[]
}

let database: TestDatabase
let db: Database

before(begin)
after(end)

async function begin(): Promise<void> {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'plans', connections: 1, planOnce: true })
}

async function end(): Promise<void> {
  await db.close()
  await database.drop()
}

describe('on tables without rows and statistics', () => {
  testKeys()
  testLarge()
})

function testKeys(): void {
  for (const [name, sql] of Object.entries(statements)) {
    test(`${name} finds its rows by key`, async () => {
      const scans = (await plan(name, sql)).filter((node) => node['Relation Name'] !== undefined)
      const reads = scans.filter((node) => /Scan/.test(node['Node Type']))
      assert.ok(reads.length > 0)
      for (const node of reads) {
        assert.match(node['Node Type'], /^(Index Scan|Index Only Scan|Bitmap Heap Scan)$/)
        const below = [node, ...(node.Plans ?? [])]
        assert.ok(
          below.some((part) => part['Index Cond'] !== undefined),
          `${node['Relation Name']} is read from end to end`,
        )
      }
    })
  }
}

function testLarge(): void {
  for (const [name, sql] of Object.entries(large)) {
    test(`${name} for hundreds of rows does not compare each with every other, nor sort its keys again for each`, async () => {
      for (const node of await plan(name, sql)) {
        const by = node['Index Cond'] ?? ''
        assert.doesNotMatch(by, /\b(\w+) = \w+\.\w+\) AND \(\1 = ANY/)
        const inner = node['Node Type'] === 'Nested Loop' ? node.Plans?.[1] : undefined
        if (node['Join Filter'] === undefined || inner === undefined) continue
        assert.doesNotMatch(
          inner['Node Type'],
          /^(CTE Scan|Function Scan|Materialize)$/,
          node['Join Filter'],
        )
      }
    })
  }
}

test('a page of a device’s commands is found by the device, the first one and any other', async () => {
  for (const [name, last] of [
    ['first_page', undefined],
    ['next_page', [newId()]],
  ] as const) {
    let sql = ''
    const note: Queryable = {
      query: (text) => {
        sql = text
        return Promise.resolve([])
      },
    }
    const where = new Where().and('c.device_id = ?', newId()).and('d.org_id = ?', newId())
    await newestFirst(note, commandSource, where, { limit: 50, after: last })
    const scans = (await plan(name, sql)).filter(({ 'Index Cond': by, 'Relation Name': table }) => {
      return by !== undefined && table?.startsWith('commands')
    })
    assert.ok(scans.length > 0)
    for (const { 'Index Cond': by } of scans) assert.match(by ?? '', /device_id/)
  }
})

describe('on a month that PostgreSQL has not analyzed yet', () => {
  let leading: Map<string, string>
  before(async () => {
    const deviceId = await addDevice(db, await addPlace(db))
    await db.query(
      `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds, created_at,
         expires_at, completed_at)
       select new_uuid7(), gen_random_uuid(), $1, 'ping', '{}', 'completed', 300, now(), now(),
         case when n % 2 > 0 then now() end
       from generate_series(1, 20000) as n`,
      [deviceId],
    )
    const rows = await db.query<{ index: string; column: string }>(
      `select indexrelid::regclass::text as index, pg_get_indexdef(indexrelid, 1, true) as column
       from pg_index`,
    )
    leading = new Map(rows.map(({ index, column }) => [index, column]))
  })
  for (const [name, sql] of Object.entries(statements)) {
    test(`${name} reads no index of commands from end to end`, async () => {
      for (const { 'Index Name': index = '', 'Index Cond': by = '' } of await plan(name, sql)) {
        if (!index.startsWith('commands')) continue
        const column = leading.get(index) ?? 'an unknown index'
        assert.ok(by.includes(column), `${index} begins with ${column}, and is read by ${by}`)
      }
    })
  }
})

describe('on small tables that PostgreSQL has analyzed, before a whole fleet is enrolled', () => {
  before(async () => {
    await end()
    await begin()
    const place = await addPlace(db)
    for (let n = 0; n < 100; n++) {
      const deviceId = await addDevice(db, place)
      await db.query(
        `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds, created_at,
           expires_at, completed_at)
         select new_uuid7(), id, org_id, 'ping', '{}', 'completed', 300, now(), now(), now()
         from devices where id = $1`,
        [deviceId],
      )
    }
    const owner = openDatabase({ url: database.url, name: 'owner', connections: 1, role: 'owner' })
    // What autovacuum would: tables of fifty rows and more, and of partitions each for itself.
    const [month] = await db.query<{ name: string }>(
      'select tableoid::regclass::text as name from commands limit 1',
    )
    await owner.query(`analyze devices, device_presence, ${month?.name}`)
    const [known] = await owner.query<{ rows: number }>(
      "select reltuples as rows from pg_class where relname = 'device_presence'",
    )
    assert.equal(known?.rows, 100)
    await owner.close()
  })
  testKeys()
  testLarge()
})

async function plan(name: string, sql: string): Promise<Plan[]> {
  const count = Math.max(...[...sql.matchAll(/\$(\d+)/g)].map((match) => Number(match[1])))
  const [row] = await db.transaction(async (tx) => {
    await tx.query(`prepare ${name} as ${sql}`)
    const explained = await tx.query<{ 'QUERY PLAN': { Plan: Plan }[] }>(
      `explain (format json) execute ${name} (${Array(count).fill('null').join(', ')})`,
    )
    await tx.query(`deallocate ${name}`)
    return explained
  })
  const nodes = (node: Plan): Plan[] => [node, ...(node.Plans ?? []).flatMap(nodes)]
  return (row?.['QUERY PLAN'] ?? []).flatMap(({ Plan: root }) => nodes(root))
}
