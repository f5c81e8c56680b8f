// An execution in the words of the API: its shape, and how its row and its counts are read.
import { Type } from 'typebox'
import type { Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { endColumns } from '../execution_ends.ts'
import { ParameterValues } from './parameters.ts'
import { findItem, type Source } from './rows.ts'
import { Id, nullable, Time } from './shapes.ts'

const count = (description: string) => Type.Integer({ minimum: 0, description })

export const executionFields = {
  id: Id,
  orgId: nullable(Id),
  scriptId: Id,
  version: Type.Integer(),
  status: Type.Enum(['pending', 'running', 'completed', 'failed'], {
    description:
      'completed: every started command has ended, however; failed: not all devices could be dealt with, see error.',
  }),
  error: nullable(Type.String()),
  counts: Type.Object({
    total: count('Devices that it means; with a filter, those dealt with so far.'),
    refused: count('Named devices that were refused when it was requested.'),
    started: count('Commands that it made.'),
    open: count('Of those, the ones without an end.'),
    completed: count('Ended well.'),
    failed: count('Ended as failed.'),
    timeout: count('Ended as timeout.'),
    cancelled: count('Ended as cancelled.'),
    expired: count('Ended as expired.'),
    skipped: Type.Object({
      suspended: count('Devices of suspended organizations.'),
      decommissioned: count('Devices decommissioned since.'),
      queueFull: count('Devices with too many open commands.'),
      unsupportedOs: count('Devices that the script is not for.'),
      notFound: count('Devices that left the scope since.'),
    }),
  }),
  parameters: Type.Intersect([ParameterValues], { description: 'Without secret ones.' }),
  timeoutSeconds: Type.Integer(),
  createdBy: nullable(Id),
  createdAt: Time,
  startedAt: nullable(Time),
  completedAt: nullable(Time),
  expiresAt: Time,
}

export const Execution = Type.Object(executionFields)

const sums = endColumns.map((column) => `coalesce(sum(n.${column}), 0)::int as ${column}`)
const ends = endColumns.map((column) => `'${column}', e.${column} + n.${column}`)
const ended = endColumns.map((column) => `e.${column} - n.${column}`).join(' - ')

const columns = `e.id, e.org_id as "orgId", e.script_id as "scriptId", e.version,
  e.status, e.error,
  json_build_object('total', e.total, 'refused', e.refused, 'started', e.started,
    'open', e.started - ${ended}, ${ends.join(', ')},
    'skipped', json_build_object('suspended', e.skipped_suspended,
      'decommissioned', e.skipped_decommissioned, 'queueFull', e.skipped_queue_full,
      'unsupportedOs', e.skipped_os, 'notFound', e.skipped_gone)) as counts,
  e.parameters, e.timeout_seconds as "timeoutSeconds", e.created_by as "createdBy",
  iso(e.created_at) as "createdAt", iso(e.started_at) as "startedAt",
  iso(e.completed_at) as "completedAt", iso(e.expires_at) as "expiresAt"`

const tables = `executions e cross join lateral (
    select ${sums.join(', ')} from execution_ends n where n.execution_id = e.id
  ) n`

/** Where an `Execution` is read from. */
export const executionSource: Source = { columns, tables, id: 'e.id' }

/** The condition that an execution `e` is the scope's: all that it concerns is. */
export function scopedExecutions(scope: Scope): Where {
  const where = new Where()
  if (scope.orgId !== null) where.and('e.org_id = ?', scope.orgId)
  if (scope.siteIds !== null)
    where.and(`e.site_ids <@ ?::uuid[] and e.site_ids <> '{}'`, scope.siteIds)
  return where
}

/** An execution as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getExecution(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scopedExecutions(scope).and('e.id = ?', id)
  const item = await findItem(db, executionSource, where)
  if (item !== undefined) return item
  throw new AppError('NOT_FOUND', `there is no execution ${id}`)
}
