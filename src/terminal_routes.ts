// Agents here, of sessions that live on other hubs: which session of a device belongs to which hub, and what was
// lost on the way there.
import { hexOf } from './ids.ts'
import type { SessionElsewhere } from './protocol.ts'
import { endSentence } from './terminal_ends.ts'
import { decodeFrame, encodeFrame, encodeText } from './terminal_frames.ts'
import type { TerminalLink } from './terminal_link.ts'
import { ways, type AgentHere } from './terminal_messages.ts'
import type { Terminals } from './terminals.ts'

interface RoutedAgent {
  conn: number
  /** Before that its homes need not know of it. */
  welcomed: boolean
  /** Home by session. */
  homes: Map<string, string>
  /** Homes that frames were lost on the way to or from. */
  dirty: Set<string>
}

export interface TerminalRoutesOptions {
  link: TerminalLink
  terminals: Terminals
  /** The agent is connected: its homes are to know. */
  onUp: (homes: ReadonlySet<string>) => void
}

export class TerminalRoutes {
  private readonly agents = new Map<string, RoutedAgent>()
  private readonly options: TerminalRoutesOptions

  constructor(options: TerminalRoutesOptions) {
    this.options = options
  }

  /** Sessions elsewhere of a device that has just been claimed here, with this connection. */
  learn(deviceId: string, conn: number, sessions: readonly SessionElsewhere[]): void {
    const stage = this.options.terminals.stageOf(deviceId, conn)
    // It went before this came; nobody would take it out again.
    if (stage === 'gone') return
    const homes = new Map(sessions.map(({ id, home }) => [`term-${id}`, home]))
    this.agents.set(deviceId, { conn, welcomed: false, homes, dirty: new Set() })
    // A socket that outlived its claim is not welcomed twice.
    if (stage === 'welcomed') this.agentUp(deviceId, conn)
  }

  agentUp(deviceId: string, conn: number): void {
    const agent = this.agents.get(deviceId)
    if (agent?.conn !== conn) return
    agent.welcomed = true
    const homes = new Set(agent.homes.values())
    for (const home of homes) agent.dirty.add(home)
    this.options.onUp(homes)
  }

  agentDown(deviceId: string, conn: number, code: number): void {
    const agent = this.agents.get(deviceId)
    if (agent?.conn !== conn) return
    // The next claim says again what there is.
    this.agents.delete(deviceId)
    if (!agent.welcomed) return
    for (const home of new Set(agent.homes.values())) {
      this.options.link.tell(home, { op: 'agent_down', deviceId, code })
    }
  }

  /** False when the session is no other hub's. */
  fromAgent(deviceId: string, id: string, bytes: Uint8Array): boolean {
    const agent = this.agents.get(deviceId)
    const home = agent?.homes.get(id)
    if (agent === undefined || home === undefined) return false
    const sent = this.options.link.frame(home, ways.fromAgent, hexOf(deviceId), bytes)
    if (!sent) agent.dirty.add(home)
    return true
  }

  /** A frame of a session's home. */
  toAgent(from: string, deviceId: string, bytes: Uint8Array): void {
    const agent = this.agents.get(deviceId)
    const frame = decodeFrame(bytes)
    if (!agent?.welcomed || frame === undefined || agent.homes.get(frame.id) !== from) return
    if (frame.kind === 'close') agent.homes.delete(frame.id)
    this.options.terminals.sendToAgent(agent.conn, bytes)
  }

  /** The session is over, whatever its home says: its shell ends. */
  end(id: string, why: string): void {
    for (const { conn, welcomed, homes } of this.agents.values()) {
      if (!homes.delete(id) || !welcomed) continue
      this.options.terminals.sendToAgent(conn, encodeFrame('close', id, 0, encodeText(why)))
    }
  }

  /** How many sessions of the device live elsewhere. */
  countOf(deviceId: string): number {
    return this.agents.get(deviceId)?.homes.size ?? 0
  }

  /**
   * Ends the device's sessions that their homes do not have, or that are on a hub that does not answer. A hub that
   * can't be asked at all keeps its own: without Redis nobody knows more than the lease says.
   */
  async endForsaken(deviceId: string): Promise<void> {
    const byHome = new Map<string, string[]>()
    for (const [id, home] of this.agents.get(deviceId)?.homes ?? []) {
      byHome.set(home, [...(byHome.get(home) ?? []), id])
    }
    const asking = Array.from(byHome, async ([home, ids]) => {
      const kept = await this.keptBy(home, ids)
      for (const id of ids) if (!kept.includes(id)) this.end(id, endSentence('interrupted'))
    })
    await Promise.all(asking)
  }

  private async keptBy(home: string, ids: string[]): Promise<string[]> {
    const { link } = this.options
    try {
      // A hub of an older version knows no such question: it is there.
      return ((await link.ask(home, { op: 'keeps', ids })) as string[] | null) ?? ids
    } catch {
      return link.works() ? [] : ids
    }
  }

  /** Sessions elsewhere of all agents. */
  *sessions(): Iterable<string> {
    for (const { homes } of this.agents.values()) yield* homes.keys()
  }

  /** Hubs that sessions of agents here live on. */
  *nodes(): Iterable<string> {
    for (const { homes } of this.agents.values()) yield* homes.values()
  }

  /** Something may have been lost on every way. */
  lostAll(): void {
    for (const { homes, dirty } of this.agents.values()) {
      for (const home of homes.values()) dirty.add(home)
    }
  }

  /** The agents that a home is to hear of; `told` says that it did. */
  of(home: string): { agents: AgentHere[]; told: () => void } {
    const agents: AgentHere[] = []
    const routed: RoutedAgent[] = []
    for (const [deviceId, agent] of this.agents) {
      const ids = [...agent.homes].filter(([, node]) => node === home).map(([id]) => id)
      if (ids.length === 0 || !agent.welcomed) continue
      agents.push({ deviceId, ids, again: agent.dirty.has(home) })
      routed.push(agent)
    }
    const told = () => {
      for (const agent of routed) agent.dirty.delete(home)
    }
    return { agents, told }
  }
}
