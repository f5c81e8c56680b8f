// The device actor: presence, heartbeat deadline and command queue of one device as a pure function.
// Takes a message and a time, changes the device it is given, returns effects. Never does I/O.
import {
  closeCodes,
  type AgentFrame,
  type CancelAnswer,
  type CommandMessage,
  type EndedStatus,
} from '../src/protocol.ts'
import type {
  AgentMetrics,
  AlertFrame,
  HeartbeatFrame,
  InventoryFrame,
  ResultFrame,
  UpgradePhase,
} from '../src/protocol.ts'
import {
  afterCrossings,
  crossings,
  type Crossing,
  type HighBits,
  type Thresholds,
} from './thresholds.ts'

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
  /** It came with the claim: whoever accepted it may be another hub. */
  loaded?: true
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
  /** An upgrade ended: the version is written with the next heartbeat, not with the next flush. */
  versionDue: boolean
  /** Whose threshold alert is open. */
  high: HighBits
  resumed: boolean
  /** In order of id, which is the order of acceptance; null while there is none. */
  commands: OpenCommand[] | null
  /** What arrived while the queue was being loaded; null once it is. */
  held: DeviceMessage[] | null
  /** Wall clock (ms) at which the claim was committed. */
  claimedMs: number
}

export type DeviceMessage =
  | { type: 'claimed'; epoch: number; atMs: number; commands: OpenCommand[]; high: HighBits }
  | { type: 'frame'; frame: AgentFrame }
  | { type: 'sent'; id: string }
  /** Its frame can't be made, and never will be. */
  | { type: 'unsendable'; id: string; error: string }
  | { type: 'command'; command: CommandMessage }
  /** PostgreSQL was asked: this command is open. */
  | { type: 'checked'; command: CommandMessage }
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
  | { type: 'answer'; ask: number; value: CancelAnswer }
  /** Ask PostgreSQL whether this command is open, and tell with `checked` when it is. */
  | { type: 'check'; id: string }
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
    versionDue: false,
    high: 0,
    resumed: socket.resumed,
    commands: null,
    held: [],
    claimedMs: 0,
  }
}

/**
 * The actor. `nowMs` is a clock that stands still while the hub does, so that a stall of the hub never
 * counts against an agent. Mutates `device` and returns what is to be done, in order.
 */
export function step(
  device: Device,
  message: DeviceMessage,
  nowMs: number,
  rules: Rules,
): Effect[] {
  if (device.held !== null) return stepLoading(device, message, nowMs, rules)
  switch (message.type) {
    case 'claimed':
      return []
    case 'frame':
      return onFrame(device, message.frame, nowMs, rules)
    case 'sent':
      return sent(device, message.id)
    case 'unsendable':
      return unsendable(device, message.id, message.error)
    case 'command':
      return accept(device, message.command, nowMs, false)
    case 'checked':
      return accept(device, message.command, nowMs, true)
    case 'cancel':
      return cancel(device, message.id, message.ask)
    case 'committed':
      return committed(device, message.id)
    case 'ended':
      return endedElsewhere(device, message.id)
    case 'closed':
      return closed(device)
    case 'tick':
      return tick(device, nowMs, rules)
  }
}

/** Until the claim is committed the snapshot may lack what is told meanwhile: hold it, then merge. */
function stepLoading(
  device: Device,
  message: DeviceMessage,
  nowMs: number,
  rules: Rules,
): Effect[] {
  if (message.type === 'closed') {
    // Not claimed yet: there is nothing of this connection in PostgreSQL to take back.
    return []
  }
  if (message.type === 'tick') return []
  if (message.type !== 'claimed') {
    if (message.type === 'frame' && message.frame.type === 'heartbeat') device.heardMs = nowMs
    device.held?.push(message)
    return []
  }
  const held = device.held ?? []
  device.held = null
  device.commands = message.commands.length === 0 ? null : message.commands
  device.claimedMs = message.atMs
  device.high = message.high
  for (const command of device.commands ?? []) {
    // Nobody knows whether that frame arrived: it goes out again, and the agent drops an id it has.
    if (command.stage === 'sent') command.stage = 'pending'
  }
  const effects: Effect[] = device.resumed ? [] : [{ type: 'welcome' }]
  // Before the epoch is set, so that nothing is sent whose result is among what was held.
  for (const earlier of held) effects.push(...step(device, earlier, nowMs, rules))
  device.epoch = message.epoch
  for (const { id, stage, cancelRequested } of device.commands ?? []) {
    const running = stage === 'delivered' || stage === 'running'
    if (cancelRequested && running) effects.push({ type: 'cancel', id })
  }
  effects.push(...next(device))
  return effects
}

function onFrame(device: Device, frame: AgentFrame, nowMs: number, rules: Rules): Effect[] {
  switch (frame.type) {
    case 'heartbeat':
      return heartbeat(device, frame, nowMs, rules)
    case 'delivered':
      return delivered(device, frame.id, nowMs, rules)
    case 'started':
      return started(device, frame.id, nowMs, rules)
    case 'result':
      return result(device, frame)
    case 'progress':
      return frame.stream === 'phase' ? phase(device, frame.id, frame.data) : []
    case 'inventory':
      return [{ type: 'inventory', frame }]
    case 'alert':
      return [{ type: 'alert', frame }]
  }
}

function heartbeat(
  device: Device,
  { seq, metrics, agentVersion }: HeartbeatFrame,
  nowMs: number,
  { thresholds }: Rules,
): Effect[] {
  device.heardMs = nowMs
  const effects: Effect[] = seq === undefined ? [] : [{ type: 'heartbeat_ack', seq }]
  if (agentVersion !== undefined) {
    device.agentVersion = agentVersion
    if (!device.versionHeard) effects.push(...judgeWaiting(device))
    if (device.versionDue) effects.push(seen(device))
  }
  if (metrics === undefined) return effects
  device.metrics = metrics
  const changes = crossings(device.high, metrics, thresholds)
  device.high = afterCrossings(device.high, changes)
  for (const crossing of changes) effects.push({ type: 'crossing', crossing })
  return effects
}

function sent(device: Device, id: string): Effect[] {
  const command = find(device, id)
  if (command?.stage !== 'sending') return []
  command.stage = 'sent'
  command.attempts++
  return [{ type: 'progress', command, stage: 'sent' }]
}

function unsendable(device: Device, id: string, error: string): Effect[] {
  const command = find(device, id)
  return command?.stage === 'sending' ? [endNow(command, 'failed', error)] : []
}

function delivered(device: Device, id: string, nowMs: number, rules: Rules): Effect[] {
  const command = find(device, id)
  if (command === undefined) return []
  if (command.stage !== 'sending' && command.stage !== 'sent' && command.stage !== 'pending')
    return []
  if (command.stage === 'sending') command.attempts++
  command.stage = 'delivered'
  command.dueMs = runDeadline(command, nowMs, rules)
  return [{ type: 'progress', command, stage: 'delivered' }]
}

function started(device: Device, id: string, nowMs: number, rules: Rules): Effect[] {
  const command = find(device, id)
  if (command === undefined || command.stage === 'running' || command.stage === 'ending') return []
  if (command.stage === 'sending') command.attempts++
  command.stage = 'running'
  command.dueMs = runDeadline(command, nowMs, rules)
  return [{ type: 'progress', command, stage: 'running' }]
}

function runDeadline(command: OpenCommand, nowMs: number, rules: Rules): number {
  return nowMs + command.timeoutSeconds * 1000 + rules.timeoutGraceMs
}

function phase(device: Device, id: string, said: UpgradePhase): Effect[] {
  const command = find(device, id)
  if (command?.action !== 'upgrade_agent' || command.stage === 'ending') return []
  if (command.phase === said) return []
  command.phase = said
  return [{ type: 'phase', id, phase: said }]
}

/** A result ends its command at any stage, even one whose `delivered` was never heard. */
function result(device: Device, said: ResultFrame): Effect[] {
  const command = find(device, said.id)
  if (command === undefined) return [{ type: 'stray', frame: said }]
  const frame = command.action === 'upgrade_agent' ? upgradeResult(device, command, said) : said
  if (frame === null) return []
  // A repeat while the first is being committed: the commit acks both. But where the hub ended the
  // command itself, this is a late result, looked at once that end is committed.
  if (command.stage === 'ending') {
    if (!command.reported) command.late = frame
    return []
  }
  if (command.stage === 'sending') command.attempts++
  command.stage = 'ending'
  command.reported = true
  // Whatever came of it, another version may run now than the one that is shown.
  if (command.action === 'upgrade_agent') device.versionDue = true
  const { type: _type, id: _id, status, ...rest } = frame
  const end = {
    exitCode: null,
    stdout: '',
    stderr: '',
    truncated: false,
    error: null,
    durationMs: null,
  }
  const ended = { ...end, ...rest, status: endOf(status, rest.exitCode) }
  const effects: Effect[] = [{ type: 'end', command, end: ended }]
  if (device.versionDue && device.versionHeard) effects.push(seen(device))
  return effects
}

/** The first heartbeat of a connection proves or refutes what came before it. */
function judgeWaiting(device: Device): Effect[] {
  device.versionHeard = true
  const effects: Effect[] = []
  for (const command of device.commands ?? []) {
    const { late, stage } = command
    if (late === null || stage === 'ending') continue
    command.late = null
    effects.push(...result(device, late))
  }
  return effects
}

/**
 * An upgrade is completed when the heartbeats of this connection name the version, whatever the agent says.
 * Null: no heartbeat came yet, and the result waits for it.
 */
function upgradeResult(
  device: Device,
  command: OpenCommand,
  frame: ResultFrame,
): ResultFrame | null {
  if (frame.status !== 'completed' || command.stage === 'ending') return frame
  if (!device.versionHeard) {
    command.late = frame
    return null
  }
  const { version } = JSON.parse(command.payload) as { version: string } // checked when it was accepted
  if (device.agentVersion === version) return frame
  return {
    type: 'result',
    id: frame.id,
    status: 'failed',
    error: `the agent calls the upgrade to ${version} completed but reports version ${device.agentVersion}`,
    data: { reason: 'version_not_confirmed' },
  }
}

/** A command that ran and exited non-zero failed, whatever the agent calls it. */
function endOf(status: ResultFrame['status'], exitCode: number | null | undefined): EndedStatus {
  return status === 'completed' && exitCode ? 'failed' : status
}

/** Accepted and committed; told after the commit, so the loaded queue may hold it already. */
function accept(
  device: Device,
  message: CommandMessage,
  nowMs: number,
  checked: boolean,
): Effect[] {
  if (find(device, message.id) !== undefined) return []
  // Committed around the claim, told after it: it may have been loaded, carried out and ended since.
  if (!checked && message.createdMs <= device.claimedMs) return [{ type: 'check', id: message.id }]
  const command: OpenCommand = {
    ...message,
    stage: 'pending',
    attempts: 0,
    dueMs: nowMs + (message.expiresMs - message.createdMs),
    cancelRequested: false,
    reported: false,
    late: null,
  }
  device.commands ??= []
  // Two commits may be told out of order; ids are in the order of acceptance.
  let at = device.commands.length
  while (at > 0 && (device.commands[at - 1] as OpenCommand).id > command.id) at--
  device.commands.splice(at, 0, command)
  return next(device)
}

/**
 * Sends what may be sent: every concurrent command, and the oldest other one when none is outstanding.
 * The next one waits for the commit of the end before it: FIFO.
 */
function next(device: Device): Effect[] {
  if (device.commands === null || device.epoch === 0) return []
  const effects: Effect[] = []
  let free = true
  for (const command of device.commands) {
    const waits = command.stage === 'pending'
    if (waits && command.cancelRequested) {
      effects.push(endNow(command, 'cancelled', 'cancelled before it was sent'))
    } else if (waits && (command.concurrent || free)) {
      command.stage = 'sending'
      effects.push({ type: 'send', command })
    }
    if (!command.concurrent) free = false
  }
  return effects
}

function cancel(device: Device, id: string, ask: number): Effect[] {
  const command = find(device, id)
  if (command === undefined) return [{ type: 'answer', ask, value: 'unknown' }]
  // The row may still say that it waits, for as long as PostgreSQL takes no writes.
  if (command.stage === 'ending') return [{ type: 'answer', ask, value: 'ending' }]
  command.cancelRequested = true
  if (command.stage === 'pending') {
    return [
      endNow(command, 'cancelled', 'cancelled before it was sent'),
      { type: 'answer', ask, value: 'cancelled' },
    ]
  }
  return [
    { type: 'cancel', id },
    { type: 'answer', ask, value: 'asked' },
  ]
}

function committed(device: Device, id: string): Effect[] {
  const command = find(device, id)
  remove(device, id)
  const effects = next(device)
  if (command?.reported) effects.unshift({ type: 'ack', id })
  else if (command?.late) effects.unshift({ type: 'stray', frame: command.late })
  return effects
}

/** A sweep or an operator ended it in PostgreSQL; an agent that has it should stop. */
function endedElsewhere(device: Device, id: string): Effect[] {
  const command = find(device, id)
  if (command === undefined) return []
  const stop = command.stage !== 'pending' && command.stage !== 'ending'
  const late = command.late
  remove(device, id)
  const effects = next(device)
  if (stop) effects.unshift({ type: 'cancel', id })
  else if (late) effects.unshift({ type: 'stray', frame: late })
  return effects
}

function closed(device: Device): Effect[] {
  const effects: Effect[] = []
  for (const command of device.commands ?? []) {
    // `sending` never reached the world's view; `sent` goes back to pending there too.
    if (command.stage !== 'sent') continue
    command.stage = 'pending'
    effects.push({ type: 'progress', command, stage: 'pending' })
  }
  effects.push({ type: 'offline', metrics: device.metrics, agentVersion: device.agentVersion })
  return effects
}

function tick(device: Device, nowMs: number, rules: Rules): Effect[] {
  const effects: Effect[] = []
  if (nowMs - device.heardMs > rules.heartbeatTimeoutMs) {
    effects.push({ type: 'close', code: closeCodes.heartbeatTimeout, reason: 'no heartbeat' })
    return effects
  }
  if (nowMs >= device.flushMs) {
    device.flushMs = nowMs + rules.presenceFlushMs
    effects.push(seen(device))
  }
  for (const command of device.commands ?? []) {
    if (command.stage !== 'ending' && nowMs >= command.dueMs) effects.push(...overdue(command))
  }
  return effects
}

function seen(device: Device): Effect {
  const { metrics, agentVersion } = device
  device.metrics = null
  device.versionDue = false
  return { type: 'seen', metrics, agentVersion }
}

/** Past its deadline: what waits expires, what the agent has timed out. The agent is told to stop. */
function overdue(command: OpenCommand): Effect[] {
  const { stage, id, timeoutSeconds } = command
  if (stage === 'pending')
    return [endNow(command, 'expired', 'it expired before the device took it')]
  if (stage === 'delivered' || stage === 'running') {
    return [
      { type: 'cancel', id },
      endNow(command, 'timeout', `the device reported no end within ${timeoutSeconds} s`),
    ]
  }
  return [
    { type: 'cancel', id },
    endNow(command, 'expired', 'it was sent, but the device did not confirm it before it expired'),
  ]
}

function endNow(command: OpenCommand, status: EndedStatus, error: string): Effect {
  command.stage = 'ending'
  return { type: 'end', command, end: hubEnd(status, error) }
}

/** An end that the hub gives, with the sentence that explains it. */
export function hubEnd(status: EndedStatus, error: string): End {
  return {
    status,
    exitCode: null,
    stdout: '',
    stderr: '',
    truncated: false,
    error,
    durationMs: null,
  }
}

function find(device: Device, id: string): OpenCommand | undefined {
  return device.commands?.find((command) => command.id === id)
}

function remove(device: Device, id: string): void {
  if (device.commands === null) return
  device.commands = device.commands.filter((command) => command.id !== id)
  if (device.commands.length === 0) device.commands = null
}
