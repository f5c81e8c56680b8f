// A rolling restart: two hubs on one database behind a balancer, one after the other drained, ended and started
// again while agents stay connected and commands flow. Nothing may be lost or doubled, hardly anything fail.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { startBalancer, type Balancer } from '../balancer.ts'
import { commandRequests, isCompleted, storedCommands } from '../commands.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import { total } from '../fleet_counts.ts'
import type { Fleet } from '../fleet.ts'
import { openLoop } from '../http_load.ts'
import { startRedis, withoutRedis } from '../../test/support/redis.ts'
import type { Lab, Target } from '../lab.ts'
import type { RowSpec } from '../rows.ts'
import type { Scenario } from '../suite.ts'

const commandsPerSecond = 50
const connections = 64
const waitSeconds = 30
/** What the hubs are told: enough for the balancer to see that one leaves. */
const drainSeconds = 2
/** Agents that lost their hub come back this often, as the first of their back-offs would. */
const reconnectMs = 250
const settleMsMax = 30_000

const rows: RowSpec[] = [
  { id: 'B1', name: 'commands lost', metric: 'lost', unit: 'commands', goal: { valueMost: 0 } },
  {
    id: 'B2',
    name: 'commands doubled',
    metric: 'doubled',
    unit: 'commands',
    goal: { valueMost: 0 },
  },
  { id: 'B3', name: 'commands stuck', metric: 'stuck', unit: 'commands', goal: { valueMost: 0 } },
  { id: 'B4', name: 'requests that failed', metric: 'failed', unit: 'requests' },
  { id: 'B5', name: 'agents away at most', metric: 'away', unit: 'agents' },
  { id: 'B6', name: 'command round trip, p99', metric: 'p99Ms', unit: 'ms' },
  { id: 'B7', name: 'command round trip, the slowest', metric: 'maxMs', unit: 'ms' },
  { id: 'B8', name: 'time of one restart', metric: 'restartSeconds', unit: 's' },
]

export const restart: Scenario = {
  name: 'restart',
  about: 'a rolling restart of two hubs behind a balancer, while commands flow',
  rivals: [],
  agents: 1000,
  seconds: 10,
  warmUpSeconds: 0,
  ownHub: 'restarts hubs that it starts',
  rate: { of: 'commands', most: 1 },
  rows,
  async enter(side, lab, agents) {
    const jwtSecret = randomBytes(32).toString('hex')
    const redis = withoutRedis ? undefined : await lab.starting(() => startRedis())
    if (redis) lab.defer(() => redis.close())
    else
      lab.progress.note('warning: no redis-server, so hubs find each other by their sweeps alone')
    const env = {
      JWT_SECRET: jwtSecret,
      DRAIN_SECONDS: String(drainSeconds),
      ...(redis ? { REDIS_URL: redis.url } : {}),
    }
    const start = (copy: string) => lab.start(side, { copy, env })
    const hubs = [await start('-one'), await start('-two')]
    const balancer = await lab.starting(() => startBalancer(originsOf(hubs)))
    lab.defer(() => balancer.stop())
    const front: Target = { ...hubs[0]!, origin: balancer.origin }
    const devices = await lab.devices(front, agents)
    const fleet = await lab.fleet(front, devices)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))

    return async (seconds) => {
      const [countsBefore, storedBefore] = [await fleet.counts(), await storedCommands(front)]
      const keeper = keepConnected(fleet)
      const rolling = { over: false }
      // The load ends after both restarts, however long these take.
      const restarts = rollOver(hubs, start, balancer, seconds, lab).finally(
        () => (rolling.over = true),
      )
      const loads = []
      while (!rolling.over) {
        loads.push(
          await openLoop({
            origin: balancer.origin,
            connections,
            seconds,
            perSecond: lab.options.rates?.[0] ?? commandsPerSecond,
            next: await commandRequests(front, devices, waitSeconds),
            good: isCompleted,
            progress: lab.progress,
          }),
        )
      }
      const restartSeconds = await restarts
      const away = await keeper.stop()
      const stored = await settled(front)
      const countsAfter = await fleet.counts()

      const all = loads[0]!
      const latencies = all.latencies
      for (const more of loads.slice(1)) latencies.add(more.latencies)
      lab.findings.latencies(side, 'command round trip', latencies)
      const good = loads.reduce((sum, load) => sum + load.good, 0)
      const unfinished = loads.reduce((sum, load) => sum + (load.bad['202'] ?? 0), 0)
      const failed = loads.reduce((sum, load) => sum + total(load.bad), 0) - unfinished
      const kept = stored.all - (storedBefore?.all ?? 0)
      const ran = countsAfter.commands - countsBefore.commands
      // A request that failed may have been accepted before its connection was lost.
      return {
        lost: Math.max(0, good + unfinished - kept, good - ran),
        doubled: Math.max(0, kept - good - unfinished - failed, ran - kept),
        stuck: stored.open,
        failed,
        away,
        p99Ms: latencies.ms(99),
        maxMs: latencies.ms(100),
        restartSeconds,
      }
    }
  },
}

/** Restarts each hub, `seconds` apart from each other; resolves with the mean time of one. */
async function rollOver(
  hubs: Target[],
  start: (copy: string) => Promise<Target>,
  balancer: Balancer,
  seconds: number,
  lab: Lab,
): Promise<number> {
  let tookMs = 0
  for (const [index, copy] of ['-one', '-two'].entries()) {
    await sleep((seconds * 1000) / 4)
    lab.progress.note(`restart: hub${copy} leaves`)
    const startedMs = performance.now()
    await hubs[index]!.stop()
    hubs[index] = await start(copy)
    await balancer.serve(originsOf(hubs))
    tookMs += performance.now() - startedMs
  }
  return tookMs / hubs.length / 1000
}

/** Brings agents back that lost their hub; tells how many were away at most. */
function keepConnected(fleet: Fleet): { stop(): Promise<number> } {
  let away = 0
  const keeper = { over: false }
  const loop = (async () => {
    while (!keeper.over) {
      away = Math.max(away, fleet.size - (await fleet.counts()).open)
      await fleet.connect()
      await sleep(reconnectMs)
    }
  })()
  return {
    async stop() {
      keeper.over = true
      await loop
      return away
    },
  }
}

/** Commands that were under way get their end, or are stuck. */
async function settled(target: Target): Promise<{ all: number; open: number }> {
  for (const endMs = performance.now() + settleMsMax; ; await sleep(100)) {
    const stored = await storedCommands(target)
    if (!stored) throw new Error('only a hub of our own can be restarted')
    if (stored.open === 0 || performance.now() > endMs) return stored
  }
}

function originsOf(hubs: readonly Target[]): string[] {
  return hubs.map(({ origin }) => origin)
}
