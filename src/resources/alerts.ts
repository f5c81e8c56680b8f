// Alerts: what needs a human's eye. Their shape, queries and routes; raising them is `../alerts.ts`.
import { Type, type Static } from 'typebox'
import { alertEventData, alertKinds, severities } from '../alerts.ts'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { newEventId } from '../events.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageRow, type Pager } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, nullable, Time } from './shapes.ts'

const statuses = ['active', 'acknowledged', 'resolved'] as const

export const Alert = Type.Object({
  id: Id,
  orgId: nullable(
    Type.String({ format: 'uuid', description: 'Null: the platform’s own, for its admins alone.' }),
  ),
  deviceId: nullable(Id),
  kind: Type.Enum([...alertKinds]),
  severity: Type.Enum([...severities]),
  status: Type.Enum([...statuses]),
  title: Type.String(),
  message: Type.String(),
  context: Type.Record(Type.String(), Type.Unknown(), {
    description:
      'What it is about, by kind: metric and threshold, command, siteId of a whole site.',
  }),
  dedupeKey: Type.String({ description: 'One alert is open per key; a repeat counts up.' }),
  occurrences: Type.Integer({ minimum: 1 }),
  triggeredAt: Time,
  lastSeenAt: Time,
  acknowledgedAt: nullable(Time),
  acknowledgedBy: nullable(Id),
  resolvedAt: nullable(Time),
  resolvedBy: nullable(
    Type.String({ format: 'uuid', description: 'Null on a resolved one: it resolved itself.' }),
  ),
  note: nullable(Type.String()),
})

const AlertQuery = Type.Object({
  ...pageQuery,
  status: Type.Optional(Type.Enum([...statuses])),
  severity: Type.Optional(Type.Enum([...severities])),
  kind: Type.Optional(Type.Enum([...alertKinds])),
  deviceId: Type.Optional(Id),
  orgId: Type.Optional(Id),
  siteId: Type.Optional(Id),
})

const Note = Type.Object({
  note: Type.Optional(Type.String({ maxLength: limits.alertNoteCharsMax })),
})

export const alertRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/alerts',
    name: 'listAlerts',
    tag: 'alerts',
    summary: 'List alerts, newest first.',
    may: 'alerts.read',
    query: AlertQuery,
    responses: { 200: pageOf(Alert) },
    handle: list,
  }),
  route({
    method: 'GET',
    path: '/alerts/:id',
    name: 'getAlert',
    tag: 'alerts',
    summary: 'Get an alert.',
    may: 'alerts.read',
    params: idParams,
    responses: { 200: Alert },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getAlert(db, actor, params.id),
    }),
  }),
  route({
    method: 'POST',
    path: '/alerts/:id/acknowledge',
    name: 'acknowledgeAlert',
    tag: 'alerts',
    summary: 'Say that someone takes care of it; twice is as good as once.',
    may: 'alerts.write',
    params: idParams,
    body: Note,
    bodyOptional: true,
    responses: { 200: Alert },
    handle: (ctx, call) => settle(ctx, call, 'acknowledged'),
  }),
  route({
    method: 'POST',
    path: '/alerts/:id/resolve',
    name: 'resolveAlert',
    tag: 'alerts',
    summary: 'End it; twice is as good as once. What happens again opens a new one.',
    may: 'alerts.write',
    params: idParams,
    body: Note,
    bodyOptional: true,
    responses: { 200: Alert },
    handle: (ctx, call) => settle(ctx, call, 'resolved'),
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof AlertQuery>, undefined>,
): Promise<Reply> {
  const { limit: _limit, cursor: _cursor, ...filters } = query
  const page = pager(ctx.cursorKey, ['alerts', filters, actor.orgId, actor.siteIds], query)
  return { status: 200, json: page.envelope(await listAlerts(ctx.db, actor, filters, page)) }
}

async function settle(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof Note>>,
  status: Settled,
): Promise<Reply> {
  const { actor, params } = call
  const json = await ctx.db.transaction(async (tx) => {
    await settleAlert(tx, actor, call, status)
    return getAlert(tx, actor, params.id)
  })
  return { status: 200, json }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `a.id, a.org_id as "orgId", a.device_id as "deviceId", a.kind, a.severity, a.status,
  a.title, a.message, a.context, a.dedupe_key as "dedupeKey", a.occurrences,
  iso(a.triggered_at) as "triggeredAt", iso(a.last_seen_at) as "lastSeenAt",
  iso(a.acknowledged_at) as "acknowledgedAt", a.acknowledged_by as "acknowledgedBy",
  iso(a.resolved_at) as "resolvedAt", a.resolved_by as "resolvedBy", a.note`

/** The condition that an alert `a` is the scope's; one of no site is hidden from who is narrowed. */
function scoped(scope: Scope): Where {
  const where = new Where()
  if (scope.orgId !== null) where.and('a.org_id = ?', scope.orgId)
  if (scope.siteIds !== null) where.and('a.site_id = any(?::uuid[])', scope.siteIds)
  return where
}

type Filters = Omit<Static<typeof AlertQuery>, keyof typeof pageQuery>

// Literals, so that the planner sees that the indexes of open alerts will do.
const statusSql = {
  active: `a.status <> 'resolved' and a.status = 'active'`,
  acknowledged: `a.status <> 'resolved' and a.status = 'acknowledged'`,
  resolved: `a.status = 'resolved'`,
}

const source: Source = { columns, tables: 'alerts a', id: 'a.id' }

function listAlerts(
  db: Queryable,
  scope: Scope,
  filters: Filters,
  page: Pager,
): Promise<PageRow[]> {
  const where = scoped(scope)
  if (filters.status !== undefined) where.and(statusSql[filters.status])
  if (filters.severity !== undefined) where.and('a.severity = ?', filters.severity)
  if (filters.kind !== undefined) where.and('a.kind = ?', filters.kind)
  if (filters.deviceId !== undefined) where.and('a.device_id = ?', filters.deviceId)
  if (filters.orgId !== undefined) where.and('a.org_id = ?', filters.orgId)
  if (filters.siteId !== undefined) where.and('a.site_id = ?', filters.siteId)
  return newestFirst(db, source, where, page)
}

/** An alert as JSON text. Throws NOT_FOUND outside of the scope. */
async function getAlert(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scoped(scope).and('a.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw notFound(id)
}

type Settled = 'acknowledged' | 'resolved'

interface Open extends Row {
  orgId: string | null
  deviceId: string | null
  status: (typeof statuses)[number]
  note: string | null
}

/** Acknowledges or resolves, once. Throws NOT_FOUND outside of the scope, ALREADY_RESOLVED. */
async function settleAlert(
  tx: Queryable,
  scope: Scope,
  call: Call<{ id: string }, undefined, Static<typeof Note>>,
  status: Settled,
): Promise<void> {
  const { id } = call.params
  const where = scoped(scope).and('a.id = ?', id)
  const [before] = await tx.query<Open>(
    `select a.org_id as "orgId", a.device_id as "deviceId", a.status, a.note
     from alerts a ${where.text()} for update`,
    where.values,
  )
  if (!before) throw notFound(id)
  if (before.status === status) return
  if (before.status === 'resolved') {
    throw new AppError(
      'ALREADY_RESOLVED',
      'this alert is resolved; there is nothing to acknowledge',
    )
  }
  const note = call.body.note ?? before.note
  await tx.query(settleSql[status], [id, call.actor.userId, note])
  await insertAudit(tx, [
    auditOf(call, {
      action: status === 'resolved' ? 'alert.resolve' : 'alert.acknowledge',
      resourceType: 'alert',
      resourceId: id,
      deviceId: before.deviceId,
      orgId: before.orgId,
      details: { before: { status: before.status, note: before.note }, after: { status, note } },
    }),
  ])
}

const settleSql = { acknowledged: settling('acknowledged'), resolved: settling('resolved') }

/** $1 alert, $2 user, $3 note; with the event of it. */
function settling(status: Settled): string {
  return `
with a as (
  update alerts set status = '${status}', ${status}_at = now(), ${status}_by = $2, note = $3
  where id = $1
  returning *
)
insert into events (id, org_id, type, at, site_id, data)
select ${newEventId}, a.org_id, 'alert.${status}', a.${status}_at, a.site_id, ${alertEventData}
from a`
}

function notFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no alert ${id}`)
}
