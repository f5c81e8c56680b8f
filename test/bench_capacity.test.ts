import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import {
  defaultBounds,
  defaultWorkload,
  planFor,
  simulateDay,
  type Costs,
  type OperationCost,
} from '../bench/capacity.ts'
import { costsOf, measuredCosts } from '../bench/measured_costs.ts'
import { bench } from './support/bench.ts'

const nothing: OperationCost = { hubUs: 0, frontUs: 0, postgresUs: 0, walBytes: 0, wireBytes: 0 }
const free: Costs = {
  connect: nothing,
  rest: nothing,
  command: nothing,
  page: nothing,
  hubMegabytes: 100,
  agentKilobytes: 2,
  commandDiskBytes: 0,
}
/** Connected all day, doing nothing but what a test adds. */
const calm = {
  ...defaultWorkload,
  agents: 60_000,
  nightPart: 1,
  dayPart: 1,
  reconnectsPerAgentHour: 0,
  commandsPerAgentHour: 0,
}
const near = (actual: number, expected: number) =>
  assert.ok(Math.abs(actual / expected - 1) < 1e-6, `${actual} is not ${expected}`)

test('an agent at rest costs what it costs, times the fleet, on as many hubs as live', () => {
  const costs = { ...free, rest: { ...nothing, hubUs: 4, frontUs: 2, postgresUs: 1, walBytes: 10 } }
  const { moments, peak, walGigabytes, hubMegabytes } = simulateDay(costs, calm, 3)
  near(peak.hubCores, 0.24)
  near(peak.postgresCores, 0.06)
  near(moments[0]?.front ?? 0, 0.04)
  // Two hubs have what three had.
  near(moments.at(-1)?.front ?? 0, 0.06)
  near(moments.at(-1)?.online ?? 0, 60_000)
  assert.ok(
    walGigabytes < 51.84 && walGigabytes > 51.8,
    'less those who were away for half a minute',
  )
  near(hubMegabytes, 100 + (30_000 * 2) / 1024)
})

test('agents of a lost hub come back over their back-off, or as fast as hubs accept', () => {
  const quick = simulateDay(free, calm, 3)
  assert.equal(quick.backSeconds, 30)
  near(quick.peak.connects, 20_000 / 30)
  const slow = simulateDay(free, calm, 3, { ...defaultBounds, acceptsPerSecond: 100 })
  assert.equal(slow.backSeconds, 100)
  near(slow.peak.connects, 200)
  assert.equal(simulateDay(free, { ...calm, lossAtHour: 30 }, 3).backSeconds, 0)
})

test('every device gets the script once, and the morning brings everybody once', () => {
  const { moments, scriptSeconds } = simulateDay(free, { ...calm, nightPart: 0.5 }, 3)
  const total = (of: 'commands' | 'connects') =>
    moments.reduce((sum, moment) => sum + moment[of] * 5, 0)
  near(total('commands'), 60_000)
  // Half of them in the morning, a third after the loss.
  near(total('connects'), 30_000 + 20_000)
  assert.equal(scriptSeconds, 10)
})

test('a plan keeps to every bound although a hub dies, and names the nearest', () => {
  const bound = { ...defaultBounds, agentsPerHub: 25_000 }
  const files = planFor(free, calm, bound)
  assert.deepEqual([files.hubs, files.bottleneck.name], [4, 'open files'])
  const busy = { ...free, rest: { ...nothing, frontUs: 50, postgresUs: 1000, walBytes: 1 } }
  const { hubs, day, databases, bottleneck } = planFor(busy, calm)
  assert.ok(
    day.peak.front <= defaultBounds.frontPart && simulateDay(busy, calm, hubs - 2).peak.front > 0.6,
  )
  assert.deepEqual([databases, bottleneck.name], [2, 'PostgreSQL CPU'])
  assert.equal(planFor(measuredCosts, { ...calm, agents: 1 }).hubs, 2)
})

test('costs are taken from a report of growth, and what it lacks is named', () => {
  const ids = ['G1', 'G2', 'G4', 'G5'].flatMap((id) => [id, `${id}f`, `${id}p`, `${id}w`])
  const row = { name: '', unit: '', limit: null, ratio: null, goal: null, ok: null } as const
  const rows = ids.map((id, index) => ({
    ...row,
    id,
    value: 100 - index,
    better: 'lower' as const,
    rounds: [],
    ratios: [],
  }))
  const { connect, page } = costsOf({ rows })
  assert.deepEqual(
    [connect.hubUs, connect.frontUs, connect.postgresUs, connect.walBytes],
    [2, 99, 98, 97],
  )
  assert.equal(page.walBytes, 85)
  assert.throws(() => costsOf({ rows: rows.slice(0, 6) }), /G2p.*growth/)
})

test('the command prints a line for each size and plots a day', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'muster-capacity-'))
  try {
    const html = join(folder, 'day.html')
    const run = await bench(['capacity', '--agents', '1000,2000000', '--html', html])
    assert.equal(run.status, 0, run.stderr)
    assert.match(run.stdout, /^\s+1,000 +2 /m)
    assert.match(run.stdout, /^ *2,000,000 /m)
    assert.equal(readFileSync(html, 'utf8').match(/<svg/g)?.length, 4)
    const report = join(folder, 'report.json')
    writeFileSync(report, '{}')
    const refused = await bench(['capacity', '--from', report])
    assert.deepEqual([refused.status, refused.stderr.includes('is no report')], [64, true])
    assert.equal((await bench(['capacity', '--agents', '0'])).status, 64)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
