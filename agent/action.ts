// What an action is: the one interface between the commands engine and everything a hub may ask for.

import type { UpgradePhase } from '../src/protocol.ts'
import type { Log } from './log.ts'
import type { Stream } from './progress.ts'
import type { Outcome } from './result.ts'
import type { State } from './state.ts'

export type Payload = Record<string, unknown>

/** Why a command is stopped before its own end. */
export type StopReason = 'timeout' | 'cancelled' | 'interrupted'

/** What an action may use and must obey. */
export interface ActionContext {
  id: string
  state: State
  log: Log
  /** Aborted at the deadline, on cancel and when the agent stops. */
  signal: AbortSignal
  /** Wall clock, ms since 1970: the command's deadline. */
  endsByMs: number
  /** Sends live output; may drop it. */
  progress(stream: Stream, text: string): void
  /** Tells how far an upgrade is. */
  phase(phase: UpgradePhase): void
  /** Records a process group durably, so that it can't outlive the agent unseen. */
  spawned(pid: number): Promise<void>
  agent: AgentControl
}

/** What an action may ask of the agent itself. */
export interface AgentControl {
  /** Sends a fresh inventory; false when there is no connection. */
  sendInventory(): Promise<boolean>
  /** Ends this process so that a new one takes over. */
  restart(): void
  /** Ends this process so that the supervisor tries the version of the upgrade's record. */
  upgrade(): void
  /** Ends this process for good. */
  leave(): void
}

/** What an action returns; `after` runs once the hub has acknowledged the end, or was silent. */
export interface ActionOutcome extends Outcome {
  after?: () => Promise<void>
  /** The command goes on in the next process, which brings its end. */
  handedOver?: true
}

export interface Action {
  /** Runs beside others: it only looks, or it ends what hangs. */
  concurrent: boolean
  /** Changes nothing, so it may run again after a crash and its start need not wait for the disk. */
  repeatable: boolean
  run(payload: Payload, context: ActionContext): Promise<ActionOutcome>
}

/** A payload that can't be obeyed: the command fails with this sentence. */
export class PayloadError extends Error {}

/** A non-empty string of the payload. */
export function requireText(payload: Payload, name: string): string {
  const value = payload[name]
  if (typeof value !== 'string' || value === '') {
    throw new PayloadError(`payload: ${name} must be a non-empty string`)
  }
  if (value.includes('\0')) throw new PayloadError(`payload: ${name} must not hold U+0000`)
  return value
}

/** A whole number of the payload within bounds, or the default when absent. */
export function wholeNumber(
  payload: Payload,
  name: string,
  bounds: { min: number; max: number; absent?: number },
): number {
  const value = payload[name] ?? bounds.absent
  const { min, max } = bounds
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
    throw new PayloadError(`payload: ${name} must be a whole number from ${min} to ${max}`)
  }
  return value
}
