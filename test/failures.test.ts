// Failed ends of commands become alerts, each once, whoever ended them and however many hubs look.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { raiseFailures } from '../workers/failures.ts'
import { endExpired, endTimedOut } from '../workers/sweeps.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addCommand, addDevice, addPlace, type Place } from './support/rows.ts'
import { until } from './support/until.ts'

let database: TestDatabase
let db: Database
let place: Place

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'failures', connections: 8 })
  place = await addPlace(db)
})
after(async () => {
  await db.close()
  await database.drop()
})

const alertsOf = (deviceId: string) =>
  db.query<{ kind: string; occurrences: number; title: string }>(
    `select kind, occurrences::int, title from alerts where device_id = $1`,
    [deviceId],
  )

/**
 * Reads exactly so many ends, as so many hubs. Waits for them: what other databases of the server have
 * under way holds back the horizon of this one, too.
 */
async function readAll(ends: number, hubs = 1): Promise<void> {
  let read = 0
  await until('the ends to be read', async () => {
    const rows = await Promise.all(Array.from({ length: hubs }, () => raiseFailures(db)))
    for (const count of rows) {
      assert.ok(count <= limits.alertBatchMax)
      read += count
    }
    return read >= ends
  })
  assert.deepEqual([read, await raiseFailures(db)], [ends, 0])
}

test('what a sweep ended as timed out is one; what expired or was cancelled is none', async () => {
  const deviceId = await addDevice(db, place)
  await addCommand(db, deviceId, { status: 'running', deliveredAgo: 9000, startedAgo: 9000 })
  await addCommand(db, await addDevice(db, place), { expiresAgo: 1 })
  assert.equal((await endTimedOut(db, limits.openCommandDaysMax)).length, 1)
  assert.equal((await endExpired(db, limits.openCommandDaysMax)).length, 1)
  await readAll(1)
  assert.deepEqual(await alertsOf(deviceId), [
    { kind: 'command_failed', occurrences: 1, title: 'ping did not end in time on host' },
  ])
})

test('a flood is read in batches, by many hubs at once, and each end counts once', async () => {
  const deviceId = await addDevice(db, place)
  const ends = 3 * limits.alertBatchMax + 7
  const add = (count: number) =>
    db.query(
      `insert into events (id, org_id, type, at, site_id, data)
       select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
         $1, 'command.failed', now(), $2, jsonb_build_object('deviceId', $3::uuid, 'commandId',
           gen_random_uuid(), 'action', 'ping', 'status', 'failed')
       from generate_series(1, $4::int)`,
      [place.orgId, place.siteId, deviceId, count],
    )
  await add(ends)
  await readAll(ends, 4)
  const [alert] = await alertsOf(deviceId)
  assert.equal(alert?.occurrences, ends)
})

test('an end that is not committed yet is not passed over', async () => {
  const deviceId = await addDevice(db, place)
  const data = (id: string) =>
    JSON.stringify({ deviceId, commandId: id, action: 'ping', status: 'failed' })
  const insert = `insert into events (id, org_id, type, at, site_id, data)
    values (overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
      $1, 'command.failed', now(), $2, $3)`
  await db.transaction(async (slow) => {
    await slow.query(insert, [place.orgId, place.siteId, data(place.orgId)])
    await db.query(insert, [place.orgId, place.siteId, data(place.siteId)])
    // The later one is there already, but the earlier one must not be lost behind it.
    assert.equal(await raiseFailures(db), 0)
  })
  await readAll(2)
  assert.equal((await alertsOf(deviceId))[0]?.occurrences, 2)
})
