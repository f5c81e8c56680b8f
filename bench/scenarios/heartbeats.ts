// P1: what one heartbeat costs the server, at a fixed rate in an open loop. The bare program only
// counts frames; the hub and the baseline parse them, check the metrics and keep presence.
import { setTimeout as sleep } from 'node:timers/promises'
import { connectAll, lossOf, restPerSecond } from '../fleet_phases.ts'
import { cpuMs, heartbeatsHandled, type Target } from '../lab.ts'
import type { Scenario } from '../suite.ts'

/** 20,000/s for 10,000 agents: fifteen times what their interval of 30 s makes. */
const heartbeatsPerAgentSecond = 2

export const heartbeats: Scenario = {
  name: 'heartbeats',
  about: 'CPU per 100-byte heartbeat, 10,000 agents, 20,000/s',
  rivals: ['bare', 'baseline'],
  guests: ['bare_echo', 'nats', 'mosquitto'],
  figures: [
    { metric: 'cpuUs', name: 'CPU per heartbeat', unit: 'µs', better: 'lower' },
    { metric: 'postgresUs', name: 'PostgreSQL', unit: 'µs', better: 'lower' },
    { metric: 'perSecond', name: 'heartbeats sent', unit: '/s', better: 'higher' },
  ],
  agents: 10_000,
  seconds: 10,
  warmUpSeconds: 5,
  rate: { of: 'heartbeats', most: 1 },
  rows: [
    {
      id: 'P1a',
      name: 'CPU per heartbeat, beside bare uWebSockets.js receive',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'bare',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P1b',
      name: 'CPU per heartbeat, beside the baseline',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'baseline',
      goal: { ratioMost: 1 },
    },
    {
      id: 'P1c',
      name: 'PostgreSQL CPU per heartbeat',
      metric: 'postgresUs',
      unit: 'µs',
      rival: 'baseline',
    },
    { id: 'P1d', name: 'heartbeats sent', metric: 'perSecond', unit: '/s', rival: 'bare' },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const rate = lab.options.rates?.[0] ?? agents * heartbeatsPerAgentSecond
    const fleet = await lab.fleet(target, await lab.devices(target, agents))
    lab.progress.step(`${side}: connecting ${agents} agents`)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))
    return async (seconds) => {
      await fleet.pace(rate)
      // The first beats after a rest find cold caches; they are not what is asked for.
      await sleep(500)
      const handledBefore = await heartbeatsHandled(target)
      const before = await fleet.counts()
      const cpuBefore = cpuMs(target)
      const startedMs = performance.now()
      await sleep(seconds * 1000)
      const after = await fleet.counts()
      const cpuAfter = cpuMs(target)
      const elapsed = (performance.now() - startedMs) / 1000
      await fleet.pace(restPerSecond(agents))

      const beats = after.heartbeats - before.heartbeats
      const perSecond = beats / elapsed
      if (perSecond < 0.97 * rate) {
        lab.progress.note(`warning: the fleet reached ${Math.round(perSecond)} heartbeats/s only`)
      }
      if (after.open < agents) throw new Error(`${side} lost agents: ${lossOf(after)}`)
      if (handledBefore !== undefined) await expectHandled(target, handledBefore + beats)
      if (!cpuBefore || !cpuAfter) return { perSecond }
      return {
        cpuUs: ((cpuAfter.program - cpuBefore.program) * 1000) / beats,
        postgresUs: ((cpuAfter.postgres - cpuBefore.postgres) * 1000) / beats,
        perSecond,
      }
    }
  },
}

/** A program that drops heartbeats does less work than it is measured for: that is no result. */
async function expectHandled(target: Target, expected: number): Promise<void> {
  let handled = 0
  for (let i = 0; i < 50; i++) {
    handled = (await heartbeatsHandled(target)) ?? 0
    if (handled >= expected) return
    await sleep(100)
  }
  throw new Error(`${target.side} handled ${handled} heartbeats of ${expected}`)
}
