// A fleet that only stays connected and beats, at four sizes: what an agent costs, and whether it costs more in
// a large fleet than in a small one.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Line } from '../findings.ts'
import { connectAll, lossOf, restPerSecond } from '../fleet_phases.ts'
import type { Fleet } from '../fleet.ts'
import { cpuMs, type Lab, type Target } from '../lab.ts'
import { rssBytes } from '../proc.ts'
import type { Scenario } from '../suite.ts'

const steps = [0.25, 0.5, 0.75, 1]
/** Calm, as agents come after a night: a storm's garbage would count as memory of the fleet. */
const connectsPerSecond = 1500

export const steady: Scenario = {
  name: 'steady',
  about: 'a fleet that only beats: CPU and memory per agent at four sizes',
  rivals: [],
  agents: 10_000,
  seconds: 15,
  warmUpSeconds: 0,
  rate: { of: 'heartbeats of the whole fleet', most: 1 },
  rows: [
    { id: 'S1', name: 'CPU of the hub per agent', metric: 'cpuUs', unit: 'µs each second' },
    { id: 'S2', name: 'PostgreSQL CPU per agent', metric: 'postgresUs', unit: 'µs each second' },
    { id: 'S3', name: 'RSS per agent, smallest to largest fleet', metric: 'kilobytes', unit: 'KB' },
    { id: 'S4', name: 'heartbeats sent', metric: 'perSecond', unit: '/s' },
    {
      id: 'S5',
      name: 'agents lost',
      metric: 'lost',
      unit: 'agents',
      goal: { valueMost: 0 },
    },
  ],
  async enter(side, lab, agents) {
    const first = await lab.start(side)
    const devices = await lab.devices(first, agents)
    await first.stop()
    // A new program each round: memory that one round left free would hide the next one's need.
    return async (seconds) => {
      const target = await lab.start(side)
      const fleet = await lab.fleet(target, devices)
      const sizes: Size[] = []
      for (const step of steps) {
        const agentsNow = Math.max(1, Math.round(agents * step))
        sizes.push(await measureSize(lab, target, fleet, agentsNow, seconds))
      }
      await fleet.close()
      await target.stop()
      plot(lab, sizes)
      const [least, most] = [sizes[0]!, sizes.at(-1)!]
      const lost = sizes.reduce((sum, size) => sum + size.lost, 0)
      const { perSecond, used } = most
      if (!used || !least.used) return { perSecond, lost }
      const added = Math.max(1, most.agents - least.agents)
      const kilobytes = (used.rss - least.used.rss) / 1024 / added
      return { cpuUs: used.cpuUs, postgresUs: used.postgresUs, kilobytes, perSecond, lost }
    }
  },
}

interface Size {
  agents: number
  perSecond: number
  lost: number
  /** Absent for a hub whose processes are not ours; the CPU is per agent and second. */
  used: { cpuUs: number; postgresUs: number; rss: number } | undefined
}

async function measureSize(
  lab: Lab,
  target: Target,
  fleet: Fleet,
  agents: number,
  seconds: number,
): Promise<Size> {
  await connectAll(fleet, lab.progress, { to: agents, perSecond: connectsPerSecond })
  const rate = lab.options.rates?.[0]
  // A rate that was asked for is that of the whole fleet; a part of it beats its part.
  const beats = rate === undefined ? restPerSecond(agents) : (rate * agents) / fleet.size
  await fleet.pace(beats)
  const [before, cpuBefore, startedMs] = [await fleet.counts(), cpuMs(target), performance.now()]
  for (let second = 1; second <= seconds; second++) {
    await sleep(1000)
    lab.progress.figure(`${agents} agents, second ${second} of ${seconds}`)
  }
  const [after, cpuAfter] = [await fleet.counts(), cpuMs(target)]
  const elapsed = (performance.now() - startedMs) / 1000
  const lost = agents - after.open
  if (lost > 0) lab.progress.note(`warning: ${lost} agents lost: ${lossOf(after)}`)
  const perSecond = (after.heartbeats - before.heartbeats) / elapsed
  if (!cpuBefore || !cpuAfter || target.pid === undefined) {
    return { agents, perSecond, lost, used: undefined }
  }
  const each = (ms: number) => (ms * 1000) / agents / elapsed
  const used = {
    cpuUs: each(cpuAfter.program - cpuBefore.program),
    postgresUs: each(cpuAfter.postgres - cpuBefore.postgres),
    rss: rssBytes(target.pid),
  }
  return { agents, perSecond, lost, used }
}

function plot(lab: Lab, sizes: readonly Size[]): void {
  const x = { name: 'connected agents', unit: '' }
  const line = (name: string, value: (used: NonNullable<Size['used']>) => number): Line => ({
    name,
    points: sizes.flatMap(({ agents, used }): [number, number][] =>
      used ? [[agents, value(used)]] : [],
    ),
  })
  lab.findings.chart({
    title: 'CPU per agent over the size of the fleet',
    x,
    y: { name: 'CPU', unit: 'µs per agent and second' },
    lines: [line('hub', ({ cpuUs }) => cpuUs), line('PostgreSQL', ({ postgresUs }) => postgresUs)],
  })
  lab.findings.chart({
    title: 'Memory over the size of the fleet',
    x,
    y: { name: 'RSS', unit: 'MB' },
    lines: [line('hub', ({ rss }) => rss / 2 ** 20)],
  })
}
