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

/** Why a command that was still pending is cancelled. It may have been on its way: then its `lateResult` tells. */
export const cancelledPending = 'cancelled before the device confirmed it'

export function isEnded(status: CommandStatus): status is EndedStatus {
  return (endedStatuses as readonly string[]).includes(status)
}

/** How far an agent says its upgrade is: `progress` of the stream `phase`. */
export const upgradePhases = ['downloading', 'verifying', 'trial'] as const
export type UpgradePhase = (typeof upgradePhases)[number]

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
  | { type: 'progress'; id: string; seq: number; stream: 'phase'; data: UpgradePhase }
  | ResultFrame
  | AlertFrame

// ---- front ↔ shard ---------------------------------------------------------------------------

/** A command on its way to an actor; `payload` stays the JSON text that the caller sent. */
/** Actions that may run beside the one other command of a device: they look at or end what hangs. */
const concurrentActions = new Set(['list_processes', 'kill_process'])

/** SQL: whether the command `c` may run beside another one. */
export const isConcurrentSql = (c: string) =>
  `${c}.action in ('${Array.from(concurrentActions).join("', '")}')`

/** True when commands of this action may run beside another one; unknown actions may not. */
export function isConcurrent(action: string): boolean {
  return concurrentActions.has(action)
}

/**
 * What became of a cancel: being ended as cancelled, the agent was asked, too late for another end is being written,
 * or not open there.
 */
export type CancelAnswer = 'cancelled' | 'asked' | 'ending' | 'unknown'

export interface CommandMessage {
  id: string
  action: string
  payload: string
  timeoutSeconds: number
  /** Milliseconds since 1970. */
  createdMs: number
  expiresMs: number
  /** May run beside another command of the device. */
  concurrent: boolean
  /** A request waits for its end: the shard sends the ended row along. */
  awaited: boolean
  /** Set: the payload only names a script; the shard completes the frame when it is written. */
  executionId: string | null
}

/**
 * What a shard finds in its mail, in order. Frames come as two entries, connection number and text:
 * objects would cost more to clone than the frame itself.
 */
export type ToShard = number | string | ShardMessage

/** Of the token that an agent came with. `next`: the new one of two, so the other ends; `old`: it gets a new one. */
export type TokenState = 'current' | 'next' | 'old'

export type ShardMessage =
  | {
      type: 'connect'
      conn: number
      deviceId: string
      orgId: string
      /** Null: as it was. */
      ip: string | null
      /** The socket outlived its shard: claim again, but do not welcome the agent twice. */
      resumed: boolean
      token: TokenState
    }
  /** A replaced shard has heard of every open socket of its devices: the others have none. */
  | { type: 'replayed' }
  | { type: 'closed'; conn: number }
  /** The frame of this command went out on this connection. */
  | { type: 'sent'; conn: number; id: string }
  | { type: 'command'; deviceId: string; command: CommandMessage }
  /** PostgreSQL may hold this open command and nobody have told of it: ask. */
  | { type: 'check'; deviceId: string; id: string }
  /** A connection with this epoch holds the device, on another hub unless it is the one here. */
  | { type: 'superseded'; deviceId: string; epoch: number }
  | { type: 'cancel'; deviceId: string; id: string; ask: number }
  /** Ended by someone else than the actor: a decommission, a sweep. */
  | { type: 'ended'; deviceId: string; id: string }
  | { type: 'decommissioned'; deviceId: string }
  /** Status or settings of this organization changed: read them again. */
  | { type: 'organization'; orgId: string }
  /** Any organization may have changed unheard. */
  | { type: 'organizations' }
  /** Others may have taken this hub for dead: claim every open socket anew. */
  | { type: 'reclaim' }
  /** The hub goes down in order: sockets that close now are no device's fault. */
  | { type: 'leaving' }
  /**
   * Once a second. All deadlines are judged here, after what came before it in the mail. `deaf`: heartbeats of
   * this shard were dropped since the last one.
   */
  | { type: 'tick'; deaf: boolean }
  | { type: 'gc' }
  | { type: 'stop' }

/** One turn of the front: everything that arrived, with the time it arrived. */
export interface ShardMail {
  atMs: number
  mail: ToShard[]
}

/** What the front finds in a shard's mail; a connection number and a text are a frame to send. */
export type ToFront = number | string | FrontMessage

export type FrontMessage =
  /** A command's frame: its going out is confirmed with `sent`. */
  | { type: 'command'; conn: number; id: string; text: string }
  | { type: 'close'; conn: number; code: number; reason: string }
  /**
   * Ids of committed ends, for those who wait; rows, as JSON texts by id, of those that a request here waits for.
   * `anywhere`: those that were accepted so lately, by nobody knows which hub, that a request there may wait.
   */
  | { type: 'ended'; ids: string[]; anywhere: string[]; rows: Map<string, string> }
  | { type: 'answer'; ask: number; value: unknown }
  /** Devices were claimed that these other hubs held. */
  | { type: 'claimed_from'; nodes: string[] }
  /** Before the welcome, where there will be one: terminals of the device that live on other hubs. */
  | { type: 'terminals'; deviceId: string; conn: number; sessions: SessionElsewhere[] }
  /** A device is not this hub's any more, and what another one says of it may wait to be taken. */
  | { type: 'superseded' }
  /** Once a second, what this shard counted since the last time. */
  | { type: 'observed'; observed: Observed }
  | { type: 'stopped' }

/** A terminal, and the hub that it lives on. */
export interface SessionElsewhere {
  id: string
  home: string
}

export interface FrontMail {
  mail: ToFront[]
}

/** What a shard counts between two ticks; the front owns the metrics. */
export interface Observed {
  heartbeats: number
  dropped: Record<string, number>
  ended: Record<string, number>
  /** Milliseconds from acceptance. */
  deliveredMs: number[]
  endedMs: number[]
  /** Rows per statement, by what it writes. */
  batches: Record<string, number[]>
  devices: number
  depths: Record<string, number>
  pool: { total: number; idle: number; waiting: number }
  loopSeconds: { p50: number; p99: number }
}

/** Given to a shard thread at its start. */
export interface ShardData {
  index: number
  /** Of all shards of this hub. */
  count: number
  nodeId: string
  databaseUrl: string
  logLevel: string
  heartbeatSeconds: number
  /** Open the data keys of secret parameters. */
  wrappingKeys: Uint8Array[]
  /** One counter: mail batches this shard has taken care of. */
  confirmed: SharedArrayBuffer
}
