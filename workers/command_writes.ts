// The lane of command states. Ends go out at once; a state before the end waits a moment, so that a
// quick command is one row update and not three. At most one statement is under way per shard, so the
// states of a command reach PostgreSQL in order.
import { plainArray, textArray, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { CommandStatus } from '../src/protocol.ts'
import type { LaneEvents } from './lanes.ts'
import { persist } from './persist.ts'
import { commandsSql, plainCommandsSql } from './statements.ts'

/** The latest of a command, as far as it is not written yet. Times in ms since 1970, null = unchanged. */
export interface CommandWrite {
  id: string
  deviceId: string
  epoch: number
  status: CommandStatus
  /** JSON text; only of an end. */
  result: string | null
  attempts: number
  createdMs: number
  sentMs: number | null
  deliveredMs: number | null
  startedMs: number | null
  /** Set: this is the end. */
  completedMs: number | null
  /** A request waits for the end and wants the row. */
  awaited: boolean
  /** It came with the claim: a request that waits for it may be any hub's. */
  loaded: boolean
  /** Neither an upgrade nor of an execution. */
  plain: boolean
}

export interface CommandOutcome {
  write: CommandWrite
  /** The row took it. */
  applied: boolean
  /** False: a newer connection of the device took over, and nothing was written. */
  fresh: boolean
  /** The ended command as JSON text, where a request waits for it. */
  row: string | null
}

export interface CommandEvents extends LaneEvents {
  onCommands(outcomes: CommandOutcome[]): void
}

/** By command: with two rows of one command a statement would take either, and tell of both. */
type Batch = Map<string, CommandWrite>

export class CommandWrites {
  /** States before the end, by command, in the order they began to wait. */
  private readonly states = new Map<string, { write: CommandWrite; dueMs: number }>()
  private readonly ends = new Map<string, CommandWrite>()
  private waitingBytes = 0
  /** The statement under way. */
  private underWay: Batch = new Map()
  private timer: NodeJS.Timeout | undefined
  private idle: (() => void)[] = []
  /** Wait for the end of the statement under way. */
  private written: (() => void)[] = []
  private readonly db: Database
  private readonly events: CommandEvents
  private readonly signal: AbortSignal

  constructor(db: Database, events: CommandEvents, signal: AbortSignal) {
    this.db = db
    this.events = events
    this.signal = signal
  }

  get rows(): number {
    return this.states.size + this.ends.size + this.underWay.size
  }

  /** Bytes of results not yet committed. */
  get bytes(): number {
    return this.waitingBytes
  }

  /** Takes a state or an end; merges it with what of the same command still waits. */
  push(write: CommandWrite): void {
    const earlier = this.states.get(write.id)
    const merged = earlier ? merge(earlier.write, write) : write
    if (write.completedMs === null) {
      if (earlier) earlier.write = merged
      else this.states.set(write.id, { write, dueMs: performance.now() + limits.progressDelayMs })
    } else {
      this.states.delete(write.id)
      // A second end of one id comes from a newer connection; the older would be refused anyway.
      const replaced = this.ends.get(write.id)
      this.ends.set(write.id, merged)
      this.waitingBytes += sizeOf(merged) - (replaced ? sizeOf(replaced) : 0)
    }
    this.pump()
  }

  /** Resolves when nothing of this command waits: its row says what is known of it. */
  async settled(id: string): Promise<void> {
    while (this.ends.has(id) || this.states.has(id) || this.underWay.has(id)) {
      await new Promise<void>((resolve) => this.written.push(resolve))
    }
  }

  async drained(): Promise<void> {
    if (this.rows === 0) return
    await new Promise<void>((resolve) => this.idle.push(resolve))
  }

  private pump(): void {
    if (this.underWay.size > 0) return
    const batch = this.take(performance.now())
    if (batch.size > 0) void this.write(batch)
    else if (this.states.size > 0) this.wakeForStates()
    else for (const resolve of this.idle.splice(0)) resolve()
  }

  private wakeForStates(): void {
    if (this.timer !== undefined) return
    const [first] = this.states.values()
    if (first === undefined) return
    this.timer = setTimeout(
      () => {
        this.timer = undefined
        this.pump()
      },
      Math.max(1, first.dueMs - performance.now()),
    )
  }

  private take(nowMs: number): Batch {
    const batch: Batch = new Map()
    let bytes = 0
    for (const [id, end] of this.ends) {
      bytes += sizeOf(end)
      const fits = batch.size < limits.storeBatchMax && bytes <= limits.storeBatchBytesMax
      if (!fits && batch.size > 0) break
      this.ends.delete(id)
      batch.set(id, end)
    }
    for (const [id, state] of this.states) {
      if (batch.size >= limits.storeBatchMax || state.dueMs > nowMs) break
      // The end that an earlier connection brought is judged before what a newer one says of the same command.
      if (batch.has(id)) continue
      this.states.delete(id)
      batch.set(id, state.write)
    }
    return batch
  }

  private async write(batch: Batch): Promise<void> {
    this.underWay = batch
    this.events.onBatch('commands', batch.size)
    const writes = Array.from(batch.values())
    await persist(writes, {
      write: (some) => this.commit(some),
      signal: this.signal,
      onOutage: (error) =>
        this.events.onProblem('PostgreSQL does not take writes; they wait', {
          statement: 'commands',
          reason: String(error),
        }),
      reject: (write, error) => this.reject(write, error),
    })
    for (const write of writes) if (write.completedMs !== null) this.waitingBytes -= sizeOf(write)
    this.underWay = new Map()
    for (const resolve of this.written.splice(0)) resolve()
    this.pump()
  }

  private async commit(writes: CommandWrite[]): Promise<void> {
    const ids = writes.map((write) => write.id)
    const sql = writes.every(({ plain }) => plain) ? plainCommandsSql : commandsSql
    const rows = await this.db.query<{
      id: string
      applied: boolean
      row: string | null
    }>(sql, [
      plainArray(ids),
      plainArray(writes.map((write) => write.deviceId)),
      plainArray(writes.map((write) => write.epoch)),
      plainArray(writes.map((write) => write.status)),
      textArray(writes.map((write) => write.result)),
      plainArray(writes.map((write) => write.attempts)),
      plainArray(writes.map((write) => write.sentMs)),
      plainArray(writes.map((write) => write.deliveredMs)),
      plainArray(writes.map((write) => write.startedMs)),
      plainArray(writes.map((write) => write.completedMs)),
      plainArray(writes.map(() => newId())),
      plainArray(writes.map((write) => write.awaited)),
    ])
    const byId = new Map(rows.map((row) => [row.id, row]))
    this.events.onCommands(
      writes.map((write) => {
        const row = byId.get(write.id)
        const applied = row?.applied ?? false
        // What the row did not need is not told of; what is told and was not taken came of an old epoch.
        return { write, applied, fresh: applied || row === undefined, row: row?.row ?? null }
      }),
    )
  }

  /** What PostgreSQL refuses for its content ends its own command, in words that it does take. */
  private async reject(write: CommandWrite, error: unknown): Promise<void> {
    this.events.onProblem('PostgreSQL refused a result', { id: write.id, reason: String(error) })
    if (write.result === null) return
    const result = JSON.stringify({
      exitCode: null,
      stdout: '',
      stderr: '',
      truncated: true,
      error: 'STORE_REJECTED: the database could not store what the device reported',
      durationMs: null,
    })
    await persist([{ ...write, status: 'failed' as const, result }], {
      write: (some) => this.commit(some),
      signal: this.signal,
      reject: ({ id }, second) =>
        this.events.onProblem('a command could not be ended', { id, reason: String(second) }),
    })
  }
}

function merge(earlier: CommandWrite, later: CommandWrite): CommandWrite {
  return {
    ...later,
    sentMs: later.sentMs ?? earlier.sentMs,
    deliveredMs: earlier.deliveredMs ?? later.deliveredMs,
    startedMs: earlier.startedMs ?? later.startedMs,
  }
}

function sizeOf(write: CommandWrite): number {
  return (write.result?.length ?? 0) + 256
}
