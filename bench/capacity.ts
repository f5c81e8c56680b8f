// What a fleet needs, from what operations were measured to cost: a day of it is played through in small steps,
// with its morning, a script on everything, and a hub that dies when most is going on. Pure: no clock, no chance.

/** Of one operation. Times are CPU in µs, on the cores that they were measured on. */
export interface OperationCost {
  /** Of all threads of the hub. */
  hubUs: number
  /** Of the one thread of a hub that holds its sockets. */
  frontUs: number
  postgresUs: number
  walBytes: number
  /** On the wire, both directions, with TLS, TCP and IP. */
  wireBytes: number
}

export interface Costs {
  /** An agent that comes back: look-up of its token, upgrade, claim, queue. */
  connect: OperationCost
  /** An agent that has nothing to do but beat, each second. */
  rest: OperationCost
  /** A command accepted, sent, run and ended. */
  command: OperationCost
  /** A page that an operator reads. */
  page: OperationCost
  hubMegabytes: number
  agentKilobytes: number
  /** Of a command with its events and audit rows, indexes included. */
  commandDiskBytes: number
}

export interface Workload {
  agents: number
  /** Parts of the fleet that are connected at night and at noon. */
  nightPart: number
  dayPart: number
  /** Of a connected agent: sleep, roaming, restarts. */
  reconnectsPerAgentHour: number
  commandsPerAgentHour: number
  /** Once a day, on every device that is connected. */
  scriptAtHour: number
  /** An operator for so many agents reads a page each ten seconds from 8 to 18 h. */
  agentsPerOperator: number
  /** When one hub dies and stays away. */
  lossAtHour: number
}

/** What a hub process and the database's machine may be used for. */
export interface Bounds {
  /** Part of a core that the thread with the sockets may be busy; past it latencies grow. */
  frontPart: number
  /** Agents of one process: half of a limit of open files, so that a neighbour's fit too. */
  agentsPerHub: number
  /** Upgrades per second that a hub accepts before it sheds. */
  acceptsPerSecond: number
  postgresCores: number
  /** What one primary's disk takes, with its replicas following. */
  walMegabytesPerSecond: number
  /** Commands per second that a script's fan-out adds. */
  fanOutPerSecond: number
}

export const defaultWorkload: Workload = {
  agents: 100_000,
  nightPart: 0.4,
  dayPart: 0.95,
  reconnectsPerAgentHour: 0.5,
  commandsPerAgentHour: 1,
  scriptAtHour: 12,
  agentsPerOperator: 1000,
  lossAtHour: 12,
}

export const defaultBounds: Bounds = {
  frontPart: 0.6,
  agentsPerHub: 100_000,
  acceptsPerSecond: 4000,
  postgresCores: 32,
  walMegabytesPerSecond: 200,
  fanOutPerSecond: 10_000,
}

/** Agents reconnect within this after a loss: full jitter up to it. */
const backOffSeconds = 30
const stepSeconds = 5
const daySeconds = 86_400
const readsPerSecond = 0.1

/** One step of the day, per second of it. */
export interface Moment {
  hour: number
  online: number
  connects: number
  commands: number
  hubs: number
  /** Cores; of the busiest hub's front, and of all hubs. */
  front: number
  hubCores: number
  postgresCores: number
  walMegabytes: number
  wireMegabits: number
}

export interface Day {
  moments: Moment[]
  peak: Omit<Moment, 'hour' | 'hubs'>
  /** Until the agents of the dead hub were back, and until the script had reached everyone. */
  backSeconds: number
  scriptSeconds: number
  walGigabytes: number
  diskGigabytes: number
  /** Resident, of the fullest hub. */
  hubMegabytes: number
}

/** Plays a day with so many hubs. */
export function simulateDay(
  costs: Costs,
  workload: Workload,
  hubs: number,
  bounds: Bounds = defaultBounds,
): Day {
  const { agents } = workload
  const moments: Moment[] = []
  const lossAt = workload.lossAtHour * 3600
  const scriptAt = workload.scriptAtHour * 3600
  let before = agents * partOnline(0, workload)
  let alive = hubs
  let [lost, away] = [0, 0]
  let leftOfScript = 0
  let [backSeconds, scriptSeconds, walBytes, commandsOfDay, fullest] = [0, 0, 0, 0, 0]

  for (let at = 0; at < daySeconds; at += stepSeconds) {
    const wanted = agents * partOnline(at / 3600, workload)
    if (at === lossAt && hubs > 1) {
      lost = wanted / hubs
      away = lost
      alive = hubs - 1
    }
    if (at === scriptAt) leftOfScript = wanted
    // Back-off spreads those who lost their hub; the accept budget sheds the rest to a later try.
    const budget = alive * bounds.acceptsPerSecond
    const returning = Math.min(away, (lost * stepSeconds) / backOffSeconds, budget * stepSeconds)
    if (away > 0) backSeconds += stepSeconds
    away = returning < away * (1 - 1e-9) ? away - returning : 0
    const coming = Math.max(0, wanted - before) / stepSeconds
    before = wanted
    const online = wanted - away
    const roaming = (online * workload.reconnectsPerAgentHour) / 3600
    const connects = Math.min(coming + roaming + returning / stepSeconds, budget)

    const ofScript = Math.min(leftOfScript / stepSeconds, bounds.fanOutPerSecond)
    if (leftOfScript > 0) scriptSeconds += stepSeconds
    leftOfScript -= ofScript * stepSeconds
    const commands = (online * workload.commandsPerAgentHour) / 3600 + ofScript
    const hour = at / 3600
    const pages =
      hour >= 8 && hour < 18 ? (agents / workload.agentsPerOperator) * readsPerSecond : 0

    const all = sum([
      [costs.connect, connects],
      [costs.rest, online],
      [costs.command, commands],
      [costs.page, pages],
    ])
    walBytes += all.walBytes * stepSeconds
    commandsOfDay += commands * stepSeconds
    fullest = Math.max(fullest, online / alive)
    moments.push({
      hour,
      online,
      connects,
      commands,
      hubs: alive,
      front: all.frontUs / 1e6 / alive,
      hubCores: all.hubUs / 1e6,
      postgresCores: all.postgresUs / 1e6,
      walMegabytes: all.walBytes / 1e6,
      wireMegabits: (all.wireBytes * 8) / 1e6,
    })
  }
  const most = (of: keyof Moment) => Math.max(...moments.map((moment) => moment[of]))
  return {
    moments,
    peak: {
      online: most('online'),
      connects: most('connects'),
      commands: most('commands'),
      front: most('front'),
      hubCores: most('hubCores'),
      postgresCores: most('postgresCores'),
      walMegabytes: most('walMegabytes'),
      wireMegabits: most('wireMegabits'),
    },
    backSeconds,
    scriptSeconds,
    walGigabytes: walBytes / 1e9,
    diskGigabytes: (commandsOfDay * costs.commandDiskBytes) / 1e9,
    hubMegabytes: costs.hubMegabytes + (fullest * costs.agentKilobytes) / 1024,
  }
}

export interface Plan {
  hubs: number
  day: Day
  /** Databases that it takes when no primary may do more than the bounds say. */
  databases: number
  /** What is nearest to its bound with this many hubs, and how near: 1 is at it. */
  bottleneck: { name: string; use: number }
}

/** About the fewest hubs, two at least, with which a day stays within the bounds although one of them dies. */
export function planFor(costs: Costs, workload: Workload, bounds: Bounds = defaultBounds): Plan {
  const least = Math.max(2, Math.ceil(workload.agents / bounds.agentsPerHub) + 1)
  for (let hubs = least; ; hubs = Math.ceil(hubs * 1.05)) {
    const day = simulateDay(costs, workload, hubs, bounds)
    if (day.peak.front > bounds.frontPart) continue
    const uses = [
      { name: "a hub's front", use: day.peak.front / bounds.frontPart },
      { name: 'PostgreSQL CPU', use: day.peak.postgresCores / bounds.postgresCores },
      { name: 'WAL', use: day.peak.walMegabytes / bounds.walMegabytesPerSecond },
      { name: 'open files', use: workload.agents / (hubs - 1) / bounds.agentsPerHub },
    ]
    const ofDatabase = uses.filter(({ name }) => name === 'PostgreSQL CPU' || name === 'WAL')
    return {
      hubs,
      day,
      databases: Math.ceil(Math.max(...ofDatabase.map(({ use }) => use))),
      bottleneck: uses.reduce((most, one) => (one.use > most.use ? one : most)),
    }
  }
}

/** Of the fleet: the night's part, the day's from 9 to 17 h, and a rise and a fall of an hour and a half between. */
function partOnline(hour: number, { nightPart, dayPart }: Workload): number {
  const rise = smooth((hour - 7.5) / 1.5) - smooth((hour - 17) / 1.5)
  return nightPart + (dayPart - nightPart) * rise
}

function smooth(x: number): number {
  const t = Math.min(1, Math.max(0, x))
  return t * t * (3 - 2 * t)
}

function sum(parts: readonly (readonly [OperationCost, number])[]): OperationCost {
  const all = { hubUs: 0, frontUs: 0, postgresUs: 0, walBytes: 0, wireBytes: 0 }
  for (const [cost, times] of parts) {
    for (const of of Object.keys(all) as (keyof OperationCost)[]) all[of] += cost[of] * times
  }
  return all
}
