// What a thread counts between two ticks and hands to the front, which owns the metrics registry: one
// message a second instead of one per observation.

import type { Observed } from '../src/protocol.ts'

type State = Pick<Observed, 'devices' | 'depths' | 'pool' | 'loopSeconds'>

// A histogram needs no more than a sample of a busy second.
const samplesMax = 1000

export class Observations {
  heartbeats = 0
  private drops: Record<string, number> = {}
  private ends: Record<string, number> = {}
  private deliveries: number[] = []
  private endings: number[] = []
  private batches: Record<string, number[]> = {}

  dropped(reason: string): void {
    this.drops[reason] = (this.drops[reason] ?? 0) + 1
  }

  ended(status: string, ms: number): void {
    this.ends[status] = (this.ends[status] ?? 0) + 1
    if (this.endings.length < samplesMax) this.endings.push(ms)
  }

  delivered(ms: number): void {
    if (this.deliveries.length < samplesMax) this.deliveries.push(ms)
  }

  batch(statement: string, rows: number): void {
    const sizes = (this.batches[statement] ??= [])
    if (sizes.length < samplesMax) sizes.push(rows)
  }

  /** Everything since the last call. */
  take(state: State): Observed {
    const observed: Observed = {
      heartbeats: this.heartbeats,
      dropped: this.drops,
      ended: this.ends,
      deliveredMs: this.deliveries,
      endedMs: this.endings,
      batches: this.batches,
      ...state,
    }
    this.heartbeats = 0
    this.drops = {}
    this.ends = {}
    this.deliveries = []
    this.endings = []
    this.batches = {}
    return observed
  }
}
