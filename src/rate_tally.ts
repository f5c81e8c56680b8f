// What this hub has to tell other hubs of its rates, and hears from them: which callers were touched since
// the last exchange, and how much each took. Knows no Redis, and asks nobody.
//
// Times go between hubs as durations from now, never as times: the clocks of two machines differ. Takes go
// as amounts that are added up: the latest of two full-at times would forget what was taken in parallel.
import { limits } from './limits.ts'

/** A rate as others see it. */
export interface SharedBucket {
  readonly name: string
  /** Until an empty bucket is full again, in ms. */
  readonly windowMs: number
  /** When the bucket of a caller is full again; 0 for who is unknown. */
  fullAtOf(key: string): number
  setFullAt(key: string, fullAt: number): void
}

/** What is told of one caller. */
export interface Due {
  /** The rate and the caller in clear: hash it before it leaves the hub. */
  readonly name: string
  /** Its failures were forgiven; what others know of it from before is void. */
  readonly cleared: boolean
  /** What this hub took since it told last and time has not yet given back, in ms until full again. */
  readonly takenMs: number
  /** What this hub knows beside it: counts where Redis has forgotten the caller. */
  readonly aheadMs: number
  readonly windowMs: number
}

interface Touched {
  readonly bucket: SharedBucket
  readonly key: string
  cleared: boolean
  takenMs: number
}

/** One exchange: told, and settled when it was answered. An unanswered one is dropped. */
export interface Batch {
  readonly dues: readonly Due[]
  /** Takes over what all hubs took together, in ms until full again, in the order of the dues. */
  settle(aheadMs: readonly number[]): void
}

export class RateTally {
  private readonly now: () => number
  /** In the order in which they were first touched. */
  private touched = new Map<string, Touched>()

  constructor(now: () => number = () => performance.now()) {
    this.now = now
  }

  /** Callers that wait to be told of. */
  get size(): number {
    return this.touched.size
  }

  /** A caller took this much, or was only asked for: what others took of it is wanted. */
  touch(bucket: SharedBucket, key: string, takenMs: number): void {
    this.entry(bucket, key).takenMs += takenMs
  }

  /** A caller's takes are forgiven, on every hub. */
  clear(bucket: SharedBucket, key: string): void {
    const entry = this.entry(bucket, key)
    entry.cleared = true
    entry.takenMs = 0
  }

  /** Takes the callers that wait longest out of the tally. */
  next(): Batch {
    const sentAt = this.now()
    const entries: Touched[] = []
    for (const [name, entry] of this.touched) {
      if (entries.length === limits.rateExchangeKeysMax) break
      this.touched.delete(name)
      entries.push(entry)
    }
    return {
      dues: entries.map((entry) => dueOf(entry, sentAt)),
      settle: (aheadMs) => {
        for (const [index, entry] of entries.entries()) this.adopt(entry, sentAt, aheadMs[index])
      },
    }
  }

  /**
   * Redis knows better than this hub, also where it knows of less: a caller may have been forgiven
   * elsewhere. Only what was taken here meanwhile comes on top. Counted from the time of asking, not of
   * the answer: else every exchange would push the time ahead by its own duration.
   */
  private adopt({ bucket, key }: Touched, sentAt: number, aheadMs: number | undefined): void {
    if (aheadMs === undefined) return
    const since = this.touched.get(nameOf(bucket, key))
    if (since?.cleared) return
    const shared = sentAt + Math.min(aheadMs, bucket.windowMs) + (since?.takenMs ?? 0)
    bucket.setFullAt(key, shared > this.now() ? shared : 0)
  }

  private entry(bucket: SharedBucket, key: string): Touched {
    const name = nameOf(bucket, key)
    const known = this.touched.get(name)
    if (known) return known
    const entry = { bucket, key, cleared: false, takenMs: 0 }
    this.touched.set(name, entry)
    if (this.touched.size > limits.rateTouchedKeysMax) {
      const [oldest] = this.touched.keys()
      if (oldest !== undefined) this.touched.delete(oldest)
    }
    return entry
  }
}

/**
 * What time has given back is not told: after an hour without Redis the takes of that hour must not be
 * charged at once.
 */
function dueOf({ bucket, key, cleared, takenMs }: Touched, now: number): Due {
  const fullInMs = Math.max(0, bucket.fullAtOf(key) - now)
  const told = Math.min(takenMs, fullInMs)
  return {
    name: nameOf(bucket, key),
    cleared,
    takenMs: told,
    aheadMs: fullInMs - told,
    windowMs: bucket.windowMs,
  }
}

function nameOf(bucket: SharedBucket, key: string): string {
  return `${bucket.name} ${key}`
}
