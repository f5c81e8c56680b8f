// The one order of events and audit rows, which readers follow by cursors: PostgreSQL's numbers of transactions.
// A server counts its own, so a database that was restored on another one would have rows from the future: no
// cursor would ever come to what is written now, and no seal. Where that is so, the hub's numbers go on from
// the highest there is: `hub_xid()` and `hub_snapshot()` are PostgreSQL's, raised by a constant in their bodies.
import type pg from 'pg'

/** What the lost server may have numbered after the dump: who followed it further than that goes on, too. */
const lostMost = 2n ** 40n

/**
 * Raises the hub's numbers where this server counts below what is stored; false where nothing was to be done. As the
 * owner of the schema, and while no other hub does so.
 */
export async function continueOrder(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query<{ highest: string; behind: boolean }>(highestSql)
  const [found] = rows
  if (!found?.behind) return false
  const raised = BigInt(found.highest) + lostMost
  // Digits only; the body of a function takes no parameters of ours.
  await client.query(`begin;
    create or replace function hub_xid() returns xid8
      language sql stable
      return ((pg_current_xact_id()::text::bigint + ${raised})::text)::xid8;
    create or replace function hub_snapshot() returns pg_snapshot
      language sql stable parallel safe
      return (select format('%s:%s:%s',
          pg_snapshot_xmin(s)::text::bigint + ${raised}, pg_snapshot_xmax(s)::text::bigint + ${raised},
          (select string_agg((x::text::bigint + ${raised})::text, ',' order by x) from pg_snapshot_xip(s) x)
        )::pg_snapshot
        from (select pg_current_snapshot() as s) as now);
    commit`)
  return true
}

/** The highest number that any row has, each found at the end of an index. */
const highestSql = `
with highest as (
  select greatest(
    coalesce((select xid from audit order by xid desc limit 1), '0'),
    coalesce((select xid from events order by xid desc limit 1), '0'),
    coalesce((select through_xid from audit_seals order by through_xid desc limit 1), '0'),
    coalesce((select max(xid) from webhook_cursor), '0'),
    coalesce((select max(xid) from alert_cursors), '0'),
    coalesce((select max(from_xid) from webhooks), '0')) as xid
)
select xid::text as highest, xid > pg_snapshot_xmax(hub_snapshot()) as behind from highest`
