// How counts and states become metrics: what a shard reports once a second, and what the front reads from
// its own parts when it is scraped.
import type { Database } from './db.ts'
import { LoopDelay } from './loop_delay.ts'
import type { Metrics } from './metrics.ts'
import type { Observed } from './protocol.ts'

/** Adds what a shard counted in the last second. */
export function observeShard(metrics: Metrics, index: number, observed: Observed): void {
  const thread = `shard-${index}`
  metrics.heartbeats.inc(observed.heartbeats)
  for (const [reason, count] of Object.entries(observed.dropped)) {
    metrics.framesDropped.inc({ reason }, count)
  }
  for (const [status, count] of Object.entries(observed.ended)) {
    metrics.commandsEnded.inc({ status }, count)
  }
  for (const ms of observed.deliveredMs) {
    metrics.commandSeconds.observe({ stage: 'delivered' }, ms / 1000)
  }
  for (const ms of observed.endedMs) metrics.commandSeconds.observe({ stage: 'ended' }, ms / 1000)
  for (const [statement, sizes] of Object.entries(observed.batches)) {
    for (const rows of sizes) metrics.batch.observe({ statement }, rows)
  }
  for (const [queue, depth] of Object.entries(observed.depths)) {
    metrics.queued.set({ queue, thread }, depth)
  }
  metrics.devices.set({ thread }, observed.devices)
  observePool(metrics, thread, observed.pool)
  observeLoop(metrics, thread, observed.loopSeconds)
}

/** The parts of a hub whose state is read. */
interface FrontParts {
  readonly metrics: Metrics
  readonly db: Database
  readonly commandDb: Database
  readonly connectDb: Database
  readonly auditDb: Database
  readonly commands: { readonly queued: number }
}

/** Has the front's own queues, pools and event loop read at every scrape. */
export function observeFront(parts: FrontParts): void {
  const { metrics, db, commandDb, connectDb, auditDb, commands } = parts
  const loop = new LoopDelay()
  metrics.onScrape(() => {
    for (const pool of [db, commandDb, connectDb, auditDb])
      observePool(metrics, pool.name, pool.counts())
    metrics.queued.set({ queue: 'commands', thread: 'front' }, commands.queued)
    observeLoop(metrics, 'front', loop.take())
  })
}

/** Connections of a pool: `idle` ones, those `busy`, and callers `waiting` for one. */
export function observePool(
  metrics: Metrics,
  pool: string,
  counts: ReturnType<Database['counts']>,
) {
  metrics.pool.set({ pool, state: 'busy' }, counts.total - counts.idle)
  metrics.pool.set({ pool, state: 'idle' }, counts.idle)
  metrics.pool.set({ pool, state: 'waiting' }, counts.waiting)
}

/** Event-loop delay of a thread, in seconds. */
export function observeLoop(metrics: Metrics, thread: string, delay: Observed['loopSeconds']) {
  metrics.loopDelay.set({ thread, percentile: '50' }, delay.p50)
  metrics.loopDelay.set({ thread, percentile: '99' }, delay.p99)
}
