// Devices as the API shows them, by their ids: the page of a list, or one of them.
import type { Scope } from '../auth.ts'
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { idFloor } from '../ids.ts'
import { limits } from '../limits.ts'
import { firstUpgradeSql, shownUpgradeSql } from '../upgrades.ts'

export interface Item extends Record<string, unknown> {
  id: string
  item: string
}

/** SQL: what a list shows of the device `d` with its presence `p`, its open commands counted as `o`. */
export const deviceColumns = `d.id, d.org_id as "orgId", d.site_id as "siteId", d.hostname,
  d.display_name as "displayName", d.os, d.os_version as "osVersion", d.arch,
  d.agent_version as "agentVersion", p.status, iso(p.last_seen_at) as "lastSeenAt",
  iso(d.enrolled_at) as "enrolledAt", p.ip_address as "ipAddress", d.tags, p.metrics,
  ${shownUpgradeSql} as upgrade, coalesce(o.commands, 0) as "pendingCommands", iso(d.created_at) as "createdAt",
  iso(d.updated_at) as "updatedAt"`

/**
 * SQL: the CTE `open`, which counts the open commands of the devices `ids` together: once for each partition, not
 * once for each device too. `floor` is a parameter (`openFloor`): a function there is called for each device.
 */
export const openSql = (ids: string, floor: string) => `open as materialized (
  select c.device_id, count(*) as commands, ${firstUpgradeSql} as upgrade from commands c
  where c.device_id = any(${ids}) and c.completed_at is null and c.id >= ${floor}::uuid
  group by 1
)`

/** No open command is older than this id. */
export const openFloor = () => idFloor(Date.now() - limits.openCommandDaysMax * 86_400_000)

const inventory = `, (select inventory from device_inventory n where n.device_id = d.id) as inventory`

/** One text whatever the scope, so that a pool that keeps plans has it planned: planning was half of a page. */
const itemsSql = (more: string) => `
with ${openSql('$1::uuid[]', '$4')}
select d.id, (select row_to_json(r)::text from (select ${deviceColumns}${more}) r) as item
from unnest($1::uuid[]) as t(id)
join devices d on d.id = t.id
join device_presence p on p.device_id = d.id
left join open o on o.device_id = d.id
where ($2::uuid is null or d.org_id = $2) and ($3::uuid[] is null or d.site_id = any($3))`

const rowsSql = itemsSql('')
const wholeSql = itemsSql(inventory)

/** Those of `ids` that the scope holds, as JSON texts by id. */
export async function deviceItems(
  db: Queryable,
  scope: Scope,
  ids: readonly string[],
): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map()
  const rows = await db.query<Item>(rowsSql, [ids, scope.orgId, scope.siteIds, openFloor()])
  return new Map(rows.map(({ id, item }) => [id, item]))
}

/** One device as JSON text; throws NOT_FOUND outside the scope. */
export async function findDevice(
  db: Queryable,
  scope: Scope,
  id: string,
  withInventory: boolean,
): Promise<string> {
  const text = withInventory ? wholeSql : rowsSql
  const values = [[id], scope.orgId, scope.siteIds, openFloor()]
  const [row] = await db.query<Item>(text, values)
  if (row === undefined) throw new AppError('NOT_FOUND', 'there is no such device')
  return row.item
}
