// What machines ask of a hub, through its port.
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { hubVersion } from '../src/config.ts'
import { removeFolder } from './support/folders.ts'
import { metricsToken, startHub, type TestHub } from './support/hub.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { outcome } from './support/people.ts'
import { createDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'

let hub: TestHub

before(async () => {
  hub = await startHub()
})
after(() => hub.close())

const open = { token: undefined }

test('health says that the process lives, to anyone', async () => {
  const { status, body } = await hub.get('{origin}/health', open)
  assert.equal(status, 200)
  assert.equal(body.status, 'ok')
  assert.equal(body.version, hubVersion)
  assert.ok(Number.isInteger(body.uptimeSeconds))
})

describe('readiness', () => {
  test('is ok while every part works', async () => {
    const { status, body } = await hub.get('{origin}/health/ready', open)
    assert.equal(status, 200)
    assert.deepEqual(body, {
      status: 'ok',
      checks: {
        database: 'ok',
        migrations: 'ok',
        shards: 'ok',
        jobs: 'ok',
        redis: 'off',
        hubs: 'ok',
      },
    })
  })

  // The parts themselves are broken in the tests of each; here, what an answer makes of it.
  const cases: [string, Record<string, string>, boolean, number, string][] = [
    ['degraded without Redis, but ready', { redis: 'no answer' }, false, 200, 'degraded'],
    ['unavailable without the database', { database: 'no answer' }, false, 503, 'unavailable'],
    ['unavailable without the jobs', { jobs: 'no answer' }, false, 503, 'unavailable'],
    ['draining while the hub stops', {}, true, 503, 'draining'],
    ['draining also with a part broken', { database: 'no answer' }, true, 503, 'draining'],
  ]
  for (const [name, broken, draining, status, word] of cases) {
    test(`is ${name}`, async (t) => {
      const { ctx } = hub.hub
      const checks = { ...(await ctx.checks()), ...broken }
      t.mock.method(ctx, 'checks', () => Promise.resolve(checks))
      t.mock.method(ctx, 'draining', () => draining)
      const answer = await hub.get('{origin}/health/ready', open)
      assert.equal(answer.status, status)
      assert.deepEqual(answer.body, { status: word, checks })
    })
  }
})

test('the log tells of probes when their answer changes, and that a hub drains', async (t) => {
  const database = await createDatabase()
  const folder = mkdtempSync(join(tmpdir(), 'muster-health-'))
  const process = new HubProcess(await freePort(), {
    DATABASE_URL: database.url,
    DATA_DIR: folder,
    LOG_LEVEL: 'info',
    DRAIN_SECONDS: '60',
  })
  t.after(async () => {
    await process.kill('SIGKILL')
    await database.drop()
    removeFolder(folder)
  })
  const lines = () =>
    process.output
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as { msg: string; route?: string; status?: number })
  const answered = (code: number) =>
    lines().filter(({ route, status }) => route === '/health/ready' && status === code).length
  const ask = async (path: string) => {
    const answer = await fetch(`${process.origin}${path}`)
    return { status: answer.status, body: (await answer.json()) as { status: string } }
  }

  await process.start()
  for (let n = 0; n < 5; n++) assert.equal((await ask('/health/ready')).body.status, 'ok')
  // Written after them, into the same pipe.
  await ask('/api/v1/openapi.json')
  await until('the document', () => lines().some(({ route }) => route === '/api/v1/openapi.json'))
  assert.equal(answered(200), 1)

  const ended = process.kill('SIGTERM')
  await until('the drain', () => lines().some(({ msg }) => msg.startsWith('draining: ')))
  const refused = answered(503)
  for (let n = 0; n < 2; n++) {
    const { status, body } = await ask('/health/ready')
    assert.deepEqual([status, body.status], [503, 'draining'])
  }
  await until('both refusals', () => answered(503) === refused + 2)
  assert.equal(answered(200), 1)
  // A second signal ends it at once.
  void process.kill('SIGTERM')
  assert.equal(await ended, 130)
})

describe('metrics', () => {
  const scrape = (token: string | undefined) => hub.get('{origin}/metrics', { token })

  test('need the scrape token, and nothing else will do', async () => {
    for (const token of [undefined, 'wrong', `${metricsToken}x`, hub.token]) {
      const answer = await scrape(token)
      assert.equal(outcome(answer), '401 UNAUTHENTICATED')
      assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer/)
    }
    const { status, headers } = await scrape(metricsToken)
    assert.equal(status, 200)
    assert.match(headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/)
  })

  test('tell of every thread, pool and route', async () => {
    const { deviceId } = await hub.enroll()
    await hub.get(`/devices/${deviceId}`)
    const text = await until('every thread to report', async () => {
      const answer = await scrape(metricsToken)
      return (
        /thread="jobs"/.test(answer.text) && /thread="shard-0"/.test(answer.text) && answer.text
      )
    })
    const expected = [
      `muster_build_info{version="${hubVersion}"} 1`,
      'muster_event_loop_delay_seconds{thread="front",percentile="99"}',
      'muster_event_loop_delay_seconds{thread="shard-0",percentile="50"}',
      'muster_event_loop_delay_seconds{thread="jobs",percentile="99"}',
      'muster_pool_connections{pool="operators",state="busy"}',
      'muster_pool_connections{pool="connect",state="idle"}',
      'muster_pool_connections{pool="shard-0",state="waiting"}',
      'muster_pool_connections{pool="jobs",state="idle"}',
      'muster_queue_depth{queue="commands",thread="front"} 0',
      'muster_http_request_seconds_count{method="GET",route="/api/v1/devices/:id",status="200"} 1',
      'process_resident_memory_bytes',
    ]
    for (const line of expected) assert.ok(text.includes(`\n${line}`), line)
    assert.ok(!text.includes(deviceId))
  })

  test('are not there without a token of the deployment', async () => {
    const other = await startHub({ METRICS_SCRAPE_TOKEN: '' })
    try {
      const answer = await other.get('{origin}/metrics', { token: metricsToken })
      assert.equal(outcome(answer), '404 NOT_FOUND')
    } finally {
      await other.close()
    }
  })
})

test('the API document is served to anyone, with the address of this hub', async () => {
  const { status, headers, body } = await hub.get('/openapi.json', open)
  assert.equal(status, 200)
  assert.match(headers.get('content-type') ?? '', /^application\/json/)
  assert.equal(body.openapi, '3.1.0')
  assert.equal(body.info.version, hubVersion)
  assert.deepEqual(body.servers, [{ url: `${hub.hub.ctx.publicOrigin}/api/v1` }])
})
