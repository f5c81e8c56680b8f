// The same share of a fleet on one hub alone and on each of three hubs that share a database: whether an agent costs
// more where there are several hubs.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { startRedis, withoutRedis } from '../../test/support/redis.ts'
import { connectAll, lossOf, restPerSecond } from '../fleet_phases.ts'
import type { Fleet } from '../fleet.ts'
import { cpuMs, type Lab, type Target } from '../lab.ts'
import type { Device } from '../sim_agent.ts'
import type { Scenario } from '../suite.ts'
import { collectedRss } from '../rss_watch.ts'

const hubCount = 3
const connectsPerSecond = 1500
/** What an agent costs must not grow with the number of hubs. */
const growthMost = 1.25

export const nodes: Scenario = {
  name: 'nodes',
  about: 'CPU and memory per agent on each of three hubs, beside one hub alone',
  rivals: [],
  agents: 50_000,
  seconds: 30,
  warmUpSeconds: 0,
  ownHub: 'starts one hub, then three',
  rows: [
    { id: 'N1', name: 'CPU per agent, one hub', metric: 'oneCpuUs', unit: 'µs each second' },
    {
      id: 'N2',
      name: 'CPU per agent, each of three',
      metric: 'threeCpuUs',
      unit: 'µs each second',
    },
    {
      id: 'N3',
      name: 'CPU per agent, three hubs to one',
      metric: 'cpuRatio',
      unit: '×',
      goal: { valueMost: growthMost },
    },
    { id: 'N4', name: 'RSS per agent, one hub', metric: 'oneKilobytes', unit: 'KB' },
    { id: 'N5', name: 'RSS per agent, each of three', metric: 'threeKilobytes', unit: 'KB' },
    {
      id: 'N6',
      name: 'RSS per agent, three hubs to one',
      metric: 'rssRatio',
      unit: '×',
      goal: { valueMost: growthMost },
    },
    { id: 'N7', name: 'PostgreSQL CPU per agent', metric: 'postgresUs', unit: 'µs each second' },
    { id: 'N8', name: 'agents lost', metric: 'lost', unit: 'agents', goal: { valueMost: 0 } },
  ],
  async enter(side, lab, agents) {
    const redis = withoutRedis ? undefined : await lab.starting(() => startRedis())
    if (redis) lab.defer(() => redis.close())
    const env = {
      JWT_SECRET: randomBytes(32).toString('hex'),
      ...(redis ? { REDIS_URL: redis.url } : {}),
    }
    const start = (copy: string) => lab.start(side, { copy, env, nodeFlags: ['--expose-gc'] })
    const enrolling = await start('-1')
    const devices = await lab.devices(enrolling, agents)
    await enrolling.stop()
    const share = Math.floor(agents / hubCount)
    const shareOf = (index: number) => devices.slice(index * share, (index + 1) * share)

    return async (seconds) => {
      const one = await measureHubs(lab, [await start('-1')], shareOf, seconds)
      const hubs: Target[] = []
      for (let index = 0; index < hubCount; index++) hubs.push(await start(`-${index + 1}`))
      const three = await measureHubs(lab, hubs, shareOf, seconds)
      return {
        oneCpuUs: one.cpuUs,
        threeCpuUs: three.cpuUs,
        cpuRatio: three.cpuUs / one.cpuUs,
        oneKilobytes: one.kilobytes,
        threeKilobytes: three.kilobytes,
        rssRatio: three.kilobytes / one.kilobytes,
        postgresUs: three.postgresUs,
        lost: one.lost + three.lost,
      }
    }
  },
}

interface Use {
  /** Per agent and second, the mean of the hubs; PostgreSQL's of all of them. */
  cpuUs: number
  postgresUs: number
  kilobytes: number
  lost: number
}

/** Gives each hub its share of agents, lets them rest, and stops the hubs. */
async function measureHubs(
  lab: Lab,
  hubs: readonly Target[],
  shareOf: (index: number) => Device[],
  seconds: number,
): Promise<Use> {
  const before = await Promise.all(hubs.map(({ pid = 0 }) => collectedRss(pid)))
  const fleets: Fleet[] = []
  for (const [index, hub] of hubs.entries()) {
    const devices = shareOf(index)
    lab.progress.step(`hub ${index + 1} of ${hubs.length}: connecting ${devices.length} agents`)
    const fleet = await lab.fleet(hub, devices)
    await connectAll(fleet, lab.progress, { perSecond: connectsPerSecond })
    await fleet.pace(restPerSecond(devices.length))
    fleets.push(fleet)
  }
  const after = await Promise.all(hubs.map(({ pid = 0 }) => collectedRss(pid)))
  const [cpuBefore, startedMs] = [hubs.map(cpuOf), performance.now()]
  await sleep(seconds * 1000)
  const [cpuAfter, elapsed] = [hubs.map(cpuOf), (performance.now() - startedMs) / 1000]
  const counts = await Promise.all(fleets.map((fleet) => fleet.counts()))
  const agents = fleets.reduce((sum, fleet) => sum + fleet.size, 0)
  const open = counts.reduce((sum, count) => sum + count.open, 0)
  for (const count of counts) lab.progress.note(`${count.open} agents open: ${lossOf(count)}`)
  for (const fleet of fleets) await fleet.close()
  for (const hub of hubs) await hub.stop()
  const program =
    sumOf(cpuAfter, ({ program: ms }) => ms) - sumOf(cpuBefore, ({ program: ms }) => ms)
  // One PostgreSQL serves them all.
  const postgres = (cpuAfter[0]?.postgres ?? 0) - (cpuBefore[0]?.postgres ?? 0)
  return {
    cpuUs: (program * 1000) / agents / elapsed,
    postgresUs: (postgres * 1000) / agents / elapsed,
    kilobytes: (sumOf(after, (bytes) => bytes) - sumOf(before, (bytes) => bytes)) / 1024 / agents,
    lost: agents - open,
  }
}

function cpuOf(hub: Target): { program: number; postgres: number } {
  const used = cpuMs(hub)
  if (!used) throw new Error('the hub is not ours')
  return used
}

function sumOf<T>(all: readonly T[], value: (one: T) => number): number {
  return all.reduce((sum, one) => sum + value(one), 0)
}
