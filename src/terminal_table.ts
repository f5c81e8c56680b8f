// The sessions that live on this hub, by id and by device.
import type { TerminalSession } from './terminal_session.ts'

const none: ReadonlySet<TerminalSession> = new Set()

export class TerminalTable {
  private readonly byId = new Map<string, TerminalSession>()
  private readonly byDevice = new Map<string, Set<TerminalSession>>()

  get size(): number {
    return this.byId.size
  }

  add(session: TerminalSession): void {
    this.byId.set(session.id, session)
    const siblings = this.byDevice.get(session.deviceId) ?? new Set()
    this.byDevice.set(session.deviceId, siblings.add(session))
  }

  delete(session: TerminalSession): void {
    this.byId.delete(session.id)
    const siblings = this.byDevice.get(session.deviceId)
    siblings?.delete(session)
    if (siblings?.size === 0) this.byDevice.delete(session.deviceId)
  }

  get(id: string): TerminalSession | undefined {
    return this.byId.get(id)
  }

  of(deviceId: string): ReadonlySet<TerminalSession> {
    return this.byDevice.get(deviceId) ?? none
  }

  keys(): Iterable<string> {
    return this.byId.keys()
  }

  values(): Iterable<TerminalSession> {
    return this.byId.values()
  }

  /** Hubs that agents of these sessions are connected to. */
  nodesOfAgents(): Set<string> {
    const nodes = new Set<string>()
    for (const { agent } of this.byId.values()) if (typeof agent === 'string') nodes.add(agent)
    return nodes
  }
}
