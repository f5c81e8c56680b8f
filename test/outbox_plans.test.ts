// The outbox is read several times a second: what one read costs must not grow with what is left to read.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { comparePositions, readOutbox } from '../src/outbox.ts'
import { advanceSql } from '../workers/webhook_statements.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addPlace, type Place } from './support/rows.ts'

let database: TestDatabase
let db: Database
let place: Place
const begin = { xid: '0', id: '00000000-0000-0000-0000-000000000000' }

before(async () => {
  database = await createDatabase()
  db = openDatabase({
    url: database.url,
    name: 'plans',
    connections: 1,
    role: 'owner',
    planEach: true,
  })
  place = await addPlace(db)
  // On the empty tables: nothing of this may be kept for the full ones.
  for (let i = 0; i < 10; i++) await readOutbox(db, everything, {}, begin, 500)
  await db.query(`select make_partitions((now() - interval '3 months')::date, 3)`)
  await db.query(
    `insert into events (id, org_id, type, at, data, xid)
     select overlay(gen_random_uuid()::text placing left(uuid7_floor(t)::text, 13) from 1)::uuid, $1,
       'device.online', t, '{}', (n / 200)::text::xid8
     from (select n, now() - (60000 - n) * interval '2 minutes' as t
           from generate_series(1, 60000) n) as times`,
    [place.orgId],
  )
})
after(async () => {
  await db.close()
  await database.drop()
})

const everything = { orgId: null, siteIds: null }

interface Plan {
  'Node Type': string
  'Relation Name'?: string
  'Actual Rows': number
  Plans?: Plan[]
}

async function plan(sql: string, values: readonly unknown[]): Promise<Plan[]> {
  const rows = await db.query<{ 'QUERY PLAN': { Plan: Plan }[] }>(
    `explain (analyze, format json) ${sql}`,
    values,
  )
  const nodes = (node: Plan): Plan[] => [node, ...(node.Plans ?? []).flatMap(nodes)]
  return rows.flatMap((row) => row['QUERY PLAN'].flatMap(({ Plan: root }) => nodes(root)))
}

test('a batch is taken from the indexes in their order, before and after an analyze', async () => {
  for (const analyze of [false, true]) {
    if (analyze) await db.query('analyze events')
    const values = [begin.xid, begin.id, limits.outboxBatchMax, limits.webhookBodyBytesMax]
    const nodes = await plan(advanceSql, values)
    const reads = nodes.filter((node) => node['Relation Name']?.startsWith('events_'))
    assert.ok(reads.length > 0)
    const read = reads.reduce((sum, node) => sum + node['Actual Rows'], 0)
    assert.ok(read <= limits.outboxBatchMax + reads.length, `${read} rows were read`)
    assert.ok(nodes.some((node) => node['Node Type'] === 'Merge Append'))
    await db.query('update webhook_cursor set xid = $1::xid8, id = $2::uuid', [begin.xid, begin.id])
  }
})

test('batches follow each other in order, without gap and double, whatever is shown of them', async () => {
  let position = begin
  let seen = 0
  const nobody = { orgId: place.siteId, siteIds: null }
  for (;;) {
    const batch = await readOutbox(db, everything, {}, position, 7_000)
    const hidden = await readOutbox(db, nobody, {}, position, 7_000)
    assert.deepEqual([hidden.events.length, hidden.last], [0, batch.last])
    for (const event of batch.events) {
      assert.ok(comparePositions(position, event) < 0)
      position = { xid: event.xid, id: event.id }
      seen++
    }
    if (batch.scanned < 7_000) break
  }
  assert.equal(seen, 60_000)
})
