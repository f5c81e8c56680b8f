// Whom an execution reaches: the scope of who started it and the filter it was given, as conditions on a
// device. One rule for the dry run that counts and the fan-out that acts.
import type { Scope } from './auth.ts'
import { Where } from './db.ts'

export interface DeviceFilter {
  siteId?: string
  orgId?: string
  os?: string
  tag?: string
  status?: string
}

/** Conditions on a device `d` with its presence `p`. Decommissioned ones are never meant by a filter. */
export function targetConditions(scope: Scope, filter: DeviceFilter): Where {
  const where = new Where().and('d.decommissioned_at is null')
  if (scope.orgId !== null) where.and('d.org_id = ?', scope.orgId)
  if (scope.siteIds !== null) where.and('d.site_id = any(?::uuid[])', scope.siteIds)
  if (filter.orgId !== undefined) where.and('d.org_id = ?', filter.orgId)
  if (filter.siteId !== undefined) where.and('d.site_id = ?', filter.siteId)
  if (filter.os !== undefined) where.and('d.os = ?', filter.os)
  if (filter.tag !== undefined) where.and('d.tags @> array[?]::text[]', filter.tag)
  if (filter.status !== undefined) where.and('p.status = ?', filter.status)
  return where
}
