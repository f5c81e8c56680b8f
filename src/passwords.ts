// Passwords: argon2id in a small pool of threads with a bounded queue, so that a storm of logins neither
// blocks the front nor grows without end. The only door to workers/hash.ts; never holds a connection.
import { Piscina } from 'piscina'
import { availableParallelism } from 'node:os'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import type * as Hash from '../workers/hash.ts'

export interface Passwords {
  /** The PHC string of a password. Throws OVERLOADED when too many wait. */
  hash(password: string): Promise<string>
  /**
   * Does the password fit the stored PHC string? Null (no such user, no password yet) costs the same
   * time and is never true. Throws OVERLOADED when too many wait.
   */
  verify(password: string, phc: string | null): Promise<boolean>
  /** Ends the threads; what waits is refused. */
  close(): Promise<void>
}

/** What a hashing thread is asked: a new hash, or with `phc` whether the password fits it. */
export interface HashTask {
  password: string
  phc?: string
}

interface PasswordsOptions {
  /** All cores but the front's, up to a bound. */
  threads?: number
  queueMax?: number
}

/** Starts the pool. */
export function passwords(options: PasswordsOptions = {}): Passwords {
  const pool = new Piscina<HashTask, string | boolean>({
    filename: new URL('../workers/hash.ts', import.meta.url).href,
    name: 'answer' satisfies keyof typeof Hash,
    // The first login starts it: a hub that nobody talks to needs none.
    minThreads: 0,
    maxThreads: options.threads ?? defaultThreads(),
    maxQueue: options.queueMax ?? limits.hashQueueMax,
    idleTimeout: 60_000,
    recordTiming: false,
  })
  const run = async (task: HashTask) => {
    try {
      return await pool.run(task)
    } catch (error) {
      throw refusalOf(error)
    }
  }
  return {
    hash: async (password) => String(await run({ password })),
    async verify(password, phc) {
      const fits = await run({ password, phc: phc ?? nobody })
      return fits === true && phc !== null
    },
    close: () => pool.destroy(),
  }
}

function defaultThreads(): number {
  return Math.max(1, Math.min(availableParallelism() - 1, limits.hashThreadsMax))
}

// A hash that no password has, with today's parameters: the work for a user who does not exist.
const nobody =
  `$argon2id$v=19$m=${limits.argon2MemoryKiB},t=${limits.argon2Passes},p=${limits.argon2Lanes}` +
  `$${'A'.repeat(22)}$${'A'.repeat(43)}`

// Piscina has no error codes; its messages are few and a test holds them.
function refusalOf(error: unknown): unknown {
  const message = error instanceof Error ? error.message : ''
  const busy = message === 'Task queue is at limit' || message.startsWith('No task queue available')
  if (!busy && message !== 'Terminating worker thread') return error
  return new AppError(
    busy ? 'OVERLOADED' : 'UNAVAILABLE',
    busy ? 'too many people sign in right now; try again shortly' : 'the hub is stopping',
    { retryAfterSeconds: 2, cause: error },
  )
}
