// Seals the audit: links rows that can't change any more into a chain of hashes per organization, and writes
// down what retention takes away. Reads and adds; only a checkpoint, run as the owner, removes links.
import { platformChain, sealedThrough } from '../src/audit_chains.ts'
import type { Database, Queryable } from '../src/db.ts'
import { limits } from '../src/limits.ts'

const lockName = `hashtext('muster.audit_seals')`

/**
 * Seals the next rows, at most `sealRowsMax`, and returns how many. Nothing while another hub does it. Only rows
 * of transactions below the oldest that still runs are taken, in the order of transactions: whatever becomes
 * visible later comes later in that order.
 */
export async function sealAudit(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const [lock] = await tx.query<{ got: boolean }>(
      `select pg_try_advisory_xact_lock(${lockName}) as got`,
    )
    if (!lock?.got) return 0
    // A statement of its own after the lock, so that it sees what the holder before us sealed.
    const mark = await sealedThrough(tx)
    const [now] = await tx.query<{ behind: boolean }>(
      'select $1::xid8 >= pg_snapshot_xmax(hub_snapshot()) as behind',
      [mark.xid],
    )
    if (now?.behind) {
      throw new Error(
        'PostgreSQL counts fewer transactions than were sealed: was it restored under a running hub? Restart the hubs: a start goes on from what is stored',
      )
    }
    // The newest rows are those that no statistics know: taken for few, all of them would be sorted each time.
    await tx.query(
      `select set_config(name, 'off', true)
       from unnest(array['enable_sort', 'enable_bitmapscan', 'enable_seqscan', 'jit']) as name`,
    )
    const values = [mark.xid, mark.id, limits.sealRowsMax, platformChain]
    const [done] = await tx.query<{ rows: number }>(sealSql, values)
    return done?.rows ?? 0
  })
}

const sealColumns = `chain, position, sealed_at, through_xid, through_id, ids, digests, dropped_before,
  base_position, base_hash, previous`

/** $1, $2 the last row that is sealed, $3 rows, $4 the chain of the rows without an organization */
const sealSql = `
with rows as materialized (
  select a from audit a
  where a.xid >= $1::xid8 and (a.xid, a.id) > ($1::xid8, $2::uuid)
    and a.xid < pg_snapshot_xmin(hub_snapshot())
  order by a.xid, a.id
  limit $3
), taken as materialized (
  select coalesce((a).org_id, $4::uuid) as chain, (a).xid, (a).id, audit_digest(a) as digest from rows
), grouped as (
  select chain, array_agg(xid order by xid, id) as xids, array_agg(id order by xid, id) as ids,
    array_agg(digest order by xid, id) as digests
  from taken group by chain
), linked as (
  select g.chain, coalesce(l.position, 0) + 1 as position, now() as sealed_at,
    xids[cardinality(xids)] as through_xid, ids[cardinality(ids)] as through_id, ids, digests,
    null::uuid as dropped_before, null::bigint as base_position, null::bytea as base_hash,
    coalesce(l.hash, '') as previous
  from grouped g left join lateral (
    select position, hash from audit_seals s where s.chain = g.chain order by position desc limit 1
  ) l on true
), written as (
  insert into audit_seals (${sealColumns}, hash)
  select ${sealColumns}, audit_seal_hash(${sealColumns}) from linked
)
select count(*)::int as rows from taken`

/**
 * Prepares the removal of a partition of the audit in its transaction: appends to every chain a link that says
 * which rows are gone, and removes the links over nothing but those. False, and nothing is done, while a row
 * of it is not sealed. Waits for locks within the transaction's own bound.
 */
export async function checkpoint(owner: Queryable, partition: string): Promise<boolean> {
  // In the order of the sealer, who holds this one and then reads the table.
  await owner.query(`select pg_advisory_xact_lock(${lockName})`)
  await owner.query(`lock table ${partition} in access exclusive mode`)
  const mark = await sealedThrough(owner)
  const unsealed = await owner.query(
    `select true as found from ${partition} a
     where a.xid >= $1::xid8 and (a.xid, a.id) > ($1::xid8, $2::uuid) limit 1`,
    [mark.xid, mark.id],
  )
  if (unsealed.length > 0) return false
  await owner.query(checkpointSql, [partition.slice('audit_'.length)])
  return true
}

/** $1 the month of the partition, as YYYYMM */
const checkpointSql = `
with gone as (
  select uuid7_floor((to_date($1, 'YYYYMM') + interval '1 month')::timestamp at time zone 'UTC') as before
), linked as (
  select h.chain, h.position + 1 as position, now() as sealed_at, h.through_xid, h.through_id,
    '{}'::uuid[] as ids, '{}'::bytea[] as digests, g.before as dropped_before,
    coalesce(k.position - 1, h.position) as base_position, coalesce(k.previous, h.hash) as base_hash,
    h.hash as previous
  from (select distinct chain from audit_seals) c
  cross join lateral (
    select * from audit_seals s where s.chain = c.chain order by position desc limit 1
  ) h
  left join lateral (
    select dropped_before from audit_seals s
    where s.chain = c.chain and s.dropped_before is not null order by position desc limit 1
  ) p on true
  -- Months may be dropped out of their order, when one was being read.
  cross join lateral (select greatest(before, p.dropped_before) as before from gone) g
  left join lateral (
    select position, previous from audit_seals s
    where s.chain = c.chain and exists (select from unnest(s.ids) as i (id) where i.id >= g.before)
    order by position limit 1
  ) k on true
), written as (
  insert into audit_seals (${sealColumns}, hash)
  select ${sealColumns}, audit_seal_hash(${sealColumns}) from linked
)
delete from audit_seals s using linked l where s.chain = l.chain and s.position <= l.base_position`
