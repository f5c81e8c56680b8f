// P8d: a thousand downloads of the agent at 100 MB/s in all: how much the hub grows, and what commands notice of it.
import { commandRequests, timedCommandsP99Ms } from '../commands.ts'
import { beginDownloads, makeRelease, readers } from '../disturbances.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import type { Lab, Target } from '../lab.ts'
import { watchGrowth } from '../rss_watch.ts'
import type { Measure, Scenario } from '../suite.ts'

export const downloads: Scenario = {
  name: 'downloads',
  about: '1,000 downloads of the agent at 100 MB/s in all, while commands run',
  rivals: [],
  agents: 1000,
  seconds: 10,
  warmUpSeconds: 2,
  ownHub: 'puts a release into the data folder of a hub that it starts',
  rows: [
    {
      id: 'P8d1',
      name: 'growth of the hub during 1,000 downloads',
      metric: 'grownMb',
      unit: 'MB',
      goal: { valueMost: 64 },
    },
    { id: 'P8d2', name: 'sent', metric: 'mbPerSecond', unit: 'MB/s' },
    { id: 'P8d3', name: 'round trip p99 meanwhile', metric: 'busyP99Ms', unit: 'ms' },
    { id: 'P8d4', name: 'round trip p99 before it', metric: 'quietP99Ms', unit: 'ms' },
  ],
  async enter(side, lab, agents) {
    await makeRelease(lab)
    const target = await lab.start(side)
    const devices = await lab.devices(target, agents)
    const fleet = await lab.fleet(target, devices)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))
    return measureDownloads(target, lab, async (seconds) =>
      timedCommandsP99Ms(target, await commandRequests(target, devices, 30), seconds),
    )
  },
}

function measureDownloads(
  target: Target,
  lab: Lab,
  commands: (seconds: number) => Promise<number>,
): Measure {
  return async (seconds) => {
    const quietP99Ms = await commands(seconds)
    const growth = watchGrowth(target.pid)
    const load = await beginDownloads(target, lab)
    try {
      const [bytes, startedMs] = [load.bytes(), performance.now()]
      const busyP99Ms = await commands(seconds)
      const tookSeconds = (performance.now() - startedMs) / 1000
      if (load.open() < readers) throw new Error(`only ${load.open()} downloads were open`)
      const mbPerSecond = (load.bytes() - bytes) / 1e6 / tookSeconds
      return { grownMb: growth.stop(), mbPerSecond, busyP99Ms, quietP99Ms }
    } finally {
      growth.stop()
      await load.stop()
    }
  }
}
