// The rules of cpu_high, memory_high and disk_high: a pure judgement of one heartbeat's metrics.
// Never does I/O.
import { limits } from '../src/limits.ts'
import type { AgentMetrics } from '../src/protocol.ts'
import type { AlertWrite } from './alert_writes.ts'

const metrics = ['cpuPercent', 'memoryPercent', 'diskPercent'] as const
export type Metric = (typeof metrics)[number]

export const kindOf = {
  cpuPercent: 'cpu_high',
  memoryPercent: 'memory_high',
  diskPercent: 'disk_high',
} as const
export type HighKind = (typeof kindOf)[Metric]

const names = { cpuPercent: 'CPU', memoryPercent: 'Memory', diskPercent: 'Disk' }

/** Percentages; a metric without one is not judged. */
export type Thresholds = { readonly [M in Metric]?: number }

/** The kinds whose alert is open, as bits: an idle actor must stay small. */
export type HighBits = number

const bitOf = { cpuPercent: 1, memoryPercent: 2, diskPercent: 4 }

export function highBits(kinds: readonly HighKind[]): HighBits {
  return metrics.reduce(
    (bits, metric) => bits | (kinds.includes(kindOf[metric]) ? bitOf[metric] : 0),
    0,
  )
}

export interface Crossing {
  metric: Metric
  high: boolean
  value: number
  /** Null: it is not judged any more. */
  threshold: number | null
}

/** At or above the threshold is high; only at or below this it is not any more. */
export function clearsAt(threshold: number): number {
  return threshold - Math.min(limits.thresholdMarginPercent, threshold / 10)
}

/** Most heartbeats change nothing, and none of them should cost an array. */
const none: readonly Crossing[] = []

/** What changes with these metrics. Between the two marks everything stays as it is. */
export function crossings(
  high: HighBits,
  measured: AgentMetrics,
  thresholds: Thresholds,
): readonly Crossing[] {
  let changes: Crossing[] | undefined
  for (const metric of metrics) {
    const value = measured[metric]
    if (value === undefined) continue
    const threshold = thresholds[metric] ?? null
    const isHigh = (high & bitOf[metric]) !== 0
    const rises = !isHigh && threshold !== null && value >= threshold
    const falls = isHigh && (threshold === null || value <= clearsAt(threshold))
    if (rises || falls) (changes ??= []).push({ metric, high: rises, value, threshold })
  }
  return changes ?? none
}

export function afterCrossings(high: HighBits, changes: readonly Crossing[]): HighBits {
  return changes.reduce((bits, { metric }) => bits ^ bitOf[metric], high)
}

/** What the store is to write of a crossing. */
export function crossingWrite(
  device: { id: string; orgId: string; epoch: number },
  { metric, high, value, threshold }: Crossing,
): AlertWrite {
  const { id: deviceId, orgId, epoch } = device
  const kind = kindOf[metric]
  const dedupeKey = `${kind}:${deviceId}`
  if (!high) return { recover: { dedupeKey, deviceId, epoch } }
  const percent = Math.round(value * 10) / 10
  return {
    raise: {
      kind,
      // A full disk stops a machine; a busy processor slows it down.
      severity: metric === 'diskPercent' ? 'high' : 'medium',
      title: `${names[metric]} at ${percent} %`,
      message: `${names[metric]} is at ${percent} %; the threshold is ${threshold} %.`,
      context: { metric, value, threshold },
      dedupeKey,
      deviceId,
      orgId,
      epoch,
    },
  }
}
