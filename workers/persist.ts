// How a batch reaches PostgreSQL whatever happens: waits out an outage, bisects a batch that the data of
// one row spoils, so that one bad row never blocks another. Knows no table.
import { setTimeout as sleep } from 'node:timers/promises'
import { isConnectionFailure } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import { limits } from '../src/limits.ts'

export interface PersistOptions<T> {
  write: (items: T[]) => Promise<void>
  /** The row that PostgreSQL refuses for what it holds; must not throw. */
  reject: (item: T, error: unknown) => Promise<void> | void
  /** Told once per outage. */
  onOutage?: (error: unknown) => void
  /** Ends the waiting: the thread stops, what is unwritten is unconfirmed and comes again. */
  signal?: AbortSignal
}

/** Writes all items, in order, or gives up only when `signal` aborts. */
export async function persist<T>(items: T[], options: PersistOptions<T>): Promise<void> {
  for (let tries = 0; ; tries++) {
    try {
      await options.write(items)
      return
    } catch (error) {
      if (!isOutage(error)) {
        await bisect(items, error, options)
        return
      }
      if (options.signal?.aborted) return
      if (tries === 0) options.onOutage?.(error)
      // Jitter, so that shards do not knock together.
      await sleep(limits.storeRetryMs * (0.5 + Math.random()))
    }
  }
}

async function bisect<T>(items: T[], error: unknown, options: PersistOptions<T>): Promise<void> {
  if (items.length <= 1) {
    if (items.length === 1) await options.reject(items[0] as T, error)
    return
  }
  const middle = items.length >> 1
  await persist(items.slice(0, middle), options)
  await persist(items.slice(middle), options)
}

function isOutage(error: unknown): boolean {
  if (error instanceof AppError) return error.status === 503
  return isConnectionFailure(error)
}
