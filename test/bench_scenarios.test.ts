// Every scenario that needs no rival, in tiny form: against a hub that the bench starts, and against one given by
// its address. What is counted is checked, how long anything took is not.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { decodeFromCompressedBase64 } from 'hdr-histogram-js'
import { hostileKinds } from '../bench/hostile_clients.ts'
import { reportFormat, type Report } from '../bench/report.ts'
import type { Row } from '../bench/rows.ts'
import { bench } from './support/bench.ts'
import { removeFolder } from './support/folders.ts'
import { admin, enrollmentSecret, startHub, type TestHub } from './support/hub.ts'

const folder = mkdtempSync(join(tmpdir(), 'muster-bench-scenarios-'))
const agents = 8
const seconds = 1
const tiny = ['--agents', String(agents), '--seconds', String(seconds), '--rounds', '1']
/** What is fulfilled on any machine, however busy: nothing lost, nothing failed. */
const counted = {
  own: ['S5', 'C5', 'M9', 'M10'],
  given: ['M9', 'M10', 'H4', 'H5', 'K2', 'K3', 'K4', 'K5', 'K6'],
}
const loaded = ['--rate', '20']
/** What only the processes of the hub can tell. */
const inside = { own: ['S1', 'S2', 'S3', 'M7', 'M8'], given: ['M7', 'M8', 'H6', 'K1'] }

after(() => removeFolder(folder))

interface Measured {
  report: Report
  row: (id: string) => Row | undefined
  stderr: string
  page: string
}

/** Runs scenarios that take a rate and those that take none, each in one go. */
async function measure(
  names: readonly string[],
  flags: readonly string[],
  env: Record<string, string> = {},
): Promise<Measured> {
  const [json, html] = [join(folder, 'report.json'), join(folder, 'report.html')]
  const args = [...names, ...tiny, '--generators', '1', '--json', json, '--html', html, ...flags]
  const { status, stderr } = await bench(args, env)
  assert.equal(status, 0, stderr)
  const report = JSON.parse(readFileSync(json, 'utf8')) as Report
  const row = (id: string) => report.rows.find((one) => one.id === id)
  return { report, row, stderr, page: readFileSync(html, 'utf8') }
}

/** Rows, histograms and charts of a report agree with each other. */
function checkShape({ report, page }: Measured): void {
  assert.equal(report.format, reportFormat)
  assert.ok(Date.parse(report.startedAt) > 0)
  for (const one of report.rows) {
    assert.ok(one.value !== null && Number.isFinite(one.value), `${one.id} is ${one.value}`)
    assert.deepEqual(one.rounds, [one.value])
    assert.ok(one.better === 'lower' || one.better === 'higher')
  }
  for (const one of report.latencies) {
    assert.equal(decodeFromCompressedBase64(one.hdr).totalCount, one.count)
    assert.ok(one.p50Ms <= one.p90Ms && one.p90Ms <= one.p99Ms && one.p99Ms <= one.maxMs)
  }
  for (const { lines, title } of report.charts) {
    assert.ok(lines.length > 0, title)
    for (const { points } of lines) {
      assert.ok(
        points.flat().every((value) => typeof value === 'number'),
        title,
      )
    }
  }
  assert.doesNotMatch(page.replaceAll(report.hub ?? '', ''), /https?:\/\/|<script|\b(src|href)=/)
}

/** How many answers a latency holds. */
function answers({ report }: Measured, name: string): number {
  return report.latencies.find((one) => one.name === name)?.count ?? 0
}

function checkCounts(measured: Measured, ids: readonly string[]): void {
  const { report, row } = measured
  for (const id of ids) {
    const { value, ok } = row(id) ?? {}
    assert.deepEqual([id, value, ok], [id, 0, true])
  }
  const sent = 20 * seconds
  assert.equal(answers(measured, 'round trip at 20/s'), sent)
  assert.equal(answers(measured, 'round trip at 40/s'), 2 * sent)
  assert.deepEqual(
    report.rows.filter(({ id }) => id.startsWith('R')).map(({ id }) => id),
    ['R20p50', 'R20p99', 'R40p50', 'R40p99'],
  )
  assert.equal(answers(measured, 'lists'), 20 * seconds)
}

/** The default rates of what takes none: 100 commands a second, 100 and 5 visits. */
function checkGuests(measured: Measured): void {
  const { row, stderr } = measured
  assert.equal(answers(measured, 'command round trip before'), 100 * seconds)
  assert.equal(answers(measured, 'command round trip among hostile clients'), 100 * seconds)
  assert.equal(row('K8')?.value, 5 * seconds)
  // Each visitor's two commands end, and all that were sent to the standing fleet.
  assert.equal(row('K7')?.value, 100 * seconds + 2 * 5 * seconds)
  for (const kind of hostileKinds) assert.ok(stderr.includes(`hostile: ${kind}: `), kind)
}

describe('against a hub that the bench starts', () => {
  test('steady, rates, concurrency and mixed count what happened', async () => {
    const rates = await measure(['rates'], ['--rate', '20,40'])
    const others = await measure(['steady', 'concurrency', 'mixed'], [])
    checkShape(rates)
    checkShape(others)
    const both = merged(rates, others)
    checkCounts(both, counted.own)
    assert.equal(others.report.hub, null)
    assert.match(others.report.postgres ?? '', /^\d+\.\d+/)
    for (const id of inside.own) assert.ok(both.row(id), id)
    const fleet = others.report.charts.find(({ title }) => title.startsWith('CPU per agent'))
    assert.deepEqual(
      fleet?.lines.map(({ name, points }) => [name, points.map(([size]) => size)]),
      [
        ['hub', [2, 4, 6, 8]],
        ['PostgreSQL', [2, 4, 6, 8]],
      ],
    )
    // 8 agents take 400 callers at most, so the step of 1,000 is left out.
    const throughput = others.report.charts.find(({ title }) => title.startsWith('Throughput'))
    assert.deepEqual(
      throughput?.lines.map(({ points }) => points.map(([callers]) => callers)),
      [
        [1, 4, 16, 64, 256],
        [1, 4, 16, 64, 256],
      ],
    )
  })
})

// A device queues 100 commands: 800 take what a fast machine accepts in two seconds.
test('a thousand callers at once are all answered', async () => {
  const { report, row } = await measure(['parallel'], ['--agents', '800'])
  assert.deepEqual([row('P12b')?.value, row('P12b')?.ok], [0, true])
  const posts = report.latencies.find(({ name }) => name.startsWith('commands of 1,000'))
  // A slow machine answers few of them in the time.
  assert.ok(posts && posts.count > 0)
  assert.equal(answers({ report, row, stderr: '', page: '' }, 'devices page before'), 50)
})

test('one of three hubs is killed: nothing is lost or doubled', async () => {
  const { row, stderr } = await measure(['hub-loss'], [...loaded, '--seconds', '3'])
  for (const id of ['B1', 'B2', 'B3']) assert.deepEqual([id, row(id)?.value], [id, 0])
  assert.ok((row('B12')?.value ?? 0) > 0)
  assert.match(stderr, /SIGKILL/)
})

test('several hubs hold what one holds', async () => {
  const { row } = await measure(['nodes'], ['--agents', '30', '--seconds', '1'])
  assert.equal(row('N8')?.value, 0)
  assert.ok((row('N3')?.value ?? 0) > 0)
})

test('the hub that npm start runs is found behind npm and its shell', async () => {
  const { row } = await measure(['start'], ['--agents', '1'])
  assert.ok((row('P13a')?.value ?? 0) > 0)
  // Neither weighs so much.
  assert.ok((row('P13b')?.value ?? 0) > 100)
})

describe('against a hub given by its address', () => {
  let hub: TestHub
  before(async () => {
    hub = await startHub({ LIMIT_ENROLL: '0', LIMIT_FRAMES: '0', LIMIT_ACCEPT: '0' })
  })
  after(() => hub.close())

  test('mixed, hostile and soak count the same, and no device of the bench stays', async () => {
    // A device of somebody else, which no load and no script may touch.
    const theirs = await hub.enroll()
    const env = {
      BENCH_EMAIL: admin.email,
      BENCH_PASSWORD: admin.password,
      BENCH_ENROLLMENT_SECRET: enrollmentSecret,
    }
    const url = ['--url', hub.origin]
    const rates = await measure(['rates'], [...url, '--rate', '20,40'], env)
    const others = await measure(['mixed', 'hostile', 'soak'], url, env)
    checkShape(rates)
    checkShape(others)
    const both = merged(rates, others)
    checkCounts(both, counted.given)
    checkGuests(both)
    assert.deepEqual([others.report.hub, others.report.postgres], [hub.origin, null])
    for (const id of inside.given) assert.equal(both.row(id), undefined, id)
    const listed = (await hub.get('/devices?limit=500')).body as {
      data: { id: string; status: string }[]
    }
    assert.ok(listed.data.length > agents)
    assert.deepEqual(
      listed.data.filter(({ status }) => status !== 'decommissioned').map(({ id }) => id),
      [theirs.deviceId],
    )
    const scripts = (await hub.get('/scripts')).body as { data: unknown[] }
    assert.deepEqual(scripts.data, [])
    const commands = (await hub.get(`/devices/${theirs.deviceId}/commands`)).body
    assert.deepEqual((commands as { data: unknown[] }).data, [])
  })
})

test('a hub that refuses the load misses the goal, and --check says so', async () => {
  const hub = await startHub({ LIMIT_API: '60', LIMIT_API_BURST: '40' })
  const json = join(folder, 'refused.json')
  const secrets = ['--email', admin.email, '--password', admin.password]
  const flags = ['--url', hub.origin, ...secrets, '--enrollment-secret', enrollmentSecret]
  const few = ['--agents', '2', '--seconds', '1', '--rounds', '1', '--generators', '1']
  const run = await bench(['concurrency', ...flags, ...few, '--json', json, '--check'])
  assert.equal(run.status, 2, run.stderr)
  const { rows } = JSON.parse(readFileSync(json, 'utf8')) as Report
  const failed = rows.find(({ id }) => id === 'C5')
  assert.ok(failed?.value && failed.value > 0)
  assert.equal(failed.ok, false)
  assert.match(run.stderr, /warning: devices stay enrolled: .*429/)
  await hub.close()
})

function merged(a: Measured, b: Measured): Measured {
  const report = {
    ...b.report,
    rows: [...a.report.rows, ...b.report.rows],
    latencies: [...a.report.latencies, ...b.report.latencies],
  }
  return { ...b, report, row: (id) => report.rows.find((one) => one.id === id) }
}
