// The ways between sessions and agents, as `terminals.ts` sees them: the sockets of this hub, which `front.ts` has, and
// other hubs, which `terminal_relay.ts` reaches.

/** `open`: not welcomed yet. */
export type AgentStage = 'gone' | 'open' | 'welcomed'

/** The way to agents' sockets. */
export interface AgentLines {
  /** The newest connection of a device to this hub. */
  find(deviceId: string): number | undefined
  /** How far a connection of the device is. */
  stageOf(deviceId: string, conn: number): AgentStage
  send(conn: number, frame: Uint8Array): void
}

/** The way to agents that are connected to other hubs, and from those here to sessions there. */
export interface AgentsElsewhere {
  toAgent(node: string, deviceId: string, frame: Uint8Array): void
  /** False when the session is no other hub's. */
  fromAgent(deviceId: string, id: string, frame: Uint8Array): boolean
  agentUp(deviceId: string, conn: number): void
  agentDown(deviceId: string, conn: number, code: number): void
  /**
   * How many terminals the device has on other hubs. Where they are more than `most`, those are ended first whose
   * hub is gone.
   */
  makeRoom(deviceId: string, most: number): Promise<number>
}

/** Which agent sent a frame. */
export interface AgentSender {
  deviceId: string
  orgId: string
  ip: string
}
