// Which turns count. A virtual machine is not always given the cores it has, and Linux tells how long it was made to
// wait ("steal"). What was measured meanwhile says nothing, of latencies least of all: such a turn is taken again.
import type { Found } from './findings.ts'
import type { CpuTimes } from './proc.ts'
import type { Sample, Side } from './rows.ts'

/** Of all CPU in any measurement of a turn. At rest it is below 0.01, in a bad minute above 0.2. */
export const stolenShareMax = 0.03

/** Every side, measured once. */
export interface Turn {
  samples: Partial<Record<Side, Sample>>
  found: Found
  /** Of its measurements the largest share of the CPU that was stolen. */
  stolenShare: number
}

/** What a report says of it. */
export interface Stolen {
  scenario: string
  /** In the turns that count. */
  mostPercent: number
  /** Turns taken again. */
  repeated: number
}

/** The share of all CPU between two looks that another machine had. */
export function stolenShare(before: CpuTimes, after: CpuTimes): number {
  const allMs = after.allMs - before.allMs
  return allMs > 0 ? (after.stolenMs - before.stolenMs) / allMs : 0
}

/** Takes turns until as many as wanted are good, at most `turnsMax`; the least stolen ones count, in order. */
export async function takeTurns(
  wanted: number,
  turnsMax: number,
  take: (number: number) => Promise<Turn>,
): Promise<{ counted: Turn[]; repeated: number }> {
  const turns: Turn[] = []
  const good = () => turns.filter((turn) => turn.stolenShare <= stolenShareMax).length
  while (good() < wanted && turns.length < turnsMax) turns.push(await take(turns.length + 1))
  const kept = new Set(turns.toSorted((a, b) => a.stolenShare - b.stolenShare).slice(0, wanted))
  return { counted: turns.filter((turn) => kept.has(turn)), repeated: turns.length - kept.size }
}
