// Terminal sessions whose ends are on several hubs. A session lives on one hub, its home; the operator's socket and
// the agent's may each be on another one, and their frames pass through the bus. What the bus loses breaks the
// way it was lost on: a client that comes back, or an agent that is asked to go on, sends again what is missing.
import { randomBytes } from 'node:crypto'
import type { AuditSource } from './audit.ts'
import { can, type Actor } from './auth.ts'
import type { Bus } from './bus.ts'
import { AppError, fromMessage, toMessage } from './errors.ts'
import type { Identities } from './identities.ts'
import { hexOf, uuidOf } from './ids.ts'
import { limits } from './limits.ts'
import { closeCodes } from './protocol.ts'
import { decodeFrame, encodeFrame, encodeText, type TerminalSize } from './terminal_frames.ts'
import { deviceOffline, terminalEnded, unknownSession } from './terminal_ends.ts'
import {
  ways,
  type AgentHere,
  type Asker,
  type Question,
  type RelayMessage,
} from './terminal_messages.ts'
import type { OperatorLine, TerminalSession } from './terminal_session.ts'
import type { AgentsElsewhere, TerminalDevice, Terminals } from './terminals.ts'

export interface TerminalRelayOptions {
  nodeId: string
  bus: Bus
  terminals: Terminals
  identities: Identities
}

/** Where a ticket leads: a line to the session's home that waits for its socket. */
export interface RemoteTicket {
  home: string
  line: string
  actor: Actor
}

export interface IssuedTicket {
  id: string
  ticket: string
  expiresMs: number
}

/** An operator's socket here, whose session lives elsewhere. */
export interface OperatorSocket {
  send(frame: Uint8Array): void
  close(code: number, reason: string): void
}

/** An operator elsewhere, of a session that lives here. */
interface HomeLine {
  node: string
  session: TerminalSession
  actor: Actor
  source: AuditSource | undefined
  line: OperatorLine | undefined
  /** Until its socket is there. */
  expiry: NodeJS.Timeout | undefined
}

/** An agent here, of sessions that live elsewhere. */
interface RoutedAgent {
  conn: number | undefined
  /** Home by session. */
  homes: Map<string, string>
  /** Homes that frames were lost on the way to or from. */
  dirty: Set<string>
}

export class TerminalRelay implements AgentsElsewhere {
  private asks = 0
  private readonly asked = new Map<
    number,
    { node: string; answer: (message: Extract<RelayMessage, { op: 'answer' }>) => void }
  >()
  private readonly homeLines = new Map<string, HomeLine>()
  private readonly sockets = new Map<string, { home: string; socket: OperatorSocket }>()
  private readonly agents = new Map<string, RoutedAgent>()
  /** When a hub was last heard of, in ms of `performance.now()`. */
  private readonly heardMs = new Map<string, number>()
  private readonly beat: NodeJS.Timeout
  private readonly options: TerminalRelayOptions

  constructor(options: TerminalRelayOptions) {
    this.options = options
    const { bus, terminals } = options
    bus.on('terminal', (from, body) => {
      this.heardMs.set(from, performance.now())
      this.receive(from, JSON.parse(body.toString('utf8')) as RelayMessage)
    })
    bus.on('frame', (from, body) => this.receiveFrame(from, body))
    // What passed meanwhile is lost.
    bus.onLost(() => this.lose(() => true))
    bus.onBack(() => this.tellAll(true))
    terminals.attachElsewhere(this)
    this.beat = setInterval(() => this.look(), limits.relayBeatMs)
  }

  close(): void {
    clearInterval(this.beat)
    for (const { expiry } of this.homeLines.values()) clearTimeout(expiry)
  }

  // ---- the operator's side

  /** Opens a session on the hub that holds the device. Throws what that hub says, UNAVAILABLE. */
  async open(
    home: string,
    call: AuditSource & { actor: Actor },
    device: TerminalDevice,
    size: TerminalSize,
  ): Promise<IssuedTicket> {
    const { actor, ip, userAgent, requestId } = call
    const source = { ip, userAgent, requestId }
    const question = { op: 'open', asker: askerOf(actor), source, device, size } as const
    return (await this.ask(home, question)) as IssuedTicket
  }

  async ticket(home: string, actor: Actor, id: string): Promise<IssuedTicket> {
    const question = { op: 'ticket', asker: askerOf(actor), id } as const
    return (await this.ask(home, question)) as IssuedTicket
  }

  /** Undefined for a ticket that is not good. */
  async redeem(home: string, id: string, ticket: string): Promise<RemoteTicket | undefined> {
    const value = await this.ask(home, { op: 'redeem', id, ticket })
    return value === null ? undefined : { home, ...(value as { line: string; actor: Actor }) }
  }

  /** The socket of a redeemed ticket is there. */
  join({ home, line }: RemoteTicket, source: AuditSource, socket: OperatorSocket): void {
    this.sockets.set(line, { home, socket })
    if (!this.tell(home, { op: 'up', line, source })) this.leave(line)
  }

  fromSocket(line: string, bytes: Uint8Array): void {
    const found = this.sockets.get(line)
    if (found && !this.frame(found.home, ways.toHome, line, bytes)) this.leave(line)
  }

  socketClosed(line: string): void {
    const found = this.sockets.get(line)
    if (!found) return
    this.sockets.delete(line)
    this.tell(found.home, { op: 'down', line })
  }

  /** A line that lost something: its client comes back. */
  private leave(line: string): void {
    const found = this.sockets.get(line)
    this.socketClosed(line)
    found?.socket.close(closeCodes.restart, 'the way to the hub of the terminal broke')
  }

  // ---- the agent's side

  /** Sessions elsewhere of a device that has just been claimed here. */
  learn(deviceId: string, sessions: readonly { id: string; home: string }[]): void {
    const homes = new Map(sessions.map(({ id, home }) => [`term-${id}`, home]))
    this.agents.set(deviceId, { conn: undefined, homes, dirty: new Set() })
  }

  agentUp(deviceId: string, conn: number): void {
    const agent = this.agents.get(deviceId)
    if (!agent) return
    agent.conn = conn
    for (const home of new Set(agent.homes.values())) agent.dirty.add(home)
    this.tellHomes(new Set(agent.homes.values()))
  }

  agentDown(deviceId: string, conn: number, code: number): void {
    const agent = this.agents.get(deviceId)
    if (agent?.conn !== conn) return
    // The next claim says again what there is.
    this.agents.delete(deviceId)
    for (const home of new Set(agent.homes.values())) {
      this.tell(home, { op: 'agent_down', deviceId, code })
    }
  }

  fromAgent(deviceId: string, id: string, bytes: Uint8Array): boolean {
    const agent = this.agents.get(deviceId)
    const home = agent?.homes.get(id)
    if (agent === undefined || home === undefined) return false
    if (!this.frame(home, ways.fromAgent, hexOf(deviceId), bytes)) agent.dirty.add(home)
    return true
  }

  toAgent(node: string, deviceId: string, bytes: Uint8Array): void {
    const sent = this.frame(node, ways.toAgent, hexOf(deviceId), bytes)
    if (!sent) this.options.terminals.agentLeft(deviceId, node, closeCodes.restart)
  }

  private passToAgent(from: string, deviceId: string, bytes: Uint8Array): void {
    const agent = this.agents.get(deviceId)
    const frame = decodeFrame(bytes)
    if (agent?.conn === undefined || frame === undefined || agent.homes.get(frame.id) !== from) {
      return
    }
    if (frame.kind === 'close') agent.homes.delete(frame.id)
    this.options.terminals.sendToAgent(agent.conn, bytes)
  }

  // ---- home

  private async answer(from: string, question: Question): Promise<unknown> {
    switch (question.op) {
      case 'open':
        return this.openHere(question)
      case 'ticket':
        return this.issueHere(question)
      case 'redeem':
        return this.redeemHere(from, question)
    }
  }

  private async openHere({ asker, source, device, size }: Extract<Question, { op: 'open' }>) {
    const { terminals } = this.options
    const actor = await this.actorOf(asker)
    if (!(await terminals.arrival(device.id))) {
      throw deviceOffline()
    }
    const { session, ticket, expiresMs } = await terminals.open({ ...source, actor }, device, size)
    return { id: session.id, ticket, expiresMs } satisfies IssuedTicket
  }

  private async issueHere({ asker, id }: Extract<Question, { op: 'ticket' }>) {
    const session = this.options.terminals.find(id)
    const actor = await this.actorOf(asker)
    if (session === undefined || session.actor.userId !== actor.userId) {
      throw terminalEnded(null)
    }
    return { id, ...session.issueTicket(actor, Date.now()) } satisfies IssuedTicket
  }

  private redeemHere(from: string, { id, ticket }: Extract<Question, { op: 'redeem' }>) {
    const session = this.options.terminals.find(id)
    const actor = session?.redeem(ticket, Date.now())
    if (session === undefined || actor === undefined) return null
    const line = randomBytes(16).toString('hex')
    const expiry = setTimeout(() => this.homeLines.delete(line), limits.ticketSeconds * 1000)
    this.homeLines.set(line, {
      node: from,
      session,
      actor,
      source: undefined,
      line: undefined,
      expiry,
    })
    return { line, actor }
  }

  private async actorOf({ userId, sessionId }: Asker): Promise<Actor> {
    const actor = await this.options.identities.of({ userId, sessionId, expiresAt: 0 })
    if (can(actor.role, 'terminals.write')) return actor
    throw new AppError('FORBIDDEN', `your role ${actor.role} may not open terminals`)
  }

  private operatorUp(from: string, key: string, source: AuditSource): void {
    const found = this.homeLines.get(key)
    if (found?.node !== from || found.line) return this.refuse(from, key)
    clearTimeout(found.expiry)
    found.expiry = undefined
    found.source = { ...source, actor: found.actor }
    found.line = {
      actor: found.actor,
      send: (frame) => {
        // Not in the middle of what sends it.
        if (!this.frame(from, ways.toOperator, key, frame))
          setImmediate(() => this.refuse(from, key))
      },
      close: (code, reason) => {
        this.homeLines.delete(key)
        this.tell(from, { op: 'close', line: key, code, reason })
      },
    }
    this.options.terminals.operatorUp(found.session, found.line)
  }

  private operatorDown(key: string): void {
    const found = this.homeLines.get(key)
    this.homeLines.delete(key)
    clearTimeout(found?.expiry)
    if (found?.line) this.options.terminals.operatorDown(found.session, found.line)
  }

  /** A line that is not here, or lost something: its client comes back. */
  private refuse(node: string, line: string): void {
    this.operatorDown(line)
    const reason = 'the way to the hub of the terminal broke'
    this.tell(node, { op: 'close', line, code: closeCodes.restart, reason })
  }

  private hear(from: string, { lines, agents }: Extract<RelayMessage, { op: 'beat' }>): void {
    for (const line of lines) if (this.homeLines.get(line)?.node !== from) this.refuse(from, line)
    for (const { deviceId, ids, again } of agents) {
      for (const id of this.options.terminals.agentElsewhere(deviceId, from, ids, again)) {
        const over = encodeFrame('close', id, 0, encodeText(unknownSession))
        this.frame(from, ways.toAgent, hexOf(deviceId), over)
      }
    }
  }

  // ---- the bus

  private ask(node: string, question: Question): Promise<unknown> {
    const ask = ++this.asks
    return new Promise((resolve, reject) => {
      const end = (message: Extract<RelayMessage, { op: 'answer' }>) => {
        clearTimeout(timer)
        this.asked.delete(ask)
        if (message.error) reject(fromMessage(message.error))
        else resolve(message.value)
      }
      const fail = () => end({ op: 'answer', ask, error: toMessage(unreachable()) })
      const timer = setTimeout(fail, limits.relayAnswerMs)
      this.asked.set(ask, { node, answer: end })
      if (!this.tell(node, { op: 'ask', ask, question })) fail()
    })
  }

  private receive(from: string, message: RelayMessage): void {
    switch (message.op) {
      case 'ask': {
        const { ask } = message
        void this.answer(from, message.question).then(
          (value) => this.tell(from, { op: 'answer', ask, value: value ?? null }),
          (error: unknown) => this.tell(from, { op: 'answer', ask, error: toMessage(error) }),
        )
        return
      }
      case 'answer': {
        const asked = this.asked.get(message.ask)
        if (asked?.node === from) asked.answer(message)
        return
      }
      case 'up':
        return this.operatorUp(from, message.line, message.source)
      case 'down':
        if (this.homeLines.get(message.line)?.node === from) this.operatorDown(message.line)
        return
      case 'close': {
        const found = this.sockets.get(message.line)
        if (found?.home !== from) return
        this.sockets.delete(message.line)
        return found.socket.close(message.code, message.reason)
      }
      case 'beat':
        return this.hear(from, message)
      case 'agent_down':
        return this.options.terminals.agentLeft(message.deviceId, from, message.code)
    }
  }

  private receiveFrame(from: string, body: Buffer): void {
    const key = body.subarray(1, 17).toString('hex')
    const bytes = body.subarray(17)
    switch (body[0] as (typeof ways)[keyof typeof ways]) {
      case ways.toHome: {
        const { node, session, line, source } = this.homeLines.get(key) ?? {}
        if (node !== from || !session || !line || !source) return this.refuse(from, key)
        return this.options.terminals.fromOperator(session, line, source, bytes)
      }
      case ways.toOperator: {
        const found = this.sockets.get(key)
        if (found?.home === from) found.socket.send(bytes)
        else this.tell(from, { op: 'down', line: key })
        return
      }
      case ways.toAgent:
        return this.passToAgent(from, uuidOf(key), bytes)
      case ways.fromAgent:
        return this.options.terminals.fromElsewhere(from, uuidOf(key), bytes)
    }
  }

  private tell(node: string, message: RelayMessage): boolean {
    return this.options.bus.send(node, 'terminal', JSON.stringify(message))
  }

  private frame(node: string, way: number, key: string, bytes: Uint8Array): boolean {
    const head = Buffer.alloc(17)
    head.writeUInt8(way)
    head.write(key, 1, 'hex')
    return this.options.bus.send(node, 'frame', Buffer.concat([head, bytes]))
  }

  // ---- who is still there

  private look(): void {
    this.tellAll(false)
    const nowMs = performance.now()
    const peers = this.peers()
    for (const peer of this.heardMs.keys()) if (!peers.has(peer)) this.heardMs.delete(peer)
    for (const peer of peers) {
      const heardMs = this.heardMs.get(peer)
      if (heardMs === undefined) this.heardMs.set(peer, nowMs)
      else if (nowMs - heardMs > limits.relayLostMs) this.lose((node) => node === peer)
    }
  }

  /** Hubs that an end of a session is on, as far as this one knows. */
  private peers(): Set<string> {
    const peers = new Set<string>()
    for (const { node } of this.homeLines.values()) peers.add(node)
    for (const { home } of this.sockets.values()) peers.add(home)
    for (const { homes } of this.agents.values()) for (const home of homes.values()) peers.add(home)
    for (const node of this.options.terminals.nodesOfAgents()) peers.add(node)
    return peers
  }

  private tellAll(again: boolean): void {
    if (again) {
      for (const { homes, dirty } of this.agents.values()) {
        for (const home of homes.values()) dirty.add(home)
      }
    }
    this.tellHomes(this.peers())
  }

  private tellHomes(peers: Iterable<string>): void {
    for (const peer of peers) {
      const lines = [...this.sockets].filter(([, { home }]) => home === peer).map(([line]) => line)
      const agents: AgentHere[] = []
      const told: RoutedAgent[] = []
      for (const [deviceId, agent] of this.agents) {
        const ids = [...agent.homes].filter(([, home]) => home === peer).map(([id]) => id)
        if (ids.length === 0 || agent.conn === undefined) continue
        agents.push({ deviceId, ids, again: agent.dirty.has(peer) })
        told.push(agent)
      }
      if (!this.tell(peer, { op: 'beat', lines, agents })) continue
      for (const agent of told) agent.dirty.delete(peer)
    }
  }

  /** These hubs are out of reach: what passes through them breaks, and is mended from its ends. */
  private lose(isLost: (node: string) => boolean): void {
    for (const [key, { node }] of this.homeLines) if (isLost(node)) this.operatorDown(key)
    for (const [line, { home }] of this.sockets) if (isLost(home)) this.leave(line)
    for (const { node, answer } of Array.from(this.asked.values())) {
      if (isLost(node)) answer({ op: 'answer', ask: 0, error: toMessage(unreachable()) })
    }
    for (const node of this.options.terminals.nodesOfAgents()) {
      if (isLost(node)) this.options.terminals.agentsLeft(node)
    }
    for (const node of this.heardMs.keys()) if (isLost(node)) this.heardMs.delete(node)
  }
}

function askerOf({ userId, sessionId }: Actor): Asker {
  return { userId, sessionId }
}

function unreachable(): AppError {
  const message =
    'the hub that the device is connected to can not be reached; hubs reach each other through Redis (REDIS_URL)'
  return new AppError('UNAVAILABLE', message, { retryAfterSeconds: 5 })
}
