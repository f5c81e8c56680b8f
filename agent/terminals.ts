// The terminal sessions of this device: which there are, and how long they wait for a hub that is away.

import { performance } from 'node:perf_hooks'
import type { Log } from './log.ts'
import { terminalAbsenceMs, terminalsMax } from './limits.ts'
import { Terminal } from './terminal.ts'
import {
  decodeFrame,
  decodeSize,
  encodeFrame,
  encodeText,
  isResumed,
} from '../src/terminal_frames.ts'
import type { TerminalFrame } from '../src/terminal_frames.ts'

export interface TerminalsParts {
  /** Sends a binary frame on the welcomed socket; false when there is none. */
  send(frame: Uint8Array<ArrayBuffer>): boolean
  log: Log
  absenceMs?: number
}

export class Terminals {
  readonly #parts: TerminalsParts
  readonly #open = new Map<string, Terminal>()
  /** Sessions that the hub has not spoken of since its socket was lost, and the clock that ends them. */
  readonly #absent = new Map<string, NodeJS.Timeout>()

  constructor(parts: TerminalsParts) {
    this.#parts = parts
  }

  /** Takes a binary frame of the hub; false when it is none. */
  receive(bytes: Uint8Array): boolean {
    const frame = decodeFrame(bytes)
    if (frame === undefined) return false
    const terminal = this.#open.get(frame.id)
    if (frame.kind === 'open') this.#heard(frame.id)
    if (terminal) terminal.receive(frame)
    else if (frame.kind === 'open') this.#begin(frame)
    return true
  }

  /** A socket is welcomed: the hub hears which sessions there are here, and closes those that it does not know. */
  up(): void {
    for (const terminal of this.#open.values()) terminal.confirm()
  }

  /** The socket is lost. A hub that comes back asks for each session it knows; the others end. */
  down(): void {
    for (const id of this.#open.keys()) {
      if (this.#absent.has(id)) continue
      const ms = this.#parts.absenceMs ?? terminalAbsenceMs
      this.#absent.set(
        id,
        setTimeout(() => this.#open.get(id)?.end('the hub was away for too long'), ms),
      )
    }
  }

  /** Ends every session. */
  stop(): void {
    for (const terminal of this.#open.values()) terminal.end('the agent stops')
  }

  #begin({ id, body }: TerminalFrame): void {
    const size = decodeSize(body)
    if (isResumed(body)) return this.#refuse(id, 'the agent was restarted and the shell is gone')
    if (size === undefined) return this.#refuse(id, 'the size of the terminal is not one')
    if (this.#open.size >= terminalsMax) {
      return this.#refuse(id, `this device has ${terminalsMax} terminals open`)
    }
    const { log } = this.#parts
    const send = (frame: Uint8Array<ArrayBuffer>) => this.#parts.send(frame)
    const startedMs = performance.now()
    const over = (why: string) => {
      this.#heard(id)
      this.#open.delete(id)
      const seconds = Math.round((performance.now() - startedMs) / 1000)
      log.info('terminal ends', { id, seconds, ...(why ? { why } : {}) })
    }
    log.info('terminal starts', { id })
    this.#open.set(id, Terminal.start({ id, send, over }, size))
  }

  #refuse(id: string, why: string): void {
    this.#parts.send(encodeFrame('close', id, 0, encodeText(why)))
  }

  #heard(id: string): void {
    clearTimeout(this.#absent.get(id))
    this.#absent.delete(id)
  }
}
