// What every scenario does with a fleet: bring it up whole, let it rest, tell what it lost.
import type { ConnectOptions, Fleet } from './fleet.ts'
import type { FleetCounts } from './fleet_counts.ts'
import type { Lab, Target } from './lab.ts'
import type { Progress } from './progress.ts'
import type { Device } from './sim_agent.ts'

/** Heartbeats of agents at rest: the hub asks for one each 30 s and gives up after 75. */
export function restPerSecond(agents: number): number {
  return agents / 30
}

export interface StandingFleet {
  devices: Device[]
  fleet: Fleet
}

/** A fleet of a program, all connected and beating as at rest. */
export async function standingFleet(
  lab: Lab,
  target: Target,
  agents: number,
): Promise<StandingFleet> {
  const devices = await lab.devices(target, agents)
  const fleet = await lab.fleet(target, devices)
  lab.progress.step(`${target.side}: connecting ${agents} agents`)
  await connectAll(fleet, lab.progress)
  await fleet.pace(restPerSecond(agents))
  return { devices, fleet }
}

/** An agent that was refused tries again, but not for ever. */
const attemptsMax = 3

/**
 * Connects the agents asked for, again those that were refused or closed at once, as agents do; tells of
 * each attempt that was not enough. Throws when some stay away: the rest would be another load.
 */
export async function connectAll(
  fleet: Fleet,
  progress: Progress,
  options: ConnectOptions = {},
): Promise<void> {
  const expected = options.to ?? fleet.size
  for (let attempt = 1; ; attempt++) {
    const counts = await fleet.connect(options)
    if (counts.open >= expected) return
    const message = `${counts.open} of ${expected} agents connected: ${lossOf(counts)}`
    if (attempt === attemptsMax) throw new Error(message)
    progress.note(`warning: ${message}; trying again`)
  }
}

/** Why sockets are not open, in one line. */
export function lossOf({ refused, closed }: FleetCounts): string {
  const list = (counts: Record<string, number>) =>
    Object.entries(counts)
      .map(([reason, count]) => `${count} × ${reason}`)
      .join(', ') || 'none'
  return `refused ${list(refused)}; closed ${list(closed)}`
}
