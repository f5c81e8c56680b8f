// What the clock alone ends, against a real database.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { endExpired, endTimedOut, forgetIdempotencyKeys } from '../workers/sweeps.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import {
  addCommand,
  addDevice,
  addNode,
  addPlace,
  commandRow,
  eventsAbout,
  type Place,
} from './support/rows.ts'

const days = limits.openCommandDaysMax
const grace = limits.timeoutGraceSeconds

let database: TestDatabase
let db: Database
let place: Place

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'sweeps', connections: 4 })
  place = await addPlace(db)
})
after(async () => {
  await db.close()
  await database.drop()
})

const ids = (ended: { id: string }[]) => ended.map((command) => command.id)

/** The end of a command nobody ran. */
const nothing = (error: string) => ({
  exitCode: null,
  stdout: '',
  stderr: '',
  truncated: false,
  error,
  durationMs: null,
})

describe('expiry', () => {
  test('a command that waited too long expires, and an event tells of it', async () => {
    const deviceId = await addDevice(db, place)
    const id = await addCommand(db, deviceId, { expiresAgo: 1 })
    assert.deepEqual(await endExpired(db, days), [{ deviceId, id }])
    assert.deepEqual(await commandRow(db, id), {
      status: 'expired',
      result: nothing('it expired before the device took it'),
      ended: true,
    })
    assert.deepEqual(await eventsAbout(db, id), [
      {
        type: 'command.expired',
        siteId: place.siteId,
        data: { commandId: id, deviceId, action: 'ping', status: 'expired' },
      },
    ])
    assert.deepEqual(await endExpired(db, days), [])
  })

  test('one that was sent and never confirmed expires with another reason', async () => {
    const id = await addCommand(db, await addDevice(db, place), { status: 'sent', expiresAgo: 1 })
    assert.deepEqual(ids(await endExpired(db, days)), [id])
    const row = await commandRow(db, id)
    const error = 'it was sent, but the device did not confirm it before it expired'
    assert.deepEqual(row?.result, nothing(error))
  })

  test('what may still wait, and what the device has, stays', async () => {
    const deviceId = await addDevice(db, place)
    await addCommand(db, deviceId, { expiresAgo: -600 })
    await addCommand(db, deviceId, { status: 'running', expiresAgo: 9, deliveredAgo: 1 })
    assert.deepEqual(await endExpired(db, days), [])
  })

  test('a connected device ends its own commands for a minute', async () => {
    const nodeId = await addNode(db, 600)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    await addCommand(db, deviceId, { expiresAgo: 1 })
    const late = await addCommand(db, deviceId, { expiresAgo: 90 })
    assert.deepEqual(ids(await endExpired(db, days)), [late])
  })

  test('the word of a dead node does not count', async () => {
    const nodeId = await addNode(db, -1)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    const id = await addCommand(db, deviceId, { expiresAgo: 1 })
    assert.deepEqual(ids(await endExpired(db, days)), [id])
  })

  test('a command older than any open one is found by the first sweep only', async () => {
    await db.query(`select make_partitions((now() - interval '70 days')::date, 3)`)
    const createdAgo = 60 * 86_400
    const deviceId = await addDevice(db, place)
    const id = await addCommand(db, deviceId, { createdAgo, expiresAgo: createdAgo - 60 })
    assert.deepEqual(await endExpired(db, days), [])
    assert.deepEqual(ids(await endExpired(db, 36_500)), [id])
  })
})

describe('timeouts', () => {
  test('a run without an end times out after its time and the grace', async () => {
    const deviceId = await addDevice(db, place)
    const run = { status: 'running', timeoutSeconds: 600, deliveredAgo: 5000 }
    await addCommand(db, deviceId, { ...run, startedAgo: 1 + grace })
    const id = await addCommand(db, deviceId, { ...run, startedAgo: 601 + grace })
    assert.deepEqual(await endTimedOut(db, days), [{ deviceId, id }])
    assert.deepEqual(await commandRow(db, id), {
      status: 'timeout',
      result: nothing('the device reported no end within 600 s'),
      ended: true,
    })
    const data = { commandId: id, deviceId, action: 'ping', status: 'timeout' }
    assert.deepEqual(await eventsAbout(db, id), [
      { type: 'command.timeout', siteId: place.siteId, data },
    ])
  })

  test('one that was delivered and never started times out from its delivery', async () => {
    const deviceId = await addDevice(db, place)
    const one = { status: 'delivered', timeoutSeconds: 600 }
    const id = await addCommand(db, deviceId, { ...one, deliveredAgo: 601 + grace })
    await addCommand(db, deviceId, { ...one, deliveredAgo: grace })
    assert.deepEqual(ids(await endTimedOut(db, days)), [id])
  })

  test('a connected device ends its own commands for a minute', async () => {
    const nodeId = await addNode(db, 600)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    const run = { status: 'running', timeoutSeconds: 10 }
    await addCommand(db, deviceId, { ...run, deliveredAgo: 11 + grace })
    const late = await addCommand(db, deviceId, { ...run, deliveredAgo: 90 + grace })
    assert.deepEqual(ids(await endTimedOut(db, days)), [late])
  })
})

describe('many and at once', () => {
  test('a row that somebody holds is left for the next sweep, without waiting', async () => {
    const id = await addCommand(db, await addDevice(db, place), { expiresAgo: 1 })
    await db.transaction(async (tx) => {
      await tx.query('select from commands where id = $1 for update', [id])
      assert.deepEqual(await endExpired(db, days), [])
    })
    assert.deepEqual(ids(await endExpired(db, days)), [id])
  })

  test('a batch is bounded, and two sweeps end nothing twice', async () => {
    const deviceId = await addDevice(db, place)
    const due = limits.sweepBatchMax + 5
    await db.query(
      `insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_at,
         expires_at)
       select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
         $1, $2, 'ping', '{}', 300, now(), now() - interval '1 second'
       from generate_series(1, $3::int)`,
      [deviceId, place.orgId, due],
    )
    const first = await Promise.all([endExpired(db, days), endExpired(db, days)])
    const rest = await endExpired(db, days)
    for (const batch of first) assert.ok(batch.length <= limits.sweepBatchMax)
    const all = ids([...first.flat(), ...rest])
    assert.equal(all.length, due)
    assert.equal(new Set(all).size, due)
    const [told] = await db.query<{ count: number }>(
      `select count(*)::int as count from events
       where type = 'command.expired' and data->>'deviceId' = $1`,
      [deviceId],
    )
    assert.equal(told?.count, due)
  })

  test('an event of a sweep has a UUIDv7 of its time', async () => {
    const beganMs = Date.now()
    const id = await addCommand(db, await addDevice(db, place), { expiresAgo: 1 })
    await endExpired(db, days)
    const [event] = await db.query<{ id: string }>(
      `select id::text from events where data->>'commandId' = $1`,
      [id],
    )
    assert.match(event?.id ?? '', /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-/)
    const ms = Number.parseInt((event?.id ?? '').replace('-', '').slice(0, 12), 16)
    assert.ok(Math.abs(ms - beganMs) < 60_000)
  })
})

test('an idempotency key is free again after its time', async () => {
  const userId = place.orgId
  await db.query(
    `insert into idempotency_keys (user_id, key, body_hash, command_id, created_at)
     select $1, key, '', $1, now() - make_interval(hours => hours)
     from unnest(array['old', 'young'], array[25, 23]) as k(key, hours)`,
    [userId],
  )
  assert.equal(await forgetIdempotencyKeys(db), 1)
  assert.deepEqual(await db.query('select key from idempotency_keys'), [{ key: 'young' }])
})
