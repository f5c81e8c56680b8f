// Slow and malicious clients beside honest ones: what commands and agents notice of sockets that are held open,
// trickled into, filled with garbage or never read, and how much memory they cost the hub.
import { commandRequests, isCompleted } from '../commands.ts'
import { standingFleet } from '../fleet_phases.ts'
import { hostileKinds } from '../hostile_clients.ts'
import { startHostile } from '../hostile_process.ts'
import { failures, openLoop } from '../http_load.ts'
import type { Lab, Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { plotRss, watchRss } from '../rss_watch.ts'
import type { RowSpec } from '../rows.ts'
import type { Device } from '../sim_agent.ts'
import { placeOf } from '../sockets.ts'
import type { Scenario } from '../suite.ts'

const commandsPerSecond = 100
const waitSeconds = 30
/** Clients of each kind: a tenth as many as honest agents, so that a small run stays one. */
const clientsPerAgent = 0.1

const rows: RowSpec[] = [
  { id: 'H1', name: 'command round trip p99 before', metric: 'quietP99Ms', unit: 'ms' },
  {
    id: 'H2',
    name: 'command round trip p99 among hostile clients',
    metric: 'busyP99Ms',
    unit: 'ms',
  },
  {
    id: 'H3',
    name: 'the second over the first',
    metric: 'ratio',
    unit: '×',
    goal: { valueMost: 2 },
  },
  {
    id: 'H4',
    name: 'commands that failed',
    metric: 'failed',
    unit: 'commands',
    goal: { valueMost: 0 },
  },
  { id: 'H5', name: 'honest agents lost', metric: 'lost', unit: 'agents', goal: { valueMost: 0 } },
  { id: 'H6', name: 'most memory the hub grew by', metric: 'grownMb', unit: 'MB' },
  { id: 'H7', name: 'hostile clients thrown out', metric: 'thrownOut', unit: '/s' },
]

export const hostile: Scenario = {
  name: 'hostile',
  about: 'silent, slow, oversized, garbage and never-reading clients; what honest ones notice',
  rivals: [],
  agents: 1000,
  // A hub lets a silent socket be for half a minute or so.
  seconds: 40,
  warmUpSeconds: 2,
  rate: { of: 'commands', most: 1 },
  rows,
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const { devices, fleet } = await standingFleet(lab, target, agents)
    const clients = Math.max(1, Math.round(agents * clientsPerAgent))
    const all = await lab.devices(target, agents + clients * hostileKinds.length)
    const theirs = all.slice(agents)
    return async (seconds) => {
      const quiet = await sendCommands(lab, target, devices, seconds)
      const watch = watchRss(target.pid)
      const { Authorization: authorization } = await signIn(target.origin, target.credentials)
      const { origin } = target
      const place = placeOf(origin)
      const crowd = await lab.starting(() =>
        startHostile({ clients, origin, place, authorization, devices: theirs }),
      )
      try {
        const busy = await sendCommands(lab, target, devices, seconds)
        const counts = await crowd.counts()
        for (const [kind, count] of Object.entries(counts)) {
          lab.progress.note(`hostile: ${kind}: ${clients} clients, thrown out ${count} times`)
        }
        const thrownOut = Object.values(counts).reduce((sum, count) => sum + count, 0) / seconds
        lab.findings.latencies(side, 'command round trip before', quiet.latencies)
        lab.findings.latencies(side, 'command round trip among hostile clients', busy.latencies)
        const [quietP99Ms, busyP99Ms] = [quiet.latencies.ms(99), busy.latencies.ms(99)]
        const looks = watch.stop()
        plotRss(lab.findings, looks)
        const memory = looks.map(([, megabytes]) => megabytes)
        return {
          quietP99Ms,
          busyP99Ms,
          ratio: busyP99Ms / quietP99Ms,
          failed: failures(quiet) + failures(busy),
          lost: devices.length - (await fleet.counts()).open,
          thrownOut,
          ...(memory.length > 0 ? { grownMb: Math.max(...memory) - memory[0]! } : {}),
        }
      } finally {
        watch.stop()
        await crowd.stop()
      }
    }
  },
}

async function sendCommands(lab: Lab, target: Target, devices: readonly Device[], seconds: number) {
  return openLoop({
    origin: target.origin,
    connections: 64,
    seconds,
    perSecond: lab.options.rates?.[0] ?? commandsPerSecond,
    next: await commandRequests(target, devices, waitSeconds),
    good: isCompleted,
    progress: lab.progress,
  })
}
