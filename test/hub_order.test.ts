// A database that was restored on a PostgreSQL which has counted fewer transactions than its rows say.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import pg from 'pg'
import { auditOf, insertAudit } from '../src/audit.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { insertEvents } from '../src/events.ts'
import { continueOrder } from '../src/hub_order.ts'
import { newId } from '../src/ids.ts'
import { run } from '../src/main.ts'
import { sealAudit } from '../workers/sealing.ts'
import { EventReader } from './support/event_stream.ts'
import { startHub, TestHub } from './support/hub.ts'
import { call, makeOrganization, signedIn, type Person } from './support/people.ts'
import { Receiver, type Hit } from './support/receiver.ts'
import { until } from './support/until.ts'

let hub: TestHub
let owner: Database
let receiver: Receiver

before(async () => {
  hub = await startHub({ WEBHOOK_ALLOWED_CIDRS: '127.0.0.1/32' })
  owner = openDatabase({ url: hub.database.url, name: 'test', connections: 2, role: 'owner' })
  receiver = await Receiver.start()
})
after(async () => {
  await owner.close()
  await hub.close()
  await receiver.close()
})

/** Stops the hub, lets `meanwhile` happen to its database, and starts another one on it. */
async function restart(meanwhile: () => Promise<unknown>): Promise<void> {
  await hub.hub.close()
  await meanwhile()
  hub = new TestHub(await run({ env: hub.env }), hub.database, hub.env, [], hub.env['DATA_DIR']!)
}

/** As a server that has counted far more transactions than this one. */
async function countFarAhead(): Promise<void> {
  await owner.query(
    `insert into events (id, org_id, type, at, data, xid)
     values (new_uuid7(), null, 'device.online', now(), '{}', '5000000000')`,
  )
  const client = new pg.Client(hub.database.url)
  await client.connect()
  assert.equal(await continueOrder(client), true)
  assert.equal(await continueOrder(client), false)
  await client.end()
}

/** As a dump of this database that was restored on a server which counts as PostgreSQL does. */
async function restoreElsewhere(): Promise<void> {
  await owner.query(
    'create or replace function hub_xid() returns xid8 language sql stable return pg_current_xact_id()',
  )
  await owner.query(
    `create or replace function hub_snapshot() returns pg_snapshot language sql stable
     return pg_current_snapshot()`,
  )
}

const happen = (orgId: string, n: string) =>
  insertEvents(owner, [{ orgId, siteId: null, type: 'device.online', data: { n } }])

const query = '?types=device.online'

const named = ({ event }: Hit): string => event.data.n

async function reached(reader: EventReader, n: string): Promise<void> {
  await until(`the event ${n}`, () => reader.events.some(({ data }) => data.data.n === n))
}

function entryOf(orgId: string) {
  const source = { ip: '192.0.2.7', userAgent: 'test', requestId: 'r' }
  const subject = { action: 'site.create', resourceType: 'site', resourceId: newId(), orgId }
  return auditOf(source, subject)
}

async function sealAll(): Promise<void> {
  await until('all rows to be sealed', async () => {
    await sealAudit(hub.hub.ctx.db)
    const open = await owner.query(
      `select true as found from audit a where not exists (select from audit_seals s
         where (s.through_xid, s.through_id) >= (a.xid, a.id)) limit 1`,
    )
    return open.length === 0
  })
}

/** Ids of the organization's exported entries. */
async function exported({ token }: Person): Promise<Set<string>> {
  const answer = await call(hub, 'GET', '/audit/export?format=ndjson', { token })
  assert.equal(answer.status, 200, answer.text)
  return new Set(
    answer.text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).id as string),
  )
}

async function verified(orgId: string): Promise<number> {
  const { token } = await signedIn(hub, 'platform_admin')
  const { status, body } = await call(hub, 'GET', `/audit/verify?orgId=${orgId}`, { token })
  assert.equal(status, 200)
  assert.deepEqual([body.ok, body.firstBreak], [true, null])
  return body.entries
}

test('events, seals and exports go on, whichever server a dump is restored on', async () => {
  await restart(countFarAhead)
  const orgId = await makeOrganization(hub)
  const admin = await signedIn(hub, 'org_admin', { orgId })
  const hook = { url: receiver.url, events: ['device.online'] }
  const { status } = await call(hub, 'POST', '/webhooks', { ...admin, body: hook })
  assert.equal(status, 201)
  const reader = await EventReader.open(hub.origin, admin.token, { query })
  await happen(orgId, 'before')
  await reached(reader, 'before')
  await receiver.hit('the event before', (hit) => named(hit) === 'before')
  await insertAudit(owner, [entryOf(orgId)])
  await sealAll()
  const entriesBefore = await verified(orgId)
  const exportedBefore = await exported(admin)
  reader.close()

  await restart(async () => {
    await happen(orgId, 'while it was down')
    await restoreElsewhere()
  })
  const resumed = await EventReader.open(hub.origin, admin.token, { query, lastId: reader.lastId })
  await happen(orgId, 'after')
  await reached(resumed, 'after')
  // Somebody had heard of what came after the dump and was lost with the server.
  const [xid = ''] = reader.lastId.split('-')
  const further = `${BigInt(xid) + 1_000_000n}-${newId()}`
  const ahead = await EventReader.open(hub.origin, admin.token, { query, lastId: further })
  await happen(orgId, 'later')
  await reached(resumed, 'later')
  await reached(ahead, 'later')
  ahead.close()
  resumed.close()
  const order = ['while it was down', 'after', 'later']
  for (const n of order) await receiver.hit(`the event ${n}`, (hit) => named(hit) === n)
  assert.deepEqual(
    resumed.events.map(({ data }) => data.data.n),
    order,
  )
  assert.deepEqual(receiver.hits.map(named).toSorted(), ['before', ...order].toSorted())
  const entry = entryOf(orgId)
  await insertAudit(owner, [entry])
  await sealAll()
  assert.ok((await verified(orgId)) > entriesBefore)
  const exportedAfter = await exported(admin)
  for (const id of [...exportedBefore, entry.id]) assert.ok(exportedAfter.has(id))

  // What is not committed yet is in no export, and in none of the seals that would pass it by.
  const late = entryOf(orgId)
  await owner.transaction(async (tx) => {
    await insertAudit(tx, [late])
    await insertAudit(owner, [entryOf(orgId)])
    assert.ok(!(await exported(admin)).has(late.id))
    await sealAudit(hub.hub.ctx.db)
  })
  assert.ok((await exported(admin)).has(late.id))
  await sealAll()
  await verified(orgId)

  // Nothing more is raised at the next start.
  const numbered = () =>
    owner.query(`select prosrc, prosqlbody from pg_proc where proname = 'hub_xid'`)
  const functions = await numbered()
  await restart(async () => {})
  assert.deepEqual(await numbered(), functions)
})

test('a new webhook hears nothing from before it, though the outbox is read later', async () => {
  const orgId = await makeOrganization(hub)
  const { token } = await signedIn(hub, 'org_admin', { orgId })
  receiver.hits.length = 0
  const body = { url: receiver.url, events: ['device.online'] }
  // Whoever reads the outbox for webhooks holds this row.
  await owner.transaction(async (tx) => {
    await tx.query('select from webhook_cursor for update')
    await happen(orgId, 'before')
    assert.equal((await call(hub, 'POST', '/webhooks', { token, body })).status, 201)
    await happen(orgId, 'after')
  })
  await receiver.hit('the event after', (hit) => named(hit) === 'after')
  assert.deepEqual(receiver.hits.map(named), ['after'])
})
