// What a fleet counted. Every process of a fleet keeps its own; the parent adds them up.

export interface FleetCounts {
  /** Sockets open now. */
  open: number
  /** Upgrades that failed, by reason: `HTTP 503`, `ECONNREFUSED`. */
  refused: Record<string, number>
  /** Sockets the server ended, by close code; 1006, with the socket's error, when there was none. */
  closed: Record<string, number>
  framesOut: number
  framesIn: number
  heartbeats: number
  welcomes: number
  /** Agents that a draining hub asked to move, and those that did. */
  asked: number
  moves: number
  /** The longest from the moment an agent was to move to the welcome of its new socket. */
  lateMsMax: number
  /** Commands run: each id once. */
  commands: number
  /** Command frames whose id had run already. */
  duplicates: number
  acks: number
  /** Results sent whose ack has not come. */
  unacked: number
  /** Bytes the kernel would not take yet: above zero the server, not the generator, sets the pace. */
  unsentBytes: number
}

export function emptyCounts(): FleetCounts {
  return {
    open: 0,
    refused: {},
    closed: {},
    framesOut: 0,
    framesIn: 0,
    heartbeats: 0,
    welcomes: 0,
    asked: 0,
    moves: 0,
    lateMsMax: 0,
    commands: 0,
    duplicates: 0,
    acks: 0,
    unacked: 0,
    unsentBytes: 0,
  }
}

/** Adds the counts of several processes. */
export function addCounts(parts: readonly FleetCounts[]): FleetCounts {
  const sum = emptyCounts()
  for (const part of parts) {
    for (const [reason, count] of Object.entries(part.refused)) tally(sum.refused, reason, count)
    for (const [code, count] of Object.entries(part.closed)) tally(sum.closed, code, count)
    for (const name of numbers) sum[name] += part[name]
    sum.lateMsMax = Math.max(sum.lateMsMax, part.lateMsMax)
  }
  return sum
}

export function tally(counts: Record<string, number>, key: string, by = 1): void {
  counts[key] = (counts[key] ?? 0) + by
}

export function total(counts: Record<string, number>): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0)
}

const numbers = [
  'open',
  'framesOut',
  'framesIn',
  'heartbeats',
  'welcomes',
  'asked',
  'moves',
  'commands',
  'duplicates',
  'acks',
  'unacked',
  'unsentBytes',
] as const
