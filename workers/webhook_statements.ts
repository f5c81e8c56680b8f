// The statements of webhooks, each over many rows: outbox to deliveries, claims, ends, and what is taken
// away. They decide nothing about an attempt.
import { auditOfSystem, insertAudit } from '../src/audit.ts'
import { plainArray, textArray, type Database, type Queryable } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { envelopeSql, type Position } from '../src/outbox.ts'
import type { Outcome } from './webhook_sender.ts'

export interface Advanced {
  /** Events read, whoever they concern. */
  scanned: number
  /** Deliveries made of them. */
  made: number
}

/**
 * Turns the next events into deliveries and moves the cursor, in one transaction, so that each event
 * becomes each delivery once. Undefined while another hub does so.
 */
export function advance(db: Database): Promise<Advanced | undefined> {
  return db.transaction(async (tx) => {
    const [cursor] = await tx.query<Position & Record<string, unknown>>(
      'select xid::text as xid, id from webhook_cursor for update skip locked',
    )
    if (!cursor) return undefined
    const [row] = await tx.query<Advanced & Record<string, unknown>>(advanceSql, [
      cursor.xid,
      cursor.id,
      limits.outboxBatchMax,
      limits.webhookBodyBytesMax,
    ])
    return row
  })
}

/** Whether the webhook `w` is told of the event `e`. */
const hears = `w.org_id = e.org_id and w.status = 'active' and e.type = any(w.events)
      and e.xid >= w.from_xid`

// The cursor's values are parameters: a join with its row could not use the order of the index.
export const advanceSql = `
with scanned as materialized (
  select * from events
  where (xid, id) > ($1::xid8, $2::uuid) and xid < pg_snapshot_xmin(hub_snapshot())
  order by xid, id limit $3
), told as materialized (
  select e.*, ${envelopeSql} as body from scanned e
  where exists (select from webhooks w where ${hears})
), made as (
  insert into webhook_deliveries (id, webhook_id, event_id, event_type, body)
  select new_uuid7(), webhook_id, id, type, body from (
    select w.id as webhook_id, e.id, e.type, case when octet_length(e.body) <= $4::int then e.body
      else (select row_to_json(t)::text from (select e.id, e.type, iso(e.at) as at,
        e.org_id as "orgId", '{"truncated":true}'::json as data) t) end as body
    from told e
    join organizations o on o.id = e.org_id and o.status = 'active'
    join webhooks w on ${hears}
    order by e.xid, e.id
  ) ordered
  returning 1
), moved as (
  update webhook_cursor c set xid = l.xid, id = l.id
  from (select xid, id from scanned order by xid desc, id desc limit 1) l
)
select (select count(*)::int from scanned) as scanned, (select count(*)::int from made) as made`

export interface Work {
  /** A webhook hears events. */
  listens: boolean
  /** A delivery waits, whenever it is due. */
  waits: boolean
}

/** Whether there may be anything to do: all that a hub without webhooks asks for. */
export async function workThere(db: Queryable): Promise<Work> {
  // In the order of the index of what waits: how few of all deliveries do is never known beforehand.
  const [row] = await db.query<Work & Record<string, unknown>>(
    `select exists (select from webhooks where status = 'active') as listens,
       exists (select from (select from webhook_deliveries where status = 'pending'
         order by webhook_id limit 1) d) as waits`,
  )
  return row ?? { listens: false, waits: false }
}

/** Moves the cursor past what nobody listened to; a webhook made meanwhile hears of all after it. */
export async function skip(db: Queryable): Promise<void> {
  await db.query(
    `update webhook_cursor set xid = pg_snapshot_xmin(hub_snapshot()),
       id = '00000000-0000-0000-0000-000000000000'
     where not exists (select from webhooks where status = 'active')
       and xid < pg_snapshot_xmin(hub_snapshot())`,
  )
}

// ---- attempts --------------------------------------------------------------------------------

export interface Claimed {
  id: string
  webhookId: string
  eventId: string
  body: string
  manual: boolean
  /** This attempt's number, from 1. */
  attempt: number
  url: string
  status: 'active' | 'disabled'
  failing: boolean
  secret: Buffer
  /** Null once its overlap has ended. */
  previousSecret: Buffer | null
}

export interface ClaimOptions {
  /** Webhooks whose last attempt failed, or those whose last one did not. */
  failing: boolean
  /** Of the last claim: the walk over the webhooks goes on after it. */
  after: string
  /** Attempts under way here, by webhook. */
  busy: ReadonlyMap<string, number>
  /** Attempts that may begin. */
  free: number
}

export interface Claim {
  claimed: Claimed[]
  /** Where the next claim goes on; the walk begins anew when it has reached the end. */
  after: string
}

export const walkStart = '00000000-0000-0000-0000-000000000000'

interface ClaimRow extends Record<string, unknown>, Omit<Claimed, 'id'> {
  id: string | null
  after: string | null
  visited: number
}

/**
 * Claims what is due, a few of each webhook, so that one with a long queue never hides another. A claim
 * is a lease: when its end is not written in time, it is due again.
 */
export async function claim(db: Queryable, options: ClaimOptions): Promise<Claim> {
  const busy = [...options.busy]
  const rows = await db.query<ClaimRow>(claimSql, [
    options.after,
    limits.webhookClaimMax,
    plainArray(busy.map(([id]) => id)),
    plainArray(busy.map(([, count]) => count)),
    options.failing ? 1 : limits.webhookConcurrencyMax,
    options.failing,
    options.free,
    limits.webhookLeaseSeconds,
  ])
  const first = rows[0]
  const isEnd = !first || first.visited < limits.webhookClaimMax
  const claimed = rows.flatMap((row) => (row.id === null ? [] : { ...row, id: row.id }))
  return { claimed, after: isEnd ? walkStart : (first.after ?? walkStart) }
}

// The recursion steps from webhook to webhook in the index of what is due, whatever lies between.
const claimSql = `
with recursive waiting as (
  (select webhook_id from webhook_deliveries
   where status = 'pending' and webhook_id > $1::uuid order by webhook_id limit 1)
  union all
  select (select d.webhook_id from webhook_deliveries d
          where d.status = 'pending' and d.webhook_id > w.webhook_id order by d.webhook_id limit 1)
  from waiting w where w.webhook_id is not null
), visited as materialized (
  select webhook_id from waiting where webhook_id is not null limit $2
), due as materialized (
  select d.id from visited v
  join webhooks w on w.id = v.webhook_id and w.deleted_at is null and (w.failures > 0) = $6::boolean
  left join unnest($3::uuid[], $4::int[]) as busy(id, attempts) on busy.id = w.id
  cross join lateral (
    select x.id from webhook_deliveries x
    where x.webhook_id = w.id and x.status = 'pending' and x.next_attempt_at <= now()
    order by x.next_attempt_at limit greatest(0, $5::int - coalesce(busy.attempts, 0))
    for update skip locked
  ) d
  limit $7
), claimed as (
  update webhook_deliveries d
  set attempts = d.attempts + 1, attempted_at = now(),
    next_attempt_at = now() + make_interval(secs => $8)
  from webhooks w
  where d.id = any(array(select id from due)) and w.id = d.webhook_id
  returning d.id, d.webhook_id as "webhookId", d.event_id as "eventId", d.body, d.manual,
    d.attempts as attempt, w.url, w.status, w.failures > 0 as failing, w.secret,
    case when w.previous_until > now() then w.previous_secret end as "previousSecret"
)
select walk.*, c.* from (
  select (select webhook_id from visited order by webhook_id desc limit 1) as after,
    (select count(*)::int from visited) as visited
) walk left join claimed c on true`

export interface Ended {
  delivery: Claimed
  outcome: Outcome
  /** Seconds until the next attempt; null: there is none. */
  retrySeconds: number | null
  /** False where nothing was sent: no attempt, and nothing about the receiver. */
  sent: boolean
}

/** Writes the ends of attempts and what they mean for their webhooks. */
export async function finish(db: Database, ends: readonly Ended[]): Promise<void> {
  const gone = ends.filter(({ outcome }) => outcome.status === 410)
  const goneIds = [...new Set(gone.map(({ delivery }) => delivery.webhookId))]
  await db.transaction(async (tx) => {
    await tx.query(finishSql, [
      plainArray(ends.map(({ delivery }) => delivery.id)),
      plainArray(ends.map(({ delivery }) => delivery.attempt)),
      plainArray(ends.map(({ outcome }) => outcome.ok)),
      plainArray(ends.map(({ retrySeconds }) => retrySeconds)),
      plainArray(ends.map(({ sent }) => sent)),
      plainArray(ends.map(({ outcome }) => outcome.status)),
      textArray(ends.map(({ outcome }) => outcome.response)),
      textArray(ends.map(({ outcome }) => outcome.error)),
      plainArray(ends.map(({ outcome }) => outcome.durationMs)),
    ])
    if (ends.every(({ outcome }) => outcome.ok)) return
    await disable(tx, goneIds, 'the receiver answered 410 Gone')
    await disable(tx, await hopeless(tx, ends), 'nothing was delivered for days')
  })
}

// An attempt whose lease another took over is not this one's to end. Webhooks are locked in the order of
// their ids: several hubs write the same ones.
const finishSql = `
with ended as (
  select * from unnest($1::uuid[], $2::int[], $3::boolean[], $4::float8[], $5::boolean[], $6::int[],
    $7::text[], $8::text[], $9::int[])
    as t(id, attempt, ok, retry_seconds, sent, response_status, response, error, duration_ms)
), written as (
  update webhook_deliveries d set
    status = case when t.ok then 'succeeded' when t.retry_seconds is null then 'failed' else 'pending' end,
    next_attempt_at = now() + make_interval(secs => coalesce(t.retry_seconds, 0)),
    completed_at = case when t.ok or t.retry_seconds is null then now() end,
    attempts = case when t.sent then d.attempts else d.attempts - 1 end,
    response_status = case when t.sent then t.response_status else d.response_status end,
    response = case when t.sent then t.response else d.response end,
    duration_ms = case when t.sent then t.duration_ms else d.duration_ms end,
    error = t.error
  from ended t where d.id = t.id and d.attempts = t.attempt and d.status = 'pending'
  returning d.webhook_id, t.ok, t.sent
), told as (
  select webhook_id, bool_or(ok) as ok, count(*)::int as attempts
  from written where sent group by webhook_id
), locked as materialized (
  select w.id from webhooks w join told t on t.webhook_id = w.id
  where not t.ok or w.failures > 0 order by w.id for no key update of w
)
update webhooks w set
  failures = case when t.ok then 0 else least(w.failures + t.attempts, 1000000) end,
  failing_since = case when t.ok then null else coalesce(w.failing_since, now()) end
from told t, locked l where l.id = w.id and t.webhook_id = w.id`

/** Of the webhooks of these ends, those that have not worked for too long. */
async function hopeless(tx: Queryable, ends: readonly Ended[]): Promise<string[]> {
  const rows = await tx.query<{ id: string }>(
    `select id from webhooks where id = any($1::uuid[]) and status = 'active' and failures >= $2
       and failing_since < now() - make_interval(days => $3)`,
    [
      plainArray(ends.map(({ delivery }) => delivery.webhookId)),
      limits.webhookFailuresMin,
      limits.webhookFailingDaysMax,
    ],
  )
  return rows.map(({ id }) => id)
}

/** Disables webhooks, with an audit row that says why. */
async function disable(tx: Queryable, ids: readonly string[], reason: string): Promise<void> {
  if (ids.length === 0) return
  const rows = await tx.query<{ id: string; orgId: string; failures: number }>(
    `update webhooks set status = 'disabled', updated_at = now()
     where id = any($1::uuid[]) and status = 'active' returning id, org_id as "orgId", failures`,
    [plainArray(ids)],
  )
  const entries = rows.map(({ id, orgId, failures }) => {
    const subject = { action: 'webhook.disable', resourceType: 'webhook', resourceId: id, orgId }
    const details = {
      before: { status: 'active' },
      after: { status: 'disabled' },
      reason,
      failures,
    }
    return auditOfSystem({ ...subject, details })
  })
  await insertAudit(tx, entries)
}

// ---- what may not grow -----------------------------------------------------------------------

/** Disables webhooks for which more waits than may. Returns how many. */
export async function disableOverflowing(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<{ id: string }>(
      `select w.id from webhooks w where w.status = 'active' and exists (
         select from webhook_deliveries d where d.webhook_id = w.id and d.status = 'pending'
         order by d.next_attempt_at offset $1 limit 1)`,
      [limits.webhookBacklogMax],
    )
    const ids = rows.map(({ id }) => id)
    await disable(tx, ids, `more than ${limits.webhookBacklogMax} deliveries waited`)
    return ids.length
  })
}

/** Removes one batch of what deleted webhooks left behind. Returns how many rows. */
export async function removeDeleted(db: Queryable): Promise<number> {
  const rows = await db.query(
    `delete from webhook_deliveries where id = any(array(
       select d.id from webhooks w join webhook_deliveries d on d.webhook_id = w.id
       where w.deleted_at is not null limit $1)) returning true as gone`,
    [limits.sweepBatchMax],
  )
  if (rows.length > 0) return rows.length
  // What was being written when it was deleted is there by now.
  await db.query(
    `delete from webhooks w where w.deleted_at < now() - interval '1 minute'
       and not exists (select from webhook_deliveries d where d.webhook_id = w.id)`,
  )
  return 0
}
