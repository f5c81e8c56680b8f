// Which hubs are alive, and what a dead one left behind. A node holds a lease row that it renews; devices
// still online on a node without a lease are not online.
import { plainArray, type Queryable, type Row } from '../src/db.ts'
import { newEventId } from '../src/events.ts'
import { countEndsSql } from '../src/execution_ends.ts'
import { limits } from '../src/limits.ts'
import type { About, Peer } from '../src/peers.ts'
import { cancelledPending } from '../src/protocol.ts'

const leaseMs = limits.nodeLeaseSeconds * 1000

export interface Node {
  id: string
  version: string
  /** What the others are told of it. */
  about?: About
}

/** This hub's place among the living. */
export class Lease {
  /** Since when, and when last, the lease was held; in the milliseconds of `now`. */
  private sinceMs = 0
  private renewedMs = -Infinity
  private readonly db: Queryable
  private readonly node: Node
  private readonly now: () => number

  constructor(db: Queryable, node: Node, now = () => performance.now()) {
    this.db = db
    this.node = node
    this.now = now
  }

  /**
   * Takes or renews the lease. `first`: the first time here; `held`: others saw it valid until now, so
   * nobody can have swept this hub's devices.
   */
  async renew(): Promise<{ first: boolean; held: boolean }> {
    const askedMs = this.now()
    const [row] = await this.db.query<{ held: boolean }>(renewSql, [
      this.node.id,
      this.node.version,
      limits.nodeLeaseSeconds,
      this.node.about === undefined ? null : JSON.stringify(this.node.about),
    ])
    const first = this.renewedMs === -Infinity
    const held = row?.held === true
    if (first || !held) this.sinceMs = askedMs
    this.renewedMs = askedMs
    return { first, held }
  }

  /**
   * True when the lease is held now and was for a whole term: after an outage every living node had the
   * time to renew its own, so a lease that is over now is a dead node's.
   */
  unbroken(): boolean {
    const nowMs = this.now()
    return nowMs - this.renewedMs < leaseMs && nowMs - this.sinceMs >= leaseMs
  }

  /**
   * A last lease, as long as its devices may take to come back elsewhere: a hub that goes in order turns
   * nobody offline. The row goes with the first sweep after it.
   */
  async leave(graceSeconds: number): Promise<void> {
    await this.db.query(
      `update nodes set lease_until = now() + make_interval(secs => $2),
         about = about || '{"left": true}' where id = $1`,
      [this.node.id, graceSeconds],
    )
  }
}

const renewSql = `
with renewed as (
  insert into nodes (id, version, lease_until, about)
  values ($1, $2, now() + make_interval(secs => $3), $4)
  on conflict (id) do update set lease_until = excluded.lease_until, version = excluded.version
)
select coalesce((select lease_until > now() from nodes where id = $1), false) as held`

interface PeerRow extends Peer, Row {
  leaseUntil: string
}

/**
 * Which other hubs are alive beyond doubt: those that renewed their lease while this one looked. One that was killed
 * a moment ago may hold a lease too, and nobody should hear of its settings.
 */
export class PeerWatch {
  /** The lease of each as it was seen first; null since it was renewed. */
  private leases: ReadonlyMap<string, string | null> | undefined
  private told = ''
  private readonly db: Queryable
  private readonly nodeId: string

  constructor(db: Queryable, nodeId: string) {
    this.db = db
    this.nodeId = nodeId
  }

  /** The peers that are alive, where that changed; the first look tells nothing. */
  async look(): Promise<Peer[] | undefined> {
    const rows = await this.db.query<PeerRow>(peersSql, [this.nodeId])
    const before = this.leases
    this.leases = new Map(
      rows.map(({ id, leaseUntil }) => {
        const lease = before?.get(id)
        const renewed = lease === null || (lease !== undefined && lease !== leaseUntil)
        return [id, renewed ? null : (lease ?? leaseUntil)]
      }),
    )
    if (before === undefined) return undefined
    const peers = rows
      .filter(({ id }) => this.leases?.get(id) === null)
      .map(({ id, version, startedAt, about }) => ({ id, version, startedAt, about }))
    const text = JSON.stringify(peers)
    if (text === this.told) return undefined
    this.told = text
    return peers
  }
}

/** $1 this node. Of a hub that left in order, or of a version that tells nothing of itself, there is nothing to say. */
const peersSql = `
select id, version, to_json(started_at) #>> '{}' as "startedAt", lease_until::text as "leaseUntil", about
from nodes
where id <> $1 and lease_until > now() and about is not null and not about ? 'left'
order by id`

/** The nodes whose lease is over. */
export async function deadNodes(db: Queryable): Promise<string[]> {
  const rows = await db.query<{ id: string }>('select id from nodes where lease_until <= now()')
  return rows.map((row) => row.id)
}

/**
 * Turns every device offline whose node holds no lease (also one whose row is gone), and puts what was
 * sent to it back in its queue. Walks all presences once, in batches, each only while `mayGoOn`: when
 * PostgreSQL stood still, the leases of the living are over too. Returns how many it turned, and whether
 * it came to the end.
 */
export async function endOrphans(
  db: Queryable,
  mayGoOn: () => boolean,
): Promise<{ ended: number; complete: boolean }> {
  let after = '00000000-0000-0000-0000-000000000000'
  let ended = 0
  while (mayGoOn()) {
    const rows = await db.query<Row & { id: string; gone: boolean }>(orphansSql, [
      after,
      limits.sweepBatchMax,
      limits.openCommandDaysMax,
    ])
    ended += rows.filter((row) => row.gone).length
    after = rows.at(-1)?.id ?? after
    if (rows.length < limits.sweepBatchMax) return { ended, complete: true }
  }
  return { ended, complete: false }
}

/** Forgets nodes once their devices are dealt with; one that came back meanwhile stays. */
export async function forgetNodes(db: Queryable, ids: readonly string[]): Promise<void> {
  // Nobody takes what was for them; whoever has their devices by now has read it with the claim.
  await db.query(
    `delete from handoffs h where not exists (
       select from nodes n where n.id = h.node_id and n.lease_until > now())`,
  )
  await db.query('delete from nodes where id = any($1::uuid[]) and lease_until <= now()', [ids])
}

export interface ClaimedDevice {
  id: string
  epoch: string
}

/** The devices that are online on a node, by its claims. */
export function devicesOf(db: Queryable, nodeId: string): Promise<ClaimedDevice[]> {
  return db.query<Row & ClaimedDevice>(
    `select device_id as id, epoch::text as epoch from device_presence
     where node_id = $1 and status = 'online'`,
    [nodeId],
  )
}

/** Turns devices offline whose claim of this epoch has no socket; what was sent to them goes back, or ends as was wished. */
export async function endLost(db: Queryable, lost: readonly ClaimedDevice[]): Promise<void> {
  await db.query(lostSql, [
    plainArray(lost.map(({ id }) => id)),
    plainArray(lost.map(({ epoch }) => epoch)),
    limits.openCommandDaysMax,
  ])
}

/**
 * Ends claims, `lost`, of which nobody has a socket. $3 oldest open command in days. The epoch is checked again
 * under the lock: a device that came back meanwhile, perhaps on a node that this snapshot does not know, stays.
 */
const endClaimsSql = (lost: string) => `
with lost as materialized (
  ${lost}
), p as materialized (
  select p.device_id from lost l join device_presence p on p.device_id = l.device_id
  where p.epoch = l.epoch and p.status = 'online'
  order by p.device_id
  for update of p
), gone as (
  update device_presence d set status = 'offline', status_at = now(), node_id = null,
    absent = d.offline_alert_id is null
  where d.device_id = any(array(select device_id from p))
  returning d.device_id, d.org_id
), back as (
  update commands c set
    status = case when c.cancel_requested_at is null then 'pending' else 'cancelled' end,
    completed_at = case when c.cancel_requested_at is not null then now() end,
    result = case when c.cancel_requested_at is not null then jsonb_build_object('exitCode', null,
      'stdout', '', 'stderr', '', 'truncated', false, 'error', '${cancelledPending}', 'durationMs', null) end
  where c.device_id = any(array(select device_id from gone))
    and c.completed_at is null
    and (c.status = 'sent' or c.status = 'pending' and c.cancel_requested_at is not null)
    and c.id >= uuid7_floor(now() - make_interval(days => $3))
  returning c.id, c.org_id, c.device_id, c.action, c.status, c.execution_id, c.completed_at
), counted as (
  ${countEndsSql('back')}
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select ${newEventId}, g.org_id, 'device.offline', now(), d.site_id,
    jsonb_build_object('deviceId', g.device_id)
  from gone g join devices d on d.id = g.device_id
  union all
  select ${newEventId}, c.org_id, 'command.cancelled', c.completed_at, d.site_id,
    jsonb_build_object('commandId', c.id, 'deviceId', c.device_id, 'action', c.action,
      'status', c.status)
  from back c join devices d on d.id = c.device_id
  where c.completed_at is not null
)
select l.device_id as id, g.device_id is not null as gone
from lost l left join gone g on g.device_id = l.device_id
order by l.device_id`

/** $1 device id to start after, $2 rows, $3 as above */
export const orphansSql = endClaimsSql(`select p.device_id, p.epoch from device_presence p
  where p.device_id > $1 and p.status = 'online'
    and not exists (select from nodes n where n.id = p.node_id and n.lease_until > now())
  order by p.device_id
  limit $2`)

/** $1 device ids, $2 their epochs, $3 as above */
const lostSql = endClaimsSql(
  'select * from unnest($1::uuid[], $2::bigint[]) as i(device_id, epoch)',
)
