// One terminal session as the hub sees it: who is at either end, how far the bytes are, and what of a frame may
// pass. Holds no bytes: what is lost on the way is kept by the two ends and comes again.
import { timingSafeEqual } from 'node:crypto'
import { allowance, type Allowance } from './allowance.ts'
import { opaqueToken, sha256, type Actor } from './auth.ts'
import { limits } from './limits.ts'
import type { Recording } from './terminal_recorder.ts'
import {
  decodeExit,
  decodeSize,
  encodeFrame,
  encodeSize,
  windowBytes,
  type TerminalFrame,
  type TerminalSize,
} from './terminal_frames.ts'
import { Incoming } from './terminal_streams.ts'

/** An operator's open socket. */
export interface OperatorLine {
  readonly actor: Actor
  send(frame: Uint8Array): void
  close(code: number, reason: string): void
}

interface Ticket {
  hash: Buffer
  actor: Actor
  expiresMs: number
}

export interface SessionPlace {
  id: string
  orgId: string
  siteId: string
  deviceId: string
}

const mayPass = allowance(limits.terminalFramesPerMinute, limits.terminalFramesBurst)

export class TerminalSession {
  /** `term-` and a UUID. */
  readonly id: string
  readonly orgId: string
  siteId: string
  readonly deviceId: string
  /** Who opened it, as they last came: another user never gets in. */
  actor: Actor
  size: TerminalSize
  operator: OperatorLine | undefined
  /** The connection of its agent, or the other hub that has it. */
  agent: number | string | undefined
  exit: { exitCode: number; signal: string } | undefined
  recording: Recording | undefined
  absence: NodeJS.Timeout | undefined
  ended = false
  /** The agent has answered: it must not begin anew. */
  begun = false
  private readonly output = new Incoming()
  /** Output that the operator has, and how much of it the agent was told: the rest waits for the recording. */
  private outputTaken = 0
  private outputAcked = 0
  /** Input that the agent has, and how far it was passed on. */
  private inputAcked = 0
  private inputSent = 0
  private tickets: Ticket[] = []
  private askedMs = 0
  private readonly fromAgentAllowance: Allowance = { fullMs: 0 }
  private readonly fromOperatorAllowance: Allowance = { fullMs: 0 }

  constructor({ id, orgId, siteId, deviceId }: SessionPlace, actor: Actor, size: TerminalSize) {
    this.id = id
    this.orgId = orgId
    this.siteId = siteId
    this.deviceId = deviceId
    this.actor = actor
    this.size = size
  }

  get bytesIn(): number {
    return this.inputAcked
  }

  get bytesOut(): number {
    return this.output.at
  }

  // ---- tickets

  issueTicket(actor: Actor, nowMs: number): { ticket: string; expiresMs: number } {
    const ticket = opaqueToken()
    const expiresMs = nowMs + limits.ticketSeconds * 1000
    this.tickets.push({ hash: sha256(ticket), actor, expiresMs })
    if (this.tickets.length > limits.ticketsMax) this.tickets.shift()
    return { ticket, expiresMs }
  }

  /** Whose ticket it is; it is good once. */
  redeem(ticket: string, nowMs: number): Actor | undefined {
    const hash = sha256(ticket)
    const found = this.tickets.find((one) => timingSafeEqual(one.hash, hash))
    if (!found) return undefined
    this.tickets = this.tickets.filter((one) => one !== found)
    return found.expiresMs > nowMs ? found.actor : undefined
  }

  /** Tickets of a sign-in that ended open nothing. */
  forgetTickets(sessionId: string): void {
    this.tickets = this.tickets.filter(({ actor }) => actor.sessionId !== sessionId)
  }

  // ---- frames

  /** The frame that makes the agent begin, or go on where the operator is. */
  openFrame(): Uint8Array {
    return encodeFrame('open', this.id, this.outputAcked, encodeSize(this.size, this.begun))
  }

  /**
   * Whether a frame of the agent goes on to the operator. Output beyond the window, numbers that can't be and
   * floods do not: an honest agent sends none.
   */
  passesFromAgent({ kind, seq, body }: TerminalFrame): boolean {
    if (!mayPass(this.fromAgentAllowance)) return false
    switch (kind) {
      case 'opened':
        this.begun = true
        this.inputAcked = Math.max(this.inputAcked, Math.min(seq, this.inputSent))
        return true
      case 'data':
        return this.takeOutput(seq, body)
      case 'ack':
        if (seq > this.inputSent) return false
        this.inputAcked = Math.max(this.inputAcked, seq)
        return true
      case 'exit':
        this.exit = decodeExit(body)
        return this.exit !== undefined
      case 'open':
      case 'resize':
      case 'close': // the hub's own to say
        return false
    }
  }

  /** Whether the agent may be asked to begin again: once a second. */
  asksAgain(nowMs: number): boolean {
    if (nowMs - this.askedMs < limits.terminalAskMs) return false
    this.askedMs = nowMs
    return true
  }

  /**
   * Whether a frame of the operator goes on to the agent. `flood`: the socket is to be closed. `held`: it is good,
   * and `releaseOutput` gives another in its place.
   */
  passesFromOperator({ kind, seq, body }: TerminalFrame): boolean | 'flood' | 'held' {
    if (!mayPass(this.fromOperatorAllowance)) return 'flood'
    switch (kind) {
      case 'open':
        this.size = decodeSize(body) ?? this.size
        this.confirmOutput(seq)
        return true
      case 'data':
        if (seq + body.length > this.inputAcked + windowBytes) return 'flood'
        // Without an agent it is not on its way: the operator sends it again.
        if (this.agent !== undefined) this.inputSent = Math.max(this.inputSent, seq + body.length)
        return true
      case 'ack':
        return this.confirmOutput(seq)
      case 'resize':
        return this.takeSize(body)
      case 'opened':
      case 'exit':
      case 'close': // read before
        return false
    }
  }

  private takeOutput(seq: number, body: Uint8Array): boolean {
    if (seq + body.length > this.outputAcked + windowBytes) return false
    const fresh = this.output.take(seq, body)
    if (fresh) this.recording?.output(fresh)
    // What came before goes on, too: the operator may have missed it. What leaves a gap does not.
    return seq <= this.output.at
  }

  /** The confirmation for the agent that was held while the recording had no room. */
  releaseOutput(): Uint8Array | undefined {
    if (this.outputTaken <= this.outputAcked || this.isBehind()) return undefined
    this.outputAcked = this.outputTaken
    return encodeFrame('ack', this.id, this.outputAcked)
  }

  // What is not confirmed is bounded, so the agent makes its program wait: nothing is shown that is not recorded.
  private confirmOutput(seq: number): boolean | 'held' {
    if (seq > this.output.at) return false
    this.outputTaken = Math.max(this.outputTaken, seq)
    if (this.isBehind()) return 'held'
    this.outputAcked = this.outputTaken
    return true
  }

  private isBehind(): boolean {
    return this.recording?.hasRoom === false
  }

  private takeSize(body: Uint8Array): boolean {
    const size = decodeSize(body)
    if (!size) return false
    this.size = size
    this.recording?.resize(size)
    return true
  }
}
