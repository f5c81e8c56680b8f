// The wire, once: what an agent and the hub say to each other, and how the socket ends.
// Thread messages (front ↔ shard) live at the end of the file. No behaviour beyond parsing.

/** The WebSocket subprotocol an agent must offer. */
export const agentSubprotocol = 'muster.v1'

/** Close codes of the agent socket; a vocabulary of its own, apart from error codes. */
export const closeCodes = {
  /** The hub restarts: reconnect with full jitter. */
  restart: 1012,
  tooBig: 1009,
  overloaded: 1013,
  /** Keep the identity, retry at the longest back-off; never re-enroll. */
  badToken: 4001,
  /** A newer socket of this device took over. */
  superseded: 4002,
  /** Stop for good: exit 3. */
  decommissioned: 4003,
  /** Retry after 10 minutes. */
  organizationSuspended: 4004,
  heartbeatTimeout: 4008,
  rateLimited: 4029,
} as const

export type CommandStatus =
  | 'pending'
  | 'sent'
  | 'delivered'
  | 'running'
  | 'completed'
  | 'failed'
  | 'timeout'
  | 'cancelled'
  | 'expired'

/** States a command never leaves. */
export const endedStatuses = ['completed', 'failed', 'timeout', 'cancelled', 'expired'] as const
export type EndedStatus = (typeof endedStatuses)[number]

export function isEnded(status: CommandStatus): status is EndedStatus {
  return (endedStatuses as readonly string[]).includes(status)
}

/** How an agent may report the end of a command. */
export type ResultStatus = 'completed' | 'failed' | 'timeout' | 'cancelled'

// ---- hub → agent -----------------------------------------------------------------------------

export type HubFrame =
  | { type: 'welcome'; serverTime: string; heartbeatIntervalSeconds: number }
  | { type: 'heartbeat_ack'; seq: number }
  | {
      type: 'command'
      id: string
      action: string
      payload: Record<string, unknown>
      attempt: number
      timeoutSeconds: number
    }
  | { type: 'cancel'; id: string }
  /** The end of this command is committed (or is none of this agent's business): forget the result. */
  | { type: 'ack'; id: string }
  | { type: 'reconnect'; afterMs: number; reason: 'drain' }
  | { type: 'token'; agentToken: string }
  | { type: 'error'; code: string; message: string }

// ---- agent → hub -----------------------------------------------------------------------------

/** Measured on the device; percentages 0–100. Other numeric members are kept as they come. */
export interface AgentMetrics {
  cpuPercent?: number
  memoryPercent?: number
  diskPercent?: number
  [name: string]: number | undefined
}

export interface HeartbeatFrame {
  type: 'heartbeat'
  seq?: number
  agentVersion?: string
  uptimeSeconds?: number
  metrics?: AgentMetrics
}

export interface InventoryFrame {
  type: 'inventory'
  os?: unknown
  hardware?: unknown
  network?: unknown
  software?: unknown
}

export interface ResultFrame {
  type: 'result'
  id: string
  status: ResultStatus
  exitCode?: number | null
  stdout?: string
  stderr?: string
  truncated?: boolean
  error?: string | null
  durationMs?: number
  /** What an action returns besides text: a process list, `{ scheduled: true }`, a ping's time. */
  data?: unknown
}

export interface AlertFrame {
  type: 'alert'
  severity: 'critical' | 'high' | 'medium' | 'low' | 'info'
  title: string
  message?: string
  dedupeKey: string
}

export type AgentFrame =
  | HeartbeatFrame
  | InventoryFrame
  | { type: 'delivered'; id: string }
  | { type: 'started'; id: string }
  | { type: 'progress'; id: string; seq: number; stream: 'stdout' | 'stderr'; data: string }
  | ResultFrame
  | AlertFrame
