// The mail to one shard thread: gathered over a turn of the event loop, handed over in batches which the shard
// confirms, and kept here while it is behind. Knows nothing of what it carries.
import { limits } from './limits.ts'
import type { ShardMessage, ToShard } from './protocol.ts'

/** How far a shard is behind: `busy` drops heartbeats, `full` closes who sends anything else. */
export type Pressure = 'none' | 'busy' | 'full'

interface Batch {
  mail: ToShard[]
  bytes: number
}

export class Mailbox {
  /** Here the shard counts the batches that it has taken. */
  readonly confirmed = new SharedArrayBuffer(4)
  private readonly counter = new Int32Array(this.confirmed)
  /** Of this turn, handed over as one message; of more turns where it may wait, or while the shard is behind. */
  private mail: ToShard[] = []
  private mailBytes = 0
  /** Full batches before it, which wait until the shard has confirmed others. */
  private readonly waiting: Batch[] = []
  private scheduled = false
  /** Hands over what may wait a moment, or what waits because the shard is behind. */
  private timer: NodeJS.Timeout | undefined
  /** Batches handed over, and those not confirmed yet, oldest first. */
  private posted = 0
  private readonly unconfirmed: { number: number; bytes: number; atMs: number }[] = []
  /** Of all that is not confirmed, handed over or not. */
  private bytes = 0
  private ending = false
  private readonly deliver: (mail: ToShard[]) => void

  constructor(deliver: (mail: ToShard[]) => void) {
    this.deliver = deliver
  }

  post(message: ShardMessage): void {
    this.mail.push(message)
    this.added(200, false)
  }

  /** A frame goes with everything else of this turn; one that can wait, with what comes next. */
  frame(conn: number, text: string, canWait: boolean): void {
    this.mail.push(conn, text)
    this.added(text.length + limits.shardFrameBytes, canWait)
  }

  pressure(): Pressure {
    if (this.bytes < limits.shardBusyBytes) return 'none'
    this.settle()
    if (this.bytes < limits.shardBusyBytes) return 'none'
    return this.bytes < limits.shardBytesMax ? 'busy' : 'full'
  }

  /** For how long the oldest batch has not been confirmed; 0 when all are. */
  behindMs(): number {
    this.settle()
    const [oldest] = this.unconfirmed
    return oldest ? performance.now() - oldest.atMs : 0
  }

  /** From here on everything is handed over at once, confirmed or not: what ends the shard comes last. */
  end(): void {
    this.ending = true
  }

  /** The shard died: nothing that waits for it is looked after any more. */
  abandon(): void {
    clearTimeout(this.timer)
  }

  private added(bytes: number, canWait: boolean): void {
    this.mailBytes += bytes
    this.bytes += bytes
    if (this.mail.length >= limits.shardBatchFramesMax * 2) {
      this.closeBatch()
      this.flush()
    } else if (canWait) {
      this.flushWithin(limits.heartbeatGapMs)
    } else if (!this.scheduled) {
      this.scheduled = true
      // After the poll phase: one message for all that this turn brought.
      setImmediate(() => {
        this.scheduled = false
        this.flush()
      })
    }
  }

  /** Hands over what there is, as far as the shard is not behind; the rest goes on growing into larger batches. */
  private flush(): void {
    if (this.unconfirmed.length > 16) this.settle()
    while (this.ending || this.unconfirmed.length < limits.shardBatchesMax) {
      if (this.waiting.length === 0) this.closeBatch()
      const batch = this.waiting.shift()
      if (batch === undefined) return
      const { mail, bytes } = batch
      this.posted++
      this.unconfirmed.push({ number: this.posted, bytes, atMs: performance.now() })
      this.deliver(mail)
    }
    // It is behind, and tells nobody when it no longer is.
    this.flushWithin(limits.shardLookMs)
  }

  private flushWithin(ms: number): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined
      this.flush()
    }, ms)
  }

  /** What was gathered is a batch from now on. */
  private closeBatch(): void {
    const { mail, mailBytes: bytes } = this
    if (mail.length === 0) return
    this.waiting.push({ mail, bytes })
    this.mail = []
    this.mailBytes = 0
  }

  /** Forgets what the shard has confirmed by now. */
  private settle(): void {
    const done = Atomics.load(this.counter, 0)
    let count = 0
    for (const { number, bytes } of this.unconfirmed) {
      // Both wrap at 32 bits; their difference does not.
      if (((number - done) | 0) > 0) break
      this.bytes -= bytes
      count++
    }
    if (count > 0) this.unconfirmed.splice(0, count)
  }
}
