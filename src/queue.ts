// The front's side of the jobs thread: starts it, hears from it, replaces it when it dies or hangs. What
// the thread does is `workers/jobs.ts`; work that must outlive a process is pg-boss's, in PostgreSQL.
import { Worker } from 'node:worker_threads'
import { sqlState, type Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import type { Change } from './handoff_sql.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import { observeLoop, observePool } from './observe.ts'
import type { About, Peer } from './peers.ts'
import type { CommandMessage, EndedStatus, Observed } from './protocol.ts'
import type { SealKeys } from './webhook_secrets.ts'

export interface JobsOptions {
  nodeId: string
  version: string
  /** What the other hubs are told of this one. */
  about: About
  /** The hub's own role. */
  databaseUrl: string
  /** May create the schema of pg-boss and drop partitions. */
  ownerUrl: string
  logLevel: string
  log: Logger
  metrics: Metrics
  /** Devices that a hub left behind may take this long to come back before they are offline. */
  restartGraceSeconds: number
  webhooks: WebhookSettings
  /** Commands that a sweep ended, after the commit: actors and waiting requests don't know yet. */
  onEnded: (ended: EndedCommand[]) => void
  /** Commands that a job added, after the commit: their actors don't know yet. */
  onCommands?: (commands: DeviceCommand[]) => void
  /** Commands that a job added before it was cut short: their actors may not know yet, and they may have ended since. */
  onUntold?: (untold: EndedCommand[]) => void
  /** Commands that a roll-out wants back. */
  onCancels?: (cancels: EndedCommand[]) => void
  /** Terminals of hubs that are gone were ended, and it is committed. */
  onInterrupted?: () => void
  /** Other hubs have something to look at. */
  onHanded?: (nodes: string[]) => void
  /** Others may have taken this hub for dead: its open sockets must be claimed again. */
  onLeaseRegained?: () => void
  /** The other hubs that are alive changed, or what they tell of themselves. */
  onPeers?: (peers: Peer[]) => void
}

export interface WebhookSettings {
  /** Open and seal their secrets. */
  keys: SealKeys
  /** Where they may go although it is not the public internet. */
  allowedCidrs: readonly string[]
}

/** What was committed and is to be told: to actors here, and to hubs that were handed the rest. */
export interface AddedCommands {
  commands: DeviceCommand[]
  /** Committed earlier: nobody knows whether they were told, nor what became of them since. */
  untold?: EndedCommand[]
  nodes: string[]
}

export interface EndedCommand {
  deviceId: string
  id: string
}

export interface DeviceCommand {
  deviceId: string
  command: CommandMessage
}

export function changesOf(commands: readonly EndedCommand[]): Change[] {
  return commands.map(({ deviceId, id }) => ({ deviceId, commandId: id }))
}

/** Given to the thread at its start. */
export interface JobsData {
  nodeId: string
  version: string
  about: About
  databaseUrl: string
  ownerUrl: string
  logLevel: string
  /** When this hub started, in ms since 1970: graces count from here, also in a replaced thread. */
  startedMs: number
  restartGraceSeconds: number
  webhooks: WebhookSettings
}

export type ToJobs = { type: 'stop' } | { type: 'gc' }

export type FromJobs =
  /** This hub is known to the others from now on; `held`: it was so all the time before, too. */
  | { type: 'leased'; held: boolean }
  | { type: 'peers'; peers: Peer[] }
  | { type: 'ended'; status: EndedStatus; ended: EndedCommand[] }
  | { type: 'commands'; commands: DeviceCommand[] }
  /** Commands that actors here may not know. */
  | { type: 'untold'; untold: EndedCommand[] }
  /** Commands that their actors are to cancel, as far as they are connected here. */
  | { type: 'cancels'; cancels: EndedCommand[] }
  /** Terminals of hubs that are gone were ended. */
  | { type: 'interrupted' }
  /** These hubs were handed something, and it is committed. */
  | { type: 'handed'; nodes: string[] }
  /** Once a second, also as the sign of life. */
  | { type: 'observed'; observed: JobsObserved }

export interface JobsObserved extends Pick<Observed, 'pool' | 'loopSeconds'> {
  /** Rows handled since the last time, by sweep. */
  swept: Record<string, number>
}

/** The queue of pg-boss that executions wait in. */
export const executionQueue = 'executions'

/** The queue of pg-boss that roll-outs with something to do wait in. */
export const rolloutQueue = 'rollouts'

/** Sends the job that carries an execution out, in the transaction that made it. Throws UNAVAILABLE. */
export function sendExecution(tx: Queryable, executionId: string): Promise<void> {
  return send(tx, executionQueue, executionId)
}

/** Sends the job that takes a roll-out further, in the transaction that changed it. Throws UNAVAILABLE. */
export function sendRollout(tx: Queryable, rolloutId: string): Promise<void> {
  return send(tx, rolloutQueue, rolloutId)
}

/** Throws UNAVAILABLE while pg-boss makes its tables, which is a moment after the very first start. */
async function send(tx: Queryable, queue: string, id: string): Promise<void> {
  const sent = await tx.query(sendSql, [queue, JSON.stringify({ id })]).catch((error: unknown) => {
    if (missing.has(sqlState(error) ?? '')) return []
    throw error
  })
  if (sent.length > 0) return
  throw new AppError('UNAVAILABLE', 'the hub is still setting its jobs up; try again shortly', {
    retryAfterSeconds: 1,
  })
}

/** Schema, table, or the right to write it. */
const missing = new Set(['3F000', '42P01', '42501'])

/**
 * What pg-boss's own `send` inserts and tells its listeners, in SQL: a part of its interface, and importing
 * the package would cost the front 15 MB. $1 queue, $2 data
 */
const sendSql = `
with q as (select * from pgboss.queue where name = $1), job as (
  insert into pgboss.job (name, data, retry_limit, retry_delay, retry_backoff, retry_delay_max,
    expire_seconds, deletion_seconds, keep_until, policy)
  select q.name, $2::jsonb, q.retry_limit, q.retry_delay, q.retry_backoff, q.retry_delay_max,
    q.expire_seconds, q.deletion_seconds, now() + make_interval(secs => q.retention_seconds),
    q.policy
  from q
)
select pg_notify('pgboss_' || left(encode(sha224('pgboss'::bytea), 'hex'), 24), q.name) as told
from q`

const thread = 'jobs'

export class Jobs {
  private worker: Worker
  private answeredMs = performance.now()
  private lookedMs = performance.now()
  private failures = 0
  private closing = false
  private restart: NodeJS.Timeout | undefined
  private readonly watch: NodeJS.Timeout
  private known = false
  private readonly leased = Promise.withResolvers<void>()
  private readonly data: JobsData
  private readonly options: JobsOptions

  /** Starts the thread at once; it keeps trying while PostgreSQL is away. */
  constructor(options: JobsOptions) {
    const { nodeId, version, about, databaseUrl, ownerUrl, logLevel, restartGraceSeconds } = options
    const { keys, allowedCidrs } = options.webhooks
    this.options = options
    this.data = {
      nodeId,
      version,
      about,
      databaseUrl,
      ownerUrl,
      logLevel,
      startedMs: Date.now(),
      restartGraceSeconds,
      webhooks: { keys, allowedCidrs },
    }
    this.worker = this.start()
    this.watch = setInterval(() => this.look(), 1000)
  }

  /** Resolves once this hub holds its lease: from then on it may take agents. */
  ready(): Promise<void> {
    return this.leased.promise
  }

  /** True while the thread gives signs of life. */
  healthy(): boolean {
    return performance.now() - this.answeredMs < limits.shardAnswerMsMax
  }

  /** Lets running jobs end and leaves the cluster in order; bounded, for PostgreSQL may be away. */
  async close(): Promise<void> {
    this.closing = true
    clearInterval(this.watch)
    clearTimeout(this.restart)
    const { worker } = this
    if (worker.threadId === -1) return
    const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
    worker.postMessage({ type: 'stop' } satisfies ToJobs)
    const giveUp = setTimeout(() => void worker.terminate(), limits.checkoutMsMax)
    await exited
    clearTimeout(giveUp)
  }

  collectGarbage(): void {
    this.worker.postMessage({ type: 'gc' } satisfies ToJobs)
  }

  /** The thread itself: for tests that kill it. */
  current(): Worker {
    return this.worker
  }

  private start(): Worker {
    const worker = new Worker(new URL('../workers/jobs.ts', import.meta.url), {
      workerData: this.data,
      // Its batches die young; more room would only be kept.
      resourceLimits: { maxYoungGenerationSizeMb: limits.jobsYoungMb },
    })
    worker.on('message', (message: FromJobs) => this.receive(message))
    worker.on('error', (error) => this.options.log.error({ err: error }, 'the jobs thread died'))
    worker.on('exit', (code) => this.replace(code))
    return worker
  }

  /** Later after each failure: a thread that can't start must not eat a core. */
  private replace(code: number): void {
    if (this.closing) return
    const waitMs = Math.min(limits.shardAnswerMsMax, limits.storeRetryMs * 2 ** this.failures++)
    this.options.log.error({ code, waitMs }, 'the jobs thread ended; it is replaced')
    this.options.metrics.jobsRestarts.inc()
    this.restart = setTimeout(() => {
      this.answeredMs = performance.now()
      this.worker = this.start()
    }, waitMs)
  }

  /** A thread that hangs is ended, and so replaced. */
  private look(): void {
    const late = performance.now() - this.lookedMs > 2000
    this.lookedMs = performance.now()
    // When this thread itself stood still, signs of life are waiting in its mail.
    if (late || this.healthy() || this.worker.threadId === -1) return
    this.options.log.error('the jobs thread does not answer')
    void this.worker.terminate()
  }

  private receive(message: FromJobs): void {
    this.answeredMs = performance.now()
    const { metrics, onEnded } = this.options
    switch (message.type) {
      case 'leased':
        return this.onLeased(message.held)
      case 'peers':
        return this.options.onPeers?.(message.peers)
      case 'ended':
        metrics.commandsEnded.inc({ status: message.status }, message.ended.length)
        return onEnded(message.ended)
      case 'commands':
        return this.options.onCommands?.(message.commands)
      case 'untold':
        return this.options.onUntold?.(message.untold)
      case 'cancels':
        return this.options.onCancels?.(message.cancels)
      case 'interrupted':
        return this.options.onInterrupted?.()
      case 'handed':
        return this.options.onHanded?.(message.nodes)
      case 'observed':
        return this.observe(message.observed)
    }
  }

  private onLeased(held: boolean): void {
    const { metrics, log, onLeaseRegained } = this.options
    this.failures = 0
    this.leased.resolve()
    if (held || !this.known) {
      this.known = true
      return
    }
    metrics.leaseLosses.inc()
    log.error('this hub lost its lease and holds it again: others may have taken it for dead')
    onLeaseRegained?.()
  }

  private observe({ swept, pool, loopSeconds }: JobsObserved): void {
    const { metrics } = this.options
    for (const [sweep, rows] of Object.entries(swept)) metrics.swept.inc({ sweep }, rows)
    observePool(metrics, thread, pool)
    observeLoop(metrics, thread, loopSeconds)
  }
}
