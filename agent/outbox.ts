// What the hub has yet to hear: told at once when it is on disk, and again until it is acknowledged.
// The journal is the truth; nothing is sent that the disk does not hold.

import { performance } from 'node:perf_hooks'
import type { AgentFrame, ResultFrame } from '../src/protocol.ts'
import type { Journal } from './journal.ts'
import { briefResult } from './ledger.ts'
import type { Entry, JournalRecord } from './ledger.ts'
import {
  ackWaitMs,
  outboxBytesMax,
  resendBacklogBytesMax,
  resendIntervalMs,
  resendJitter,
} from './limits.ts'
import { withoutOutput } from './result.ts'

/** The way to the hub; `send` answers whether there was one. */
export interface Outlet {
  send(frame: AgentFrame): boolean
  readonly backlogBytes: number
}

export class Outbox {
  readonly #journal: Journal
  readonly #outlet: Outlet
  /** What the ledger says of these ids is not yet on disk, so the hub must not hear it. */
  readonly #saving = new Map<string, Promise<void>>()
  readonly #sentAtMs = new Map<string, number>()
  readonly #ackWaiters = new Map<string, () => void>()
  #resultBytes = 0
  #timer: NodeJS.Timeout | null = null

  constructor(journal: Journal, outlet: Outlet) {
    this.#journal = journal
    this.#outlet = outlet
    for (const entry of journal.ledger.values()) {
      if (entry.phase === 'ended') this.#resultBytes += sizeOf(entry.result)
    }
  }

  /** Begins to send again, every 10 s, what is not acknowledged. */
  start(): void {
    const ms = resendIntervalMs * (1 + resendJitter * (2 * Math.random() - 1))
    this.#timer = setTimeout(() => {
      this.#resend()
      this.start()
    }, ms)
  }

  stop(): void {
    if (this.#timer) clearTimeout(this.#timer)
  }

  /** How many commands are on their way to the disk. */
  get savingCount(): number {
    return this.#saving.size
  }

  /** Keeps a record; until it is on disk nothing is said about its command. */
  async save(id: string, record: JournalRecord): Promise<void> {
    const saved = this.#journal.append(record)
    this.#saving.set(id, saved)
    await saved
    if (this.#saving.get(id) === saved) this.#saving.delete(id)
  }

  /** Keeps a result, then sends it. A full outbox keeps the end and lets the output go. */
  async put(frame: ResultFrame): Promise<void> {
    const full = this.#resultBytes + sizeOf(frame) > outboxBytesMax
    const result = full ? withoutOutput(frame) : frame
    this.#resultBytes += sizeOf(result)
    await this.save(result.id, { type: 'result', result, at: Date.now() })
    this.#sendResult(result)
  }

  /** The hub has committed the end: the result may go, the id stays. */
  acknowledge(id: string): void {
    const entry = this.#journal.ledger.get(id)
    if (entry?.phase !== 'ended') return
    this.#resultBytes -= sizeOf(entry.result)
    this.#sentAtMs.delete(id)
    // Nobody waits for the disk: losing this record costs one repeated result.
    void this.#journal.append({ type: 'acked', id, at: Date.now() })
    this.#ackWaiters.get(id)?.()
  }

  /** Resolves when the hub has acknowledged this result, or after 5 s without it. */
  async acknowledged(id: string): Promise<void> {
    if (this.#journal.ledger.get(id)?.phase !== 'ended') return
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ackWaitMs)
      this.#ackWaiters.set(id, () => {
        clearTimeout(timer)
        resolve()
      })
    })
    this.#ackWaiters.delete(id)
  }

  /** After `welcome`: the hub hears of everything it has not acknowledged. */
  resendAll(): void {
    this.#sentAtMs.clear()
    this.#resend()
  }

  /** Answers a command that came again: how far it is, or how it ended. */
  answerAgain(id: string, entry: Entry): void {
    if (this.#saving.has(id)) return
    this.#tell(id, entry)
    if (entry.phase !== 'done') return
    this.#outlet.send({ type: 'delivered', id })
    this.#outlet.send(briefResult(id, entry.end))
  }

  // `delivered` and `started` have no ack of their own: the result takes their place.
  #tell(id: string, entry: Entry): void {
    if (this.#saving.has(id) || entry.phase === 'done') return
    if (entry.phase === 'ended') return this.#sendResult(entry.result)
    this.#outlet.send({ type: 'delivered', id })
    if (entry.phase === 'running') this.#outlet.send({ type: 'started', id })
  }

  #sendResult(result: ResultFrame): void {
    if (this.#outlet.send(result)) this.#sentAtMs.set(result.id, performance.now())
  }

  #resend(): void {
    const freshSinceMs = performance.now() - resendIntervalMs * (1 - resendJitter)
    for (const [id, entry] of this.#journal.ledger) {
      if (this.#outlet.backlogBytes > resendBacklogBytesMax) return
      if ((this.#sentAtMs.get(id) ?? -Infinity) < freshSinceMs) this.#tell(id, entry)
    }
  }
}

function sizeOf(result: ResultFrame): number {
  return JSON.stringify(result).length
}
