// A long run: commands at a fixed rate on a standing fleet while other devices enroll, work and are decommissioned
// all the time. Nothing may be lost, doubled or stuck, and the hub may not grow once it is warm. With --faults it is
// hit all the while: `soak_run.ts`.
import { commandRequests, isCompleted, storedCommands } from '../commands.ts'
import { total } from '../fleet_counts.ts'
import { standingFleet } from '../fleet_phases.ts'
import { openLoop } from '../http_load.ts'
import { growthPercent, plotRss, watchRss } from '../rss_watch.ts'
import type { RowSpec } from '../rows.ts'
import { faultRows } from '../soak_rows.ts'
import { enterFaults } from '../soak_run.ts'
import type { Scenario } from '../suite.ts'
import { Visitors } from '../visitors.ts'

const commandsPerSecond = 100
const visitsPerSecond = 5
const connections = 64
const waitSeconds = 30
const secondsDefault = 180

const none = { goal: { valueMost: 0 } }
const steadyRows: RowSpec[] = [
  {
    id: 'K1',
    name: 'growth of the hub after warm-up',
    metric: 'grownPercent',
    unit: '%',
    goal: { valueMost: 5 },
  },
  { id: 'K2', name: 'commands lost', metric: 'lost', unit: 'commands', ...none },
  { id: 'K3', name: 'commands doubled', metric: 'doubled', unit: 'commands', ...none },
  { id: 'K4', name: 'commands stuck', metric: 'stuck', unit: 'commands', ...none },
  { id: 'K5', name: 'requests that failed', metric: 'failed', unit: 'requests', ...none },
  { id: 'K6', name: 'agents lost', metric: 'agentsLost', unit: 'agents', ...none },
  { id: 'K7', name: 'commands ended', metric: 'ended', unit: 'commands', better: 'higher' },
  {
    id: 'K8',
    name: 'devices that came and went',
    metric: 'gone',
    unit: 'devices',
    better: 'higher',
  },
  { id: 'K9', name: 'command round trip, p99', metric: 'p99Ms', unit: 'ms' },
]

export const soak: Scenario = {
  name: 'soak',
  about: 'commands, enrolls and decommissions for as long as --seconds says, every end counted',
  rivals: [],
  agents: 2000,
  seconds: secondsDefault,
  warmUpSeconds: 0,
  rate: { of: 'commands', most: 1 },
  rows: ({ faults, seconds }) =>
    faults === undefined ? steadyRows : faultRows(seconds ?? secondsDefault),
  async enter(side, lab, agents) {
    const { faults } = lab.options
    if (faults !== undefined) return enterFaults(lab, agents, faults)
    const target = await lab.start(side)
    const { devices, fleet } = await standingFleet(lab, target, agents)
    return async (seconds) => {
      const [countsBefore, storedBefore] = [await fleet.counts(), await storedCommands(target)]
      const watch = watchRss(target.pid)
      const [load, visits] = await Promise.all([
        openLoop({
          origin: target.origin,
          connections,
          seconds,
          perSecond: lab.options.rates?.[0] ?? commandsPerSecond,
          next: await commandRequests(target, devices, waitSeconds),
          good: isCompleted,
          progress: lab.progress,
        }),
        new Visitors(target).come(visitsPerSecond, seconds),
      ])
      const looks = watch.stop()
      const [countsAfter, storedAfter] = [await fleet.counts(), await storedCommands(target)]
      lab.findings.latencies(side, 'command round trip', load.latencies)
      plotRss(lab.findings, looks)
      for (const [reason, count] of Object.entries(visits.failed)) {
        lab.progress.note(`warning: ${count} visits failed: ${reason}`)
      }

      // A 202 that is not good was accepted and had no good end in its 30 s; anything else was not accepted.
      const { '202': unfinished = 0, ...refused } = load.bad
      const failed = total(refused) + total(visits.failed)
      const accepted = load.good + unfinished
      const ran = countsAfter.commands - countsBefore.commands
      // Rows the operators know of; a visit that failed may have left up to two more.
      const known = accepted + visits.stored
      const stored = storedAfter && storedBefore ? storedAfter.all - storedBefore.all : known
      return {
        ...(looks.length > 0 ? { grownPercent: growthPercent(looks) } : {}),
        lost: Math.max(0, load.good - ran, known - stored) + visits.lost,
        doubled: Math.max(0, ran - accepted - failed, stored - known - 2 * failed) + visits.doubled,
        stuck: storedAfter ? storedAfter.open : unfinished + visits.stuck,
        failed,
        agentsLost: devices.length - countsAfter.open,
        ended: load.good + total(visits.ends),
        gone: visits.gone,
        p99Ms: load.latencies.ms(99),
      }
    }
  },
}
