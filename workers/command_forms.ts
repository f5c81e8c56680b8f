// A command in its forms: as PostgreSQL holds it, as its actor does, as a frame, and as a row to be written.
import { limits } from '../src/limits.ts'
import { isConcurrent } from '../src/protocol.ts'
import type { CommandWrite } from './command_writes.ts'
import type { Device, End, OpenCommand, WorldStage } from './device_state.ts'
import type { StoredCommand } from './statements.ts'

/** Now, in ms: the front's clock, how long that stood still, and what a run may take past its time-out. */
export interface Times {
  nowMs: number
  stalledMs: number
  timeoutGraceMs: number
}

/** A stored command, as its actor holds it. */
export function openCommand(
  stored: StoredCommand,
  { nowMs, stalledMs, timeoutGraceMs }: Times,
): OpenCommand {
  const { status, deliveredMs, startedMs, timeoutSeconds, expiresMs, ...rest } = stored
  const runs = startedMs ?? deliveredMs
  const due = runs === null ? expiresMs : runs + timeoutSeconds * 1000 + timeoutGraceMs
  return {
    ...rest,
    timeoutSeconds,
    expiresMs,
    stage: status,
    concurrent: isConcurrent(stored.action),
    // Whoever waits on another hub, or since before a restart, reads the row itself.
    awaited: false,
    // Its result may be waiting on the device since before we came back: let it arrive first.
    dueMs: (runs === null ? due : Math.max(due, nowMs + timeoutGraceMs)) - stalledMs,
    reported: false,
    late: null,
  }
}

/** A command that comes with a claim: who accepted it, and who ended it in the same moment, may be another hub. */
export function loadedCommand(stored: StoredCommand, times: Times): OpenCommand {
  const lookMs = times.nowMs - times.stalledMs + limits.lookGapMs
  return { ...openCommand(stored, times), loaded: { lookMs, gapMs: 2 * limits.lookGapMs } }
}

/** A command, as its agent gets it. */
export function commandFrame(
  { id, action, attempts, timeoutSeconds }: OpenCommand,
  payload: string,
): string {
  const head = `{"type":"command","id":"${id}","action":"${action}","payload":${payload}`
  return `${head},"attempt":${attempts + 1},"timeoutSeconds":${timeoutSeconds}}`
}

/** A state before the end, as it is written. */
export function stateWrite(
  device: Device,
  command: OpenCommand,
  stage: WorldStage,
  atMs: number,
): CommandWrite {
  return {
    ...rowOf(device, command),
    status: stage,
    sentMs: stage === 'sent' ? atMs : null,
    deliveredMs: stage === 'delivered' || stage === 'running' ? atMs : null,
    startedMs: stage === 'running' ? atMs : null,
    result: null,
    completedMs: null,
    awaited: false,
  }
}

/** An end, as it is written. */
export function endWrite(
  device: Device,
  { command, end }: { command: OpenCommand; end: End },
  atMs: number,
): CommandWrite {
  return {
    ...rowOf(device, command),
    status: end.status,
    sentMs: null,
    deliveredMs: null,
    startedMs: null,
    result: endJson(end),
    completedMs: atMs,
    awaited: command.awaited,
  }
}

function rowOf({ id: deviceId, epoch }: Device, command: OpenCommand) {
  const { id, action, executionId, attempts, createdMs, loaded } = command
  const plain = action !== 'upgrade_agent' && executionId === null
  return { id, deviceId, epoch, attempts, createdMs, loaded: loaded !== undefined, plain }
}

function endJson(end: End): string {
  const { status: _status, ...result } = end
  return JSON.stringify(result)
}
