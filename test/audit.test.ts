import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { auditOf, auditOfSystem, auditTrail, insertAudit, type AuditEntry } from '../src/audit.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import { eventTypes, insertEvents } from '../src/events.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { createDatabase } from './support/postgres.ts'

const log = createLog('silent', 'test')
let database: Awaited<ReturnType<typeof createDatabase>>
let db: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 3 })
})
after(async () => {
  await db.close()
  await database.drop()
})

const call = {
  actor: { userId: newId(), email: 'ann@example.org' },
  ip: '192.0.2.7',
  userAgent: 'test',
  requestId: 'request-1',
}

function entry(overrides: Partial<AuditEntry> = {}): AuditEntry {
  const subject = {
    action: 'site.create',
    resourceType: 'site',
    resourceId: newId(),
    orgId: newId(),
  }
  return { ...auditOf(call, subject), ...overrides }
}

test('every column comes back as it was written', async () => {
  const written = entry({
    deviceId: newId(),
    result: 'denied',
    details: {
      before: { name: 'a "quoted" \\ name, {braces}' },
      after: { name: "'; drop table audit; --" },
    },
  })
  await insertAudit(db, [
    written,
    auditOfSystem({ action: 'x.y', resourceType: null, resourceId: null, orgId: null }),
  ])
  const [row] = await db.query('select * from audit where id = $1', [written.id])
  assert.deepEqual(
    { ...row, xid: undefined },
    {
      id: written.id,
      org_id: written.orgId,
      at: new Date(written.atMs),
      actor_type: 'user',
      actor_id: call.actor.userId,
      actor_email: 'ann@example.org',
      action: 'site.create',
      resource_type: 'site',
      resource_id: written.resourceId,
      device_id: written.deviceId,
      result: 'denied',
      ip: '192.0.2.7',
      user_agent: 'test',
      request_id: 'request-1',
      details: written.details,
      xid: undefined,
    },
  )
  const [system] = await db.query(`select * from audit where actor_type = 'system'`)
  assert.equal(system?.['actor_id'], null)
  assert.equal(system?.['ip'], null)
  assert.equal(system?.['details'], null)
})

test('what a caller made unstorable or too long is cleaned and cut', async () => {
  const written = entry({
    userAgent: `\u0000\ud800${'x'.repeat(2000)}`,
    resourceId: '\n'.repeat(1000),
    details: { ['\u0000key']: ['\udfff', { deep: 'a\u0000b' }], plain: '\\u0000' },
  })
  await insertAudit(db, [written])
  const [row] = await db.query<{ user_agent: string; resource_id: string; details: unknown }>(
    'select user_agent, resource_id, details from audit where id = $1',
    [written.id],
  )
  assert.equal(row?.user_agent, `\ufffd\ufffd${'x'.repeat(limits.userAgentCharsMax - 2)}`)
  assert.equal(row?.resource_id, '\n'.repeat(limits.auditTextCharsMax))
  assert.deepEqual(row?.details, {
    ['\ufffdkey']: ['\ufffd', { deep: 'a\ufffdb' }],
    plain: '\\u0000',
  })
})

test('a hub can neither change nor remove audit rows', async () => {
  await insertAudit(db, [entry()])
  for (const statement of [
    'update audit set action = null',
    'delete from audit',
    'truncate audit',
  ]) {
    await assert.rejects(db.query(statement), /permission denied/)
  }
})

test('an entry of a transaction that rolls back was never there', async () => {
  const written = entry()
  await assert.rejects(
    db.transaction(async (tx) => {
      await insertAudit(tx, [written])
      throw new AppError('CONFLICT', 'the change failed')
    }),
    { code: 'CONFLICT' },
  )
  assert.deepEqual(await db.query('select from audit where id = $1', [written.id]), [])
})

test('the trail writes what arrives together in few statements and answers after the commit', async () => {
  const statements: number[] = []
  const counting: Database = {
    ...db,
    query: (text, values = []) => {
      statements.push(String(values[0]).split(',').length)
      return db.query(text, values)
    },
  }
  const trail = auditTrail(counting, log)
  const entries = Array.from({ length: limits.auditBatchMax + 10 }, () =>
    entry({ result: 'denied' }),
  )
  await Promise.all(entries.map((one) => trail.denied(one)))
  const [row] = await db.query<{ rows: number }>(
    'select count(*)::int as rows from audit where id = any($1::uuid[])',
    [entries.map((one) => one.id)],
  )
  assert.equal(row?.rows, entries.length)
  assert.deepEqual(statements, [1, limits.auditBatchMax, 9])
})

test('a trail that can not write refuses, and stopping writes what waits', async () => {
  const gone = openDatabase({
    url: 'postgres://nobody@127.0.0.1:1/none',
    name: 'test',
    connections: 1,
  })
  const trail = auditTrail(gone, log)
  await assert.rejects(trail.denied(entry()), { code: 'UNAVAILABLE', status: 503 })
  await gone.close()

  const other = auditTrail(db, log)
  const last = [entry(), entry(), entry()]
  const written = Promise.all(last.map((one) => other.denied(one)))
  await other.close()
  await written
  const rows = await db.query('select from audit where id = any($1::uuid[])', [
    last.map((one) => one.id),
  ])
  assert.equal(rows.length, 3)
})

test('past the bound the trail refuses instead of growing', async () => {
  let release = () => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const slow: Database = {
    ...db,
    query: async () => {
      await held
      return []
    },
  }
  const trail = auditTrail(slow, log)
  const one = entry()
  const accepted = Array.from({ length: limits.auditQueueMax + 1 }, () => trail.denied(one))
  await assert.rejects(trail.denied(one), { code: 'OVERLOADED', retryAfterSeconds: 2 })
  release()
  await Promise.all(accepted)
})

test('events of one change are written together, in order', async () => {
  const orgId = newId()
  const siteId = newId()
  await insertEvents(db, [
    { orgId, siteId, type: 'device.enrolled', data: { hostname: 'a\u0000"b\\' } },
    { orgId, type: 'user.login', data: {} },
  ])
  await insertEvents(db, [])
  const rows = await db.query(
    'select type, site_id as "siteId", data from events where org_id = $1 order by id',
    [orgId],
  )
  assert.deepEqual(rows, [
    { type: 'device.enrolled', siteId, data: { hostname: 'a\ufffd"b\\' } },
    { type: 'user.login', siteId: null, data: {} },
  ])
  assert.equal(new Set(eventTypes).size, eventTypes.length)
})
