// The table `handoffs` in SQL: how a change is committed together with its row for the hub that holds the device, and
// how that hub takes it. Whoever adds such a row has the device's presence locked, so that nobody claims the
// device before the commit: who claims it later sees what was changed. What a hub does with its rows stands in
// `handoffs.ts`.
import { plainArray, type Queryable } from './db.ts'

/** SQL: the other hub that holds a device now, or null. `p` is its presence, `own` this hub's id. */
export function elsewhereSql(own: string): string {
  return `case when p.node_id <> ${own} then p.node_id end`
}

/** SQL: whether this hub holds a device now: its actor is here. */
function hereSql(own: string): string {
  return `coalesce(p.node_id = ${own}, false)`
}

interface DevicesWanted {
  ids: string
  node: string
  /** Further columns of the device. */
  more?: readonly string[]
}

/**
 * CTE `d`: devices with their organizations, for whoever adds commands to them. Presences are locked in id order
 * against whoever claims or decommissions one: the hub that holds it is still the one when this is committed.
 * `ids` and `node` are SQL, the devices' and this hub's.
 */
export function devicesSql({ ids, node, more = [] }: DevicesWanted): string {
  const columns = more.map((column) => `d.${column}, `).join('')
  return `d as (
  select d.id, d.org_id, d.site_id, ${columns}p.status, coalesce(p.status = 'decommissioned', false) as gone,
    o.status = 'suspended' as suspended, ${hereSql(node)} as here,
    ${elsewhereSql(node)} as elsewhere
  from device_presence p
  join devices d on d.id = p.device_id
  join organizations o on o.id = d.org_id
  where p.device_id = any(${ids})
  order by p.device_id
  for share of p
)`
}

/** A change of a device, or of a command of it. */
export interface Change {
  deviceId: string
  commandId?: string
}

/** Has the other hubs that hold these devices look at them; returns those hubs, to wake after the commit. */
export async function handOver(
  tx: Queryable,
  own: string,
  changes: readonly Change[],
): Promise<string[]> {
  if (changes.length === 0) return []
  const rows = await tx.query<{ node: string }>(handOverSql, [
    own,
    plainArray(changes.map(({ deviceId }) => deviceId)),
    plainArray(changes.map(({ commandId }) => commandId ?? null)),
  ])
  return [...new Set(rows.map((row) => row.node))]
}

/** $1 this hub, whose requests may wait for the ends, $2 device ids, $3 command ids or null */
export const handOverSql = `
with p as (
  select p.device_id, ${elsewhereSql('$1::uuid')} as elsewhere from device_presence p
  where p.device_id = any($2::uuid[])
  order by p.device_id
  for share of p
)
insert into handoffs (node_id, device_id, command_id, origin)
select p.elsewhere, p.device_id, i.command_id, case when i.command_id is not null then $1::uuid end
from unnest($2::uuid[], $3::uuid[]) as i(device_id, command_id)
join p on p.device_id = i.device_id
where p.elsewhere is not null
order by i.command_id
returning node_id as node`

/** $1 this hub, $2 rows. In the order in which they were handed over; they stay until `takenSql`. */
export const takeSql = `
with h as materialized (
  select id, device_id, command_id, origin from handoffs where node_id = $1 order by id limit $2
), c as materialized (
  select id, device_id, completed_at is not null as ended, cancel_requested_at from commands
  where id = any(array(select command_id from h where command_id is not null))
)
select h.id::text as row, h.device_id as "deviceId", p.node_id as "nodeId", p.epoch::text as epoch,
  p.status = 'decommissioned' as gone, d.site_id as "siteId", h.command_id as "commandId", h.origin,
  c.ended, c.cancel_requested_at is not null as "cancelRequested"
from h
left join lateral (
  select node_id, epoch, status from device_presence where device_id = h.device_id offset 0
) p on true
left join lateral (select site_id from devices where id = h.device_id offset 0) d on true
left join c on c.id = h.command_id and c.device_id = h.device_id
order by h.id`

/** What was told is done with. $1 this hub, $2 ids of rows */
export const takenSql = `delete from handoffs where node_id = $1 and id = any($2::bigint[])`
