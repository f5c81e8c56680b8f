// The jobs thread: keeps this hub's lease, ends what is due, and runs pg-boss. Holds no rule of its own:
// what is due stands in `sweeps.ts`, who is alive in `nodes.ts`, the daily work in `maintenance.ts`, the audit's
// seals in `sealing.ts`.
import { setTimeout as sleep } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'
import { PgBoss } from 'pg-boss'
import { connection, isConnectionFailure, openDatabase } from '../src/db.ts'
import { collectGarbage } from '../src/garbage.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { LoopDelay } from '../src/loop_delay.ts'
import {
  executionQueue,
  rolloutQueue,
  type AddedCommands,
  type EndedCommand,
  type FromJobs,
  type JobsData,
  type ToJobs,
} from '../src/queue.ts'
import { endAbsences, judgeAbsences } from './absences.ts'
import { fanOut, finishExecutions, resendStalled } from './executions.ts'
import { raiseFailures } from './failures.ts'
import { lookForAlerts, lookForExecutions, lookForRollouts } from './looks.ts'
import { maintain } from './maintenance.ts'
import { endInterrupted } from '../src/terminal_rows.ts'
import { deadNodes, endOrphans, forgetNodes, Lease, PeerWatch } from './nodes.ts'
import { advance, noteUpgradeEnds, sendDueRollouts, type RolloutNews } from './rollouts.ts'
import { sealAudit } from './sealing.ts'
import { endExpired, endTimedOut, forgetIdempotencyKeys } from './sweeps.ts'
import { Webhooks } from './webhooks.ts'

const data = workerData as JobsData
const port = parentPort
if (port === null) throw new Error('the jobs run as a worker thread')

const log = createLog(data.logLevel, 'jobs')
const onIdleError = (error: Error) => log.warn({ err: error }, 'a connection to PostgreSQL broke')
const db = openDatabase({
  url: data.databaseUrl,
  name: 'jobs',
  connections: limits.poolJobs,
  onIdleError,
})
// Apart, for its statement finds rows by key in tables of any size: planned once.
const fanOutDb = openDatabase({
  url: data.databaseUrl,
  name: 'fan-out',
  connections: limits.poolFanOut,
  planOnce: true,
  onIdleError,
})
// Retention alone needs it; it connects once a day.
const owner = openDatabase({
  url: data.ownerUrl,
  name: 'jobs-owner',
  connections: 1,
  role: 'owner',
  onIdleError,
})
const webhooksDb = openDatabase({
  url: data.databaseUrl,
  name: 'webhooks',
  connections: limits.poolWebhooks,
  planEach: true,
  onIdleError,
})
const webhooks = new Webhooks({
  db: webhooksDb,
  settings: data.webhooks,
  version: data.version,
  log,
  count,
})
const lease = new Lease(db, { id: data.nodeId, version: data.version, about: data.about })
const peers = new PeerWatch(db, data.nodeId)
const loop = new LoopDelay()
const stopping = new AbortController()
let swept: Record<string, number> = {}

/** A hub may have been off for longer than any command may be open: look at all of them once. */
const everyDay = 36_500
let days: number = everyDay

// Walked in full at start and once an hour even when nobody died: a hub that hung may have claimed a
// device after its own row was gone.
const walkMs = 3_600_000
let walkedMs = -Infinity

port.on('message', ({ type }: ToJobs) => {
  if (type === 'stop') void stop()
  else collectGarbage()
})
const report = setInterval(() => {
  tell({ type: 'observed', observed: { swept, pool: db.counts(), loopSeconds: loop.take() } })
  swept = {}
}, 1000)

const running = [
  repeat('lease', limits.nodeRenewSeconds * 1000, renewLease),
  repeat('sweep', limits.sweepMs, sweep),
  startBoss(),
  repeat('alerts', limits.alertSweepMs, sweepAlerts),
  repeat('executions', limits.executionSweepMs, sweepExecutions),
  repeat('rollouts', limits.rolloutSweepMs, sweepRollouts),
  repeat('seal', limits.sealMs, seal),
  // It waits by itself, for whatever comes first: time or room.
  repeat('webhooks', 0, () => webhooks.round()),
] as const

function tell(message: FromJobs): void {
  port?.postMessage(message)
}

function count(sweepName: string, rows: number): void {
  if (rows > 0) swept[sweepName] = (swept[sweepName] ?? 0) + rows
}

async function stop(): Promise<void> {
  stopping.abort()
  const [, , boss] = await Promise.all(running)
  await webhooks.close(limits.checkoutMsMax / 4)
  await boss?.stop({ timeout: limits.checkoutMsMax / 2 })
  await lease
    .leave(data.restartGraceSeconds)
    .catch((error: unknown) => log.warn({ err: error }, 'the lease ends by itself'))
  await Promise.all([db.close(), fanOutDb.close(), owner.close(), webhooksDb.close()])
  clearInterval(report)
  port?.close()
}

/** Does `work` again and again, `pauseMs` after it ended. Says when it begins to fail, and when that ends. */
async function repeat(
  name: string,
  pauseMs: number,
  work: () => Promise<void>,
): Promise<undefined> {
  let failing = false
  while (!stopping.signal.aborted) {
    try {
      await work()
      if (failing) log.info({ work: name }, 'works again')
      failing = false
    } catch (error) {
      if (!failing) log.warn({ err: error, work: name }, 'fails; it is tried again until it works')
      failing = true
    }
    await pause(pauseMs)
  }
}

/** Sleeps, or returns at once when the thread stops. */
async function pause(ms: number): Promise<void> {
  await sleep(ms, undefined, { signal: stopping.signal }).catch(() => undefined)
}

async function renewLease(): Promise<void> {
  const { first, held } = await lease.renew()
  if (first || !held) tell({ type: 'leased', held })
  const changed = await peers.look()
  if (changed) tell({ type: 'peers', peers: changed })
}

// ---- sweeps ----------------------------------------------------------------------------------

async function sweep(): Promise<void> {
  await endBatches('expired', () => endExpired(db, days))
  await inBatches('idempotency_keys', limits.sweepBatchMax, () => forgetIdempotencyKeys(db))
  if (lease.unbroken()) await inBatches('terminals', limits.sweepBatchMax, sweepTerminals)
  // What agents report when they come back after a restart of the hub comes first.
  if (Date.now() - data.startedMs < data.restartGraceSeconds * 1000) return
  await endBatches('timeout', () => endTimedOut(db, days))
  days = limits.openCommandDaysMax
  if (lease.unbroken()) await sweepOrphans()
}

async function endBatches(
  status: 'expired' | 'timeout',
  batch: () => Promise<EndedCommand[]>,
): Promise<void> {
  for (;;) {
    const ended = await batch()
    if (ended.length > 0) tell({ type: 'ended', status, ended })
    count(status, ended.length)
    if (ended.length < limits.sweepBatchMax) return
  }
}

async function sweepTerminals(): Promise<number> {
  const ended = await endInterrupted(db)
  if (ended > 0) tell({ type: 'interrupted' })
  return ended
}

async function sweepOrphans(): Promise<void> {
  const dead = await deadNodes(db)
  if (dead.length === 0 && performance.now() - walkedMs < walkMs) return
  const mayGoOn = () => lease.unbroken() && !stopping.signal.aborted
  const { ended, complete } = await endOrphans(db, mayGoOn)
  count('orphans', ended)
  if (!complete) return
  walkedMs = performance.now()
  await forgetNodes(db, dead)
  if (ended > 0) log.info({ devices: ended, nodes: dead }, 'devices of dead hubs are offline')
}

async function sweepAlerts(): Promise<void> {
  const uptime = {
    seconds: (Date.now() - data.startedMs) / 1000,
    graceSeconds: data.restartGraceSeconds,
  }
  const { returns, absences, failures } = await lookForAlerts(db, uptime)
  if (returns) await inBatches('returns', limits.sweepBatchMax, () => endAbsences(db))
  if (absences) await inBatches('absences', limits.sweepBatchMax, () => judgeAbsences(db, uptime))
  if (failures) await inBatches('failures', limits.alertBatchMax, () => raiseFailures(db))
}

async function inBatches(
  name: string,
  rowsMax: number,
  batch: () => Promise<number>,
): Promise<void> {
  let rows: number
  do {
    rows = await batch()
    count(name, rows)
  } while (rows === rowsMax && !stopping.signal.aborted)
}

/** Executions whose last command ended, and those whose fan-out stopped with its thread. */
async function sweepExecutions(): Promise<void> {
  const { ends, stalled } = await lookForExecutions(db)
  if (ends) count('executions', await finishExecutions(db))
  if (stalled) count('stalled_executions', await resendStalled(db))
}

async function sweepRollouts(): Promise<void> {
  const { ends, due } = await lookForRollouts(db)
  if (ends) await inBatches('upgrade_ends', limits.rolloutEndsMax, () => noteUpgradeEnds(db))
  // An end makes its roll-out due.
  if (ends || due) count('rollouts', await sendDueRollouts(db))
}

/** Seals what became visible; batch by batch, so that other hubs' and our own statements come between. */
async function seal(): Promise<void> {
  let sealed: number
  do {
    sealed = await sealAudit(db)
    count('audit_sealed', sealed)
  } while (sealed === limits.sealRowsMax && !stopping.signal.aborted)
}

// ---- pg-boss ---------------------------------------------------------------------------------

const maintenance = 'maintenance'

/** Tries until pg-boss runs; undefined when the thread stops first. */
async function startBoss(): Promise<PgBoss | undefined> {
  for (let tries = 0; !stopping.signal.aborted; tries++) {
    const boss = new PgBoss(bossOptions())
    boss.on('error', (error) => {
      // While PostgreSQL is away the sweep has said so once.
      const level = isConnectionFailure(error) ? 'debug' : 'warn'
      log[level]({ err: error }, 'pg-boss failed; it tries again')
    })
    try {
      await boss.start()
      await addQueues(boss)
      return boss
    } catch (error) {
      if (tries === 0) log.warn({ err: error }, 'pg-boss does not start; it is tried again')
      await boss.stop({ graceful: false }).catch(() => undefined)
      await pause(limits.sweepMs)
    }
  }
  return undefined
}

function bossOptions() {
  const options = { url: data.ownerUrl, name: 'pg-boss', role: 'owner' } as const
  // Without the members that are undefined, which pg-boss does not take.
  const { connectionString = '', options: settings = '' } = connection(options)
  return {
    connectionString,
    options: settings,
    connectionTimeoutMillis: limits.checkoutMsMax,
    application_name: 'muster pg-boss',
    schema: 'pgboss',
    useListenNotify: true,
    // One that works and one that keeps the queues; nobody waits for either.
    max: 2,
  }
}

async function addQueues(boss: PgBoss): Promise<void> {
  await addQueue(boss, executionQueue, limits.executionsAtOnce, runExecution)
  await addQueue(boss, rolloutQueue, limits.rolloutsAtOnce, runRollout)
  // The front sends in its own transactions, as the hub's role.
  await owner.query('grant usage on schema pgboss to muster_hub')
  await owner.query('grant select on pgboss.queue to muster_hub')
  await owner.query('grant insert on pgboss.job to muster_hub')
  // One at a time in the whole cluster, whoever asks for it.
  await boss.createQueue(maintenance, { policy: 'exclusive', retryBackoff: true, retryDelay: 60 })
  await boss.schedule(maintenance, '23 3 * * *')
  // Once now as well: a hub may have been off for days.
  await boss.send(maintenance)
  await boss.work(maintenance, { pollingIntervalSeconds: 10 }, runMaintenance)
}

/** A queue that is woken by NOTIFY, with `atOnce` workers. */
async function addQueue(
  boss: PgBoss,
  name: string,
  atOnce: number,
  work: (id: string) => Promise<void>,
): Promise<void> {
  await boss.createQueue(name, { notify: true, retryLimit: 5, retryBackoff: true })
  const options = {
    pollingIntervalSeconds: 2,
    notifyPollingIntervalSeconds: limits.executionStallSeconds,
  }
  for (let n = 0; n < atOnce; n++) {
    const worker = await boss.work<{ id: string }>(name, options, async ([job]) => {
      // One notification may tell of several: look again instead of waiting for the next.
      boss.notifyWorker(worker)
      if (job) await work(job.data.id)
    })
  }
}

async function runExecution(executionId: string): Promise<void> {
  const { nodeId } = data
  try {
    await fanOut(executionId, { db, fanOutDb, tell: tellAdded, nodeId, signal: stopping.signal })
  } catch (error) {
    log.warn({ err: error, executionId }, 'a fan-out stopped; it is taken up again')
    throw error
  }
}

async function runRollout(rolloutId: string): Promise<void> {
  const { nodeId } = data
  try {
    await advance(rolloutId, { db: fanOutDb, tell: tellRollout, nodeId, signal: stopping.signal })
  } catch (error) {
    log.warn({ err: error, rolloutId }, 'a roll-out stopped in the middle; it is taken up again')
    throw error
  }
}

function tellAdded({ commands, untold = [], nodes }: AddedCommands): void {
  if (commands.length > 0) tell({ type: 'commands', commands })
  if (untold.length > 0) tell({ type: 'untold', untold })
  if (nodes.length > 0) tell({ type: 'handed', nodes })
}

function tellRollout({ ended, cancels, ...added }: RolloutNews): void {
  tellAdded(added)
  if (ended.length > 0) tell({ type: 'ended', status: 'cancelled', ended })
  if (cancels.length > 0) tell({ type: 'cancels', cancels })
}

async function runMaintenance(): Promise<void> {
  try {
    const maintained = await maintain(db, owner)
    log.info(maintained, 'maintenance: deleted or dropped what is old')
  } catch (error) {
    log.error({ err: error }, 'maintenance failed; pg-boss tries it again')
    throw error
  }
}
