// What a soak sees of the hub from outside, once per period and at a quiet moment of it: memory, descriptors,
// connections, lag, and what waits. Growth compares whole rounds of faults, so that each is in both.
import { readdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Fleet } from './fleet.ts'
import type { Target } from './lab.ts'
import { median } from './rows.ts'
import type { Look } from './rss_watch.ts'
import { visitorName } from './soak_operators.ts'

/** The hub at the end of a period, when what was hit has recovered. */
export interface Quiet {
  atSeconds: number
  /** The middle of the last looks before it. */
  rssMegabytes: number
  /** Open descriptors, those of agents' and operators' sockets left out. */
  descriptors: number
  /** Connections to PostgreSQL. */
  connections: number
  /** Event-loop delay of the slowest thread, p99. */
  lagMs: number
}

/** Rows that somebody has to look at. */
export interface Backlog {
  /** Events that alerts or webhooks have not read. */
  outbox: number
  handoffs: number
  /** That are due. One whose end PostgreSQL's death swallowed is done, and only forgotten a quarter of an hour later. */
  jobs: number
  executions: number
}

export type Measured = Exclude<keyof Quiet, 'atSeconds'>

/** What grows is not judged before this part: caches fill, pools open, code is compiled. */
const warmUpPart = 1 / 12

/**
 * A figure of the first round after the warm-up and of the last: the middle of their periods; of memory the lowest,
 * which is what the hub holds, however much garbage the others had waiting.
 */
export function growthOf(
  quiets: readonly Quiet[],
  measured: Measured,
  round: number,
): { from: number; to: number } {
  const warmUp = Math.min(Math.ceil(quiets.length * warmUpPart), quiets.length - 1)
  const warm = quiets.slice(Math.max(0, warmUp))
  const span = Math.max(1, Math.min(round, Math.floor(warm.length / 2)))
  const values = warm.map((quiet) => quiet[measured])
  if (values.length === 0) throw new Error('the soak had no quiet moment')
  const of = (part: readonly number[]) =>
    measured === 'rssMegabytes' ? Math.min(...part) : median(part)!
  return { from: of(values.slice(0, span)), to: of(values.slice(-span)) }
}

/** What is looked at: the hub, and whoever holds sockets of it. */
export interface Watched {
  target: Target
  fleet: Fleet
  commuters: Fleet
  operators: { client: { readonly connections: number } }
}

/** Looks at the hub now; `looks` are those of its memory up to now, of which the last `seconds` count. */
export async function lookAt(
  { target, fleet, commuters, operators }: Watched,
  looks: readonly Look[],
  seconds: number,
): Promise<Quiet> {
  const atSeconds = looks.at(-1)?.[0] ?? 0
  const recent = looks.filter(([at]) => at >= atSeconds - seconds).map(([, value]) => value)
  const metrics = await scrape(target)
  const sockets = (await socketsOf([fleet, commuters])) + operators.client.connections
  const [row] =
    (await target.database?.read(
      `select count(*)::int as connections from pg_stat_activity where backend_type = 'client backend'`,
    )) ?? []
  return {
    atSeconds,
    rssMegabytes: median(recent) ?? 0,
    descriptors: readdirSync(`/proc/${target.pid}/fd`).length - sockets,
    connections: Number(row?.['connections'] ?? 0),
    lagMs:
      1000 * Math.max(0, ...valuesOf(metrics, /^muster_event_loop_delay_seconds{.*"99"} (.+)$/)),
  }
}

/** Waits until as many devices are shown online as sockets are held; false when `isOver` came first. */
export async function agree(
  target: Target,
  fleets: readonly Fleet[],
  isOver: () => boolean,
): Promise<boolean> {
  for (;;) {
    const held = await socketsOf(fleets)
    // PostgreSQL may be on its way back.
    const rows = await target.database?.read(onlineSql).catch(() => undefined)
    if (Number(rows?.[0]?.['online'] ?? -1) === held) return true
    if (isOver()) return false
    await sleep(250)
  }
}

/** Waits for what has to come, but not for ever: what is missing then is a figure of the report. */
export async function waitUntil(fact: () => Promise<boolean>, msMax: number): Promise<void> {
  const endMs = performance.now() + msMax
  while (!(await fact()) && performance.now() < endMs) await sleep(250)
}

async function socketsOf(fleets: readonly Fleet[]): Promise<number> {
  const counts = await Promise.all(fleets.map((fleet) => fleet.counts()))
  return sum(counts.map(({ open }) => open))
}

// Visitors hold sockets of their own, for a moment.
const onlineSql = `select count(*)::int as online from device_presence p join devices d on d.id = p.device_id
  where p.status = 'online' and d.hostname <> '${visitorName}'`

export async function backlogOf({ database }: Target): Promise<Backlog> {
  const [row] = (await database?.read(backlogSql)) ?? []
  const count = (name: keyof Backlog) => Number(row?.[name] ?? 0)
  return {
    outbox: count('outbox'),
    handoffs: count('handoffs'),
    jobs: count('jobs'),
    executions: count('executions'),
  }
}

const backlogSql = `select
  (select count(*) from events e, webhook_cursor c where (e.xid, e.id) > (c.xid, c.id))::int
    + (select count(*) from events e, alert_cursors c where (e.xid, e.id) > (c.xid, c.id)
        and c.name = 'failed_ends' and e.type in ('command.failed', 'command.timeout'))::int as outbox,
  (select count(*) from handoffs)::int as handoffs,
  (select count(*) from pgboss.job where state in ('created', 'retry') and start_after <= now()
    and name in ('executions', 'rollouts'))::int as jobs,
  (select count(*) from executions where completed_at is null)::int as executions`

/** Threads of the hub that died and were replaced, whoever ended them. */
export async function threadDeaths(target: Target): Promise<number> {
  return sum(valuesOf(await scrape(target), /^muster_(?:shard|jobs)_restarts_total (.+)$/))
}

async function scrape({ origin, metricsToken }: Target): Promise<string> {
  const headers = { Authorization: `Bearer ${metricsToken}` }
  return (await fetch(`${origin}/metrics`, { headers })).text()
}

function valuesOf(metrics: string, line: RegExp): number[] {
  return metrics.split('\n').flatMap((text) => {
    const value = line.exec(text)?.[1]
    return value === undefined ? [] : [Number(value)]
  })
}

function sum(values: readonly number[]): number {
  return values.reduce((all, value) => all + value, 0)
}
