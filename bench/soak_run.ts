// A soak with faults: a mixed load on a hub of its own, and every so often a blow. At the end of each period it is
// looked at from outside, and at the end of all everybody's story of every command is held beside everybody else's.
import { join } from 'node:path'
import { endedStatuses } from '../src/protocol.ts'
import { storedCommands } from './commands.ts'
import { EventListener } from './event_listener.ts'
import { faults, type Scene } from './faults.ts'
import { tally } from './fleet_counts.ts'
import { connectAll, restPerSecond } from './fleet_phases.ts'
import type { Lab, Target } from './lab.ts'
import type { Sample } from './rows.ts'
import { plotRss, watchRss } from './rss_watch.ts'
import type { Device } from './sim_agent.ts'
import { SoakOperators, type Plan } from './soak_operators.ts'
import { agreeMsMax, strikeInTurn, watchReadiness, type Course, type Soak } from './soak_periods.ts'
import { keepEvidence, plotQuiets, tellViolations, threadsInLog } from './soak_report.ts'
import { compareShown } from './soak_shown.ts'
import {
  judgeSoak,
  readExecutions,
  readLedger,
  readOddEnds,
  readStored,
  rules,
  type StoredCommand,
  type Violations,
} from './soak_verdict.ts'
import {
  agree,
  backlogOf,
  growthOf,
  threadDeaths,
  waitUntil,
  type Backlog,
  type Measured,
  type Quiet,
} from './soak_watch.ts'
import type { Measure } from './suite.ts'

const commandsPerSecond = 100
/** Devices that are away every second period, and those that get what the hub has to end. */
const commuterPart = 0.02
const slowPart = 0.01
const fewest = 4
/** What a device may have open is 100: no flood and no absence may reach it on so few. */
const agentsMin = 100
/** What was sent late, the hub's grace for an agent that says nothing, and the machine's own pace. */
const settleMsMax = 240_000

/** Starts the hub and its fleet; what is measured then is one soak. */
export async function enterFaults(
  lab: Lab,
  agents: number,
  faultSeconds: number,
): Promise<Measure> {
  if (agents < agentsMin) throw new Error(`a soak with faults needs ${agentsMin} agents`)
  const door = join(lab.folder, 'door')
  const target = await lab.start('hub', {
    program: 'bench/controlled_hub.ts',
    nodeFlags: ['--expose-gc'],
    env: { BENCH_DOOR: door, SHARDS: '2', NODE_COMPILE_CACHE: join(lab.folder, 'compiled') },
  })
  const { database } = target
  if (!database) throw new Error('the database is not ours')
  const devices = await lab.devices(target, agents)
  const groups = groupsOf(devices)
  const { length: away } = groups.commuters
  const fleet = await lab.fleet(target, devices.slice(away), { lasting: true })
  const commuters = await lab.fleet(target, groups.commuters, { lasting: true, processes: 1 })
  lab.progress.step(`hub: connecting ${agents} agents`)
  for (const one of [fleet, commuters]) {
    await connectAll(one, lab.progress)
    await one.pace(restPerSecond(one.size))
  }
  const rate = lab.options.rates?.[0] ?? commandsPerSecond
  return async (seconds) => {
    const operators = new SoakOperators(target, planOf(rate, groups.steady.length), groups)
    const listener = new EventListener(target.origin, operators.client)
    const flood = () => operators.flood()
    const scene: Scene = { door, database, fleet, faultSeconds, flood }
    const soaked = { lab, target, scene, operators, listener, fleet, commuters }
    try {
      await listener.start()
      return await soak(soaked, seconds)
    } catch (error) {
      lab.progress.note(`soak: it broke off; the hub's log is in ${keepEvidence(lab)}`)
      throw error
    } finally {
      await listener.stop()
      operators.stop()
    }
  }
}

function groupsOf(devices: readonly Device[]) {
  const away = Math.max(fewest, Math.round(devices.length * commuterPart))
  const slow = Math.max(fewest, Math.round(devices.length * slowPart))
  return {
    commuters: devices.slice(0, away),
    slow: devices.slice(away, away + slow),
    steady: devices.slice(away + slow),
  }
}

function planOf(rate: number, devices: number): Plan {
  return {
    commandsPerSecond: rate,
    visitsPerSecond: Math.max(0.5, rate / 20),
    listsPerSecond: Math.max(1, rate / 20),
    scriptSeconds: 10,
    scriptDevices: Math.min(devices, 10 * rate),
    floodCommands: Math.min(devices * 10, 50 * rate),
  }
}

async function soak(soaked: Soak, seconds: number): Promise<Sample> {
  const { lab, target, operators } = soaked
  const watch = watchRss(target.pid)
  const readiness = watchReadiness(target.origin)
  try {
    const work = operators.work(seconds)
    // Told when it is awaited.
    work.catch(() => undefined)
    const course = await strikeInTurn(soaked, seconds, watch.looks, readiness)
    await work
    lab.progress.step('soak: waiting for the last ends')
    const backlog = await settle(soaked)
    const { stored, shown, violations } = await hearEverybody(soaked)
    plotRss(lab.findings, watch.looks)
    plotQuiets(lab, course.quiets)
    lab.findings.latencies('hub', 'command round trip, repeats included', operators.latencies)
    const refused = operators.client.refused
    const sample = await sampleOf(soaked, course, stored)
    const deaths = sample['deaths'] === 0 ? [] : threadsInLog(lab)
    tellViolations(lab, { ...violations, refused, disagreed: course.disagreed, shown, deaths })
    return {
      ...sample,
      ...Object.fromEntries(rules.map((rule) => [rule, violations[rule].length])),
      shown: shown.length,
      backlog,
    }
  } finally {
    readiness.stop()
    watch.stop()
  }
}

/** Lets everything come to its end, and tells how much did not. */
async function settle(soaked: Soak): Promise<number> {
  const { lab, target, fleet, commuters } = soaked
  await commuters.connect()
  await commuters.pace(restPerSecond(commuters.size))
  await waitUntil(async () => (await storedCommands(target))?.open === 0, settleMsMax)
  await waitUntil(() => agree(target, [fleet, commuters], () => true), agreeMsMax)
  let backlog: Backlog = { outbox: 0, handoffs: 0, jobs: 0, executions: 0 }
  await waitUntil(async () => {
    backlog = await backlogOf(target)
    return sumOf(backlog) === 0
  }, agreeMsMax)
  if (sumOf(backlog) > 0) lab.progress.note(`soak: left waiting: ${JSON.stringify(backlog)}`)
  return sumOf(backlog)
}

/** Everybody's story: operators', agents', listener's, the table's, the outbox's and the API's. */
async function hearEverybody(soaked: Soak): Promise<{
  stored: StoredCommand[]
  shown: string[]
  violations: Violations
}> {
  const { lab, target, operators, listener, fleet, commuters } = soaked
  const database = target.database!
  const file = join(lab.folder, 'agents')
  await fleet.writeLedger(file)
  await commuters.writeLedger(file)
  const { held, deeds } = readLedger(file)
  const stored = await readStored(database)
  await waitUntil(async () => listener.heard.size >= stored.length, agreeMsMax)
  const { ledger, scripts, scriptsUnknown, rebuilt } = operators
  const { heard } = listener
  const executions = await readExecutions(database)
  const oddEnds = await readOddEnds(database)
  const violations = judgeSoak({
    ledger,
    scripts,
    scriptsUnknown,
    stored,
    executions,
    deeds,
    oddEnds,
    heard,
  })
  violations.doubled.push(...rebuilt)
  const statuses = new Map(stored.map(({ id, status }) => [id, status]))
  const shown = await compareShown(operators.client, [...ledger.keys()], statuses, held)
  return { stored, shown, violations }
}

async function sampleOf(
  { lab, target, operators }: Soak,
  { quiets, held, disagreed }: Course,
  stored: readonly StoredCommand[],
): Promise<Sample> {
  const { faults: struck } = lab.findings
  const rss = growthOf(quiets, 'rssMegabytes', faults.length)
  return {
    rssGrowth: (rss.to / rss.from - 1) * 100,
    rssMegabytes: rss.to,
    heldGrowth: heldGrowth(held),
    heldMegabytes: held.at(-1) ?? 0,
    descriptorsGrowth: growth(quiets, 'descriptors'),
    connectionsGrowth: growth(quiets, 'connections'),
    lagGrowth: growth(quiets, 'lagMs'),
    refused: operators.client.refusals,
    repeats: operators.client.repeats,
    disagreed: disagreed.length,
    deaths: await strayDeaths(target, struck),
    faults: struck.length,
    unreadySeconds: Math.max(0, ...struck.map(({ unreadySeconds }) => unreadySeconds)),
    gone: operators.visits.gone,
    ...countEnds(stored),
  }
}

/** From the end of the first round to the end, in percent; 0 of a soak of one round. */
function heldGrowth(held: readonly number[]): number {
  const [first = 0, last = first] = [held[0], held.at(-1)]
  return first > 0 ? (last / first - 1) * 100 : 0
}

function growth(quiets: readonly Quiet[], measured: Measured): number {
  const { from, to } = growthOf(quiets, measured, faults.length)
  return to - from
}

/** Threads that died without a fault that ends one. */
async function strayDeaths(target: Target, struck: readonly { name: string }[]): Promise<number> {
  const deadly = new Set(faults.filter(({ killsThread }) => killsThread).map(({ name }) => name))
  return (await threadDeaths(target)) - struck.filter(({ name }) => deadly.has(name)).length
}

function countEnds(stored: readonly StoredCommand[]): Sample {
  const counts: Sample = Object.fromEntries(endedStatuses.map((status) => [status, 0]))
  for (const { status } of stored) tally(counts, status)
  return counts
}

function sumOf({ outbox, handoffs, jobs, executions }: Backlog): number {
  return outbox + handoffs + jobs + executions
}
