// upgrade.json: what is known of an upgrade from the moment the old version hands over until its result is in
// the journal. Written whole and durably. Older and newer versions read it: members are only ever added.

import { rmSync } from 'node:fs'
import { readIfThere, replaceDurably, syncFolder } from '../files.ts'
import type { RecordedProcess } from '../ledger.ts'
import type { Outcome } from '../result.ts'
import type { State } from '../state.ts'
import type { Reason } from './reasons.ts'

export interface UpgradeRecord {
  commandId: string
  from: string
  to: string
  /**
   * `trial`: the new program lies beside the old one and is to prove itself. `committed`: it did, and takes the
   * old one's place. `failed`: the old one stays.
   */
  phase: 'trial' | 'committed' | 'failed'
  /** Wall clock, ms since 1970: the command's own deadline. */
  endsByMs: number
  /** The trial's process, once it runs. */
  process: RecordedProcess | null
  /** Of a failed one: the code and a sentence. */
  reason: Reason | null
  error: string | null
}

/** The upgrade under way, or null. */
export function readRecord(state: State): UpgradeRecord | null {
  const text = readIfThere(state.upgrade)
  return text === null ? null : (JSON.parse(text) as UpgradeRecord) // replaced whole by writeRecord
}

/**
 * Whether this command's trial is still open. Only the trial itself moves its record on, and it may have gone
 * as far as forgetting it before anybody looks.
 */
export function isOnTrial(state: State, commandId: string): boolean {
  const record = readRecord(state)
  return record?.phase === 'trial' && record.commandId === commandId
}

export function writeRecord(state: State, record: UpgradeRecord): void {
  replaceDurably(state.upgrade, JSON.stringify(record))
}

/** Forgets an upgrade whose result is in the journal. */
export function clearRecord(state: State): void {
  rmSync(state.upgrade, { force: true })
  rmSync(state.trial, { force: true })
  syncFolder(state.dir)
}

/** How the command of an upgrade ended; null while that is open. */
export function outcomeOf({ phase, from, to, reason, error }: UpgradeRecord): Outcome | null {
  switch (phase) {
    case 'trial':
      return null
    case 'committed':
      return { status: 'completed', data: { from, to } }
    case 'failed':
      return {
        status: 'failed',
        error: `${error}; version ${from} is back`,
        data: { reason, from, to, phase: 'trial' },
      }
  }
}
