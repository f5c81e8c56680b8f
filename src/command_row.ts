// A command row in the words of the API: shared by the routes that read it and the shard that ends it.

/**
 * SQL: the command `c`, found by its id, is open. `completed_at is null` would offer the indexes of all that is open:
 * where few are, a planner takes one of them to be read from end to end, with what was ended and not vacuumed.
 */
export const isOpenSql = `coalesce(c.completed_at, 'infinity') = 'infinity'`

/** Of these commands, the ids of those that are open. $1 ids */
export const openIdsSql = `
select c.id from commands c where c.id = any($1::uuid[]) and ${isOpenSql}`

/** Columns of a `Command` but `blockedBy`; the row is `c`. */
export const commandColumns = `c.id, c.device_id as "deviceId", c.action, c.payload, c.status, c.result,
  c.late_result as "lateResult", iso(c.created_at) as "createdAt", iso(c.sent_at) as "sentAt",
  iso(c.delivered_at) as "deliveredAt", iso(c.started_at) as "startedAt",
  iso(c.completed_at) as "completedAt", iso(c.expires_at) as "expiresAt",
  c.timeout_seconds as "timeoutSeconds", c.attempts, c.created_by as "createdBy",
  c.execution_id as "executionId"`
