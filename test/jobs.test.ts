// The jobs thread as a whole: started, killed, hung, without a database, stopped.
import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { createMetrics, type Metrics } from '../src/metrics.ts'
import { Jobs, type EndedCommand, type JobsOptions } from '../src/queue.ts'
import { sealKeys } from '../src/webhook_secrets.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addCommand, addDevice, addNode, addPlace, commandRow, type Place } from './support/rows.ts'
import { until } from './support/until.ts'

let database: TestDatabase
let db: Database
let place: Place
let metrics: Metrics
let jobs: Jobs
let ended: EndedCommand[] = []
let regained = 0

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 2, role: 'owner' })
  place = await addPlace(db)
})
afterEach(() => jobs.close())
after(async () => {
  await db.close()
  await database.drop()
})

function start(options: Partial<JobsOptions> = {}): void {
  ended = []
  regained = 0
  metrics = createMetrics('1.0.0')
  jobs = new Jobs({
    nodeId: newId(),
    version: '1.0.0',
    about: { host: 'test', publicOrigin: null, redis: false, secrets: [] },
    databaseUrl: database.url,
    ownerUrl: database.url,
    logLevel: 'silent',
    log: createLog('silent', 'test'),
    metrics,
    restartGraceSeconds: 0,
    webhooks: { keys: sealKeys('a test secret', undefined), allowedCidrs: [] },
    onEnded: (commands) => ended.push(...commands),
    onLeaseRegained: () => regained++,
    ...options,
  })
}

async function lease(nodeId: string) {
  const [row] = await db.query<{ seconds: number }>(
    'select extract(epoch from lease_until - now())::float8 as seconds from nodes where id = $1',
    [nodeId],
  )
  return row?.seconds
}

/** A command that is due to end as `timeout` and one as `expired`. */
async function addDue() {
  const deviceId = await addDevice(db, place)
  return {
    expired: await addCommand(db, deviceId, { expiresAgo: 1 }),
    timeout: await addCommand(db, deviceId, { status: 'running', deliveredAgo: 900 }),
  }
}

const told = (id: string) => until(`the end of ${id}`, () => ended.some((one) => one.id === id))

test('once ready the hub holds its lease, ends what is due and tells the front', async () => {
  const nodeId = newId()
  start({ nodeId })
  await jobs.ready()
  assert.ok(((await lease(nodeId)) ?? 0) > 0)
  const { expired, timeout } = await addDue()
  await told(expired)
  await told(timeout)
  assert.equal((await commandRow(db, expired))?.status, 'expired')
  assert.equal((await commandRow(db, timeout))?.status, 'timeout')
  const text = await until('the first report', async () => {
    const now = await metrics.text()
    return now.includes('muster_swept_rows_total{sweep="timeout"} 1') && now
  })
  assert.match(text, /muster_commands_ended_total\{status="expired"\} 1/)
  assert.match(text, /muster_pool_connections\{pool="jobs",state="idle"\} \d/)
  assert.match(text, /muster_event_loop_delay_seconds\{thread="jobs",percentile="99"\} \d/)
})

test('after a start, running commands wait for the grace of their devices', async () => {
  const { expired, timeout } = await addDue()
  start({ restartGraceSeconds: 75 })
  await told(expired)
  // The sweep that ended the one has left the other.
  assert.equal((await commandRow(db, timeout))?.status, 'running')
})

test('maintenance runs at the start and is planned for every day', async () => {
  await db.query('delete from pgboss.job')
  start()
  await until('maintenance to be done', async () => {
    const rows = await db.query(
      `select true as found from pgboss.job where name = 'maintenance' and state = 'completed'`,
    )
    return rows.length > 0
  })
  const plan = await db.query('select name, cron from pgboss.schedule')
  assert.deepEqual(plan, [{ name: 'maintenance', cron: '23 3 * * *' }])
})

test('a dead thread is replaced and goes on with the lease and the sweeps', async () => {
  start()
  await jobs.ready()
  const dead = jobs.current()
  await dead.terminate()
  await until('another thread', () => jobs.current() !== dead)
  const { expired } = await addDue()
  await told(expired)
  assert.equal(regained, 0)
  assert.match(await metrics.text(), /muster_jobs_restarts_total 1/)
})

test('a hub that lost its lease is told so when it holds it again', async () => {
  const nodeId = newId()
  start({ nodeId })
  await jobs.ready()
  await db.query('delete from nodes where id = $1', [nodeId])
  await until('the lease to be taken again', () => regained === 1)
  assert.ok(((await lease(nodeId)) ?? 0) > 0)
})

test('a dead hub’s devices turn offline once this hub was alive for a term', async () => {
  const dead = await addNode(db, 1)
  const deviceId = await addDevice(db, place, { status: 'online', nodeId: dead })
  const beganMs = performance.now()
  start()
  await until('the dead node to be forgotten', async () => !(await lease(dead)), 60_000)
  assert.ok(performance.now() - beganMs > limits.nodeLeaseSeconds * 1000)
  const rows = await db.query('select status from device_presence where device_id = $1', [deviceId])
  assert.deepEqual(rows, [{ status: 'offline' }])
})

test('an orderly end keeps the lease for the grace of its devices', async () => {
  const nodeId = newId()
  start({ nodeId, restartGraceSeconds: 60 })
  await jobs.ready()
  await jobs.close()
  const seconds = (await lease(nodeId)) ?? 0
  assert.ok(seconds > 55 && seconds <= 60)
  await jobs.close()
})

test('without a database the thread lives, tries on, and stops within its bound', async () => {
  const nowhere = 'postgres://nobody@127.0.0.1:1/none'
  start({ databaseUrl: nowhere, ownerUrl: nowhere })
  const answered = jobs.ready().then(() => 'ready')
  await until('a report', async () => (await metrics.text()).includes('thread="jobs"'))
  assert.ok(jobs.healthy())
  assert.equal(await Promise.race([answered, Promise.resolve('not ready')]), 'not ready')
  const beganMs = performance.now()
  await jobs.close()
  assert.ok(performance.now() - beganMs < limits.checkoutMsMax + 1000)
  assert.doesNotMatch(await metrics.text(), /muster_jobs_restarts_total [1-9]/)
})
