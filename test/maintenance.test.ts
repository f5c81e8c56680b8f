// The daily work: partitions ahead, ended sessions, retention, against a real database.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { idFloor, newId } from '../src/ids.ts'
import { dropOldPartitions, maintain, retentionDays } from '../workers/maintenance.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addCommand, addDevice, addPlace } from './support/rows.ts'

let database: TestDatabase
let db: Database
let owner: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'hub', connections: 2 })
  owner = openDatabase({ url: database.url, name: 'owner', connections: 2, role: 'owner' })
})
after(async () => {
  await db.close()
  await owner.close()
  await database.drop()
})

async function partitions(parent: string): Promise<string[]> {
  const rows = await db.query<{ name: string }>(
    `select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::regclass
     order by 1`,
    [parent],
  )
  return rows.map((row) => row.name)
}

/** The partition of a table for the month so many months from now. */
function partition(parent: string, months: number): string {
  const now = new Date()
  const month = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 1))
  return `${parent}_${month.toISOString().slice(0, 7).replace('-', '')}`
}

const makeOld = () => owner.query(`select make_partitions((now() - interval '6 months')::date, 1)`)

test('partitions are made ahead', async () => {
  const last = partition('commands', 3)
  await owner.query(`drop table ${last}`)
  await maintain(db, owner)
  assert.equal((await partitions('commands')).at(-1), last)
})

test('sessions go a month after their end with their tokens, expired tokens at once', async () => {
  const userId = newId()
  await db.query(
    `insert into users (id, email, role) values ($1, 'a@example.org', 'platform_admin')`,
    [userId],
  )
  // Name → when it ends and was revoked, in days from now.
  const sessions = { ended: [-31, null], revoked: [20, -31], recent: [-29, null], open: [20, null] }
  for (const [name, [ends, revoked]] of Object.entries(sessions)) {
    await db.query(
      `with s as (
         insert into sessions (id, user_id, user_agent, ends_at, revoked_at)
         values ($1, $2, $3, now() + make_interval(days => $4), now() + make_interval(days => $5))
         returning id
       )
       insert into refresh_tokens (token_hash, session_id, expires_at)
       select decode(md5($3 || expires), 'hex'), id, now() + expires::interval
       from s, unnest(array['1 day', '-1 day']) as expires`,
      [newId(), userId, name, ends, revoked],
    )
  }
  const done = await maintain(db, owner)
  assert.equal(done.sessions, 2)
  assert.equal(done.refreshTokens, 2)
  const left = await db.query(
    `select s.user_agent as name, count(r.*)::int as tokens
     from sessions s left join refresh_tokens r on r.session_id = s.id group by 1 order by 1`,
  )
  assert.deepEqual(left, [
    { name: 'open', tokens: 1 },
    { name: 'recent', tokens: 1 },
  ])
})

describe('retention', () => {
  test('keeps everything until every organization wants less, then as long as the longest', async () => {
    assert.equal(await retentionDays(db), null)
    const { orgId } = await addPlace(db)
    await addPlace(db, { retentionDays: 60 })
    await addPlace(db, { retentionDays: 90 })
    assert.equal(await retentionDays(db), null)
    await makeOld()
    assert.deepEqual((await maintain(db, owner)).dropped, [])
    await db.query(`update organizations set settings = '{"retentionDays": 30}' where id = $1`, [
      orgId,
    ])
    assert.equal(await retentionDays(db), 90)
  })

  test('drops what ended before the time of the longest wish', async () => {
    await makeOld()
    const { dropped } = await maintain(db, owner)
    for (const parent of ['audit', 'commands', 'events']) {
      assert.ok(dropped.includes(partition(parent, -5)))
      assert.ok(!dropped.includes(partition(parent, -2)))
      assert.ok(!(await partitions(parent)).includes(partition(parent, -5)))
      assert.ok((await partitions(parent)).includes(partition(parent, 0)))
    }
  })

  test('never drops an open command', async () => {
    await makeOld()
    const deviceId = await addDevice(db, await addPlace(db, { retentionDays: 90 }))
    const now = new Date()
    const month = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - 6, 15)
    const id = await addCommand(db, deviceId, { createdAgo: (Date.now() - month) / 1000 })
    const kept = partition('commands', -6)
    const dropped = await dropOldPartitions(owner, 90)
    assert.ok(!dropped.includes(kept))
    assert.ok(dropped.includes(partition('events', -6)))
    assert.ok((await partitions('commands')).includes(kept))
    await db.query(`update commands set status = 'failed', completed_at = now() where id = $1`, [
      id,
    ])
    assert.deepEqual(await dropOldPartitions(owner, 90), [kept])
  })

  test('deletes executions as old as that, never one that is open', async () => {
    const { orgId } = await addPlace(db, { retentionDays: 90 })
    const scriptId = newId()
    await db.query(`insert into scripts (id, org_id, name) values ($1, $2, 'x')`, [scriptId, orgId])
    await db.query(
      `insert into script_versions (script_id, version, language, content, content_bytes, os,
         timeout_seconds, sha256) values ($1, 1, 'sh', 'x', 1, '{linux}', 60, '')`,
      [scriptId],
    )
    const add = async (endedDaysAgo: number | null) => {
      const id = idFloor(Date.now() - 100 * 86_400_000).slice(0, 14) + newId().slice(14)
      await db.query(
        `insert into executions (id, org_id, script_id, version, timeout_seconds, expires_at,
           completed_at, fanned_out_at)
         values ($1, $2, $3, 1, 60, now(), now() - make_interval(days => $4), now())`,
        [id, orgId, scriptId, endedDaysAgo],
      )
      return id
    }
    await add(95)
    const kept = [await add(80), await add(null)]
    await maintain(db, owner)
    const rows = await db.query<{ id: string }>('select id from executions order by id')
    assert.deepEqual(
      rows.map(({ id }) => id),
      kept.toSorted(),
    )
  })

  test('deletes roll-outs as old as that with their devices, never one that is open', async () => {
    const place = await addPlace(db, { retentionDays: 90 })
    const deviceId = await addDevice(db, place)
    const add = async (endedDaysAgo: number | null, status = 'completed') => {
      const id = newId()
      await db.query(
        `insert into rollouts (id, org_id, version, filter, platforms, timeout_seconds,
           expires_in_seconds, completed_at)
         values ($1, $2, '1.0.0', '{}', '{}', 60, 60, now() - make_interval(days => $3))`,
        [id, place.orgId, endedDaysAgo],
      )
      await db.query(
        `insert into rollout_devices (rollout_id, group_number, device_id, status)
         values ($1, 1, $2, $3)`,
        [id, deviceId, status],
      )
      return id
    }
    await add(95)
    await add(91)
    // The last one was aborted while its device was at it, and is so still.
    const kept = [await add(80), await add(null), await add(95, 'running')]
    await maintain(db, owner)
    const rows = await db.query<{ id: string }>(
      `select r.id from rollouts r join rollout_devices x on x.rollout_id = r.id order by r.id`,
    )
    assert.deepEqual(
      rows.map(({ id }) => id),
      kept.toSorted(),
    )
    const left = await db.query('select true as found from rollout_devices')
    assert.equal(left.length, kept.length)
  })

  test('deletes terminals with their recordings as their own organization wishes', async () => {
    const add = async (settings: object, endedDaysAgo: number | null) => {
      const place = await addPlace(db, settings)
      const id = newId()
      await db.query(
        `insert into terminals (id, org_id, device_id, user_email, node_id, cols, rows, ended_at)
         values ($1, $2, $3, 'x', $1, 80, 24, now() - make_interval(days => $4))`,
        [id, place.orgId, await addDevice(db, place), endedDaysAgo],
      )
      await db.query(
        `insert into terminal_recordings (terminal_id, seq, lines) select $1, n, '' from generate_series(0, 9) as n`,
        [id],
      )
      return id
    }
    const month = { retentionDays: 30 }
    const gone = await add(month, 31)
    const kept = [await add(month, 29), await add(month, null), await add({}, 3000)]
    assert.equal((await maintain(db, owner)).terminals, 1)
    for (const table of ['terminals', 'terminal_recordings']) {
      const column = table === 'terminals' ? 'id' : 'terminal_id'
      const rows = await db.query<{ id: string }>(
        `select distinct ${column} as id from ${table} where ${column} = any($1::uuid[])`,
        [[gone, ...kept]],
      )
      assert.deepEqual(rows.map(({ id }) => id).toSorted(), kept.toSorted())
    }
  })

  test('a table that is being read is left for the next day', async () => {
    await makeOld()
    const dropped = await db.transaction(async (tx) => {
      await tx.query('select count(*) from events')
      return dropOldPartitions(owner, 90)
    })
    assert.ok(dropped.includes(partition('audit', -6)))
    assert.ok(!dropped.includes(partition('events', -6)))
    assert.ok((await dropOldPartitions(owner, 90)).includes(partition('events', -6)))
  })
})
