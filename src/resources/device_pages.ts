// Which devices a page of the list shows, found by an index in the order of the list wherever there is one. What is
// shown of them is `device_row.ts`.
import type { Scope } from '../auth.ts'
import { Where } from '../db.ts'
import { limits } from '../limits.ts'
import type { Pager } from '../page.ts'
import { deviceColumns, openFloor, openSql } from './device_row.ts'

export interface DeviceFilters {
  status?: string
  siteId?: string
  orgId?: string
  os?: string
  tag?: string
  q?: string
  sort?: string
}

export interface PageId extends Record<string, unknown> {
  id: string
  /** Null unless the page is in the order of names. */
  name: string | null
}

export interface Walk {
  /** For a pool that keeps plans; gives each row as `item`, JSON text that begins with its id, in the order of the list. */
  text: string
  values: unknown[]
  /** True where fewer rows than were asked for are the end of the list, and not of the walk. */
  whole: boolean
}

/**
 * A page by one statement whose plan can be kept: it walks the index of each filter, newest devices first, so far as a
 * page of common ones may need, and shows whom all of them have. Undefined where no index has that order.
 */
export function walkedPage(
  scope: Scope,
  filters: DeviceFilters,
  page: Pick<Pager, 'limit' | 'after'>,
): Walk | undefined {
  const { status, os, tag, q, siteId, sort } = filters
  if (scope.siteIds !== null || siteId !== undefined || q !== undefined || sort === 'hostname')
    return
  const orgId = scope.orgId ?? filters.orgId
  if (filters.orgId !== undefined && filters.orgId !== orgId) return
  const filtered = [orgId, status, os, tag]
  const given = filtered.map((value) => value !== undefined)
  if (page.limit >= walkedRows(given)) return
  const values = filtered.filter((value) => value !== undefined)
  return {
    text: walkText(given),
    values: [page.after?.[0] ?? idCeiling, page.limit + 1, openFloor(), ...values],
    whole: isWhole(given),
  }
}

/** One text for each choice of filters: to make it, and to find the statement by a new one, is 10 µs of each page. */
const walkTexts = new Map<string, string>()

/** Given or not: organization, status, system, tag. $1 place, $2 rows, $3 oldest open command, then those that are given. */
function walkText(given: boolean[]): string {
  const key = given.join()
  const text = walkTexts.get(key) ?? makeWalkText(given)
  walkTexts.set(key, text)
  return text
}

function makeWalkText(given: boolean[]): string {
  const [ofOrg, ofStatus, ofSystem, tagged] = given
  const rowsMax = walkedRows(given)
  let parameters = 3
  const value = () => `$${++parameters}`
  const organization = ofOrg ? `org_id = ${value()} and` : ''
  const walk = (table: string, id: string, filter: string) => `(
    select ${id} as id from ${table} where ${organization} ${filter} ${id} < $1::uuid
    order by ${id} desc limit ${rowsMax})`
  const walks: string[] = []
  if (ofStatus) walks.push(walk('device_presence', 'device_id', `status = ${value()} and`))
  if (ofSystem) walks.push(walk('devices', 'id', `os = ${value()} and`))
  if (walks.length === 0) walks.push(walk('devices', 'id', ''))
  // Device by device and no more than are needed, whatever the planner thinks of the table: hence the offset.
  const withTag = tagged
    ? `cross join lateral (select from devices d
         where d.id = w.id and d.tags @> array[${value()}]::text[] offset 0) t`
    : ''
  return `
with page as materialized (
  select w.id from ${walks.join(' w join ')} ${walks.length > 1 ? 'v using (id)' : 'w'} ${withTag}
  order by w.id desc limit $2
), ${openSql('array(select id from page)', '$3')}
select (select row_to_json(r)::text from (select ${deviceColumns}) r) as item
from page join devices d using (id)
join device_presence p on p.device_id = d.id
left join open o on o.device_id = d.id
order by d.id desc`
}

/** Whether every entry of the walk is a row of the page. */
function isWhole([, ofStatus, ofSystem, tagged]: boolean[]): boolean {
  return !tagged && !(ofStatus && ofSystem)
}

/** How far an index is walked for a page. */
function walkedRows(given: boolean[]): number {
  if (isWhole(given)) return limits.pageSizeMax + 1
  return given[3] ? limits.walkedDevicesMax : limits.walkedEntriesMax
}

/** Where the list of the newest begins. */
const idCeiling = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** The ids of a page in its order, and their names where it is in the order of those. */
export function pageOfIds(
  scope: Scope,
  filters: DeviceFilters,
  page: Pager,
): { text: string; values: unknown[] } {
  const byName = filters.sort === 'hostname'
  const shape = shapeOf(scope, filters)
  const where = conditions(scope, filters, shape)
  if (shape === 'presence') {
    // Joined, the devices would be read from the newest on.
    if (page.after) where.and('p.device_id < ?::uuid', ...page.after)
    const text = `select p.device_id as id, null as name from device_presence p ${where.text()}
      order by p.device_id desc limit ${where.value(page.limit + 1)}`
    return { text, values: where.values }
  }
  if (page.after && byName) where.and(`(${nameSql}, d.id) > (?, ?::uuid)`, ...page.after)
  else if (page.after) where.and('d.id < ?::uuid', ...page.after)
  const limit = where.value(page.limit + 1)
  const presence =
    filters.status === undefined ? '' : 'join device_presence p on p.device_id = d.id'
  const own = `select d.id, ${byName ? nameSql : 'null'} as name from devices d ${presence}
    ${where.text()} order by ${byName ? `${nameSql}, d.id` : 'd.id desc'} limit ${limit}`
  if (shape === 'all' && byName && filters.status !== undefined) {
    return { text: fewOrOwn(scope, filters, where, own), values: where.values }
  }
  if (shape === 'all') return { text: own, values: where.values }
  // Each site in the order of its index, and of those the first: not all that the sites hold, sorted.
  const sites = sitesSql(scope, filters, where)
  return {
    text: `select d.id, d.name from (${sites}) s cross join lateral (${own}) d
      order by ${byName ? 'name, id' : 'id desc'} limit ${limit}`,
    values: where.values,
  }
}

/**
 * A walk along the names finds a common status soon and a rare one late or never, wherever its names lie. So the
 * few devices of a rare status are sorted instead; PostgreSQL looks first which it is, and runs one half.
 */
function fewOrOwn(scope: Scope, filters: DeviceFilters, where: Where, own: string): string {
  const few = [`p.status = ${where.value(filters.status)}`]
  for (const orgId of [scope.orgId, filters.orgId]) {
    if (typeof orgId === 'string') few.push(`p.org_id = ${where.value(orgId)}`)
  }
  const max = limits.sortedRowsMax
  return `with few as materialized (
      select p.device_id, p.org_id, p.status from device_presence p
      where ${few.join(' and ')} limit ${max + 1}
    ), size as materialized (select count(*) > ${max} as many from few)
    select * from (${own.replace('join device_presence p', 'join few p')}) f where not (select many from size)
    union all
    select * from (${own}) w where (select many from size)`
}

/** The sites of a page; they carry its scope, for a device is of its site's organization. */
function sitesSql(scope: Scope, filters: DeviceFilters, where: Where): string {
  const parts = ['true']
  const { orgId, siteIds } = scope
  if (orgId !== null) parts.push(`org_id = ${where.value(orgId)}`)
  if (siteIds !== null) parts.push(`id = any(${where.value(siteIds)}::uuid[])`)
  if (filters.siteId !== undefined) parts.push(`id = ${where.value(filters.siteId)}`)
  if (filters.orgId !== undefined) parts.push(`org_id = ${where.value(filters.orgId)}`)
  return `select id from sites where ${parts.join(' and ')}`
}

/** The conditions of a page on its devices `d` and, with a status, their presence `p`. */
function conditions(scope: Scope, filters: DeviceFilters, shape: Shape): Where {
  const where = new Where()
  const { status, os, tag, q } = filters
  if (shape === 'perSite') where.and('d.site_id = s.id')
  for (const orgId of shape === 'perSite' ? [] : [scope.orgId, filters.orgId]) {
    if (typeof orgId !== 'string') continue
    if (shape === 'all') where.and('d.org_id = ?', orgId)
    // Said of both tables, so that either can be walked from there.
    if (status !== undefined) where.and('p.org_id = ?', orgId)
  }
  if (status !== undefined) where.and('p.status = ?', status)
  if (os !== undefined) where.and('d.os = ?', os)
  if (tag !== undefined) where.and('d.tags @> array[?]::text[]', tag)
  if (q !== undefined) {
    const prefix = `${q.toLowerCase().replace(/[\\%_]/g, '\\$&')}%`
    where.and(`(${nameSql} like ? or lower(d.display_name) like ?)`, prefix, prefix)
  }
  return where
}

/** What a page is found by: its sites one by one, the presence alone, or all devices of the scope. */
type Shape = 'perSite' | 'presence' | 'all'

function shapeOf(scope: Scope, { siteId, status, os, tag, q, sort }: DeviceFilters): Shape {
  if (scope.siteIds !== null || siteId !== undefined) return 'perSite'
  const more = os ?? tag ?? q ?? (sort === 'hostname' ? sort : undefined)
  return status !== undefined && more === undefined ? 'presence' : 'all'
}

/** As its indexes have it: by bytes, which is the order of the list and finds prefixes. */
const nameSql = `lower(d.hostname) collate "C"`
