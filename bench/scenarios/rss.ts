// P2: memory per connected, idle agent: the slope between a third of the agents and all of them, after
// gc() in every thread. A slope leaves out what the program weighs by itself.
import { setTimeout as sleep } from 'node:timers/promises'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import { rssBytes } from '../proc.ts'
import { collectedRss } from '../rss_watch.ts'
import type { Scenario } from '../suite.ts'
import { isBroker } from '../wires.ts'

/** Calm enough that the storm's garbage does not become the slope; storms are P3's. */
const connectsPerSecond = 1500

export const rss: Scenario = {
  name: 'rss',
  about: 'resident memory per idle agent, slope from 5,000 to 15,000 agents after gc',
  rivals: ['bare'],
  guests: ['baseline', 'nats', 'mosquitto'],
  figures: [
    { metric: 'kilobytesPerAgent', name: 'RSS per idle agent', unit: 'KB', better: 'lower' },
    { metric: 'megabytes', name: 'RSS with all of them', unit: 'MB', better: 'lower' },
  ],
  agents: 15_000,
  seconds: 5,
  warmUpSeconds: 0,
  ownHub: 'reads the memory of programs that it starts with --expose-gc',
  rows: [
    {
      id: 'P2',
      name: 'RSS per connected idle agent',
      metric: 'kilobytesPerAgent',
      unit: 'KB',
      rival: 'bare',
      goal: { valueMost: 3 },
    },
  ],
  async enter(side, lab, agents) {
    const start = () => lab.start(side, { nodeFlags: ['--expose-gc'] })
    const enrolling = await start()
    const devices = await lab.devices(enrolling, agents)
    await enrolling.stop()
    const few = Math.floor(agents / 3)
    // A new program each time: memory that a first round left free would hide a second round's need.
    return async (seconds) => {
      const target = await start()
      const fleet = await lab.fleet(target, devices)
      const settledRss = async (from: number, to: number) => {
        await connectAll(fleet, lab.progress, { from, to, perSecond: connectsPerSecond })
        await fleet.pace(restPerSecond(to))
        await sleep(seconds * 1000)
        // Never absent: this scenario refuses foreign hubs.
        const pid = target.pid ?? 0
        // Brokers have no gc() to call; in NATS the signal would mean the end.
        return isBroker(side) ? rssBytes(pid) : collectedRss(pid)
      }
      const before = await settledRss(0, few)
      const after = await settledRss(few, agents)
      await fleet.close()
      await target.stop()
      return {
        kilobytesPerAgent: (after - before) / 1024 / (agents - few),
        megabytes: after / 2 ** 20,
      }
    }
  },
}
