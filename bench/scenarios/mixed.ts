// An ordinary day, all at once: a fleet that beats, some agents that come and go, commands, lists, scripts, and
// devices that are enrolled and decommissioned. What each of them takes beside all the others.
import { commandRequests, isCompleted } from '../commands.ts'
import { connectAll, lossOf, restPerSecond, standingFleet } from '../fleet_phases.ts'
import { total } from '../fleet_counts.ts'
import type { Fleet } from '../fleet.ts'
import { requestBytes } from '../http_connection.ts'
import { failures, openLoop } from '../http_load.ts'
import { Latencies } from '../latency.ts'
import { cpuMs, type Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import type { RowSpec } from '../rows.ts'
import { newScript, type BenchScript } from '../script_runs.ts'
import type { Device } from '../sim_agent.ts'
import type { Scenario } from '../suite.ts'
import { Visitors } from '../visitors.ts'

const commandsPerSecond = 50
const readsPerSecond = 20
const visitsPerSecond = 1
/** Of all agents, those that lose their connection all the time. */
const restlessPart = 0.05
const reconnectsPerSecond = 20
const waitSeconds = 30
/** Between two starts of the script. */
const scriptEverySeconds = 5
/** A script that names its devices names so many at most, and a real one seldom runs on all. */
const scriptDevicesMax = 2000

const rows: RowSpec[] = [
  { id: 'M1', name: 'command round trip, p50', metric: 'commandP50Ms', unit: 'ms' },
  { id: 'M2', name: 'command round trip, p99', metric: 'commandP99Ms', unit: 'ms' },
  { id: 'M3', name: 'lists, p50', metric: 'listP50Ms', unit: 'ms' },
  { id: 'M4', name: 'lists, p99', metric: 'listP99Ms', unit: 'ms' },
  { id: 'M5', name: 'script on up to 2,000 devices, the slowest', metric: 'scriptMs', unit: 'ms' },
  { id: 'M6', name: 'agents that reconnected', metric: 'reconnects', unit: '/s' },
  { id: 'M7', name: 'CPU of the hub', metric: 'cores', unit: 'cores' },
  { id: 'M8', name: 'CPU of PostgreSQL', metric: 'postgresCores', unit: 'cores' },
  {
    id: 'M9',
    name: 'requests and visits that failed',
    metric: 'failed',
    unit: 'requests',
    goal: { valueMost: 0 },
  },
  { id: 'M10', name: 'agents lost', metric: 'lost', unit: 'agents', goal: { valueMost: 0 } },
]

export const mixed: Scenario = {
  name: 'mixed',
  about: 'a day at once: heartbeats, reconnects, commands, lists, scripts, enrolls',
  rivals: [],
  agents: 5000,
  seconds: 30,
  warmUpSeconds: 3,
  rate: { of: 'commands', most: 1 },
  rows,
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const { devices, fleet } = await standingFleet(lab, target, agents)
    const all = await lab.devices(target, agents + Math.max(1, Math.round(agents * restlessPart)))
    const restless = await lab.fleet(target, all.slice(agents))
    await connectAll(restless, lab.progress)
    await restless.pace(restPerSecond(restless.size))
    return async (seconds) => {
      const script = await newScript(lab, target, devices.slice(0, scriptDevicesMax), true)
      const endMs = performance.now() + seconds * 1000
      const [cpuBefore, startedMs] = [cpuMs(target), performance.now()]
      const shared = { origin: target.origin, seconds, connections: 64 }
      const [commands, lists, scripts, reconnects, visits] = await Promise.all([
        openLoop({
          ...shared,
          perSecond: lab.options.rates?.[0] ?? commandsPerSecond,
          next: await commandRequests(target, devices, waitSeconds),
          good: isCompleted,
          progress: lab.progress,
        }),
        openLoop({
          ...shared,
          perSecond: readsPerSecond,
          next: await listRequests(target, devices),
          good: ({ status }) => status === 200,
        }),
        runScripts(script, endMs).catch(async (error: Error) => {
          // An agent that is gone completes nothing.
          const counts = await fleet.counts()
          throw new Error(
            `${error.message}; ${counts.open} of ${agents} agents are open: ${lossOf(counts)}`,
          )
        }),
        reconnect(restless, endMs),
        new Visitors(target).come(visitsPerSecond, seconds),
      ])
      const [cpuAfter, elapsedMs] = [cpuMs(target), performance.now() - startedMs]
      await script.remove()
      await connectAll(restless, lab.progress)

      lab.findings.latencies(side, 'command round trip', commands.latencies)
      lab.findings.latencies(side, 'lists', lists.latencies)
      lab.findings.latencies(side, 'script', scripts)
      for (const [reason, count] of Object.entries(visits.failed)) {
        lab.progress.note(`warning: ${count} visits failed: ${reason}`)
      }
      const cores = cpuBefore &&
        cpuAfter && {
          cores: (cpuAfter.program - cpuBefore.program) / elapsedMs,
          postgresCores: (cpuAfter.postgres - cpuBefore.postgres) / elapsedMs,
        }
      return {
        commandP50Ms: commands.latencies.ms(50),
        commandP99Ms: commands.latencies.ms(99),
        listP50Ms: lists.latencies.ms(50),
        listP99Ms: lists.latencies.ms(99),
        scriptMs: scripts.ms(100),
        reconnects: (reconnects * 1000) / elapsedMs,
        failed: failures(commands) + failures(lists) + total(visits.failed),
        lost: devices.length - (await fleet.counts()).open,
        ...cores,
      }
    }
  },
}

/** What a page of the console asks for: a list, a part of it, one device's commands, the audit. */
async function listRequests(
  { origin, credentials }: Target,
  devices: readonly Device[],
): Promise<() => Buffer> {
  const headers = await signIn(origin, credentials)
  const paths = [
    '/devices',
    '/devices?status=online',
    `/devices/${devices[0]!.id}/commands`,
    '/audit?action=command.create',
    '/alerts',
  ]
  const requests = paths.map((path) =>
    requestBytes(origin, { method: 'GET', path: `/api/v1${path}`, headers }),
  )
  let next = 0
  return () => requests[next++ % requests.length]!
}

/** The script again and again, at least once, each from the moment it was due. */
async function runScripts(script: BenchScript, endMs: number): Promise<Latencies> {
  const latencies = new Latencies()
  for (let dueMs = performance.now(); ; dueMs += scriptEverySeconds * 1000) {
    await script.run()
    latencies.record(dueMs, performance.now())
    const waitMs = dueMs + scriptEverySeconds * 1000 - performance.now()
    if (performance.now() + waitMs >= endMs) return latencies
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs))
  }
}

/** Agents that lose their connection and come back, over and over; how many came back. */
async function reconnect(restless: Fleet, endMs: number): Promise<number> {
  let count = 0
  while (performance.now() < endMs) {
    await restless.disconnect()
    const { open } = await restless.connect({ perSecond: reconnectsPerSecond })
    await restless.pace(restPerSecond(restless.size))
    count += open
  }
  return count
}
