// What several files on the audit share: its columns as they are answered, and whose audit may be named.
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'

export const auditColumns = `a.id, a.org_id as "orgId", iso(a.at) as "at", a.actor_type as "actorType",
  a.actor_id as "actorId", a.actor_email as "actorEmail", a.action, a.resource_type as "resourceType",
  a.resource_id as "resourceId", a.result, a.ip, a.user_agent as "userAgent",
  a.request_id as "requestId", a.details`

/** Throws NOT_FOUND when there is no such organization. */
export async function requireOrganization(db: Queryable, id: string): Promise<void> {
  const [row] = await db.query('select true as found from organizations where id = $1', [id])
  if (row === undefined) throw organizationNotFound(id)
}

export function organizationNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no organization ${id}`)
}
