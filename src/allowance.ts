// Frames that a socket may send: so many a minute, with a burst. One number per socket, since there may be many.

/** Milliseconds of this process at which the allowance is full again: a small integer. */
export interface Allowance {
  fullMs: number
}

const startedMs = performance.now()

/** Takes one frame of an allowance; false when there is none left. With a rate of 0 there always is. */
export function allowance(perMinute: number, burst: number): (holder: Allowance) => boolean {
  if (perMinute === 0) return () => true
  const costMs = 60_000 / perMinute
  // Rounded down a frame could cost nothing.
  const isRounded = costMs >= 1
  // What is rounded up must not cost the last frame of a burst.
  const roomMs = costMs * burst + (isRounded ? 1 : 0)
  return (holder) => {
    const nowMs = performance.now() - startedMs
    const fullMs = Math.max(holder.fullMs, nowMs) + costMs
    if (fullMs - nowMs > roomMs) return false
    holder.fullMs = isRounded ? Math.round(fullMs) : fullMs
    return true
  }
}

/** What was taken by sockets that have closed: a new socket of the same agent goes on from there. */
export class SpentAllowances {
  // Who closed first comes first.
  private readonly fullMs = new Map<string, number>()
  private readonly max: number

  constructor(max: number) {
    this.max = max
  }

  keep(agent: string, fullMs: number): void {
    const most = Math.max(fullMs, this.of(agent))
    this.fullMs.delete(agent)
    if (most <= performance.now() - startedMs) return
    this.fullMs.set(agent, most)
    if (this.fullMs.size <= this.max) return
    for (const first of this.fullMs.keys()) {
      this.fullMs.delete(first)
      return
    }
  }

  of(agent: string): number {
    return this.fullMs.get(agent) ?? 0
  }
}
