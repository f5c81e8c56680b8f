// Which rows of the audit a search or an export is about: the filters of a query as conditions on `audit a`.
import { Type, type Static } from 'typebox'
import type { Scope } from '../auth.ts'
import { Where } from '../db.ts'
import { idFloor, isUuid } from '../ids.ts'
import { limits } from '../limits.ts'
import { invalid } from '../route.ts'
import { Id } from './shapes.ts'

export const AuditResult = Type.Enum(['success', 'failure', 'denied'])

export const auditFilters = {
  from: Type.Optional(Type.String({ format: 'date-time', description: 'At or after it.' })),
  to: Type.Optional(Type.String({ format: 'date-time', description: 'Before it.' })),
  actorId: Type.Optional(Id),
  action: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: limits.auditTextCharsMax,
      pattern: '^[^*]*\\*?$',
      description:
        'An action, `device.update`. A `*` may stand at its end alone, for all that begin so: `device.*`.',
    }),
  ),
  resourceType: Type.Optional(Type.String({ maxLength: limits.auditTextCharsMax })),
  resourceId: Type.Optional(Type.String({ maxLength: limits.auditTextCharsMax })),
  result: Type.Optional(AuditResult),
  orgId: Type.Optional(Id),
  deviceId: Type.Optional(Id),
}
const AuditFilter = Type.Object(auditFilters)
export type AuditFilters = Static<typeof AuditFilter>

/** The conditions of a search within a scope. Throws VALIDATION_ERROR for what no schema can tell. */
export function auditConditions(scope: Scope, filters: AuditFilters): Where {
  const where = scopedAudit(scope)
  const { actorId, action, resourceType, resourceId, result, orgId, deviceId } = filters
  between(where, timeOf('from', filters.from), timeOf('to', filters.to))
  if (actorId !== undefined) where.and('a.actor_id = ?', actorId)
  if (action !== undefined) acted(where, action)
  if (resourceType !== undefined) {
    where.and('a.resource_type = ?', resourceType)
    if (resourceType !== 'command') where.and(notCreated)
  }
  if (resourceId !== undefined) about(where, resourceId)
  if (result !== undefined) where.and('a.result = ?', result)
  if (orgId !== undefined) where.and('a.org_id = ?', orgId)
  if (deviceId !== undefined) where.and('a.device_id = ?', deviceId)
  return where
}
/** Rows a scope may see: all of its organization, or with sites those of the devices there. */
function scopedAudit(scope: Scope): Where {
  const where = new Where()
  if (scope.orgId !== null) where.and('a.org_id = ?', scope.orgId)
  if (scope.siteIds !== null) {
    where.and(
      `a.device_id in (select d.id from devices d where d.site_id = any(?::uuid[]))`,
      scope.siteIds,
    )
  }
  return where
}

/** The condition of the indexes that leave out most of the table. */
const notCreated = `a.action <> 'command.create'`

function between(where: Where, fromMs: number | undefined, toMs: number | undefined): void {
  if (fromMs !== undefined && toMs !== undefined && fromMs > toMs) {
    throw invalid('/query/to', 'lies before `from`')
  }
  // The ids bound what is read, the times decide.
  if (fromMs !== undefined) {
    where.and('a.at >= ?', new Date(fromMs).toISOString())
    where.and('a.id >= ?', idFloor(fromMs - limits.auditClockSkewMs))
  }
  if (toMs !== undefined) {
    where.and('a.at < ?', new Date(toMs).toISOString())
    where.and('a.id < ?', idFloor(toMs + limits.auditClockSkewMs))
  }
}

function timeOf(name: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined
  const ms = Date.parse(value)
  // What the schema lets through and no clock shows, such as a leap second.
  if (Number.isNaN(ms)) throw invalid(`/query/${name}`, 'is no time')
  return Math.min(Math.max(ms, 0), timeMsMax)
}

/** The end of the year 9999: of what PostgreSQL, JavaScript and an id can hold, the least. */
const timeMsMax = 253_402_300_799_999

function acted(where: Where, action: string): void {
  if (!action.endsWith('*')) {
    where.and('a.action collate "C" = ?', action)
    if (action !== 'command.create') where.and(notCreated)
    return
  }
  const prefix = action.slice(0, -1)
  where.and('a.action collate "C" like ?', `${prefix.replace(/[\\%_]/g, '\\$&')}%`)
  if (!'command.create'.startsWith(prefix)) where.and(notCreated)
}

/** Rows about one thing. The row of a command's creation was made with the command, so its id tells when. */
function about(where: Where, resourceId: string): void {
  if (!isUuid(resourceId)) {
    where.and('a.resource_id = ?', resourceId).and(notCreated)
    return
  }
  where.and('a.resource_id = ?', resourceId.toLowerCase())
  const madeMs = Number.parseInt(resourceId.replace('-', '').slice(0, 12), 16)
  where.and(
    `(${notCreated} or a.id between ? and ?)`,
    idFloor(madeMs),
    idFloor(Math.min(madeMs + 2 * limits.requestMsMax, idMsMax)),
  )
}

/** The last time that an id can hold. */
const idMsMax = 2 ** 48 - 1
