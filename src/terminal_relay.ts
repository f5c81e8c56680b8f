// Terminal sessions whose ends are on several hubs. A session lives on one hub, its home; the operator's socket and
// the agent's may each be on another one, and their frames pass through the bus. What the bus loses breaks the
// way it was lost on: a client that comes back, or an agent that is asked to go on, sends again what is missing.
// Here: the sockets whose sessions live elsewhere, and who is still there. Operators elsewhere are
// `terminal_lines.ts`', agents here `terminal_routes.ts`'.
import type { AuditSource } from './audit.ts'
import type { Actor } from './auth.ts'
import { everyHub, type Bus } from './bus.ts'
import type { Database } from './db.ts'
import type { Identities } from './identities.ts'
import { hexOf, uuidOf } from './ids.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import { closeCodes, type SessionElsewhere } from './protocol.ts'
import { endSentence, homeSilent, unknownSession, wayBroke } from './terminal_ends.ts'
import { encodeFrame, encodeText, type TerminalSize } from './terminal_frames.ts'
import { HomeLines } from './terminal_lines.ts'
import { TerminalLink, type Notice } from './terminal_link.ts'
import {
  ways,
  type Asker,
  type IssuedTicket,
  type RelayMessage,
  type Way,
} from './terminal_messages.ts'
import { endedAmong } from './terminal_rows.ts'
import { TerminalRoutes } from './terminal_routes.ts'
import type { AgentsElsewhere } from './terminal_agents.ts'
import type { TerminalDevice, Terminals } from './terminals.ts'

export interface TerminalRelayOptions {
  bus: Bus
  db: Database
  log: Logger
  terminals: Terminals
  identities: Identities
}

/** Where a ticket leads: a line to the session's home that waits for its socket. */
export interface RemoteTicket {
  home: string
  line: string
  actor: Actor
}

/** An operator's socket here, whose session lives elsewhere. */
export interface OperatorSocket {
  send(frame: Uint8Array): void
  close(code: number, reason: string): void
}

export class TerminalRelay implements AgentsElsewhere {
  private readonly link: TerminalLink
  private readonly lines: HomeLines
  private readonly routes: TerminalRoutes
  private readonly sockets = new Map<string, { home: string; socket: OperatorSocket }>()
  private readonly beat: NodeJS.Timeout
  private readonly terminals: Terminals
  private readonly options: TerminalRelayOptions

  constructor(options: TerminalRelayOptions) {
    const { bus, terminals, identities } = options
    this.options = options
    this.terminals = terminals
    this.link = new TerminalLink(bus)
    const { link } = this
    this.lines = new HomeLines({ link, terminals, identities })
    const onUp = (homes: ReadonlySet<string>) => this.tellHubs(homes)
    this.routes = new TerminalRoutes({ link, terminals, onUp })
    link.listen({
      answer: (from, question) => this.lines.answer(from, question),
      notice: (from, notice) => this.receive(from, notice),
      frame: (from, way, key, bytes) => this.receiveFrame(from, way, key, bytes),
    })
    bus.on('interrupted', () => void this.review())
    // What passed meanwhile is lost.
    bus.onLost(() => this.lose(() => true))
    bus.onBack(() => {
      this.routes.lostAll()
      this.tellHubs(this.peers())
    })
    terminals.attachElsewhere(this)
    this.beat = setInterval(() => this.look(), limits.relayBeatMs)
  }

  close(): void {
    clearInterval(this.beat)
    this.lines.close()
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
    return (await this.link.ask(home, question, limits.relayOpenMs)) as IssuedTicket
  }

  async ticket(home: string, actor: Actor, id: string): Promise<IssuedTicket> {
    const question = { op: 'ticket', asker: askerOf(actor), id } as const
    return (await this.link.ask(home, question)) as IssuedTicket
  }

  /** Undefined for a ticket that is not good. */
  async redeem(home: string, id: string, ticket: string): Promise<RemoteTicket | undefined> {
    const value = await this.link.ask(home, { op: 'redeem', id, ticket })
    return value === null ? undefined : { home, ...(value as { line: string; actor: Actor }) }
  }

  /** The socket of a redeemed ticket is there. */
  join({ home, line }: RemoteTicket, source: AuditSource, socket: OperatorSocket): void {
    this.sockets.set(line, { home, socket })
    if (!this.link.tell(home, { op: 'up', line, source })) this.leave(line)
  }

  fromSocket(line: string, bytes: Uint8Array): void {
    const found = this.sockets.get(line)
    if (found && !this.link.frame(found.home, ways.toHome, line, bytes)) this.leave(line)
  }

  socketClosed(line: string): void {
    const found = this.sockets.get(line)
    if (!found) return
    this.sockets.delete(line)
    this.link.tell(found.home, { op: 'down', line })
  }

  /** A line that lost something: its client comes back. */
  private leave(line: string, why = wayBroke): void {
    const found = this.sockets.get(line)
    this.socketClosed(line)
    found?.socket.close(closeCodes.restart, why)
  }

  // ---- the agent's side

  /** Sessions elsewhere of a device that has just been claimed here. */
  learn(deviceId: string, conn: number, sessions: readonly SessionElsewhere[]): void {
    this.routes.learn(deviceId, conn, sessions)
  }

  agentUp(deviceId: string, conn: number): void {
    this.routes.agentUp(deviceId, conn)
  }

  agentDown(deviceId: string, conn: number, code: number): void {
    this.routes.agentDown(deviceId, conn, code)
  }

  fromAgent(deviceId: string, id: string, bytes: Uint8Array): boolean {
    return this.routes.fromAgent(deviceId, id, bytes)
  }

  toAgent(node: string, deviceId: string, bytes: Uint8Array): void {
    const sent = this.link.frame(node, ways.toAgent, hexOf(deviceId), bytes)
    if (!sent) this.terminals.agentLeft(deviceId, node, closeCodes.restart)
  }

  async makeRoom(deviceId: string, most: number): Promise<number> {
    if (this.routes.countOf(deviceId) > most) await this.review()
    if (this.routes.countOf(deviceId) > most) await this.routes.endForsaken(deviceId)
    return this.routes.countOf(deviceId)
  }

  // ---- what other hubs say

  private receive(from: string, notice: Notice): void {
    switch (notice.op) {
      case 'up':
        return this.lines.up(from, notice.line, notice.source)
      case 'down':
        return this.lines.down(from, notice.line)
      case 'close': {
        const found = this.sockets.get(notice.line)
        if (found?.home !== from) return
        this.sockets.delete(notice.line)
        return found.socket.close(notice.code, notice.reason)
      }
      case 'beat':
        return this.hear(from, notice)
      case 'agent_down':
        return this.terminals.agentLeft(notice.deviceId, from, notice.code)
    }
  }

  private receiveFrame(from: string, way: Way, key: string, bytes: Uint8Array): void {
    switch (way) {
      case ways.toHome:
        return this.lines.fromOperator(from, key, bytes)
      case ways.toOperator: {
        const found = this.sockets.get(key)
        if (found?.home === from) found.socket.send(bytes)
        else this.link.tell(from, { op: 'down', line: key })
        return
      }
      case ways.toAgent:
        return this.routes.toAgent(from, uuidOf(key), bytes)
      case ways.fromAgent:
        return this.terminals.fromElsewhere(from, uuidOf(key), bytes)
    }
  }

  private hear(from: string, { lines, agents }: Extract<RelayMessage, { op: 'beat' }>): void {
    this.lines.heard(from, lines)
    for (const { deviceId, ids, again } of agents) {
      for (const id of this.terminals.agentElsewhere(deviceId, from, ids, again)) {
        const over = encodeFrame('close', id, 0, encodeText(unknownSession))
        this.link.frame(from, ways.toAgent, hexOf(deviceId), over)
      }
    }
  }

  // ---- who is still there

  private look(): void {
    const peers = this.peers()
    this.tellHubs(peers)
    const silent = this.link.silent(peers)
    if (silent.length === 0) return
    this.lose((node) => silent.includes(node), homeSilent)
    void this.review()
  }

  /** This hub's sweep has ended terminals of hubs that are gone: whoever has their agents is to look. */
  interrupted(): void {
    this.options.bus.send(everyHub, 'interrupted', '')
    void this.review()
  }

  /**
   * Looks which sessions are over without a word of their home: an agent here ends their shells. And which of this
   * hub's own were ended by those who took it for dead.
   */
  async review(): Promise<void> {
    const { db, log } = this.options
    const ids = [...this.routes.sessions(), ...this.terminals.ids()]
    try {
      for (const { id, reason } of await endedAmong(db, ids)) {
        this.routes.end(id, endSentence(reason))
        if (reason === 'interrupted') this.terminals.interrupted(id)
      }
    } catch (error) {
      log.debug({ err: error }, 'ends of terminals can not be read; the next look reads them')
    }
  }

  /** Hubs that an end of a session is on, as far as this one knows. */
  private peers(): Set<string> {
    const homes = Array.from(this.sockets.values(), ({ home }) => home)
    const nodes = [...this.lines.nodes(), ...this.routes.nodes(), ...this.terminals.nodesOfAgents()]
    return new Set([...homes, ...nodes])
  }

  /** These hubs hear what there is here of their sessions. */
  private tellHubs(nodes: Iterable<string>): void {
    for (const node of nodes) {
      const lines = [...this.sockets].filter(([, { home }]) => home === node).map(([line]) => line)
      const { agents, told } = this.routes.of(node)
      if (this.link.tell(node, { op: 'beat', lines, agents })) told()
    }
  }

  /** These hubs are out of reach: what passes through them breaks, and is mended from its ends. */
  private lose(isLost: (node: string) => boolean, why?: string): void {
    this.lines.lose(isLost)
    for (const [line, { home }] of this.sockets) if (isLost(home)) this.leave(line, why)
    this.link.lose(isLost)
    for (const node of this.terminals.nodesOfAgents()) {
      if (isLost(node)) this.terminals.agentsLeft(node)
    }
  }
}

function askerOf({ userId, sessionId }: Actor): Asker {
  return { userId, sessionId }
}
