// The supervisor's side of a trial: looks at it until it committed or failed. Judges by what it sees itself,
// never by what the new version says of its own health.

import { performance } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import { exitCodes } from '../errors.ts'
import { readIfThere } from '../files.ts'
import type { State } from '../state.ts'
import { quietMsMax, trialMs } from './bounds.ts'
import type { Reason } from './reasons.ts'
import { isOnTrial } from './record.ts'
import type { UpgradeRecord } from './record.ts'
import type { SignOfLife } from './trial.ts'

/** How a child ended. */
export interface ChildEnd {
  code: number | null
  signal: string | null
}

/** What is known of a trial at one moment. */
export interface Sight {
  committed: boolean
  end: ChildEnd | null
  elapsedMs: number
  /** Since the last sign of life. */
  quietMs: number
  link: string
}

export interface Bounds {
  trialMs: number
  quietMs: number
}

export interface Failure {
  reason: Reason
  error: string
}

export type Verdict = 'wait' | 'committed' | Failure

/** What to make of a trial. Pure. */
export function judge(
  { committed, end, elapsedMs, quietMs, link }: Sight,
  bounds: Bounds,
): Verdict {
  // A commit stands, whatever became of the process since.
  if (committed) return 'committed'
  if (end) return { reason: 'crashed', error: `the new version ended with ${endText(end)}` }
  if (quietMs >= bounds.quietMs) {
    const seconds = Math.round(bounds.quietMs / 1000)
    return { reason: 'hung', error: `the new version gave no sign of life for ${seconds} s` }
  }
  if (elapsedMs < bounds.trialMs) return 'wait'
  const seconds = Math.round(bounds.trialMs / 1000)
  return {
    reason: 'hub_unreachable',
    error: `the new version was not connected long enough within ${seconds} s: ${link}`,
  }
}

/** Looks at a trial until there is a verdict, or null when `stopping` came first. */
export async function watchTrial(
  state: State,
  endOf: () => ChildEnd | null,
  { commandId, endsByMs }: UpgradeRecord,
  stopping: AbortSignal,
): Promise<'committed' | Failure | null> {
  const bounds = { trialMs: Math.min(trialMs(), endsByMs - Date.now()), quietMs: quietMsMax() }
  const startedMs = performance.now()
  let signMs = startedMs
  let sign: SignOfLife | null = null
  for (;;) {
    const now = performance.now()
    const next = readSign(state)
    if (next && next.count !== sign?.count) signMs = now
    sign = next ?? sign
    // Asked before the record is read: what ended can't commit any more.
    const end = endOf()
    const verdict = judge(
      {
        committed: !isOnTrial(state, commandId),
        end,
        elapsedMs: now - startedMs,
        quietMs: now - signMs,
        link: sign?.link ?? 'it never began to connect',
      },
      bounds,
    )
    if (verdict !== 'wait') return stopping.aborted && verdict !== 'committed' ? null : verdict
    await delay(bounds.quietMs / 60)
  }
}

function readSign(state: State): SignOfLife | null {
  try {
    return JSON.parse(readIfThere(state.trial) ?? 'null') as SignOfLife | null
  } catch {
    return null
  }
}

function endText({ code, signal }: ChildEnd): string {
  if (code === exitCodes.ok) return 'exit code 0 before it was proved'
  return signal === null ? `exit code ${code}` : signal
}
