// Delivers webhooks: turns events into deliveries, claims what is due, sends it, writes how it went. Every
// hub does; PostgreSQL says who does what. A receiver that is slow or dead costs nobody but itself.
import type { Database } from '../src/db.ts'
import { Batcher } from '../src/batch.ts'
import { destinations } from '../src/destinations.ts'
import { limits } from '../src/limits.ts'
import type { Logger } from '../src/log.ts'
import type { WebhookSettings } from '../src/queue.ts'
import { openSecret, resealSecrets, signature } from '../src/webhook_secrets.ts'
import { sender, type Outcome, type Send } from './webhook_sender.ts'
import {
  advance,
  claim,
  disableOverflowing,
  finish,
  removeDeleted,
  skip,
  walkStart,
  workThere,
  type Claimed,
  type Ended,
} from './webhook_statements.ts'

export interface WebhooksOptions {
  db: Database
  settings: WebhookSettings
  version: string
  log: Logger
  /** Rows handled, by what they are. */
  count: (what: string, rows: number) => void
}

export class Webhooks {
  /** Attempts under way, by webhook. */
  private readonly busy = new Map<string, number>()
  private underWay = 0
  private failingUnderWay = 0
  private readonly after = { true: walkStart, false: walkStart }
  private surveyedMs = -Infinity
  private resealed = false
  private wake: (() => void) | undefined
  private readonly stopping = new AbortController()
  private readonly send: Send
  private readonly ends: Batcher<Ended>
  private readonly options: WebhooksOptions

  constructor(options: WebhooksOptions) {
    this.options = options
    this.send = sender({ destinations: destinations(options.settings.allowedCidrs) })
    this.ends = new Batcher<Ended>({
      rowsMax: limits.webhookAttemptsAtOnceMax,
      queueMax: limits.webhookAttemptsAtOnceMax,
      inFlight: 1,
      write: (ends) => this.write(ends),
    })
  }

  /** One round: waits until there may be something to do, then does what can be done without waiting. */
  async round(): Promise<void> {
    await this.somethingToDo()
    if (this.stopping.signal.aborted) return
    const { db, settings, count } = this.options
    if (!this.resealed) {
      count('webhook_secrets_resealed', await resealSecrets(db, settings.keys))
      this.resealed = true
    }
    const { listens, waits } = await workThere(db)
    const made = listens ? await this.readEvents() : 0
    if (waits || made > 0) {
      await this.begin(false)
      await this.begin(true)
    }
    if (performance.now() - this.surveyedMs >= limits.webhookSurveyMs) await this.survey()
  }

  /** Lets attempts end for a while, then cuts them: they are repeated when their lease has ended. */
  async close(graceMs: number): Promise<void> {
    const cut = setTimeout(() => this.stopping.abort(), graceMs)
    while (this.underWay > 0 && !this.stopping.signal.aborted) {
      await new Promise<void>((resolve) => {
        this.wake = resolve
        this.stopping.signal.addEventListener('abort', () => resolve(), { once: true })
      })
    }
    clearTimeout(cut)
    this.stopping.abort()
    await this.ends.drained()
  }

  /** Resolves when an attempt has ended, which may have made room, or after a while. */
  private async somethingToDo(): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, limits.outboxPollMs)
      this.wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
    this.wake = undefined
  }

  /** Makes deliveries of the events that came; returns how many. */
  private async readEvents(): Promise<number> {
    const { db, count } = this.options
    let all = 0
    for (;;) {
      const { scanned, made } = (await advance(db)) ?? { scanned: 0, made: 0 }
      count('webhook_deliveries', made)
      all += made
      if (scanned < limits.outboxBatchMax) return all
    }
  }

  /** Begins attempts to webhooks that work, or to those that fail, as far as there is room for them. */
  private async begin(failing: boolean): Promise<void> {
    const free = limits.webhookAttemptsAtOnceMax - this.underWay
    const room = failing ? limits.webhookFailingAtOnceMax - this.failingUnderWay : free
    if (Math.min(free, room) <= 0 || this.stopping.signal.aborted) return
    const { claimed, after } = await claim(this.options.db, {
      failing,
      after: this.after[`${failing}`],
      busy: this.busy,
      free: Math.min(free, room),
    })
    this.after[`${failing}`] = after
    for (const delivery of claimed) void this.attempt(delivery)
  }

  private async attempt(delivery: Claimed): Promise<void> {
    const { webhookId, failing } = delivery
    this.busy.set(webhookId, (this.busy.get(webhookId) ?? 0) + 1)
    this.underWay++
    if (failing) this.failingUnderWay++
    try {
      const end = await this.carryOut(delivery)
      this.ends.push(end)
    } catch (error) {
      // Cut by the stop: the lease ends, and the attempt is repeated.
      if (!this.stopping.signal.aborted) this.options.log.error({ err: error }, 'an attempt failed')
      this.done(delivery)
    }
  }

  private async carryOut(delivery: Claimed): Promise<Ended> {
    const { body, eventId, attempt, manual, status } = delivery
    if (status === 'disabled' && !manual) {
      const outcome = failedFor('the webhook is disabled')
      return { delivery, outcome, retrySeconds: null, sent: false }
    }
    const seconds = Math.floor(Date.now() / 1000)
    let signed: string
    try {
      signed = signature(this.secretsOf(delivery), eventId, seconds, body)
    } catch (error) {
      const outcome = failedFor(error instanceof Error ? error.message : String(error))
      return { delivery, outcome, retrySeconds: retrySeconds(attempt), sent: true }
    }
    const headers = {
      'content-type': 'application/json',
      'user-agent': `Muster/${this.options.version}`,
      'webhook-id': eventId,
      'webhook-timestamp': String(seconds),
      'webhook-signature': signed,
    }
    const outcome = await this.send({ url: delivery.url, headers, body }, this.stopping.signal)
    const isOver = outcome.ok || outcome.status === 410
    return { delivery, outcome, retrySeconds: isOver ? null : retrySeconds(attempt), sent: true }
  }

  private secretsOf({ secret, previousSecret }: Claimed): string[] {
    const sealed = previousSecret === null ? [secret] : [secret, previousSecret]
    return sealed.map((one) => openSecret(this.options.settings.keys, one))
  }

  private async write(ends: Ended[]): Promise<void> {
    try {
      await finish(this.options.db, ends)
      const ok = ends.filter(({ outcome }) => outcome.ok).length
      this.options.count('webhook_attempts_ok', ok)
      this.options.count('webhook_attempts_failed', ends.length - ok)
    } catch (error) {
      // Their leases end, and they are sent again: at least once.
      this.options.log.warn({ err: error, rows: ends.length }, 'ends of webhooks were not written')
    }
    for (const { delivery } of ends) this.done(delivery)
  }

  private done({ webhookId, failing }: Claimed): void {
    const left = (this.busy.get(webhookId) ?? 1) - 1
    if (left > 0) this.busy.set(webhookId, left)
    else this.busy.delete(webhookId)
    this.underWay--
    if (failing) this.failingUnderWay--
    this.wake?.()
  }

  private async survey(): Promise<void> {
    const { db, count } = this.options
    this.surveyedMs = performance.now()
    await skip(db)
    count('webhooks_overflowing', await disableOverflowing(db))
    count('webhook_deliveries_removed', await removeDeleted(db))
  }
}

/** Seconds until the next attempt, a fifth sooner or later; null after the last one. */
export function retrySeconds(attempt: number, random: () => number = Math.random): number | null {
  if (attempt >= limits.webhookAttemptsMax) return null
  const seconds = limits.webhookRetrySeconds * 4 ** (attempt - 1)
  return Math.min(seconds, limits.webhookRetrySecondsMax) * (0.8 + 0.4 * random())
}

function failedFor(error: string): Outcome {
  return { ok: false, status: null, response: null, error, durationMs: 0 }
}
