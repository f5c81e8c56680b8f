// One connection that stays open to LISTEN, comes back by itself, and knows until when nothing can have
// been missed. Knows no payload.
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, escapeIdentifier } from 'pg'
import { connection } from './db.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'

export interface Listener {
  /**
   * The time (of `now`, in ms) up to which every committed NOTIFY has been handed over: when the last
   * answered ping was sent. -Infinity while there is no connection.
   */
  completeUntil(): number
  close(): Promise<void>
}

export interface ListenOptions {
  url: string
  channel: string
  log: Logger
  onMessage(payload: string): void
  /** A new connection listens; what came before it may have been missed. */
  onConnect(): void
  now?: () => number
}

/** Starts listening; resolves never, fails never: while PostgreSQL is away it keeps trying. */
export function listen(options: ListenOptions): Listener {
  const { log, now = () => performance.now() } = options
  let completeUntil = -Infinity
  let client: Client | undefined
  let timer: NodeJS.Timeout | undefined
  let failures = 0
  let closed = false
  let connecting: Promise<void> = connect()

  async function connect(): Promise<void> {
    const fresh = new Client({
      ...connection({ url: options.url, name: 'listen' }),
      query_timeout: limits.statementMsMax + limits.statementGraceMs,
    })
    client = fresh
    // The end of a connection is told by an error, an end, or both.
    fresh.on('error', (error) => lose(fresh, error))
    fresh.on('end', () => lose(fresh, undefined))
    fresh.on('notification', (message) => options.onMessage(message.payload ?? ''))
    try {
      await fresh.connect()
      const since = now()
      await fresh.query(`listen ${escapeIdentifier(options.channel)}`)
      if (client !== fresh) return
      failures = 0
      options.onConnect()
      completeUntil = since
      timer = setTimeout(() => void ping(fresh), limits.listenPingMs)
    } catch (error) {
      lose(fresh, error)
    }
  }

  /** PostgreSQL hands over what it has before it answers, so an answer proves that nothing is missing. */
  async function ping(current: Client): Promise<void> {
    const sent = now()
    const deadline = setTimeout(
      () => lose(current, new Error('the LISTEN connection does not answer')),
      limits.identityTrustMs,
    )
    try {
      await current.query('select')
      if (client !== current) return
      completeUntil = sent
      timer = setTimeout(() => void ping(current), limits.listenPingMs)
    } catch (error) {
      lose(current, error)
    } finally {
      clearTimeout(deadline)
    }
  }

  function lose(lost: Client, error: unknown): void {
    if (client !== lost) return
    client = undefined
    completeUntil = -Infinity
    clearTimeout(timer)
    // It may be half open: ending it must neither wait nor throw.
    lost.end().catch(() => undefined)
    if (closed) return
    const waitMs =
      Math.min(limits.listenRetryMsMax, 50 * 2 ** failures++) * (0.5 + Math.random() / 2)
    log.warn({ err: error, waitMs: Math.round(waitMs) }, 'the LISTEN connection was lost')
    timer = setTimeout(() => {
      connecting = connect()
    }, waitMs)
  }

  return {
    completeUntil: () => completeUntil,
    async close() {
      closed = true
      clearTimeout(timer)
      await connecting
      clearTimeout(timer)
      const last = client
      client = undefined
      completeUntil = -Infinity
      // A half-open connection would never end politely, and stopping must not wait for it.
      if (last)
        await Promise.race([last.end(), sleep(limits.listenPingMs, undefined, { ref: false })])
    },
  }
}
