// How rows of one kind wait and are written: batch after batch in order, tried again while PostgreSQL is away, without
// the one that PostgreSQL refuses. Knows nothing of what is written.
import { Batcher } from '../src/batch.ts'
import { limits } from '../src/limits.ts'
import { persist } from './persist.ts'

export interface LaneEvents {
  onBatch(statement: string, rows: number): void
  onProblem(message: string, details: Record<string, unknown>): void
}

export interface LaneOptions<T> {
  /** Rows of one statement; storeBatchMax unless given. */
  rowsMax?: number
  /** Rows that may wait; storeRowsMax unless given. */
  queueMax?: number
  bytesOf?: (item: T) => number
  /** What PostgreSQL refused, and is dropped. */
  reject?: (item: T) => void
  /** Written after tries that PostgreSQL did not answer. */
  onRepeated?: () => void
}

/** Opens a lane; `gapMs` between the starts of two statements gathers rows. */
export type OpenLane = <T>(
  name: string,
  write: (items: T[]) => Promise<void>,
  gapMs?: number,
  options?: LaneOptions<T>,
) => Batcher<T>

/** Lanes that tell these events, until `signal` gives up waiting for PostgreSQL. */
export function lanes(events: LaneEvents, signal: AbortSignal): OpenLane {
  return <T>(
    name: string,
    write: (items: T[]) => Promise<void>,
    gapMs = 0,
    {
      rowsMax = limits.storeBatchMax,
      queueMax = limits.storeRowsMax,
      bytesOf,
      reject,
      onRepeated,
    }: LaneOptions<T> = {},
  ) => {
    const problem = (message: string, error: unknown) =>
      events.onProblem(message, { statement: name, reason: String(error) })
    return new Batcher<T>({
      rowsMax,
      bytesMax: limits.storeBatchBytesMax,
      queueMax,
      inFlight: 1,
      gapMs,
      ...(bytesOf ? { bytesOf } : {}),
      onBatch: (rows) => events.onBatch(name, rows),
      write: async (items) => {
        let repeated = false
        await persist(items, {
          write,
          signal,
          onOutage: (error) => {
            repeated = true
            problem('PostgreSQL does not take writes; they wait', error)
          },
          reject: (item, error) => {
            problem('PostgreSQL refused a row; it is dropped', error)
            reject?.(item)
          },
        })
        if (repeated) onRepeated?.()
      },
    })
  }
}
