// Who listens to events on this hub: one reader of the outbox for all of them, a bound on each of them.
// A stream that begins in the past reads for itself until it has met that reader. Knows no socket.
import type { Actor } from './auth.ts'
import type { Database } from './db.ts'
import { AppError } from './errors.ts'
import type { ChangeKind, Identities } from './identities.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import {
  comparePositions,
  currentPosition,
  positionText,
  readOutbox,
  shows,
  type EventFilter,
  type OutboxEvent,
  type Position,
} from './outbox.ts'

/** An open response, whose reader may be slow. Writing to a closed one does nothing. */
export interface StreamSink {
  write(text: string): void
  /** Bytes written that the reader has not taken. */
  unsentBytes(): number
  /** When the reader began not to keep up, in ms of `performance.now()`; undefined while it does. */
  behindSince(): number | undefined
  /** Resolves when everything was taken, or the stream is closed. */
  drained(): Promise<void>
  /** Says a last thing and ends in order. */
  end(text: string): void
  /** Drops the connection: its reader takes nothing. */
  destroy(): void
  /** Called once, whoever closed it. */
  onClose(listener: () => void): void
}

export interface Subscription {
  readonly actor: Actor
  readonly filter: EventFilter
  /** Only what comes after it. */
  readonly after: Position
}

type CloseReason = 'caller' | 'slow' | 'refused' | 'drain'

interface Subscriber {
  actor: Actor
  readonly filter: EventFilter
  readonly sink: StreamSink
  position: Position
  /** It has met the tail, which now writes to it. */
  live: boolean
  closed: CloseReason | undefined
}

export interface EventStreamsOptions {
  db: Database
  identities: Identities
  log: Logger
  metrics: Metrics
}

const everything = { orgId: null, siteIds: null }

export class EventStreams {
  private readonly subscribers = new Set<Subscriber>()
  /** Up to where the tail has read; undefined while nobody listens. */
  private tail: Position | undefined
  private timer: NodeJS.Timeout | undefined
  private failing = false
  private closed = false
  private readonly heartbeat: NodeJS.Timeout
  private readonly stopListening: () => void
  private readonly options: EventStreamsOptions

  constructor(options: EventStreamsOptions) {
    this.options = options
    this.stopListening = options.identities.onChange((kind, id) => this.changed(kind, id))
    this.heartbeat = setInterval(() => this.beat(), limits.streamHeartbeatMs)
    options.metrics.onScrape(() => options.metrics.eventStreams.set(this.subscribers.size))
  }

  /** Throws SESSION_LIMIT, OVERLOADED or UNAVAILABLE when there may be no more streams. */
  admit(actor: Actor): void {
    if (this.closed) throw new AppError('UNAVAILABLE', 'this hub stops', { retryAfterSeconds: 2 })
    if (this.subscribers.size >= limits.streamsMax) {
      const message = 'this hub has as many event streams as it can take; try again shortly'
      throw new AppError('OVERLOADED', message, { retryAfterSeconds: 10 })
    }
    let own = 0
    for (const other of this.subscribers) if (other.actor.userId === actor.userId) own++
    if (own < limits.streamsPerUserMax) return
    throw new AppError('SESSION_LIMIT', `you have ${own} event streams open; close one first`)
  }

  /** Where a stream begins that asks for nothing earlier. */
  async now(): Promise<Position> {
    return this.tail ?? (await currentPosition(this.options.db))
  }

  /** Takes over an answer that has just begun; `now` is from `now()`. */
  open({ actor, filter, after }: Subscription, now: Position, sink: StreamSink): void {
    const subscriber: Subscriber = {
      actor,
      filter,
      sink,
      position: after,
      live: false,
      closed: undefined,
    }
    this.subscribers.add(subscriber)
    sink.onClose(() => this.forget(subscriber))
    // With an id before the first event: whoever is cut off before it loses nothing either.
    sink.write(`retry: ${limits.streamRetryMs}\nid: ${positionText(after)}\n\n`)
    // The session may have ended between the check of its token and here.
    this.review(subscriber)
    if (this.tail === undefined) {
      this.tail = now
      this.lookAfter(0)
    }
    void this.catchUp(subscriber)
  }

  /** Ends every stream in order and takes no new one; readers come back spread over some seconds. */
  close(): void {
    this.closed = true
    this.stopListening()
    clearInterval(this.heartbeat)
    for (const subscriber of this.subscribers) {
      const retryMs = Math.round(limits.streamRetryMs * (1 + Math.random()))
      this.end(subscriber, 'drain', `retry: ${retryMs}\n\n`)
    }
    clearTimeout(this.timer)
  }

  // ---- the tail

  private lookAfter(ms: number): void {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => void this.look(), ms)
  }

  private async look(): Promise<void> {
    const from = this.tail
    if (from === undefined) return
    let nextMs: number = limits.outboxPollMs
    try {
      const batch = await readOutbox(this.options.db, everything, {}, from, limits.outboxBatchMax)
      // Everybody left meanwhile, and perhaps others came: their reader is another one.
      if (this.tail !== from) return
      if (batch.last) {
        this.tail = batch.last
        this.tell(batch.events)
      }
      if (batch.scanned >= limits.outboxBatchMax) nextMs = 0
      this.failing = false
    } catch (error) {
      if (!this.failing)
        this.options.log.warn({ err: error }, 'events can not be read; tried again')
      this.failing = true
      nextMs = limits.outboxRetryMs
    }
    if (this.tail !== undefined && !this.closed) this.lookAfter(nextMs)
  }

  private tell(events: readonly OutboxEvent[]): void {
    const frames = events.map(frameOf)
    for (const subscriber of this.subscribers) {
      if (!subscriber.live) continue
      let text = ''
      for (let i = 0; i < events.length; i++) {
        const event = events[i] as OutboxEvent
        // Its own reading may have been ahead of the tail.
        const isNew = comparePositions(event, subscriber.position) > 0
        if (isNew && shows(subscriber.actor, subscriber.filter, event)) text += frames[i] as string
      }
      if (text !== '') this.write(subscriber, text)
    }
  }

  private write(subscriber: Subscriber, text: string): void {
    const unsent = subscriber.sink.unsentBytes()
    const isSlow = unsent > 0 && unsent + Buffer.byteLength(text) > limits.streamUnsentBytesMax
    if (isSlow) this.drop(subscriber)
    else if (subscriber.closed === undefined) subscriber.sink.write(text)
  }

  // ---- one stream

  /** Reads from the stream's own position on, as fast as its reader takes it, until the tail is met. */
  private async catchUp(subscriber: Subscriber): Promise<void> {
    while (subscriber.closed === undefined) {
      const { tail } = this
      if (tail === undefined) return
      if (comparePositions(subscriber.position, tail) >= 0) {
        subscriber.live = true
        return
      }
      try {
        await this.readOn(subscriber, tail)
      } catch (error) {
        this.options.log.debug({ err: error }, 'a stream can not read its past; tried again')
        await new Promise((resolve) => setTimeout(resolve, limits.outboxRetryMs))
      }
    }
  }

  private async readOn(subscriber: Subscriber, tail: Position): Promise<void> {
    const { filter, position, sink } = subscriber
    const { actor } = subscriber
    const limit = limits.outboxBatchMax
    const batch = await readOutbox(this.options.db, actor, filter, position, limit)
    // Who was narrowed meanwhile must not see what was read for who they were.
    if (subscriber.closed !== undefined || subscriber.actor !== actor) return
    if (batch.events.length > 0) sink.write(batch.events.map(frameOf).join(''))
    const last = batch.last ?? position
    const isComplete = batch.scanned < limit && comparePositions(last, tail) < 0
    // Nothing else lies before the tail, which was read up to there before this was.
    subscriber.position = isComplete ? tail : last
    await sink.drained()
  }

  private beat(): void {
    const nowMs = performance.now()
    for (const subscriber of this.subscribers) {
      const { sink, live, position } = subscriber
      const behindMs = nowMs - (sink.behindSince() ?? nowMs)
      if (behindMs > limits.streamStallMs) {
        this.drop(subscriber)
        continue
      }
      // The id moves on also for whom nothing is shown, so that a later resume need not read it again.
      const at =
        live && this.tail && comparePositions(this.tail, position) > 0 ? this.tail : position
      this.write(subscriber, `: heartbeat\nid: ${positionText(at)}\n\n`)
      this.review(subscriber)
    }
  }

  // ---- who may listen

  private changed(kind: ChangeKind | 'missed', id: string): void {
    for (const subscriber of this.subscribers) {
      const { userId, sessionId, orgId } = subscriber.actor
      const held = { user: userId, session: sessionId, organization: orgId, missed: '' }[kind]
      if (held === id) this.review(subscriber)
    }
  }

  /** Ends a stream whose session, user or organization no longer counts; takes over a new role or sites. */
  private review(subscriber: Subscriber): void {
    const { userId, sessionId } = subscriber.actor
    const judged = async () => {
      const actor = await this.options.identities.of({ userId, sessionId, expiresAt: 0 })
      if (actor !== subscriber.actor) subscriber.actor = actor
    }
    judged().catch((error: unknown) => {
      const refused = error instanceof AppError && error.status < 500
      // While PostgreSQL is away there is nothing to tell; the next look decides.
      if (refused) this.end(subscriber, 'refused', '')
    })
  }

  private drop(subscriber: Subscriber): void {
    if (subscriber.closed !== undefined) return
    subscriber.closed = 'slow'
    subscriber.sink.destroy()
  }

  private end(subscriber: Subscriber, reason: CloseReason, text: string): void {
    if (subscriber.closed !== undefined) return
    subscriber.closed = reason
    subscriber.sink.end(text)
  }

  private forget(subscriber: Subscriber): void {
    subscriber.closed ??= 'caller'
    if (!this.subscribers.delete(subscriber)) return
    this.options.metrics.eventStreamsClosed.inc({ reason: subscriber.closed })
    if (this.subscribers.size > 0) return
    this.tail = undefined
    clearTimeout(this.timer)
  }
}

function frameOf(event: OutboxEvent): string {
  return `id: ${positionText(event)}\nevent: ${event.type}\ndata: ${event.text}\n\n`
}
