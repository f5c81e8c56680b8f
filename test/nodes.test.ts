// Leases of hubs, and the devices a dead one left behind, against a real database.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { deadNodes, endOrphans, forgetNodes, Lease } from '../workers/nodes.ts'
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
import { until } from './support/until.ts'

const leaseMs = limits.nodeLeaseSeconds * 1000

let database: TestDatabase
let db: Database
/** Sees what the others wait for. */
let owner: Database
let place: Place

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'nodes', connections: 4 })
  owner = openDatabase({ url: database.url, name: 'owner', connections: 1, role: 'owner' })
  place = await addPlace(db)
})
after(async () => {
  await db.close()
  await owner.close()
  await database.drop()
})

/** Ends the lease of a node, as if it had not renewed it. */
function lapse(id: string) {
  return db.query(`update nodes set lease_until = now() - interval '1 second' where id = $1`, [id])
}

async function leaseSeconds(id: string): Promise<number> {
  const [row] = await db.query<{ seconds: number }>(
    'select extract(epoch from lease_until - now())::float8 as seconds from nodes where id = $1',
    [id],
  )
  return row?.seconds ?? Number.NaN
}

async function presence(deviceId: string) {
  const [row] = await db.query<{ status: string; nodeId: string | null }>(
    'select status, node_id as "nodeId" from device_presence where device_id = $1',
    [deviceId],
  )
  return row
}

async function sweep(): Promise<number> {
  const { ended, complete } = await endOrphans(db, () => true)
  assert.ok(complete)
  return ended
}

describe('a lease', () => {
  test('is taken, renewed, and known to be lost', async () => {
    const id = newId()
    const lease = new Lease(db, { id, version: '1.0.0' })
    assert.deepEqual(await lease.renew(), { first: true, held: false })
    assert.ok((await leaseSeconds(id)) > limits.nodeLeaseSeconds - 1)
    assert.deepEqual(await lease.renew(), { first: false, held: true })
    await lapse(id)
    assert.deepEqual(await lease.renew(), { first: false, held: false })
    assert.deepEqual(await lease.renew(), { first: false, held: true })
    await db.query('delete from nodes where id = $1', [id])
    assert.deepEqual(await lease.renew(), { first: false, held: false })
  })

  test('a replaced thread of a living hub goes on with it', async () => {
    const node = { id: newId(), version: '1.0.0' }
    await new Lease(db, node).renew()
    assert.deepEqual(await new Lease(db, node).renew(), { first: true, held: true })
  })

  test('counts as unbroken after a whole term, and only while it is held', async () => {
    let nowMs = 0
    const node = { id: newId(), version: '1.0.0' }
    const lease = new Lease(db, node, () => nowMs)
    assert.equal(lease.unbroken(), false)
    await lease.renew()
    nowMs = leaseMs - 1
    await lease.renew()
    assert.equal(lease.unbroken(), false)
    nowMs = leaseMs
    assert.equal(lease.unbroken(), true)
    // Not renewed: others may take it for dead.
    nowMs = 2 * leaseMs - 1
    assert.equal(lease.unbroken(), false)
    await lapse(node.id)
    await lease.renew()
    assert.equal(lease.unbroken(), false)
    nowMs += leaseMs - 1
    await lease.renew()
    nowMs += 1
    assert.equal(lease.unbroken(), true)
  })

  test('outlives an orderly end by the grace of its devices', async () => {
    const id = newId()
    const lease = new Lease(db, { id, version: '1.0.0' })
    await lease.renew()
    await lease.leave(75)
    const seconds = await leaseSeconds(id)
    assert.ok(seconds > 70 && seconds <= 75)
  })
})

describe('orphans', () => {
  test('devices of a dead node turn offline, and what was sent to them waits again', async () => {
    const nodeId = await addNode(db, -1)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    const sent = await addCommand(db, deviceId, { status: 'sent' })
    const running = await addCommand(db, deviceId, { status: 'running', deliveredAgo: 1 })
    assert.ok((await deadNodes(db)).includes(nodeId))
    assert.equal(await sweep(), 1)
    assert.deepEqual(await presence(deviceId), { status: 'offline', nodeId: null })
    assert.equal((await commandRow(db, sent))?.status, 'pending')
    assert.equal((await commandRow(db, running))?.status, 'running')
    assert.deepEqual(await eventsAbout(db, deviceId), [
      { type: 'device.offline', siteId: place.siteId, data: { deviceId } },
    ])
    assert.equal(await sweep(), 0)
  })

  test('what was sent and is not wanted any more ends there', async () => {
    const nodeId = await addNode(db, -1)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    const id = await addCommand(db, deviceId, { status: 'sent' })
    // The hub that held it died before it could say what came of the wish.
    const waits = await addCommand(db, deviceId, { status: 'pending' })
    const wanted = await addCommand(db, deviceId, { status: 'pending' })
    await db.query('update commands set cancel_requested_at = now() where id = any($1)', [
      [id, waits],
    ])
    assert.equal(await sweep(), 1)
    for (const one of [id, waits]) {
      const row = await commandRow(db, one)
      assert.deepEqual([row?.status, row?.ended], ['cancelled', true])
    }
    assert.equal((await commandRow(db, wanted))?.status, 'pending')
    const told = (await eventsAbout(db, id)).map(({ type }) => type)
    assert.deepEqual(told, ['command.cancelled'])
  })

  test('so do those of no node, and of one whose row is gone', async () => {
    const none = await addDevice(db, place, { status: 'online' })
    const unknown = await addDevice(db, place, { status: 'online', nodeId: newId() })
    assert.equal(await sweep(), 2)
    assert.equal((await presence(none))?.status, 'offline')
    assert.equal((await presence(unknown))?.status, 'offline')
  })

  test('devices of a living node stay', async () => {
    const nodeId = await addNode(db, 15)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId })
    assert.equal(await sweep(), 0)
    assert.deepEqual(await presence(deviceId), { status: 'online', nodeId })
  })

  test('a device that comes back while it is swept stays online', async () => {
    const dead = await addNode(db, -1)
    const deviceId = await addDevice(db, place, { status: 'online', nodeId: dead })
    const back = await db.transaction(async (tx) => {
      // The snapshot of the sweep, which begins now, sees neither the node nor the claim.
      const nodeId = await addNode(tx, 15)
      await tx.query(
        'update device_presence set epoch = epoch + 1, node_id = $2 where device_id = $1',
        [deviceId, nodeId],
      )
      const swept = sweep()
      await waiting()
      return { count: swept, nodeId }
    })
    assert.equal(await back.count, 0)
    assert.deepEqual(await presence(deviceId), { status: 'online', nodeId: back.nodeId })
  })

  test('more than a batch are found in steps, and a walk can stop between them', async () => {
    const count = limits.sweepBatchMax + 3
    await db.query(
      `with d as (
         insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
         select id, $1, $2, 'host', 'linux', 'amd64', decode(md5(id::text), 'hex')
         from (select gen_random_uuid() as id from generate_series(1, $3::int)) as ids
         returning id
       )
       insert into device_presence (device_id, org_id, status) select id, $1, 'online' from d`,
      [place.orgId, place.siteId, count],
    )
    let steps = 0
    const first = await endOrphans(db, () => steps++ === 0)
    assert.deepEqual(first, { ended: limits.sweepBatchMax, complete: false })
    assert.equal(await sweep(), count - limits.sweepBatchMax)
  })
})

test('a dead node is forgotten, one that came back is not', async () => {
  const dead = await addNode(db, -1)
  const back = await addNode(db, 15)
  const [row] = await db.query<{ deviceId: string }>('select gen_random_uuid() as "deviceId"')
  for (const node of [dead, back, newId()]) {
    const values = [node, row?.deviceId]
    await db.query('insert into handoffs (node_id, device_id) values ($1, $2)', values)
  }
  await forgetNodes(db, [dead, back])
  assert.deepEqual(await db.query('select node_id as id from handoffs'), [{ id: back }])
  const left = await db.query<{ id: string }>('select id from nodes where id = any($1::uuid[])', [
    [dead, back],
  ])
  assert.deepEqual(left, [{ id: back }])
})

/** Resolves once a statement of this database waits for a lock. */
async function waiting(): Promise<void> {
  await until('the sweep to wait for the lock', async () => {
    const rows = await owner.query(
      `select true as found from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock'`,
    )
    return rows.length > 0
  })
}
