// The simulator against the plain baseline: what it counts is what happened, in sockets and in rows.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { readArgs } from '../bench/args.ts'
import { commandRequests } from '../bench/commands.ts'
import type { Fleet } from '../bench/fleet.ts'
import type { FleetCounts } from '../bench/fleet_counts.ts'
import { openLoop } from '../bench/http_load.ts'
import { cpuMs, Lab, type Target } from '../bench/lab.ts'
import { Progress } from '../bench/progress.ts'
import type { Device } from '../bench/sim_agent.ts'

const agents = 20
const lab = new Lab(
  readArgs(['x', '--generators', '2'], ['x']),
  new Progress({ write: () => undefined }),
)
let target: Target
let devices: Device[]
let fleet: Fleet

before(async () => {
  target = await lab.start('baseline')
  devices = await lab.devices(target, agents)
  fleet = await lab.fleet(target, devices)
})
after(() => lab.close())

test('every enrolled agent connects, in two steps, and is welcomed', async () => {
  assert.equal((await fleet.connect({ to: 7 })).open, 7)
  assert.equal((await fleet.connect({ from: 7 })).open, agents)
  await reaches(fleet, ({ welcomes }) => welcomes === agents)
})

test('heartbeats flow at their pace, and stop', async () => {
  await fleet.pace(400)
  await reaches(fleet, ({ heartbeats }) => heartbeats >= 100)
  const { heartbeats, framesOut, unsentBytes } = await fleet.pace(0)
  assert.equal(framesOut, heartbeats)
  assert.equal(unsentBytes, 0)
  assert.equal((await fleet.counts()).heartbeats, heartbeats)
})

test('each command runs once, its result is stored and acknowledged', async () => {
  const result = await openLoop({
    origin: target.origin,
    connections: 4,
    seconds: 0.4,
    perSecond: 100,
    next: await commandRequests(target, devices, 10),
    good: ({ status, body }) => status === 202 && body.includes('"status":"completed"'),
  })
  assert.deepEqual(result.bad, {})
  assert.equal(result.good, 40)
  assert.equal(result.latencies.count, 40)
  const counts = await reaches(fleet, ({ acks }) => acks === 40)
  assert.equal(counts.commands, 40)
  assert.equal(counts.duplicates, 0)
  assert.equal(counts.unacked, 0)
  const rows = await target.database?.read(
    `select status, count(*)::int as count from commands group by status`,
  )
  assert.deepEqual(rows, [{ status: 'completed', count: 40 }])
})

test('the program and its PostgreSQL have accounts of their own', () => {
  const used = cpuMs(target)
  assert.ok(used && used.program > 0 && used.postgres > 0)
})

test('a wrong token is refused and counted by its status', async () => {
  const [first] = devices
  const strangers = await lab.fleet(target, [{ id: first?.id ?? '', token: 'mst_wrong' }])
  const counts = await strangers.connect()
  assert.equal(counts.open, 0)
  assert.deepEqual(counts.refused, { 'HTTP 401': 1 })
})

test('a command for an agent that is away waits in the database', async () => {
  assert.equal((await fleet.disconnect()).open, 0)
  const next = await commandRequests(target, devices)
  const away = { origin: target.origin, connections: 1, seconds: 0.02, perSecond: 100, next }
  const { good } = await openLoop({ ...away, good: ({ status }) => status === 202 })
  assert.equal(good, 2)
  await fleet.connect()
  await reaches(fleet, ({ commands }) => commands === 42)
})

/** Waits for a fact about the fleet, with a deadline. */
async function reaches(of: Fleet, fact: (counts: FleetCounts) => boolean): Promise<FleetCounts> {
  const endMs = performance.now() + 10_000
  for (;;) {
    const counts = await of.counts()
    if (fact(counts)) return counts
    assert.ok(performance.now() < endMs, `not reached: ${JSON.stringify(counts)}`)
    await sleep(10)
  }
}
