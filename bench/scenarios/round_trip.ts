// P5: commands sent, run and their results committed, seen by the operator who waits for the end:
// first as many as go through (CPU per command), then 200/s in an open loop (latency).
import type { BenchOptions } from '../args.ts'
import { commandRequests, isCompleted } from '../commands.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import type { Fleet } from '../fleet.ts'
import { closedLoop, openLoop, refusals } from '../http_load.ts'
import type { Latencies } from '../latency.ts'
import { cpuMs, type Lab, type Target } from '../lab.ts'
import { echoRoundTrips } from '../echo_load.ts'
import { brokerLoad } from '../peer_operator.ts'
import { clearUp } from '../settled.ts'
import type { Device } from '../sim_agent.ts'
import type { Measure, Scenario } from '../suite.ts'
import { isBroker, wires } from '../wires.ts'

const connections = 64
const perSecondTimed = 200
const waitSeconds = 30

export const roundTrip: Scenario = {
  name: 'roundtrip',
  about: 'commands sent, run and committed; round trip by ?wait at 200/s',
  rivals: ['baseline', 'least', 'echo'],
  guests: ['passing', 'nats', 'mosquitto'],
  figures: [
    { metric: 'p50Ms', name: 'round trip, p50', unit: 'ms', better: 'lower' },
    { metric: 'p99Ms', name: 'p99', unit: 'ms', better: 'lower' },
    { metric: 'cpuUs', name: 'CPU per command', unit: 'µs', better: 'lower' },
    { metric: 'postgresUs', name: 'of it PostgreSQL', unit: 'µs', better: 'lower' },
    { metric: 'perSecond', name: 'commands run', unit: '/s', better: 'higher' },
  ],
  agents: 1000,
  seconds: 10,
  // The compiler is at work on the hub for that long.
  warmUpSeconds: 20,
  turns: 3,
  rate: { of: 'commands of the timed part', most: 1 },
  rows: (options) => [
    {
      id: 'P5a',
      name: 'CPU of hub and PostgreSQL per command run',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'baseline',
      goal: { ratioMost: 1 },
    },
    {
      id: 'P5b',
      name: `round trip at ${rateOf(options)}/s, p50`,
      metric: 'p50Ms',
      unit: 'ms',
      rival: 'baseline',
    },
    {
      id: 'P5c',
      name: `round trip at ${rateOf(options)}/s, p99`,
      metric: 'p99Ms',
      unit: 'ms',
      rival: 'baseline',
    },
    { id: 'P5d', name: 'commands run', metric: 'perSecond', unit: '/s', rival: 'baseline' },
    {
      id: 'P5e',
      name: 'round trip p50, beside a socket echo',
      metric: 'p50Ms',
      unit: 'ms',
      rival: 'echo',
    },
    {
      id: 'P5f',
      name: 'CPU per command run, beside the least that commits the same rows',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P5g',
      name: `round trip at ${rateOf(options)}/s, p50, beside the least`,
      metric: 'p50Ms',
      unit: 'ms',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P5h',
      name: `round trip at ${rateOf(options)}/s, p99, beside the least`,
      metric: 'p99Ms',
      unit: 'ms',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    if (side === 'echo') {
      return async (seconds) => {
        const latencies = await echoRoundTrips(target.origin, rateOf(lab.options), seconds)
        lab.findings.latencies(side, 'command round trip', latencies)
        return percentiles(latencies)
      }
    }
    const devices = await lab.devices(target, agents)
    const fleet = await lab.fleet(target, devices)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))
    return measureCommands(target, fleet, devices, lab)
  },
}

function rateOf({ rates }: Pick<BenchOptions, 'rates'>): number {
  return rates?.[0] ?? perSecondTimed
}

function measureCommands(target: Target, fleet: Fleet, devices: Device[], lab: Lab): Measure {
  return async (seconds) => {
    const load = {
      origin: target.origin,
      connections,
      ...(isBroker(target.side)
        ? brokerLoad(wires[target.side], devices)
        : { next: await commandRequests(target, devices, waitSeconds), good: isCompleted }),
    }
    const ranBefore = (await fleet.counts()).commands
    const cpuBefore = cpuMs(target)
    const throughput = await closedLoop({ ...load, seconds })
    const cpuAfter = cpuMs(target)
    await clearUp(target)
    const inTime = { ...load, perSecond: rateOf(lab.options), progress: lab.progress }
    // Of tables that were cleared up PostgreSQL plans every statement anew.
    const replanned = await openLoop({ ...inTime, seconds: 1 })
    const timed = await openLoop({ ...inTime, seconds })
    const { commands, duplicates } = await fleet.counts()

    const refused = refusals(throughput) ?? refusals(replanned) ?? refusals(timed)
    if (refused) throw new Error(`${target.side} did not complete every command: ${refused}`)
    lab.findings.latencies(target.side, 'command round trip', timed.latencies)
    const asked = throughput.good + replanned.good + timed.good
    if (commands - ranBefore !== asked) {
      throw new Error(`${asked} commands completed, but agents ran ${commands - ranBefore}`)
    }
    if (duplicates > 0) lab.progress.note(`${target.side}: ${duplicates} commands came twice`)
    const perSecond = throughput.good / throughput.seconds
    const sample = { perSecond, ...percentiles(timed.latencies) }
    if (!cpuBefore || !cpuAfter) return sample
    const programUs = ((cpuAfter.program - cpuBefore.program) * 1000) / throughput.good
    const postgresUs = ((cpuAfter.postgres - cpuBefore.postgres) * 1000) / throughput.good
    return { cpuUs: programUs + postgresUs, programUs, postgresUs, ...sample }
  }
}

function percentiles(latencies: Latencies): { p50Ms: number; p99Ms: number } {
  return { p50Ms: latencies.ms(50), p99Ms: latencies.ms(99) }
}
