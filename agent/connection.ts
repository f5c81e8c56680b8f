// Keeps one welcomed socket to the hub: dials, backs off, moves to a new socket without a gap.
// Knows nothing of commands; the last word on every ending is decide() in backoff.ts.

import { performance } from 'node:perf_hooks'
import { closeCodes } from '../src/protocol.ts'
import type { AgentFrame, HubFrame } from '../src/protocol.ts'
import { plainUrl } from './address.ts'
import { decide, fullJitterMs } from './backoff.ts'
import type { Decision, Ending } from './backoff.ts'
import { describe } from './errors.ts'
import { frameBytesMax, stableConnectionMs } from './limits.ts'
import type { Log } from './log.ts'
import { ask, errorOf } from './request.ts'
import { HubSocket } from './socket.ts'
import type { SocketEnd } from './socket.ts'
import type { TokenStore } from './tokens.ts'

export interface ConnectionEvents {
  /** A socket was welcomed and is the one to use. */
  up(intervalMs: number): void
  /** The socket in use ended; another will be tried. */
  down(): void
  frame(frame: HubFrame): void
  /** A terminal's frame; false when it is none. */
  binary(bytes: Uint8Array): boolean
  /** No connection came about, or it ended: how, and another will be tried. */
  failed(ending: Ending): void
  /** The hub does not want this device any more. */
  decommissioned(): void
}

export interface ConnectionParts {
  url: string
  tokens: TokenStore
  log: Log
  events: ConnectionEvents
}

export class Connection {
  readonly #parts: ConnectionParts
  /** The welcomed socket that everything is sent on. */
  #current: HubSocket | null = null
  /** The socket that is being dialled, perhaps while `current` still serves. */
  #candidate: HubSocket | null = null
  #timer: NodeJS.Timeout | null = null
  #attempt = 0
  #welcomedAtMs = 0
  #intervalMs = 0
  #unknownFrames = 0
  #stopped = false

  constructor(parts: ConnectionParts) {
    this.#parts = parts
  }

  /** Dials at once. */
  start(): void {
    this.#dial()
  }

  get backlogBytes(): number {
    return this.#current?.backlogBytes ?? 0
  }

  /** Sends on the welcomed socket; false when there is none. */
  send(frame: AgentFrame): boolean {
    const text = JSON.stringify(frame)
    if (text.length > frameBytesMax / 4 && Buffer.byteLength(text) > frameBytesMax) {
      this.#parts.log.error('frame is over the limit and was not sent', { type: frame.type })
      return false
    }
    return this.#current?.send(text) ?? false
  }

  /** Sends a terminal's frame on the welcomed socket; false when there is none. */
  sendBinary(frame: Uint8Array<ArrayBuffer>): boolean {
    return this.#current?.send(frame) ?? false
  }

  /** The hub asked to move: at its slot a new socket is dialled while this one still serves. */
  moveAfter(ms: number): void {
    this.#parts.log.info('hub drains, moving', { afterMs: ms })
    if (!this.#candidate) this.#schedule(ms)
  }

  /** Takes the present socket, if there is one, for newly welcomed. */
  welcomeAgain(): void {
    if (this.#current) this.#parts.events.up(this.#intervalMs)
  }

  /** The socket in use answers nothing any more. */
  dropSilent(): void {
    this.#current?.drop()
  }

  /** Closes everything politely; nothing is dialled any more. */
  stop(): void {
    this.#stopped = true
    if (this.#timer) clearTimeout(this.#timer)
    this.#current?.close()
    this.#candidate?.close()
    this.#current = this.#candidate = null
  }

  #schedule(ms: number): void {
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.#timer = null
      this.#dial()
    }, ms)
  }

  #dial(): void {
    if (this.#candidate || this.#stopped) return
    const socket = new HubSocket(this.#parts.url, this.#parts.tokens.pick(), {
      welcome: ({ heartbeatIntervalSeconds }) => this.#adopt(socket, heartbeatIntervalSeconds),
      frame: (frame) => this.#parts.events.frame(frame),
      binary: (bytes) => this.#parts.events.binary(bytes),
      unknown: () => this.#countUnknown(),
      end: (end) => void this.#ended(socket, end),
    })
    this.#candidate = socket
  }

  #adopt(socket: HubSocket, intervalSeconds: number): void {
    if (socket !== this.#candidate && socket !== this.#current) return socket.close()
    if (socket === this.#candidate) {
      this.#current?.close()
      this.#current = socket
      this.#candidate = null
      this.#welcomedAtMs = performance.now()
      this.#parts.log.info('connected', { intervalSeconds })
      this.#settleToken(socket.token)
    }
    this.#intervalMs = intervalSeconds * 1000
    this.#parts.events.up(this.#intervalMs)
  }

  #settleToken(token: string): void {
    try {
      if (this.#parts.tokens.worked(token)) this.#parts.log.info('new token in use')
    } catch (error) {
      // Both tokens are still on disk: the next connection settles it.
      this.#parts.log.error('new token cannot be kept', { error: describe(error) })
    }
  }

  async #ended(socket: HubSocket, end: SocketEnd): Promise<void> {
    if (socket !== this.#candidate && socket !== this.#current) return
    const wasCurrent = socket === this.#current
    if (wasCurrent) {
      this.#current = null
      if (performance.now() - this.#welcomedAtMs >= stableConnectionMs) this.#attempt = 0
      this.#parts.events.down()
    } else {
      this.#candidate = null
    }
    const ending = await this.#understand(socket.token, end)
    // A candidate that is being dialled is the reconnect already.
    if (this.#stopped || this.#candidate) return
    this.#follow(ending, socket.token)
  }

  #follow(ending: Ending, token: string): void {
    const tryOther = isUnknownToken(ending) && this.#parts.tokens.refused(token)
    const decision: Decision = tryOther
      ? { type: 'retry', delayMs: Math.round(fullJitterMs(0, Math.random())) }
      : decide(ending, this.#attempt++, Math.random())
    if (decision.type === 'stop') {
      this.#stopped = true
      return this.#parts.events.decommissioned()
    }
    this.#parts.events.failed(ending)
    this.#parts.log.warn('not connected, will retry', { ending, delayMs: decision.delayMs })
    this.#schedule(decision.delayMs)
  }

  // The built-in client hides a refused upgrade's answer; a plain request to the same URL has it.
  async #understand(token: string, end: SocketEnd): Promise<Ending> {
    if (end.type !== 'unopened') return end
    try {
      const headers = { authorization: `Bearer ${token}` }
      const { status, body, retryAfterSeconds } = await ask(plainUrl(this.#parts.url), { headers })
      return { type: 'refused', status, code: errorOf(body).code, retryAfterSeconds }
    } catch {
      return { type: 'unreachable' }
    }
  }

  // The first is worth a line, a flood is not.
  #countUnknown(): void {
    if (this.#unknownFrames++ % 1000 === 0) {
      this.#parts.log.warn('unknown frames dropped', { count: this.#unknownFrames })
    }
  }
}

function isUnknownToken(ending: Ending): boolean {
  if (ending.type === 'closed') return ending.code === closeCodes.badToken
  return ending.type === 'refused' && ending.status === 401
}
