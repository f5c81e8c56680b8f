// What a device actor holds, hears and does: its state, its messages and its effects. The actor itself is device.ts.
import type {
  AgentFrame,
  AgentMetrics,
  AlertFrame,
  CancelAnswer,
  CommandMessage,
  EndedStatus,
  InventoryFrame,
  ResultFrame,
  UpgradePhase,
} from '../src/protocol.ts'
import type { Crossing, HighBits, Thresholds } from './thresholds.ts'

/**
 * Where an open command stands. `sending`: its frame is on the way to the socket, still pending to the
 * world. `ending`: its end is being committed, and nothing changes it any more.
 */
export type Stage = 'pending' | 'sending' | 'sent' | 'delivered' | 'running' | 'ending'

/** The stages that the world outside the actor knows. */
export type WorldStage = Exclude<Stage, 'sending' | 'ending'>

export interface OpenCommand extends CommandMessage {
  stage: Stage
  attempts: number
  /** The device's clock (ms) after which the hub ends it: expiry, later the run's deadline. */
  dueMs: number
  cancelRequested: boolean
  /**
   * It came with the claim: whoever accepted it may be another hub. The device's clock (ms) at which PostgreSQL is asked
   * whether it is still open, and how much later the next time.
   */
  loaded?: { lookMs: number; gapMs: number }
  /** The agent sent a result that waits for its ack. */
  reported: boolean
  /** A result that waits: for the hub's own end to be committed, or for a heartbeat that proves it. */
  late: ResultFrame | null
  /** Of an upgrade: what the agent last said of it on this connection. */
  phase?: UpgradePhase
}

/** What an actor judges by: timings in milliseconds, and its organization's thresholds. */
export interface Rules {
  heartbeatTimeoutMs: number
  timeoutGraceMs: number
  presenceFlushMs: number
  thresholds: Thresholds
}

export interface Device {
  readonly id: string
  readonly orgId: string
  /** The front's number of its socket. */
  conn: number
  /** 0 until the claim of this connection is committed. */
  epoch: number
  /** Clock of the last heartbeat. */
  heardMs: number
  /** Clock after which lastSeenAt and metrics are written. */
  flushMs: number
  /** Since the last flush, else null. */
  metrics: AgentMetrics | null
  agentVersion: string | null
  /** A heartbeat of this very connection named the version. */
  versionHeard: boolean
  /** The next heartbeat is the first of this connection, and is written at once. */
  beatDue: boolean
  /** An upgrade ended: the version is written with the next heartbeat, not with the next flush. */
  versionDue: boolean
  /** Whose threshold alert is open. */
  high: HighBits
  resumed: boolean
  /** In order of id, which is the order of acceptance; null while there is none. */
  commands: OpenCommand[] | null
  /** Commands that PostgreSQL is being asked about: they may be open, and what came later waits. Null: none. */
  asked: Set<string> | null
  /** What arrived while the queue was being loaded; null once it is. */
  held: Held | null
  /** Wall clock (ms) at which the claim was committed. */
  claimedMs: number
}

export interface Held {
  messages: DeviceMessage[]
  /** Of the frames among them. */
  bytes: number
}

export type DeviceMessage =
  | { type: 'claimed'; epoch: number; atMs: number; commands: OpenCommand[]; high: HighBits }
  /** `bytes`: how long its text was. */
  | { type: 'frame'; frame: AgentFrame; bytes: number }
  | { type: 'sent'; id: string }
  /** Its frame can't be made, and never will be. */
  | { type: 'unsendable'; id: string; error: string }
  | { type: 'command'; command: CommandMessage }
  /** Somebody knows of this command; it may be open, and not here yet. */
  | { type: 'ask'; id: string }
  /** PostgreSQL was asked: null where this command is not open. */
  | { type: 'checked'; id: string; command: OpenCommand | null }
  /** PostgreSQL was asked: this command has ended. */
  | { type: 'gone'; id: string }
  | { type: 'cancel'; id: string; ask: number }
  /** The store committed this command's end, whoever brought it. */
  | { type: 'committed'; id: string }
  | { type: 'ended'; id: string }
  | { type: 'closed' }
  | { type: 'tick' }

/** What the agent or the hub says of a command's end. */
export interface End {
  status: EndedStatus
  exitCode: number | null
  stdout: string
  stderr: string
  truncated: boolean
  error: string | null
  durationMs: number | null
  data?: unknown
}

export type Effect =
  | { type: 'welcome' }
  | { type: 'send'; command: OpenCommand }
  | { type: 'cancel'; id: string }
  | { type: 'ack'; id: string }
  | { type: 'heartbeat_ack'; seq: number }
  | { type: 'close'; code: number; reason: string }
  /** Presence ends: the socket is gone. With what `seen` would have told. */
  | { type: 'offline'; metrics: AgentMetrics | null; agentVersion: string | null }
  /** Presence lives: lastSeenAt and the metrics since the last flush. */
  | { type: 'seen'; metrics: AgentMetrics | null; agentVersion: string | null }
  /** `stage` as it is now: the command may have moved on when this is carried out. */
  | { type: 'progress'; command: OpenCommand; stage: WorldStage }
  | { type: 'end'; command: OpenCommand; end: End }
  /** A result for an id that is not open here: foreign, unknown or ended. */
  | { type: 'stray'; frame: ResultFrame }
  /** `after`: a command whose row is to say first what is known of it. */
  | { type: 'answer'; ask: number; value: CancelAnswer; after?: string }
  /** Ask PostgreSQL whether this command is open, and tell with `checked`. */
  | { type: 'check'; id: string }
  /** Ask PostgreSQL whether this command is still open, and tell with `gone` when it is not. */
  | { type: 'look'; id: string }
  | { type: 'inventory'; frame: InventoryFrame }
  | { type: 'alert'; frame: AlertFrame }
  | { type: 'crossing'; crossing: Crossing }
  | { type: 'phase'; id: string; phase: UpgradePhase }

/** A device whose socket has just opened; its claim is still to be committed. */
export function openDevice(
  socket: { deviceId: string; orgId: string; conn: number; resumed: boolean },
  nowMs: number,
  flushMs: number,
): Device {
  return {
    id: socket.deviceId,
    orgId: socket.orgId,
    conn: socket.conn,
    epoch: 0,
    heardMs: nowMs,
    flushMs,
    metrics: null,
    agentVersion: null,
    versionHeard: false,
    beatDue: !socket.resumed,
    versionDue: false,
    high: 0,
    resumed: socket.resumed,
    commands: null,
    asked: null,
    held: { messages: [], bytes: 0 },
    claimedMs: 0,
  }
}

export function seen(device: Device): Effect {
  const { metrics, agentVersion } = device
  device.metrics = null
  device.versionDue = false
  return { type: 'seen', metrics, agentVersion }
}
