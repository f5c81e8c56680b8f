// Three hubs on one database with one Redis, behind what shares connections out, while agents stay connected and
// commands flow: restarted one after the other, replaced by another version, one killed, Redis killed, PostgreSQL
// restarted. Nothing may be lost or doubled, and where it is done in order nothing may fail.
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { TestCaddy } from '../../test/support/caddy.ts'
import { startRedis, withoutRedis, type TestRedis } from '../../test/support/redis.ts'
import { without } from '../../test/support/tools.ts'
import { startBalancer } from '../balancer.ts'
import { commandRequests, isCompleted, storedCommands } from '../commands.ts'
import { strike } from '../faults.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import { total } from '../fleet_counts.ts'
import type { Fleet } from '../fleet.ts'
import { openLoop } from '../http_load.ts'
import type { Lab, Target } from '../lab.ts'
import { nextVersion } from '../next_version.ts'
import { freePort } from '../programs.ts'
import type { RowSpec } from '../rows.ts'
import { trustAuthority } from '../sockets.ts'
import type { Scenario } from '../suite.ts'

const hubCount = 3
const commandsPerSecond = 50
const connections = 64
const waitSeconds = 30
/** Caddy looks every 2 s, for 2 s at most, and must see a hub that leaves twice. */
const drainSeconds = 5
const edgeLookMs = 5_000
/** Agents that lost their hub come back this often, as the first of their back-offs would. */
const reconnectMs = 250
const settleMsMax = 60_000
/** At once, or TLS alone is what a machine with two cores has to do. */
const handshakesInFlight = 64

interface Cluster {
  hubs: Target[]
  redis: TestRedis | undefined
  lab: Lab
  /** Starts a hub where it was, of the version of this folder. */
  start: (index: number, folder?: string) => Promise<Target>
}

interface Fault {
  name: string
  about: string
  /** Whether it is done in order, so that no request may fail. */
  isOrderly: boolean
  /** Resolves with the mean seconds that a hub took, where hubs are restarted. */
  happen(cluster: Cluster, seconds: number): Promise<number>
}

const lost: RowSpec[] = [
  { id: 'B1', name: 'commands lost', metric: 'lost', unit: 'commands', goal: { valueMost: 0 } },
  {
    id: 'B2',
    name: 'commands doubled',
    metric: 'doubled',
    unit: 'commands',
    goal: { valueMost: 0 },
  },
  { id: 'B3', name: 'commands stuck', metric: 'stuck', unit: 'commands', goal: { valueMost: 0 } },
]

const seen: RowSpec[] = [
  { id: 'B6', name: 'agents away at most', metric: 'away', unit: 'agents' },
  { id: 'B7', name: 'agents that moved when asked', metric: 'moved', unit: 'agents' },
  { id: 'B8', name: 'the latest move after its slot', metric: 'lateMs', unit: 'ms' },
  { id: 'B9', name: 'command round trip, p50', metric: 'p50Ms', unit: 'ms' },
  { id: 'B10', name: 'command round trip, p99', metric: 'p99Ms', unit: 'ms' },
  { id: 'B11', name: 'command round trip, the slowest', metric: 'maxMs', unit: 'ms' },
  { id: 'B12', name: 'commands that were asked for', metric: 'asked', unit: 'commands' },
  { id: 'B13', name: 'time of one restart', metric: 'restartSeconds', unit: 's' },
  { id: 'B14', name: 'changes that only a sweep found', metric: 'bySweep', unit: 'changes' },
]

function rowsOf({ isOrderly }: Fault): RowSpec[] {
  const goal = isOrderly ? { goal: { valueMost: 0 } } : {}
  return [
    ...lost,
    { id: 'B4', name: 'requests that failed', metric: 'failed', unit: 'requests', ...goal },
    { id: 'B5', name: 'devices shown offline', metric: 'offline', unit: 'devices', ...goal },
    ...seen,
  ]
}

const faults: Fault[] = [
  {
    name: 'restart',
    about: 'a rolling restart of three hubs',
    isOrderly: true,
    happen: (cluster, seconds) => rollOver(cluster, seconds),
  },
  {
    name: 'upgrade',
    about: 'a rolling upgrade of three hubs to a version with a migration',
    isOrderly: true,
    happen: (cluster, seconds) => rollOver(cluster, seconds, nextVersion(cluster.lab.folder)),
  },
  {
    name: 'hub-loss',
    about: 'one of three hubs killed, and started again',
    isOrderly: false,
    async happen({ hubs, lab, start }, seconds) {
      await sleep((seconds * 1000) / 3)
      lab.progress.note('hub-loss: SIGKILL')
      await hubs[1]!.kill()
      await sleep((seconds * 1000) / 3)
      hubs[1] = await start(1)
      await sleep((seconds * 1000) / 3)
      return 0
    },
  },
  {
    name: 'redis-loss',
    about: 'Redis emptied, then killed and started again, under three hubs',
    isOrderly: true,
    async happen({ redis, lab }, seconds) {
      if (!redis) throw new Error('there is no redis-server on this machine')
      const part = () => sleep((seconds * 1000) / 4)
      await part()
      lab.progress.note('redis-loss: FLUSHALL')
      await redis.command('FLUSHALL')
      await part()
      lab.progress.note('redis-loss: SIGKILL')
      await redis.kill()
      await part()
      await redis.start()
      await part()
      return 0
    },
  },
  {
    name: 'database-restart',
    about: 'PostgreSQL restarted under three hubs',
    isOrderly: false,
    async happen({ hubs, lab }, seconds) {
      await sleep((seconds * 1000) / 3)
      const database = hubs[0]?.database
      if (!database) throw new Error('the database is not ours')
      lab.progress.note('database-restart: fast shutdown')
      strike(database.pid, 'SIGINT')
      await sleep((seconds * 2000) / 3)
      return 0
    },
  },
]

export const clusterScenarios: Scenario[] = faults.map((fault) => ({
  name: fault.name,
  about: `${fault.about}, while commands flow`,
  rivals: [],
  agents: 1000,
  seconds: 20,
  warmUpSeconds: 0,
  ownHub: 'needs hubs that it starts',
  rate: { of: 'commands', most: 1 },
  rows: rowsOf(fault),
  async enter(side, lab, agents) {
    const { cluster, front } = await startCluster(lab)
    const devices = await lab.devices(cluster.hubs[0]!, agents)
    const fleet = await lab.fleet(front, devices)
    await connectAll(fleet, lab.progress, { inFlight: handshakesInFlight })
    await fleet.pace(restPerSecond(agents))

    return async (seconds) => {
      const [countsBefore, storedBefore] = [await fleet.counts(), await storedCommands(front)]
      const offlineBefore = await shownOffline(front)
      const keeper = keepConnected(fleet)
      const rolling = { over: false }
      // The load ends after what happens, however long that takes.
      const happened = fault.happen(cluster, seconds).finally(() => (rolling.over = true))
      happened.catch(() => undefined)
      const loads = []
      while (!rolling.over) {
        loads.push(
          await openLoop({
            origin: front.origin,
            connections,
            seconds: Math.min(seconds, 10),
            perSecond: lab.options.rates?.[0] ?? commandsPerSecond,
            next: await commandRequests(front, devices, waitSeconds),
            good: isCompleted,
            progress: lab.progress,
          }),
        )
      }
      const restartSeconds = await happened
      await until(async () => (await fleet.counts()).open === fleet.size)
      const away = await keeper.stop()
      await until(async () => (await storedCommands(front))?.open === 0)
      const stored = await storedCommands(front)
      const countsAfter = await fleet.counts()

      const { latencies } = loads[0]!
      for (const more of loads.slice(1)) latencies.add(more.latencies)
      lab.findings.latencies(side, 'command round trip', latencies)
      const good = loads.reduce((sum, load) => sum + load.good, 0)
      const unfinished = loads.reduce((sum, load) => sum + (load.bad['202'] ?? 0), 0)
      const failed = loads.reduce((sum, load) => sum + total(load.bad), 0) - unfinished
      for (const { bad } of loads) {
        if (total(bad) > 0) lab.progress.note(`${fault.name}: ${JSON.stringify(bad)}`)
      }
      const kept = (stored?.all ?? 0) - (storedBefore?.all ?? 0)
      const ran = countsAfter.commands - countsBefore.commands
      // A request that failed may have been accepted before its connection was lost.
      return {
        lost: Math.max(0, good + unfinished - kept, good - ran),
        doubled: Math.max(0, kept - good - unfinished - failed, ran - kept),
        stuck: stored?.open ?? 0,
        failed,
        offline: (await shownOffline(front)) - offlineBefore,
        away,
        moved: countsAfter.moves - countsBefore.moves,
        lateMs: countsAfter.lateMsMax,
        p50Ms: latencies.ms(50),
        p99Ms: latencies.ms(99),
        maxMs: latencies.ms(100),
        asked: good + unfinished + failed,
        restartSeconds,
        bySweep: await foundBySweep(cluster.hubs),
      }
    }
  },
}))

async function startCluster(lab: Lab): Promise<{ cluster: Cluster; front: Target }> {
  const redis = withoutRedis ? undefined : await lab.starting(() => startRedis())
  if (redis) lab.defer(() => redis.close())
  else lab.progress.note('warning: no redis-server, so hubs find each other by their sweeps alone')
  const env = {
    JWT_SECRET: randomBytes(32).toString('hex'),
    DRAIN_SECONDS: String(drainSeconds),
    TRUSTED_PROXIES: '127.0.0.1',
    ...(redis ? { REDIS_URL: redis.url } : {}),
  }
  const ports: number[] = []
  while (ports.length < hubCount) ports.push(await freePort())
  const start = (index: number, folder?: string) => {
    const more = { copy: `-${index + 1}`, env, port: ports[index]! }
    return lab.start('hub', { ...more, ...(folder ? { folder } : {}) })
  }
  const hubs: Target[] = []
  for (let index = 0; index < hubCount; index++) hubs.push(await start(index))
  const origin = await startEdge(lab, hubs)
  return { cluster: { hubs, redis, lab, start }, front: { ...hubs[0]!, origin } }
}

/** Caddy as it is deployed, with TLS; where there is none, a balancer without. */
async function startEdge(lab: Lab, hubs: Target[]): Promise<string> {
  const missing = without('caddy')
  if (missing !== false) {
    lab.progress.note(`warning: ${missing}, so there is no TLS, and a balancer in its place`)
    const balancer = await lab.starting(() => startBalancer(hubs.map(({ origin }) => origin)))
    lab.defer(() => balancer.stop())
    return balancer.origin
  }
  const caddy = await lab.starting(async () =>
    TestCaddy.start({
      folder: join(lab.folder, 'caddy'),
      port: await freePort(),
      hubs: hubs.map(({ origin }) => new URL(origin).host),
    }),
  )
  lab.defer(() => caddy.kill())
  trustAuthority(caddy.caFile)
  return caddy.origin
}

/** Restarts each hub; resolves with the mean time of one. */
async function rollOver(
  { hubs, lab, start }: Cluster,
  seconds: number,
  folder?: string,
): Promise<number> {
  let tookMs = 0
  for (let index = 0; index < hubs.length; index++) {
    await sleep(Math.max(edgeLookMs, (seconds * 1000) / 4))
    lab.progress.note(`hub ${index + 1} of ${hubs.length} leaves`)
    const startedMs = performance.now()
    await hubs[index]!.stop()
    hubs[index] = await start(index, folder)
    tookMs += performance.now() - startedMs
  }
  await sleep(edgeLookMs)
  return tookMs / hubs.length / 1000
}

/** Brings agents back that lost their hub; tells how many were away at most. */
function keepConnected(fleet: Fleet): { stop(): Promise<number> } {
  let away = 0
  const keeper = { over: false }
  const loop = (async () => {
    while (!keeper.over) {
      away = Math.max(away, fleet.size - (await fleet.counts()).open)
      await fleet.connect({ inFlight: handshakesInFlight })
      await sleep(reconnectMs)
    }
  })()
  // Whoever stops it hears of what went wrong.
  loop.catch(() => undefined)
  return {
    async stop() {
      keeper.over = true
      await loop
      return away
    },
  }
}

/** Devices that operators and webhooks were told are offline, so far. */
async function shownOffline({ database }: Target): Promise<number> {
  const [row] =
    (await database?.read(
      `select count(*)::int as count from events where type = 'device.offline'`,
    )) ?? []
  return Number(row?.['count'] ?? 0)
}

/** What hubs handed over and Redis did not tell, as the hubs that run now count it. */
async function foundBySweep(hubs: readonly Target[]): Promise<number> {
  let sum = 0
  for (const { origin, metricsToken } of hubs) {
    const headers = { Authorization: `Bearer ${metricsToken}` }
    const text = await (await fetch(`${origin}/metrics`, { headers })).text()
    sum += Number(/^muster_handoffs_total\{found="sweep"\} (\d+)$/m.exec(text)?.[1] ?? 0)
  }
  return sum
}

/** Waits for what has to come, but not for ever: what is missing then is a figure of the report. */
async function until(fact: () => Promise<boolean>): Promise<void> {
  const endMs = performance.now() + settleMsMax
  while (!(await fact()) && performance.now() < endMs) await sleep(100)
}
