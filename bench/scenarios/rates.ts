// The command round trip at several fixed rates, each an open loop: where latency begins to bend.
import { commandRequests, isCompleted } from '../commands.ts'
import type { Chart } from '../findings.ts'
import { standingFleet } from '../fleet_phases.ts'
import { openLoop, refusals } from '../http_load.ts'
import type { Latencies } from '../latency.ts'
import type { Scenario } from '../suite.ts'

const ratesDefault = [50, 100, 200, 400]
const connections = 128
const waitSeconds = 30

export const rates: Scenario = {
  name: 'rates',
  about: 'command round trip at fixed rates, open loop: --rate 50,100,200,400',
  rivals: [],
  agents: 1000,
  seconds: 10,
  warmUpSeconds: 2,
  rate: { of: 'commands', most: 12 },
  rows: (options) =>
    (options.rates ?? ratesDefault).flatMap((rate) =>
      [50, 99].map((percentile) => ({
        id: `R${rate}p${percentile}`,
        name: `command round trip at ${rate}/s, p${percentile}`,
        metric: `r${rate}p${percentile}`,
        unit: 'ms',
      })),
    ),
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const { devices, fleet } = await standingFleet(lab, target, agents)
    return async (seconds) => {
      const sample: Record<string, number> = {}
      const measured: { rate: number; latencies: Latencies }[] = []
      const ranBefore = (await fleet.counts()).commands
      let asked = 0
      for (const rate of lab.options.rates ?? ratesDefault) {
        const load = await openLoop({
          origin: target.origin,
          connections,
          seconds,
          perSecond: rate,
          next: await commandRequests(target, devices, waitSeconds),
          good: isCompleted,
          progress: lab.progress,
        })
        const refused = refusals(load)
        if (refused) throw new Error(`not every command completed at ${rate}/s: ${refused}`)
        asked += load.good
        measured.push({ rate, latencies: load.latencies })
        lab.findings.latencies(side, `round trip at ${rate}/s`, load.latencies)
        for (const percentile of [50, 99]) {
          sample[`r${rate}p${percentile}`] = load.latencies.ms(percentile)
        }
      }
      const ran = (await fleet.counts()).commands - ranBefore
      if (ran !== asked) throw new Error(`${asked} commands completed, but agents ran ${ran}`)
      lab.findings.chart(plot(measured))
      return sample
    }
  },
}

function plot(
  measured: readonly { rate: number; latencies: Latencies }[],
): Omit<Chart, 'scenario'> {
  return {
    title: 'Round trip over the rate of commands',
    x: { name: 'commands', unit: '/s', log: true },
    y: { name: 'latency', unit: 'ms', log: true },
    lines: [50, 90, 99, 100].map((percentile) => ({
      name: percentile === 100 ? 'max' : `p${percentile}`,
      points: measured.map(({ rate, latencies }) => [rate, latencies.ms(percentile)]),
    })),
  }
}
