// Group commit without a timer: what arrives while a write is under way is the next batch. Used wherever
// many callers share one statement. Knows nothing of what it writes.

export interface BatcherOptions<T> {
  /** Items of one write. */
  rowsMax: number
  /** Items that may wait; `push` refuses past it. */
  queueMax: number
  /** Writes under way at once. */
  inFlight: number
  /** Sum of `bytesOf` in one write, unless a single item is larger. */
  bytesMax?: number
  bytesOf?: (item: T) => number
  /**
   * Shortest time between the starts of two writes, in milliseconds: it is there to gather rows, so a batch that is
   * full does not wait for it.
   */
  gapMs?: number
  /** Writes a batch and answers everyone in it; must not reject. */
  write: (items: T[]) => Promise<void>
  /** Told the size of every batch. */
  onBatch?: (size: number) => void
}

export class Batcher<T> {
  private waiting: T[] = []
  private underWay = 0
  private startedAt = -Infinity
  private timer: NodeJS.Timeout | undefined
  private idle: (() => void)[] = []
  private readonly options: BatcherOptions<T>

  constructor(options: BatcherOptions<T>) {
    this.options = options
  }

  get queued(): number {
    return this.waiting.length
  }

  /** Adds an item; false when too many wait already. */
  push(item: T): boolean {
    if (this.waiting.length >= this.options.queueMax) return false
    this.waiting.push(item)
    this.pump()
    return true
  }

  /** Resolves when nothing waits and nothing is under way. */
  async drained(): Promise<void> {
    if (this.waiting.length === 0 && this.underWay === 0) return
    await new Promise<void>((resolve) => this.idle.push(resolve))
  }

  private pump(): void {
    const { inFlight, gapMs = 0, rowsMax } = this.options
    while (this.underWay < inFlight && this.waiting.length > 0) {
      const isFull = this.waiting.length >= rowsMax
      const wait = gapMs === 0 || isFull ? 0 : this.startedAt + gapMs - performance.now()
      if (wait > 0) {
        this.timer ??= setTimeout(() => {
          this.timer = undefined
          this.pump()
        }, wait)
        return
      }
      void this.write(this.take())
    }
  }

  private async write(items: T[]): Promise<void> {
    this.underWay++
    this.startedAt = performance.now()
    this.options.onBatch?.(items.length)
    try {
      await this.options.write(items)
    } finally {
      this.underWay--
      this.pump()
      if (this.waiting.length === 0 && this.underWay === 0) {
        for (const resolve of this.idle.splice(0)) resolve()
      }
    }
  }

  private take(): T[] {
    const { rowsMax, bytesMax = Infinity, bytesOf } = this.options
    let count = 0
    let bytes = 0
    while (count < this.waiting.length && count < rowsMax) {
      bytes += bytesOf?.(this.waiting[count] as T) ?? 0
      if (bytes > bytesMax && count > 0) break
      count++
    }
    return this.waiting.splice(0, count)
  }
}
