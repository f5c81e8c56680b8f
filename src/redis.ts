// Connections to Redis that nobody waits for: each is used once, and whatever goes wrong or takes too long ends
// it. Redis holds nothing that can't be lost; what is shared through it stands in the files that use this one.
import { setTimeout as sleep } from 'node:timers/promises'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'

export type Connection = Awaited<ReturnType<typeof connectionTo>>

/** The client's own way back is off, because it waits without end for a server that accepts and says nothing. */
export async function connectionTo(url: string, signal: AbortSignal) {
  // Hundreds of files that a hub without Redis does without.
  const { createClient } = await import('@redis/client')
  signal.throwIfAborted()
  const client = createClient({
    url,
    // What servers of any age speak, without a handshake that permissions could refuse.
    RESP: 2,
    disableClientInfo: true,
    disableOfflineQueue: true,
    maintNotifications: 'disabled',
    socket: { reconnectStrategy: false, connectTimeout: limits.redisConnectMsMax },
  })
  const broken = Promise.withResolvers<never>()
  // Nobody may be waiting when it breaks; the next who asks is told.
  broken.promise.catch(() => {})
  client.on('error', (error) => broken.reject(error))
  const abort = () => broken.reject(new Error('the hub stops'))
  signal.addEventListener('abort', abort, { once: true })

  async function within<T>(ms: number, what: Promise<T>): Promise<T> {
    const late = setTimeout(() => broken.reject(new Error(`no answer within ${ms} ms`)), ms)
    try {
      return await Promise.race([what, broken.promise])
    } finally {
      clearTimeout(late)
    }
  }

  return {
    client,
    /** Rejects when the connection breaks, or the hub stops. */
    broken: broken.promise,
    /** Ends the connection for everybody who waits for it. */
    fail: (error: Error) => broken.reject(error),
    async open(): Promise<void> {
      await within(limits.redisConnectMsMax, client.connect())
    },
    /** The answer to a command; one that takes too long breaks the connection. */
    answer<T>(command: Promise<T>): Promise<T> {
      return within(limits.redisAnswerMsMax, command)
    },
    close(): void {
      signal.removeEventListener('abort', abort)
      client.destroy()
    },
  }
}

/** What a hub uses Redis for, each over connections of its own. */
export type RedisPurpose = 'bus' | 'rates'

/** Tells of one Redis once, although each use notices by itself that it is gone or back. */
export class RedisNews {
  private readonly missing: Set<RedisPurpose>
  private told = false
  private readonly log: Logger

  constructor(log: Logger, uses: readonly RedisPurpose[] = ['bus', 'rates']) {
    this.log = log
    this.missing = new Set(uses)
  }

  lost(use: RedisPurpose, error: unknown): void {
    this.missing.add(use)
    if (this.told) return this.log.debug({ err: error, use }, 'Redis is down')
    this.told = true
    this.log.warn(
      { err: error, use },
      'Redis is down: this hub limits rates by itself, and what other hubs hand over arrives by the sweep',
    )
  }

  back(use: RedisPurpose): void {
    this.missing.delete(use)
    if (this.missing.size > 0) return
    this.told = false
    this.log.info('Redis answers: hubs reach each other and share rates')
  }
}

/** The url may hold a password and is never logged. */
export interface RedisUse {
  /** One connection or more, until they fail; calls `works` whenever Redis has just answered. */
  use: (works: () => void) => Promise<void>
  /** Once per outage: a Redis that is away for a day is told of once, not for every try. */
  onLost: (error: unknown) => void
  onBack: () => void
  signal: AbortSignal
}

export interface RedisLink {
  state: () => 'ok' | 'down'
  /** Resolves when the signal has ended it. */
  ended: Promise<void>
}

/** Keeps Redis in use until the signal; fails never: while Redis is away it keeps trying. */
export function keepRedis({ use, onLost, onBack, signal }: RedisUse): RedisLink {
  let state: 'starting' | 'ok' | 'down' = 'starting'
  let failures = 0
  const works = () => {
    failures = 0
    if (state === 'ok') return
    state = 'ok'
    onBack()
  }
  const lose = (error: unknown) => {
    const wasDown = state === 'down'
    state = 'down'
    if (!signal.aborted && !wasDown) onLost(error)
  }
  const keep = async () => {
    while (!signal.aborted) {
      await use(works).catch(lose)
      const pauseMs = Math.min(limits.redisRetryMsMax, 50 * 2 ** failures++) * Math.random()
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
    }
  }
  return { state: () => (state === 'ok' ? 'ok' : 'down'), ended: keep() }
}
