// The trial, as the new version lives it: connects, beats, gives signs of life, and commits after three
// acknowledged heartbeats. Before that it writes nothing but its sign of life.

import { replaceQuickly } from '../files.ts'
import { trialAcksMin } from '../limits.ts'
import type { Log } from '../log.ts'
import type { State } from '../state.ts'
import { isTrial } from '../supervise.ts'
import { killPoint } from '../test_build.ts'
import { beatMs } from './bounds.ts'
import { readRecord, writeRecord } from './record.ts'
import type { UpgradeRecord } from './record.ts'

/** What the supervisor reads of a trial. */
export interface SignOfLife {
  /** Grows with every sign. */
  count: number
  /** How the connection is, in words. */
  link: string
}

export class Trial {
  readonly commandId: string
  /** Resolves once the commit is on disk. */
  readonly passed: Promise<void>
  readonly #state: State
  readonly #record: UpgradeRecord
  readonly #log: Log
  readonly #pass: () => void
  readonly #timer: NodeJS.Timeout
  readonly #sign: SignOfLife = { count: 0, link: 'not connected yet' }
  #acks = 0
  #running = true

  private constructor(state: State, record: UpgradeRecord, log: Log) {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.passed = promise
    this.#pass = resolve
    this.#state = state
    this.#record = record
    this.#log = log
    this.commandId = record.commandId
    this.#live()
    this.#timer = setInterval(() => this.#live(), beatMs())
    log.info('trial starts', { from: record.from, to: record.to })
  }

  /** The trial that this process is, or null where it is none. */
  static of(state: State, log: Log): Trial | null {
    if (!isTrial()) return null
    const record = readRecord(state)
    return record?.phase === 'trial' ? new Trial(state, record, log) : null
  }

  /** False once it has committed. */
  get running(): boolean {
    return this.#running
  }

  /** What became of the connection, for whoever asks why a trial failed. */
  link(text: string): void {
    this.#sign.link = text
  }

  /** The hub acknowledged a heartbeat; the third one commits. */
  acknowledged(): void {
    if (!this.#running) return
    killPoint('trial.acked')
    if (++this.#acks < trialAcksMin) return
    this.stop()
    // A supervisor that gave this trial up has said so in the record.
    if (readRecord(this.#state)?.phase !== 'trial') return
    writeRecord(this.#state, { ...this.#record, phase: 'committed' })
    killPoint('commit.written')
    this.#log.info('trial passed', { version: this.#record.to })
    this.#pass()
  }

  stop(): void {
    this.#running = false
    clearInterval(this.#timer)
  }

  #live(): void {
    this.#sign.count++
    replaceQuickly(this.#state.trial, JSON.stringify(this.#sign))
  }
}
