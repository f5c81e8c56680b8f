// The command queue of a device actor: one command at a time on its way, in the order of acceptance, each to one
// end. Changes the device it is given and returns effects. Never does I/O.
import {
  cancelledPending,
  type CommandMessage,
  type EndedStatus,
  type ResultFrame,
  type UpgradePhase,
} from '../src/protocol.ts'
import {
  seen,
  type Device,
  type Effect,
  type End,
  type OpenCommand,
  type Rules,
} from './device_state.ts'

/** Accepted and committed; told after the commit, so the loaded queue may hold it already. */
export function accept(device: Device, message: CommandMessage, nowMs: number): Effect[] {
  if (find(device, message.id) !== undefined) return []
  // Committed around the claim, told after it: it may have been loaded, carried out and ended since.
  if (message.createdMs <= device.claimedMs) return ask(device, message.id)
  insert(device, {
    ...message,
    stage: 'pending',
    attempts: 0,
    dueMs: nowMs + (message.expiresMs - message.createdMs),
    cancelRequested: false,
    reported: false,
    late: null,
  })
  return next(device, nowMs)
}

/** Asks about a command that may be open. Until the answer is here nothing is sent that came after it. */
export function ask(device: Device, id: string): Effect[] {
  if (find(device, id) !== undefined) return []
  device.asked ??= new Set()
  device.asked.add(id)
  return [{ type: 'check', id }]
}

/** PostgreSQL holds it open as `command` says, perhaps with the wish to cancel it, or not at all. */
export function checked(
  device: Device,
  id: string,
  command: OpenCommand | null,
  nowMs: number,
): Effect[] {
  device.asked?.delete(id)
  if (device.asked?.size === 0) device.asked = null
  if (command === null || find(device, id) !== undefined) return next(device, nowMs)
  const { stage, cancelRequested } = command
  // As with a queue that is loaded: nobody knows whether that frame arrived.
  if (stage === 'sent') command.stage = 'pending'
  insert(device, command)
  const effects = next(device, nowMs)
  if (cancelRequested && (stage === 'delivered' || stage === 'running')) {
    effects.unshift({ type: 'cancel', id })
  }
  return effects
}

function insert(device: Device, command: OpenCommand): void {
  device.commands ??= []
  // Two commits may be told out of order; ids are in the order of acceptance.
  let at = device.commands.length
  while (at > 0 && (device.commands[at - 1] as OpenCommand).id > command.id) at--
  device.commands.splice(at, 0, command)
}

/**
 * Sends what may be sent: every concurrent command, and the oldest other one when none is outstanding, which a later
 * one may be that was told earlier, and none that may be older is being asked about. The next one waits for the commit
 * of the end before it: FIFO. What has expired is not sent any more.
 */
export function next(device: Device, nowMs: number): Effect[] {
  if (device.commands === null || device.epoch === 0) return []
  const effects: Effect[] = []
  let free = device.commands.every(({ concurrent, stage }) => concurrent || stage === 'pending')
  const asked = oldestAsked(device)
  for (const command of device.commands) {
    if (asked !== undefined && asked < command.id) free = false
    const waits = command.stage === 'pending'
    if (waits && command.cancelRequested) {
      effects.push(endNow(command, 'cancelled', cancelledPending))
    } else if (waits && nowMs >= command.dueMs) {
      effects.push(...overdue(command))
    } else if (waits && (command.concurrent || free)) {
      command.stage = 'sending'
      effects.push({ type: 'send', command })
    }
    if (!command.concurrent) free = false
  }
  return effects
}

function oldestAsked({ asked }: Device): string | undefined {
  let oldest: string | undefined
  for (const id of asked ?? []) if (oldest === undefined || id < oldest) oldest = id
  return oldest
}

export function sent(device: Device, id: string): Effect[] {
  const command = find(device, id)
  if (command?.stage !== 'sending') return []
  command.stage = 'sent'
  command.attempts++
  return [{ type: 'progress', command, stage: 'sent' }]
}

export function unsendable(device: Device, id: string, error: string): Effect[] {
  const command = find(device, id)
  return command?.stage === 'sending' ? [endNow(command, 'failed', error)] : []
}

export function delivered(device: Device, id: string, nowMs: number, rules: Rules): Effect[] {
  const command = find(device, id)
  if (command === undefined) return []
  if (command.stage !== 'sending' && command.stage !== 'sent' && command.stage !== 'pending')
    return []
  if (command.stage === 'sending') command.attempts++
  command.stage = 'delivered'
  command.dueMs = runDeadline(command, nowMs, rules)
  return [{ type: 'progress', command, stage: 'delivered' }]
}

export function started(device: Device, id: string, nowMs: number, rules: Rules): Effect[] {
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

export function phase(device: Device, id: string, said: UpgradePhase): Effect[] {
  const command = find(device, id)
  if (command?.action !== 'upgrade_agent' || command.stage === 'ending') return []
  if (command.phase === said) return []
  command.phase = said
  return [{ type: 'phase', id, phase: said }]
}

/** A result ends its command at any stage, even one whose `delivered` was never heard. */
export function result(device: Device, said: ResultFrame): Effect[] {
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
export function judgeWaiting(device: Device): Effect[] {
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

export function cancel(device: Device, id: string, number: number): Effect[] {
  const command = find(device, id)
  if (command === undefined) {
    // PostgreSQL ends it where it waits. An answer that is under way may be older than the wish, and is asked for anew.
    return [{ type: 'answer', ask: number, value: 'unknown' }, ...ask(device, id)]
  }
  // The row may still say that it waits, for as long as PostgreSQL takes no writes.
  if (command.stage === 'ending') return [{ type: 'answer', ask: number, value: 'ending' }]
  command.cancelRequested = true
  if (command.stage === 'pending') {
    return [
      endNow(command, 'cancelled', cancelledPending),
      { type: 'answer', ask: number, value: 'cancelled' },
    ]
  }
  return [
    { type: 'cancel', id },
    { type: 'answer', ask: number, value: 'asked', after: id },
  ]
}

export function committed(device: Device, id: string, nowMs: number): Effect[] {
  const command = find(device, id)
  remove(device, id)
  const effects = next(device, nowMs)
  if (command?.reported) effects.unshift({ type: 'ack', id })
  else if (command?.late) effects.unshift({ type: 'stray', frame: command.late })
  return effects
}

/** A sweep or an operator ended it in PostgreSQL; an agent that has it should stop. */
export function endedElsewhere(device: Device, id: string, nowMs: number): Effect[] {
  const command = find(device, id)
  if (command === undefined) return []
  const stop = command.stage !== 'pending' && command.stage !== 'ending'
  const late = command.late
  // Its frame may still be in the making.
  command.stage = 'ending'
  // Whatever came of it, another version may run now than the one that is shown.
  if (command.action === 'upgrade_agent') device.versionDue = true
  remove(device, id)
  const effects = next(device, nowMs)
  if (stop) effects.unshift({ type: 'cancel', id })
  else if (late) effects.unshift({ type: 'stray', frame: late })
  return effects
}

/**
 * Asks whether one that was loaded is still open. It has ended where its end was being written while it was loaded: by
 * what an earlier connection brought to another hub, whose agent was answered there and has no more to say, or by a
 * halt of its roll-out.
 */
export function look(command: OpenCommand, nowMs: number): Effect[] {
  const { loaded, stage, id } = command
  // What is on its way to the agent is answered by it.
  if (loaded === undefined || stage === 'sending' || stage === 'sent') return []
  if (nowMs < loaded.lookMs) return []
  command.loaded = { lookMs: nowMs + loaded.gapMs, gapMs: 2 * loaded.gapMs }
  return [{ type: 'look', id }]
}

/** It was ended after it was loaded. One whose end is being written here finds that out by itself. */
export function gone(device: Device, id: string, nowMs: number): Effect[] {
  return find(device, id)?.stage === 'ending' ? [] : endedElsewhere(device, id, nowMs)
}

/** Past its deadline: what waits expires, what the agent has timed out. The agent is told to stop. */
export function overdue(command: OpenCommand): Effect[] {
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
function hubEnd(status: EndedStatus, error: string): End {
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

/** Its connection is gone before the device said anything of it: it goes back, unless nobody wants it any more. */
export function unsent(command: OpenCommand): Effect {
  if (command.cancelRequested) return endNow(command, 'cancelled', cancelledPending)
  command.stage = 'pending'
  return { type: 'progress', command, stage: 'pending' }
}

export function find(device: Device, id: string): OpenCommand | undefined {
  return device.commands?.find((command) => command.id === id)
}

function remove(device: Device, id: string): void {
  if (device.commands === null) return
  device.commands = device.commands.filter((command) => command.id !== id)
  if (device.commands.length === 0) device.commands = null
}
