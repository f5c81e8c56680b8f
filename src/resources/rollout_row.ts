// A roll-out in the words of the API: its shape, its groups with their counts, and its devices.
import { Type } from 'typebox'
import type { Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { limits } from '../limits.ts'
import type { PageRow, Pager } from '../page.ts'
import { findItem, type Source } from './rows.ts'
import { deviceFilter, Id, nullable, Time } from './shapes.ts'

export const rolloutStatuses = ['running', 'paused', 'halted', 'completed', 'aborted'] as const
export type RolloutStatus = (typeof rolloutStatuses)[number]

const deviceStatuses = [
  'pending',
  'running',
  'completed',
  'failed',
  'timeout',
  'expired',
  'cancelled',
  'skipped',
] as const

export const RolloutFilter = Type.Object(
  {
    ...deviceFilter,
    deviceIds: Type.Optional(
      Type.Array(Id, { minItems: 1, maxItems: limits.executionDevicesMax, uniqueItems: true }),
    ),
  },
  {
    additionalProperties: false,
    description:
      'As in the list of devices, and by id; all that is named must fit. {}: every device.',
  },
)

const percent = (description: string) => Type.Integer({ minimum: 1, maximum: 100, description })

export const groupSettings = {
  percent: percent('Its share of the devices. The shares of all groups add up to 100.'),
  successThreshold: percent(
    'The next group begins once this part of its devices is upgraded. Devices that were skipped, cancelled, or not reached before their command expired don’t count.',
  ),
  errorThreshold: percent(
    'The roll-out halts once this part of its devices failed or timed out, counted as above. It also halts when the success threshold is out of reach.',
  ),
}

const count = (description: string) => Type.Integer({ minimum: 0, description })

const counts = {
  total: count('Devices.'),
  pending: count('Without a command: their group has not begun, or the roll-out stands still.'),
  running: count('With a command that has not ended; it may still wait for its device.'),
  completed: count('Upgraded, as their agents proved.'),
  failed: count('Failed; they run what they ran before.'),
  timeout: count('Without a result in time.'),
  expired: count('Not reached before the command expired.'),
  cancelled: count('Cancelled, with the roll-out or by hand.'),
  skipped: count('Not upgraded, for a reason that stands with the device.'),
}

export const Rollout = Type.Object({
  id: Id,
  orgId: nullable(Id),
  version: Type.String(),
  status: Type.Enum([...rolloutStatuses], {
    description:
      'halted: by itself, see reason. While it is paused or halted no device begins an upgrade.',
  }),
  reason: nullable(Type.String({ description: 'Why it has this status.' })),
  filter: RolloutFilter,
  counts: Type.Object(counts),
  groups: Type.Array(
    Type.Object({
      number: Type.Integer(),
      ...groupSettings,
      status: Type.Enum(['pending', 'running', 'passed', 'halted']),
      counts: Type.Object(counts),
      startedAt: nullable(Time),
      completedAt: nullable(Time),
    }),
  ),
  timeoutSeconds: Type.Integer(),
  expiresInSeconds: Type.Integer(),
  createdBy: nullable(Id),
  createdAt: Time,
  updatedAt: Time,
  completedAt: nullable(Time),
})

export const RolloutDevice = Type.Object({
  deviceId: Id,
  hostname: Type.String(),
  group: Type.Integer(),
  status: Type.Enum([...deviceStatuses]),
  reason: nullable(
    Type.Enum(['already_installed', 'no_binary', 'decommissioned', 'suspended', 'queue_full'], {
      description: 'Why it is skipped.',
    }),
  ),
  commandId: nullable(Id),
  endedAt: nullable(Time),
})

export const rolloutDeviceFilters = {
  status: Type.Optional(Type.Enum([...deviceStatuses])),
  group: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.rolloutGroupsMax })),
}

// ---- queries ---------------------------------------------------------------------------------

const counted = ['running', 'completed', 'failed', 'timeout', 'expired', 'cancelled', 'skipped']
const pending = `g.devices - ${counted.map((column) => `g.${column}`).join(' - ')}`

function countsSql(of: (expression: string) => string): string {
  const columns = counted.map((column) => `'${column}', ${of(`g.${column}`)}`).join(', ')
  return `json_build_object('total', ${of('g.devices')}, 'pending', ${of(pending)}, ${columns})`
}

const columns = `r.id, r.org_id as "orgId", r.version, r.status, r.reason, r.filter, n.counts, n.groups,
  r.timeout_seconds as "timeoutSeconds", r.expires_in_seconds as "expiresInSeconds",
  r.created_by as "createdBy", iso(r.created_at) as "createdAt", iso(r.updated_at) as "updatedAt",
  iso(r.completed_at) as "completedAt"`

const tables = `rollouts r cross join lateral (
    select ${countsSql((expression) => `sum(${expression})`)} as counts,
      json_agg(json_build_object('number', g.number, 'percent', g.percent,
        'successThreshold', g.success_threshold, 'errorThreshold', g.error_threshold,
        'status', case when g.started_at is null then 'pending'
          when g.completed_at is not null then 'passed'
          when r.status = 'halted' and g.number = r.group_number then 'halted' else 'running' end,
        'counts', ${countsSql((expression) => expression)},
        'startedAt', iso(g.started_at), 'completedAt', iso(g.completed_at)) order by g.number) as groups
    from rollout_groups g where g.rollout_id = r.id
  ) n`

const source: Source = { columns, tables, id: 'r.id' }

/** The condition that a roll-out `r` is the scope's. Narrowed users never get this far. */
export function scopedRollouts(scope: Scope): Where {
  const where = new Where()
  if (scope.orgId !== null) where.and('r.org_id = ?', scope.orgId)
  return where
}

export function listRollouts(
  db: Queryable,
  scope: Scope,
  orgId: string | undefined,
  page: Pager,
): Promise<(PageRow & { found: number })[]> {
  const where = scopedRollouts(scope)
  if (orgId !== undefined) where.and('r.org_id = ?', orgId)
  if (page.after) where.and('r.id < ?::uuid', page.after[0])
  const limit = where.value(page.limit + 1)
  // A filter may name 10,000 devices: the page ends where their ids are too much for one answer.
  return db.query(
    `with page as (
      select r.id, octet_length(r.filter::text) as bytes from rollouts r ${where.text()}
      order by r.id desc limit ${limit}
    ), sums as (
      select id, sum(bytes) over (order by id desc) - bytes as before, count(*) over () as found from page
    )
    select row_to_json(t)::text as item, array[t.id::text] as keys, s.found::int as found
    from sums s
    join lateral (select ${columns} from ${tables} where r.id = s.id) t on true
    where s.before <= ${limits.pageBytesMax}
    order by s.id desc`,
    where.values,
  )
}

/** A roll-out as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getRollout(db: Queryable, scope: Scope, id: string): Promise<string> {
  const item = await findItem(db, source, scopedRollouts(scope).and('r.id = ?', id))
  if (item !== undefined) return item
  throw rolloutNotFound(id)
}

export async function requireRollout(db: Queryable, scope: Scope, id: string): Promise<void> {
  const where = scopedRollouts(scope).and('r.id = ?', id)
  const rows = await db.query(`select true as found from rollouts r ${where.text()}`, where.values)
  if (rows.length === 0) throw rolloutNotFound(id)
}

export function rolloutNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no roll-out ${id}`)
}

interface DeviceFilters {
  status?: (typeof deviceStatuses)[number]
  group?: number
}

/** Devices of a roll-out, by group, then by id. */
export function listRolloutDevices(
  db: Queryable,
  rolloutId: string,
  { status, group }: DeviceFilters,
  page: Pager,
): Promise<PageRow[]> {
  const where = new Where().and('x.rollout_id = ?', rolloutId)
  if (status !== undefined) where.and('x.status = ?', status)
  if (group !== undefined) where.and('x.group_number = ?', group)
  if (page.after) where.and('(x.group_number, x.device_id) > (?::smallint, ?::uuid)', ...page.after)
  const limit = where.value(page.limit + 1)
  return db.query<PageRow>(
    `with page as materialized (
       select * from rollout_devices x ${where.text()}
       order by x.group_number, x.device_id limit ${limit}
     )
     select row_to_json(t)::text as item, array[t."group"::text, t."deviceId"::text] as keys
     from (
       select x.device_id as "deviceId", d.hostname, x.group_number as "group", x.status, x.reason,
         x.command_id as "commandId", iso(x.ended_at) as "endedAt"
       from page x join devices d on d.id = x.device_id
     ) t order by t."group", t."deviceId"`,
    where.values,
  )
}
