// The device actor: presence, heartbeat deadline and command queue of one device as a pure function.
// Takes a message and a time, changes the device it is given, returns effects. Never does I/O.
import { limits } from '../src/limits.ts'
import { closeCodes, type AgentFrame, type HeartbeatFrame } from '../src/protocol.ts'
import {
  accept,
  ask,
  cancel,
  checked,
  committed,
  delivered,
  endedElsewhere,
  gone,
  judgeWaiting,
  look,
  next,
  overdue,
  phase,
  result,
  sent,
  started,
  unsendable,
  unsent,
} from './device_queue.ts'
import {
  seen,
  type Device,
  type DeviceMessage,
  type Effect,
  type Held,
  type Rules,
} from './device_state.ts'
import { afterCrossings, crossings } from './thresholds.ts'

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
      return accept(device, message.command, nowMs)
    case 'ask':
      return ask(device, message.id)
    case 'checked':
      return checked(device, message.id, message.command, nowMs)
    case 'gone':
      return gone(device, message.id, nowMs)
    case 'cancel':
      return cancel(device, message.id, message.ask)
    case 'committed':
      return committed(device, message.id, nowMs)
    case 'ended':
      return endedElsewhere(device, message.id, nowMs)
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
    if (device.held) hold(device.held, message)
    return []
  }
  const held = device.held?.messages ?? []
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
  effects.push(...next(device, nowMs))
  return effects
}

/** Agents say results again until they are acknowledged, and heartbeats anyway: what is too much is not kept. */
function hold(held: Held, message: DeviceMessage): void {
  if (message.type === 'frame') {
    const bytes = held.bytes + message.bytes
    if (held.messages.length >= limits.heldFramesMax || bytes > limits.heldBytesMax) return
    held.bytes = bytes
  }
  held.messages.push(message)
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
  }
  const changes = metrics === undefined ? [] : crossings(device.high, metrics, thresholds)
  if (metrics !== undefined) {
    device.metrics = metrics
    device.high = afterCrossings(device.high, changes)
    for (const crossing of changes) effects.push({ type: 'crossing', crossing })
  }
  // Whoever sees the device come, or an alert of it, sees what it said; all else waits for the flush.
  const isVersionDue = device.versionDue && agentVersion !== undefined
  if (device.beatDue || isVersionDue || changes.length > 0) {
    device.beatDue = false
    if (isVersionDue) device.versionDue = false
    // Kept for the flush too: a newer socket may take over before this is written.
    effects.push({ type: 'seen', metrics: device.metrics, agentVersion: device.agentVersion })
  }
  return effects
}

function closed(device: Device): Effect[] {
  const effects: Effect[] = []
  for (const command of device.commands ?? []) {
    // `sending` never reached the world's view; `sent` goes back to pending there too.
    if (command.stage === 'sent') effects.push(unsent(command))
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
    if (command.stage === 'ending') continue
    if (nowMs >= command.dueMs) effects.push(...overdue(command))
    else effects.push(...look(command, nowMs))
  }
  return effects
}
