// What the agent knows of every command, as a pure function of journal records. The journal stores,
// this file understands; replaying a record twice changes nothing.

import type { ResultFrame, ResultStatus } from '../src/protocol.ts'
import type { CommandFrame } from './frames.ts'
import { endErrorCharsMax, executedIdMsMax, executedIdsMax } from './limits.ts'

/** The process group a command runs in; the start time tells a recycled pid apart. */
export interface RecordedProcess {
  pid: number
  startTime: string | null
}

/** What stays of a command after its result was acknowledged. */
export interface End {
  status: ResultStatus
  exitCode: number | null
  error: string | null
}

export type JournalRecord =
  | { type: 'command'; command: CommandFrame; at: number }
  | { type: 'started'; id: string; at: number }
  | { type: 'process'; id: string; process: RecordedProcess }
  | { type: 'result'; result: ResultFrame; at: number }
  | { type: 'acked'; id: string; at: number }
  | { type: 'end'; id: string; end: End; at: number }

export type Entry =
  | { phase: 'waiting'; command: CommandFrame; at: number }
  | { phase: 'running'; command: CommandFrame; at: number; process: RecordedProcess | null }
  | { phase: 'ended'; result: ResultFrame; at: number }
  | { phase: 'done'; end: End; at: number }

/** Commands by id; in the order of arrival, the done ones in the order of their end. */
export type Ledger = Map<string, Entry>

/** Carries one record into the ledger. */
export function apply(ledger: Ledger, record: JournalRecord): void {
  const id = idOf(record)
  const before = ledger.get(id)
  const after = next(before, record)
  if (!after || after === before) return
  if (after.phase === 'done') ledger.delete(id)
  ledger.set(id, after)
}

/** What one record makes of one command. Phases only go forward, so a repeated record is harmless. */
export function next(entry: Entry | undefined, record: JournalRecord): Entry | undefined {
  switch (record.type) {
    case 'command':
      return entry ?? { phase: 'waiting', command: record.command, at: record.at }
    case 'started':
      if (entry?.phase !== 'waiting') return entry
      return { phase: 'running', command: entry.command, at: record.at, process: null }
    case 'process':
      return entry?.phase === 'running' ? { ...entry, process: record.process } : entry
    case 'result':
      if (entry?.phase === 'ended' || entry?.phase === 'done') return entry
      return { phase: 'ended', result: record.result, at: record.at }
    case 'acked':
      if (entry?.phase !== 'ended') return entry
      return { phase: 'done', end: endOf(entry.result), at: record.at }
    case 'end':
      return entry ?? { phase: 'done', end: record.end, at: record.at }
  }
}

/** Reads a journal. Lines that are no records are counted: a crash leaves at most a torn last one. */
export function replay(text: string): { ledger: Ledger; broken: number } {
  const ledger: Ledger = new Map()
  let broken = 0
  for (const line of text.split('\n')) {
    if (line === '') continue
    const record = parseRecord(line)
    if (record) apply(ledger, record)
    else broken++
  }
  return { ledger, broken }
}

/** Drops ids too old, or too many, to come back. */
export function forget(ledger: Ledger, nowMs: number): void {
  let surplus = ledger.size - executedIdsMax
  for (const [id, entry] of ledger) {
    if (entry.phase !== 'done') continue
    if (surplus <= 0 && nowMs - entry.at <= executedIdMsMax) return
    ledger.delete(id)
    surplus--
  }
}

/** The shortest journal that replays to this ledger; payloads of started commands are left out. */
export function* snapshot(ledger: Ledger): Generator<JournalRecord> {
  for (const [id, entry] of ledger) {
    switch (entry.phase) {
      case 'waiting':
        yield { type: 'command', command: entry.command, at: entry.at }
        break
      case 'running':
        yield { type: 'command', command: { ...entry.command, payload: {} }, at: entry.at }
        yield { type: 'started', id, at: entry.at }
        if (entry.process) yield { type: 'process', id, process: entry.process }
        break
      case 'ended':
        yield { type: 'result', result: entry.result, at: entry.at }
        break
      case 'done':
        yield { type: 'end', id, end: entry.end, at: entry.at }
        break
    }
  }
}

/** The brief, truthful answer to a command that comes back after its result was forgotten. */
export function briefResult(id: string, end: End): ResultFrame {
  return { type: 'result', id, ...end, truncated: true }
}

function endOf(result: ResultFrame): End {
  const error = result.error?.slice(0, endErrorCharsMax) ?? null
  return { status: result.status, exitCode: result.exitCode ?? null, error }
}

function idOf(record: JournalRecord): string {
  if (record.type === 'command') return record.command.id
  if (record.type === 'result') return record.result.id
  return record.id
}

// Our own lines carry their type; a torn one is no JSON at all.
function parseRecord(line: string): JournalRecord | null {
  try {
    const record = JSON.parse(line) as JournalRecord | null
    return record && typeof record === 'object' && 'type' in record ? record : null
  } catch {
    return null
  }
}
