// Absences judged against a real database: the grace, the fold of a site, returns, and the silence of
// a hub's own start.
import assert from 'node:assert/strict'
import { after, afterEach, before, describe, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { endAbsences, judgeAbsences } from '../workers/absences.ts'
import { endOrphans } from '../workers/nodes.ts'
import { claimSql, offlineSql } from '../workers/statements.ts'
import { newId } from '../src/ids.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addDevice, addNode, addPlace, type Place } from './support/rows.ts'

let database: TestDatabase
let db: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'absences', connections: 6 })
})
after(async () => {
  await db.close()
  await database.drop()
})
afterEach(async () => {
  // What a test leaves absent is not the next one's.
  await db.query('update device_presence set absent = false, offline_alert_id = null')
})

const longUp = { seconds: 1e6, graceSeconds: 75 }

/** Claims devices as their connections do; returns their epochs. */
async function comeOnline(...ids: string[]): Promise<void> {
  const ordered = `{${ids.join(',')}}`
  const events = `{${ids.map(() => newId()).join(',')}}`
  const [nulls, flags] = [
    `{${ids.map(() => 'NULL').join(',')}}`,
    `{${ids.map(() => 'f').join(',')}}`,
  ]
  await db.query(claimSql, [ordered, nulls, flags, events, newId()])
}

/** Ends their connections, so many seconds ago. */
async function goOffline(ids: readonly string[], secondsAgo: readonly number[] | number = 0) {
  const rows = await db.query<{ id: string; epoch: string }>(
    'select device_id as id, epoch::text from device_presence where device_id = any($1::uuid[])',
    [ids],
  )
  const epochs = new Map(rows.map((row) => [row.id, row.epoch]))
  await db.query(offlineSql, [
    `{${ids.join(',')}}`,
    `{${ids.map((id) => epochs.get(id)).join(',')}}`,
    `{${ids.map(() => 0).join(',')}}`,
    ids.map(() => null),
    ids.map(() => null),
    `{${ids.map(() => newId()).join(',')}}`,
  ])
  for (const [n, id] of ids.entries()) {
    const seconds = typeof secondsAgo === 'number' ? secondsAgo : (secondsAgo[n] ?? 0)
    await db.query(
      'update device_presence set status_at = now() - make_interval(secs => $2) where device_id = $1',
      [id, seconds],
    )
  }
}

async function fleet(place: Place, count: number): Promise<string[]> {
  const ids: string[] = []
  for (let n = 0; n < count; n++) ids.push(await addDevice(db, place))
  await comeOnline(...ids)
  return ids
}

interface AlertRow extends Record<string, unknown> {
  id: string
  deviceId: string | null
  siteId: string
  status: string
  occurrences: string
  // oxlint-disable-next-line typescript/no-explicit-any -- of every shape
  context: any
}

const alertsOf = ({ orgId }: Place) =>
  db.query<AlertRow>(
    `select id, device_id as "deviceId", site_id as "siteId", status, occurrences, context
     from alerts where org_id = $1 and kind = 'device_offline' order by id`,
    [orgId],
  )

const summary = async (place: Place) =>
  (await alertsOf(place)).map(({ deviceId, status }) => [deviceId, status])

describe('one device', () => {
  test('has the grace of its organization, and its alert ends with its return', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 120 })
    const [id = ''] = await fleet(place, 1)
    await goOffline([id], 60)
    assert.equal(await judgeAbsences(db, longUp), 0)
    await goOffline([id], 180)
    assert.equal(await judgeAbsences(db, longUp), 1)
    assert.equal(await judgeAbsences(db, longUp), 0)
    assert.deepEqual(await summary(place), [[id, 'active']])
    assert.equal(await endAbsences(db), 0)
    await comeOnline(id)
    assert.equal(await endAbsences(db), 1)
    assert.equal(await endAbsences(db), 0)
    assert.deepEqual(await summary(place), [[id, 'resolved']])
    const events = await db.query(
      `select type, site_id as "siteId" from events where data->>'deviceId' = $1 and type like 'alert.%'
       order by xid, id`,
      [id],
    )
    assert.deepEqual(events, [
      { type: 'alert.triggered', siteId: place.siteId },
      { type: 'alert.resolved', siteId: place.siteId },
    ])
  })

  test('sixty seconds by default; back in time is no alert; a second absence is a new one', async () => {
    const place = await addPlace(db)
    const [id = ''] = await fleet(place, 1)
    await goOffline([id], limits.offlineGraceSecondsDefault - 30)
    await judgeAbsences(db, longUp)
    await comeOnline(id)
    await judgeAbsences(db, longUp)
    assert.deepEqual(await summary(place), [])
    for (let n = 0; n < 2; n++) {
      await goOffline([id], 90)
      await judgeAbsences(db, longUp)
      await comeOnline(id)
      await endAbsences(db)
    }
    assert.deepEqual(await summary(place), [
      [id, 'resolved'],
      [id, 'resolved'],
    ])
  })

  test('a hand that resolves is not overruled, and one that was never online is not away', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 0 })
    await addDevice(db, place)
    const [id = ''] = await fleet(place, 1)
    await goOffline([id], 1)
    await judgeAbsences(db, longUp)
    await db.query(
      `update alerts set status = 'resolved', resolved_at = now() where device_id = $1`,
      [id],
    )
    assert.equal(await judgeAbsences(db, longUp), 0)
    await comeOnline(id)
    await endAbsences(db)
    assert.deepEqual(await summary(place), [[id, 'resolved']])
  })

  test('of a suspended organization is no news', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 0 })
    const ids = await fleet(place, 2)
    await goOffline(ids, 5)
    await db.query(`update organizations set status = 'suspended' where id = $1`, [place.orgId])
    await judgeAbsences(db, longUp)
    await db.query(`update organizations set status = 'active' where id = $1`, [place.orgId])
    assert.equal(await judgeAbsences(db, longUp), 0)
    assert.deepEqual(await summary(place), [])
  })
})

describe('a site', () => {
  test('whose devices go together is one alert, which ends when the last is back', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 10 })
    const ids = await fleet(place, 10)
    const gone = ids.slice(0, 8)
    // Only the first are due; the others went within the minute after.
    await goOffline(gone, [40, 30, 20, 9, 8, 7, 6, 5])
    await judgeAbsences(db, longUp)
    const [alert, ...more] = await alertsOf(place)
    assert.deepEqual(more, [])
    assert.deepEqual(
      [alert?.deviceId, alert?.siteId, alert?.context],
      [null, place.siteId, { siteId: place.siteId, devices: 8, total: 10 }],
    )
    assert.equal(await judgeAbsences(db, longUp), 0)
    await comeOnline(...gone.slice(0, 7))
    await endAbsences(db)
    assert.deepEqual(await summary(place), [[null, 'active']])
    await comeOnline(gone[7] ?? '')
    await endAbsences(db)
    assert.deepEqual(await summary(place), [[null, 'resolved']])
  })

  test('with fewer than five, less than four fifths, or over more than a minute is each device', async () => {
    const cases: [size: number, secondsAgo: number[]][] = [
      [4, [1, 1, 1, 1]],
      [7, [1, 1, 1, 1, 1]],
      [5, [140, 120, 80, 60, 40]],
    ]
    for (const [size, secondsAgo] of cases) {
      const place = await addPlace(db, { offlineGraceSeconds: 0 })
      const ids = (await fleet(place, size)).slice(0, secondsAgo.length)
      await goOffline(ids, secondsAgo)
      await judgeAbsences(db, longUp)
      const raised = (await alertsOf(place)).map(({ deviceId }) => deviceId ?? 'a site')
      assert.deepEqual(raised.toSorted(), ids.toSorted())
    }
  })

  test('takes in alerts of devices that were told of before the rest went', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 0 })
    const ids = await fleet(place, 6)
    await goOffline(ids.slice(0, 3), 30)
    await judgeAbsences(db, longUp)
    assert.equal((await alertsOf(place)).length, 3)
    await goOffline(ids.slice(3), 1)
    await judgeAbsences(db, longUp)
    const alerts = await alertsOf(place)
    assert.deepEqual(
      alerts.map(({ deviceId, status }) => [deviceId !== null, status]),
      [
        [true, 'resolved'],
        [true, 'resolved'],
        [true, 'resolved'],
        [false, 'active'],
      ],
    )
    assert.equal(alerts[0]?.context.resolution, 'its whole site is away')
    await comeOnline(...ids)
    await endAbsences(db)
    assert.ok((await alertsOf(place)).every(({ status }) => status === 'resolved'))
  })

  test('does not wait for a device that was decommissioned', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 0 })
    const ids = await fleet(place, 5)
    await goOffline(ids, 1)
    await judgeAbsences(db, longUp)
    await comeOnline(...ids.slice(1))
    await endAbsences(db)
    await db.query(`update device_presence set status = 'decommissioned' where device_id = $1`, [
      ids[0],
    ])
    await endAbsences(db)
    assert.deepEqual(await summary(place), [[null, 'resolved']])
  })

  test('is told of once, however many hubs judge at the same time', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 0 })
    const ids = await fleet(place, 12)
    await goOffline(ids, 1)
    const judged = await Promise.all(Array.from({ length: 6 }, () => judgeAbsences(db, longUp)))
    assert.equal(
      judged.reduce((sum, count) => sum + count, 0),
      12,
    )
    const [alert, ...more] = await alertsOf(place)
    assert.deepEqual([alert?.deviceId, alert?.occurrences, more], [null, '1', []])
  })
})

describe('a start of the hub', () => {
  test('leaves what went before it alone until its grace is over', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 5 })
    const [earlier = '', since = ''] = await fleet(place, 2)
    await goOffline([earlier, since], [3600, 8])
    assert.equal(await judgeAbsences(db, { seconds: 20, graceSeconds: 75 }), 1)
    assert.deepEqual(await summary(place), [[since, 'active']])
    assert.equal(await judgeAbsences(db, { seconds: 74, graceSeconds: 75 }), 0)
    assert.equal(await judgeAbsences(db, { seconds: 76, graceSeconds: 75 }), 1)
  })

  test('a device that a dead hub left behind has its grace from then on', async () => {
    const place = await addPlace(db, { offlineGraceSeconds: 30 })
    const node = await addNode(db, -1)
    const id = await addDevice(db, place, { status: 'online', nodeId: node })
    await endOrphans(db, () => true)
    await judgeAbsences(db, longUp)
    assert.deepEqual(await summary(place), [])
    await db.query(
      `update device_presence set status_at = now() - interval '31 s' where device_id = $1`,
      [id],
    )
    await judgeAbsences(db, longUp)
    assert.deepEqual(await summary(place), [[id, 'active']])
  })
})
