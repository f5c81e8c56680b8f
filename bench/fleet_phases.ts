// What every scenario does with a fleet: bring it up whole, let it rest, tell what it lost.
import type { ConnectOptions, Fleet } from './fleet.ts'
import type { FleetCounts } from './fleet_counts.ts'

/** Heartbeats of agents at rest: the hub asks for one each 30 s and gives up after 75. */
export function restPerSecond(agents: number): number {
  return agents / 30
}

/** Connects the agents asked for; throws when one was refused, since the rest would be another load. */
export async function connectAll(fleet: Fleet, options: ConnectOptions = {}): Promise<FleetCounts> {
  const counts = await fleet.connect(options)
  const expected = options.to ?? fleet.size
  if (counts.open < expected) {
    throw new Error(`${counts.open} of ${expected} agents connected: ${lossOf(counts)}`)
  }
  return counts
}

/** Why sockets are not open, in one line. */
export function lossOf({ refused, closed }: FleetCounts): string {
  const list = (counts: Record<string, number>) =>
    Object.entries(counts)
      .map(([reason, count]) => `${count} × ${reason}`)
      .join(', ') || 'none'
  return `refused ${list(refused)}; closed ${list(closed)}`
}
