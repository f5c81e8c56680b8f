// P11: what an operation costs when fleet and tables are 4 and 16 times as large. A cost that grows with them is
// a scan, a loop over all devices, or a cache that has become too small.
import { setTimeout as sleep } from 'node:timers/promises'
import { commandRequests, isCompleted } from '../commands.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import type { Fleet } from '../fleet.ts'
import { dropHistory, fillHistory } from '../history.ts'
import { requestBytes } from '../http_connection.ts'
import { closedLoop, refusals, type Load } from '../http_load.ts'
import { cpuMs, type Lab, type Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { threadCpuMs } from '../proc.ts'
import type { Progress } from '../progress.ts'
import { median, type RowSpec, type Sample } from '../rows.ts'
import type { Device } from '../sim_agent.ts'
import type { Scenario } from '../suite.ts'

const steps = [1, 4, 16] as const
const rowsPerDevice = 60
const heartbeatsPerSecond = 10_000
const connectsPerSecond = 1500
const repeats = 3
const growthMost = 1.25

/** The same work at every size. */
interface Operation {
  id: string
  name: string
  /** Does it for about so many seconds; returns how often. */
  run(at: Size, seconds: number): Promise<number>
}

interface Size {
  target: Target
  fleet: Fleet
  devices: Device[]
  progress: Progress
}

const operations: Operation[] = [
  {
    id: 'connect',
    name: 'agent that connects',
    async run({ fleet, devices, progress }) {
      await fleet.disconnect()
      await connectAll(fleet, progress, { perSecond: connectsPerSecond })
      return devices.length
    },
  },
  {
    id: 'rest',
    name: 'agent at rest, each second',
    async run({ fleet, devices }, seconds) {
      await fleet.pace(restPerSecond(devices.length))
      const startedMs = performance.now()
      await sleep(seconds * 1000)
      return (devices.length * (performance.now() - startedMs)) / 1000
    },
  },
  {
    id: 'heartbeat',
    name: 'heartbeat',
    async run({ fleet, devices }, seconds) {
      const before = (await fleet.counts()).heartbeats
      await fleet.pace(heartbeatsPerSecond)
      await sleep(seconds * 1000)
      await fleet.pace(restPerSecond(devices.length))
      return (await fleet.counts()).heartbeats - before
    },
  },
  {
    id: 'command',
    name: 'command that is run',
    async run({ target, devices }, seconds) {
      const next = await commandRequests(target, devices, 30)
      return count({ origin: target.origin, connections: 32, seconds, next, good: isCompleted })
    },
  },
  {
    id: 'page',
    name: 'page of 50 devices',
    run: ({ target }, seconds) => pages(target, '/devices?status=online', seconds),
  },
  {
    id: 'history',
    name: "page of a device's commands",
    run: ({ target, devices }, seconds) =>
      pages(target, `/devices/${devices[0]?.id}/commands`, seconds),
  },
  {
    id: 'audit',
    name: 'page of the audit',
    run: ({ target }, seconds) => pages(target, '/audit', seconds),
  },
]

/** Of one operation. */
interface Cost {
  /** Of all threads of the hub and of PostgreSQL. */
  us: number
  /** Of the thread that holds all sockets, which a process has one of. */
  frontUs: number
  postgresUs: number
  walBytes: number
}

export const growth: Scenario = {
  name: 'growth',
  about: 'CPU of hub and PostgreSQL per operation at 1, 4 and 16 times the fleet and its tables',
  rivals: [],
  // Under the 20,000 files that a process may have open.
  agents: 16_000,
  seconds: 4,
  warmUpSeconds: 0,
  // Devices that were enrolled stay: a second round would begin with all of them.
  once: true,
  ownHub: 'fills the database of a hub that it starts',
  rows: operations.flatMap(({ id, name }, index): RowSpec[] => [
    { id: `G${index + 1}`, name: `CPU per ${name}, 16 ×`, metric: `${id} us`, unit: 'µs' },
    ...steps.slice(1).map((times) => ({
      id: `G${index + 1}x${times}`,
      name: `${times} × the fleet : 1 ×, ${name}`,
      metric: `${id} ${times}`,
      unit: '×',
      goal: { valueMost: growthMost },
    })),
    { id: `G${index + 1}f`, name: `of it the front's`, metric: `${id} frontUs`, unit: 'µs' },
    { id: `G${index + 1}p`, name: `of it PostgreSQL's`, metric: `${id} postgresUs`, unit: 'µs' },
    { id: `G${index + 1}w`, name: `WAL per ${name}`, metric: `${id} walBytes`, unit: 'bytes' },
  ]),
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const { database } = target
    if (!database) throw new Error('only a hub of our own can be filled')
    const at = async (times: number): Promise<Size> => {
      const devices = await lab.devices(target, Math.floor((agents * times) / steps.at(-1)!))
      const fleet = await lab.fleet(target, devices)
      return { target, fleet, devices, progress: lab.progress }
    }
    // Compiles what all of them run, at the smallest size.
    const small = await at(1)
    for (const operation of operations) await operation.run(small, 1)
    await small.fleet.close()

    return async (seconds) => {
      const costs = new Map<number, Map<string, Cost>>()
      for (const times of steps) {
        const size = await at(times)
        const rows = size.devices.length * rowsPerDevice
        lab.progress.step(`growth: ${size.devices.length} agents, ${rows} rows in each table`)
        await dropHistory(database)
        await fillHistory(database, size.devices.length, rowsPerDevice)
        costs.set(times, await measureAt(size, seconds))
        await size.fleet.close()
      }
      plot(lab, costs)
      return sampleOf(costs)
    }
  },
}

/**
 * All operations in turn, several times: they are minutes apart at one size and at the next, and a slow spell of the
 * machine shall fall on one measurement of each instead of on all of one.
 */
async function measureAt(at: Size, seconds: number): Promise<Map<string, Cost>> {
  const taken = new Map<string, Cost[]>(operations.map(({ id }) => [id, []]))
  for (let repeat = 0; repeat < repeats; repeat++) {
    for (const operation of operations) {
      // Else autovacuum would clear up what the operations before left behind.
      await at.target.database?.read('vacuum (analyze)')
      const before = await used(at.target)
      const times = await operation.run(at, seconds)
      const after = await used(at.target)
      taken.get(operation.id)?.push({
        us: (after.us - before.us) / times,
        frontUs: (after.frontUs - before.frontUs) / times,
        postgresUs: (after.postgresUs - before.postgresUs) / times,
        walBytes: (after.walBytes - before.walBytes) / times,
      })
    }
  }
  return new Map(
    Array.from(taken, ([id, costs]) => {
      const list = costs.map(({ us }) => us.toFixed(1)).join(' ')
      at.progress.note(`growth: ${at.devices.length} agents, ${id} ${list} µs`)
      const middle = (of: keyof Cost) => median(costs.map((cost) => cost[of])) ?? 0
      return [
        id,
        {
          us: middle('us'),
          frontUs: middle('frontUs'),
          postgresUs: middle('postgresUs'),
          walBytes: middle('walBytes'),
        },
      ]
    }),
  )
}

async function used(target: Target): Promise<Cost> {
  const cpu = cpuMs(target)
  if (!cpu || target.pid === undefined) throw new Error('the hub is not ours')
  const [row] =
    (await target.database?.read(
      `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as bytes`,
    )) ?? []
  return {
    us: (cpu.program + cpu.postgres) * 1000,
    frontUs: threadCpuMs(target.pid) * 1000,
    postgresUs: cpu.postgres * 1000,
    walBytes: Number(row?.['bytes']),
  }
}

async function pages(
  { origin, credentials }: Target,
  path: string,
  seconds: number,
): Promise<number> {
  const headers = await signIn(origin, credentials)
  const page = requestBytes(origin, { method: 'GET', path: `/api/v1${path}`, headers })
  const good: Load['good'] = ({ status }) => status === 200
  return count({ origin, connections: 4, seconds, next: () => page, good })
}

async function count(load: Load): Promise<number> {
  const result = await closedLoop(load)
  const refused = refusals(result)
  if (refused) throw new Error(`the load was refused: ${refused}`)
  return result.good
}

function sampleOf(costs: ReadonlyMap<number, Map<string, Cost>>): Sample {
  const sample: Sample = {}
  for (const { id } of operations) {
    const one = costs.get(1)?.get(id)?.us ?? 0
    for (const times of steps.slice(1)) {
      sample[`${id} ${times}`] = (costs.get(times)?.get(id)?.us ?? 0) / one
    }
    const most = costs.get(steps.at(-1)!)?.get(id)
    for (const [of, value] of Object.entries(most ?? {})) sample[`${id} ${of}`] = value
  }
  return sample
}

function plot(lab: Lab, costs: ReadonlyMap<number, Map<string, Cost>>): void {
  lab.findings.chart({
    title: 'CPU per operation over the size of fleet and tables',
    x: { name: 'times the smallest', unit: '', log: true },
    y: { name: 'CPU', unit: 'µs', log: true },
    lines: operations.map(({ id, name }) => ({
      name,
      points: [...costs].map(([times, of]) => [times, of.get(id)?.us ?? 0]),
    })),
  })
}
