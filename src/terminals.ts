// Terminal sessions of this hub, in memory: frames go from the operator's socket to the agent's and back, with no
// shard and no database on the way. A session lives where its device is connected, and dies with this hub.
import { setTimeout as sleep } from 'node:timers/promises'
import type { AuditSource, AuditTrail } from './audit.ts'
import type { Actor } from './auth.ts'
import type { Database } from './db.ts'
import { AppError } from './errors.ts'
import type { ChangeKind, Identities } from './identities.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import { closeCodes } from './protocol.ts'
import {
  decodeFrame,
  decodeText,
  encodeFrame,
  encodeText,
  type TerminalFrame,
  type TerminalSize,
} from './terminal_frames.ts'
import { StrayFrames } from './stray_frames.ts'
import { Recorder } from './terminal_recorder.ts'
import { mayStay } from './terminal_access.ts'
import type { AgentLines, AgentsElsewhere, AgentSender, AgentStage } from './terminal_agents.ts'
import { TerminalTable } from './terminal_table.ts'
import {
  endCode,
  endSentence,
  EndWriter,
  unknownSession,
  type EndDetails,
} from './terminal_ends.ts'
import { insertTerminal, type EndReason } from './terminal_rows.ts'
import { TerminalSession, type OperatorLine } from './terminal_session.ts'

export interface TerminalsOptions {
  nodeId: string
  db: Database
  identities: Identities
  audit: AuditTrail
  log: Logger
  metrics: Metrics
  absenceSeconds: number
}

export interface TerminalDevice {
  id: string
  orgId: string
  siteId: string
}

export interface Opened {
  session: TerminalSession
  ticket: string
  expiresMs: number
}

export class Terminals {
  private readonly sessions = new TerminalTable()
  private readonly ends: EndWriter
  private readonly strays: StrayFrames
  private readonly recorder: Recorder
  private readonly options: TerminalsOptions
  private readonly review: NodeJS.Timeout
  private readonly stopListening: () => void
  private lines: AgentLines | undefined
  private elsewhere: AgentsElsewhere | undefined
  private closed = false

  constructor(options: TerminalsOptions) {
    this.options = options
    const { db, log } = options
    this.recorder = new Recorder(db, log)
    this.ends = new EndWriter({ db, recorder: this.recorder, log })
    this.strays = new StrayFrames(options.audit, options.log)
    this.stopListening = options.identities.onChange((kind, id) => this.changed(kind, id))
    this.review = setInterval(() => this.changed('missed', ''), limits.terminalReviewMs)
    options.metrics.onScrape(() => options.metrics.terminals.set(this.sessions.size))
  }

  /** The front becomes the way to agents. */
  attach(lines: AgentLines): void {
    this.lines = lines
  }

  attachElsewhere(elsewhere: AgentsElsewhere): void {
    this.elsewhere = elsewhere
  }

  // ---- sessions

  /** True once the device's socket is here and welcomed, which is a moment after the device is shown online. */
  async arrival(deviceId: string): Promise<boolean> {
    const giveUpMs = performance.now() + limits.terminalArrivalMs
    while (this.lines?.find(deviceId) === undefined) {
      if (performance.now() >= giveUpMs) return false
      await sleep(limits.terminalArrivalMs / 20)
    }
    return true
  }

  /** Whether sessions of this node live here. */
  isOwn(nodeId: string): boolean {
    return nodeId === this.options.nodeId
  }

  /**
   * Begins a session with its row. The shell starts when the operator's socket is there. Throws SESSION_LIMIT,
   * OVERLOADED, UNAVAILABLE.
   */
  async open(
    call: AuditSource & { actor: Actor },
    device: TerminalDevice,
    size: TerminalSize,
  ): Promise<Opened> {
    this.requireRoom(device.id)
    const uuid = newId()
    const { orgId, siteId } = device
    const place = { id: `term-${uuid}`, orgId, siteId, deviceId: device.id }
    const session = new TerminalSession(place, call.actor, size)
    // Before the row, so that of two at once the fourth is refused.
    this.sessions.add(session)
    try {
      await this.requireRoomElsewhere(device.id)
      await insertTerminal(this.options.db, call, {
        ...place,
        id: uuid,
        userId: call.actor.userId,
        email: call.actor.email,
        nodeId: this.options.nodeId,
        size,
      })
    } catch (error) {
      this.sessions.delete(session)
      throw error
    }
    session.recording = this.recorder.begin(uuid, () => this.goOn(session))
    session.agent = this.lines?.find(device.id)
    this.watch(session)
    // The hub may have begun to stop, or the sign-in have ended, while the row was written.
    if (this.closed) this.end(session, 'hub_stopped')
    else void this.judge(session)
    return { session, ...session.issueTicket(call.actor, Date.now()) }
  }

  /** The session of an id, if it lives here. */
  find(id: string): TerminalSession | undefined {
    return this.sessions.get(id)
  }

  private requireRoom(deviceId: string): void {
    if (this.closed) throw new AppError('UNAVAILABLE', 'this hub stops', { retryAfterSeconds: 2 })
    const open = this.sessions.of(deviceId).size
    if (open >= limits.terminalsPerDeviceMax) throw tooMany(open)
    if (this.sessions.size + this.ends.waiting < limits.terminalsMax) return
    const message = 'this hub has as many terminals as it can take; try again shortly'
    throw new AppError('OVERLOADED', message, { retryAfterSeconds: 10 })
  }

  /** The agent takes so many in all, whichever hubs they live on. */
  private async requireRoomElsewhere(deviceId: string): Promise<void> {
    // With the one that begins.
    const own = this.sessions.of(deviceId).size
    const most = limits.terminalsPerDeviceMax - own
    const others = (await this.elsewhere?.makeRoom(deviceId, most)) ?? 0
    if (others > most) throw tooMany(own - 1 + others)
  }

  // ---- the operator's socket

  /** Takes over a socket whose ticket was redeemed. One that was there before gives way. */
  operatorUp(session: TerminalSession, line: OperatorLine): void {
    session.operator?.close(closeCodes.superseded, 'the terminal was opened elsewhere')
    session.operator = line
    session.actor = line.actor
    this.watch(session)
    void this.judge(session)
  }

  operatorDown(session: TerminalSession, line: OperatorLine): void {
    if (session.operator !== line) return
    session.operator = undefined
    this.watch(session)
  }

  /** A message of an operator's socket. */
  fromOperator(
    session: TerminalSession,
    line: OperatorLine,
    source: AuditSource,
    bytes: Uint8Array,
  ) {
    const frame = decodeFrame(bytes)
    if (frame === undefined) return this.drop('malformed')
    if (frame.id !== session.id) {
      this.drop('foreign')
      return this.strays.audit(line.actor.userId, source, {
        resourceId: frame.id,
        orgId: line.actor.orgId,
      })
    }
    if (session.operator !== line || session.ended) return this.drop('late')
    if (frame.kind === 'close') {
      return this.end(session, session.exit ? 'exited' : 'closed', { by: source })
    }
    const passes = session.passesFromOperator(frame)
    if (passes === 'held') return
    if (passes === 'flood') return line.close(closeCodes.rateLimited, 'too much at once')
    if (!passes) return this.drop('refused')
    if (frame.kind === 'open') this.toAgent(session, session.openFrame())
    else this.toAgent(session, bytes)
    if (frame.kind === 'resize') this.recorded(session)
  }

  // ---- the agent's socket

  agentUp(deviceId: string, conn: number): void {
    this.elsewhere?.agentUp(deviceId, conn)
    for (const session of this.sessions.of(deviceId)) this.reach(session, conn)
  }

  private reach(session: TerminalSession, agent: number | string): void {
    session.agent = agent
    this.watch(session)
    // Nobody has asked for a shell before the operator came.
    if (session.operator || session.begun) this.toAgent(session, session.openFrame())
  }

  agentDown(deviceId: string, conn: number, code: number): void {
    this.elsewhere?.agentDown(deviceId, conn, code)
    this.agentLeft(deviceId, conn, code)
  }

  /** The agent is not where it was: on this connection, or on that hub. */
  agentLeft(deviceId: string, agent: number | string, code: number): void {
    for (const session of this.sessions.of(deviceId)) {
      if (session.agent !== agent) continue
      session.agent = this.lines?.find(deviceId)
      const isRefused =
        code === closeCodes.decommissioned || code === closeCodes.organizationSuspended
      if (isRefused) this.end(session, 'device_refused', { code })
      else this.watch(session)
    }
  }

  /** A binary message of an agent; false when it was none of its sessions' business. */
  fromAgent(agent: AgentSender, conn: number, bytes: Uint8Array): boolean {
    const frame = decodeFrame(bytes)
    if (frame === undefined) {
      this.drop('malformed')
      return false
    }
    const session = this.sessions.get(frame.id)
    if (session?.deviceId === agent.deviceId) return this.take(session, frame, bytes)
    if (session) this.refuseAgent(agent, frame)
    else if (this.elsewhere?.fromAgent(agent.deviceId, frame.id, bytes)) return true
    else this.forget(conn, frame)
    return false
  }

  /** A frame of an agent that is connected to another hub. */
  fromElsewhere(node: string, deviceId: string, bytes: Uint8Array): void {
    const frame = decodeFrame(bytes)
    if (frame === undefined) return this.drop('malformed')
    const session = this.sessions.get(frame.id)
    // On another way by now: what comes late on this one comes there again.
    if (session?.deviceId !== deviceId || session.agent !== node) return this.drop('late')
    this.take(session, frame, bytes)
  }

  private take(session: TerminalSession, frame: TerminalFrame, bytes: Uint8Array): boolean {
    if (frame.kind === 'close') {
      this.end(session, 'agent_refused', { why: decodeText(frame.body) })
      return true
    }
    if (!session.passesFromAgent(frame)) {
      this.drop('refused')
      // What follows would leave a gap for good: the agent begins again at what was confirmed.
      if (frame.kind === 'data' && session.asksAgain(Date.now())) {
        this.toAgent(session, session.openFrame())
      }
      return false
    }
    session.operator?.send(bytes)
    this.recorded(session)
    return true
  }

  /** Another device's session: whoever guesses ids is written down. */
  private refuseAgent({ deviceId, orgId, ip }: AgentSender, { id }: TerminalFrame): void {
    this.drop('foreign')
    this.strays.audit(
      deviceId,
      { ip, userAgent: null, requestId: '' },
      { resourceId: id, orgId, deviceId },
    )
  }

  /** A session that is over, or of a hub before this one: the agent may let go of it. */
  private forget(conn: number, { id, kind }: TerminalFrame): void {
    this.drop('unknown')
    if (kind === 'close') return
    this.lines?.send(conn, encodeFrame('close', id, 0, encodeText(unknownSession)))
  }

  private recorded({ recording }: TerminalSession): void {
    if (recording) this.recorder.touched(recording)
  }

  /** The recording has room again: the device may, too. */
  private goOn(session: TerminalSession): void {
    const ack = session.ended ? undefined : session.releaseOutput()
    if (ack) this.toAgent(session, ack)
  }

  private toAgent({ agent, deviceId }: TerminalSession, frame: Uint8Array): void {
    if (typeof agent === 'number') this.lines?.send(agent, frame)
    else if (agent !== undefined) this.elsewhere?.toAgent(agent, deviceId, frame)
  }

  // ---- agents on other hubs

  stageOf(deviceId: string, conn: number): AgentStage {
    return this.lines?.stageOf(deviceId, conn) ?? 'gone'
  }

  /** A frame for an agent here, of a session that lives elsewhere. */
  sendToAgent(conn: number, frame: Uint8Array): void {
    this.lines?.send(conn, frame)
  }

  /** The agent is connected to that hub; `again`: frames were lost. Returns those of the sessions that are over. */
  agentElsewhere(deviceId: string, node: string, ids: readonly string[], again: boolean): string[] {
    for (const session of this.sessions.of(deviceId)) {
      const isKnown = session.agent === node && !again
      if (ids.includes(session.id) && !isKnown) this.reach(session, node)
    }
    return ids.filter((id) => this.sessions.get(id)?.deviceId !== deviceId)
  }

  /** Hubs that agents of sessions here are connected to. */
  nodesOfAgents(): Set<string> {
    return this.sessions.nodesOfAgents()
  }

  /** That hub is out of reach. */
  agentsLeft(node: string): void {
    for (const { agent, deviceId } of this.sessions.values()) {
      if (agent === node) this.agentLeft(deviceId, node, closeCodes.restart)
    }
  }

  // ---- absence and access

  /** Begins or stops to count the time that a session may be without one of its ends. */
  private watch(session: TerminalSession): void {
    if (session.ended) return
    const isWhole = session.operator !== undefined && session.agent !== undefined
    if (isWhole) {
      clearTimeout(session.absence)
      session.absence = undefined
      return
    }
    session.absence ??= setTimeout(() => {
      const reason = session.operator === undefined ? 'operator_lost' : 'agent_lost'
      this.end(session, session.exit ? 'exited' : reason)
    }, this.options.absenceSeconds * 1000)
  }

  /** The device is at another site now; who may not see it there loses the terminal. */
  deviceMoved(deviceId: string, siteId: string): void {
    for (const session of this.sessions.of(deviceId)) {
      session.siteId = siteId
      void this.judge(session)
    }
  }

  private changed(kind: ChangeKind | 'missed', id: string): void {
    for (const session of this.sessions.values()) {
      const { userId, sessionId, orgId } = session.actor
      if (kind === 'session') session.forgetTickets(id)
      const held = { user: userId, session: sessionId, organization: orgId, missed: '' }[kind]
      if (held === id) void this.judge(session)
    }
  }

  private async judge(session: TerminalSession): Promise<void> {
    if (!(await mayStay(this.options.identities, session))) this.end(session, 'access_ended')
  }

  // ---- ends

  /** Sessions that live here. */
  ids(): Iterable<string> {
    return this.sessions.keys()
  }

  /** The row of a session here was ended by another hub, which took this one for dead. */
  interrupted(id: string): void {
    const session = this.sessions.get(id)
    if (session) this.end(session, 'interrupted')
  }

  private end(
    session: TerminalSession,
    reason: EndReason,
    { by, ...details }: EndDetails & { by?: AuditSource } = {},
  ): void {
    if (session.ended) return
    session.ended = true
    clearTimeout(session.absence)
    this.sessions.delete(session)
    const sentence = encodeText(endSentence(reason, details))
    const frame = encodeFrame('close', session.id, 0, sentence)
    if (reason !== 'agent_refused') this.toAgent(session, frame)
    session.operator?.send(frame)
    session.operator?.close(endCode(reason, details), 'ended')
    this.options.metrics.terminalsEnded.inc({ reason })
    this.ends.write(session, { reason, ...(by && { by }) })
  }

  private drop(reason: string): void {
    this.options.metrics.terminalFramesDropped.inc({ reason })
  }

  /** Ends every session and writes what is left of them. */
  async close(): Promise<void> {
    this.closed = true
    this.stopListening()
    clearInterval(this.review)
    for (const session of this.sessions.values()) this.end(session, 'hub_stopped')
    await this.ends.close()
    this.recorder.close()
  }
}

function tooMany(open: number): AppError {
  return new AppError('SESSION_LIMIT', `the device has ${open} terminals open; close one first`)
}
