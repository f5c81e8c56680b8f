// The audit as people read it: search, export, verification. Rows are written where the change is.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { verifyChains, verifyChain, type Verdict } from '../audit_chains.ts'
import type { Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { insertEvents } from '../events.ts'
import { idFloor, isUuid } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageRow, type Pager } from '../page.ts'
import { invalid, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { asPage, Id, nullable, Time } from './shapes.ts'

const text = nullable(Type.String())
const results = Type.Enum(['success', 'failure', 'denied'])

export const AuditEntry = Type.Object({
  id: Id,
  orgId: nullable(Id),
  at: Time,
  actorType: Type.Enum(['user', 'agent', 'system']),
  actorId: nullable(Id),
  actorEmail: text,
  action: Type.String({ description: '`<resource>.<verb>`' }),
  resourceType: text,
  resourceId: text,
  result: results,
  ip: text,
  userAgent: text,
  requestId: text,
  details: Type.Union([Type.Record(Type.String(), Type.Unknown()), Type.Null()], {
    description: '`before` and `after` of a change, or why something was refused.',
  }),
})

const Filter = {
  from: Type.Optional(Type.String({ format: 'date-time', description: 'At or after it.' })),
  to: Type.Optional(Type.String({ format: 'date-time', description: 'Before it.' })),
  actorId: Type.Optional(Id),
  action: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: limits.auditTextCharsMax,
      pattern: '^[^*]*\\*?$',
      description: 'An action, or with a `*` at its end all that begin so: `device.*`.',
    }),
  ),
  resourceType: Type.Optional(Type.String({ maxLength: limits.auditTextCharsMax })),
  resourceId: Type.Optional(Type.String({ maxLength: limits.auditTextCharsMax })),
  result: Type.Optional(results),
  orgId: Type.Optional(Id),
  deviceId: Type.Optional(Id),
}
const AuditFilter = Type.Object(Filter)
type Filters = Static<typeof AuditFilter>

const AuditQuery = Type.Object({ ...pageQuery, ...Filter })
const ExportQuery = Type.Object({
  ...Filter,
  format: Type.Optional(Type.Enum(['csv', 'ndjson'], { default: 'csv' })),
})
const VerifyQuery = Type.Object({ orgId: Type.Optional(Id) })

export const Verification = Type.Object({
  ok: Type.Boolean(),
  entries: Type.Integer({ description: 'Sealed entries that were read and compared.' }),
  firstBreak: nullable(
    Type.Object({
      orgId: nullable(Id),
      position: Type.Integer({ description: 'The link of the chain, from 1.' }),
      kind: Type.Enum([
        'entry_changed',
        'entry_removed',
        'entry_inserted',
        'seal_changed',
        'seal_removed',
      ]),
      entryId: nullable(Id),
    }),
  ),
})

export const auditRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/audit',
    name: 'listAudit',
    tag: 'audit',
    summary:
      'Search the audit, newest first. Who is narrowed to sites sees the rows of their devices.',
    may: 'audit.read',
    query: AuditQuery,
    responses: { 200: pageOf(AuditEntry) },
    handle: list,
  }),
  route({
    method: 'GET',
    path: '/audit/export',
    name: 'exportAudit',
    tag: 'audit',
    summary:
      'Everything that was there when the export began, oldest first, as CSV (RFC 4180, formula-safe) or NDJSON.',
    may: 'audit.read',
    query: ExportQuery,
    responses: { 200: null },
    handle: startExport,
  }),
  route({
    method: 'GET',
    path: '/audit/verify',
    name: 'verifyAudit',
    tag: 'audit',
    summary: 'Read all sealed entries and compare them with their seals; about 10 s per million.',
    may: 'audit.read',
    organizationWide: true,
    query: VerifyQuery,
    responses: { 200: Verification },
    handle: verify,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof AuditQuery>, undefined>,
): Promise<Reply> {
  const { limit: _limit, cursor: _cursor, ...filters } = query
  const page = pager(ctx.cursorKey, ['audit', filters, actor.orgId, actor.siteIds], query)
  const where = conditions(actor, filters)
  return { status: 200, json: page.envelope(await listAudit(ctx.auditDb, where, page)) }
}

function startExport(
  ctx: Context,
  call: Call<undefined, Static<typeof ExportQuery>, undefined>,
): Reply {
  const { format = 'csv', ...filters } = call.query
  // Checked here, before anything is written down about it.
  conditions(call.actor, filters)
  const day = new Date().toISOString().slice(0, 10)
  return {
    status: 200,
    stream: { type: formats[format].type, chunks: exported(ctx, call, format, filters) },
    headers: { 'Content-Disposition': `attachment; filename="audit-${day}.${format}"` },
  }
}

/** The chunks of an export, audited before the first one. */
async function* exported(
  ctx: Context,
  call: Call<undefined, unknown, undefined>,
  format: Format,
  filters: Filters,
): AsyncGenerator<string> {
  const release = ctx.exports.take(call.actor.userId)
  try {
    const snapshot = await recordExport(ctx.auditDb, call, format, filters)
    let head = formats[format].head
    for (let after = idFloor(0); ;) {
      const batch = await exportBatch(ctx.auditDb, call.actor, filters, format, snapshot, after)
      // The head goes with the first rows, so that a failure to read these is still a refusal.
      if (head !== '' || batch.text !== null) yield head + (batch.text ?? '')
      if (!batch.more) return
      head = ''
      after = batch.last
    }
  } finally {
    release()
  }
}

async function verify(
  ctx: Context,
  { actor, query, onAbort }: Call<undefined, Static<typeof VerifyQuery>, undefined>,
): Promise<Reply> {
  const orgId = actor.orgId ?? query.orgId
  if (query.orgId !== undefined && query.orgId !== orgId) throw organizationNotFound(query.orgId)
  if (actor.orgId === null && orgId !== undefined) await requireOrganization(ctx.auditDb, orgId)
  const release = ctx.verifications.take(actor.userId)
  const left = new AbortController()
  onAbort(() => left.abort())
  try {
    const verdict: Verdict =
      orgId === undefined
        ? await verifyChains(ctx.auditDb, left.signal)
        : await verifyChain(ctx.auditDb, orgId, left.signal)
    return { status: 200, body: verdict }
  } finally {
    release()
  }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `a.id, a.org_id as "orgId", iso(a.at) as "at", a.actor_type as "actorType",
  a.actor_id as "actorId", a.actor_email as "actorEmail", a.action, a.resource_type as "resourceType",
  a.resource_id as "resourceId", a.result, a.ip, a.user_agent as "userAgent",
  a.request_id as "requestId", a.details`

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

function conditions(scope: Scope, filters: Filters): Where {
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

function listAudit(db: Queryable, where: Where, page: Pager): Promise<PageRow[]> {
  if (page.after) where.and('a.id < ?', page.after[0])
  const limit = where.value(page.limit + 1)
  return db.query<PageRow>(
    asPage(`select ${columns} from audit a ${where.text()} order by a.id desc limit ${limit}`),
    where.values,
  )
}

// ---- export ----------------------------------------------------------------------------------

type Format = 'csv' | 'ndjson'

const iso = 'iso(b.at)'
const plain = (column: string) => `coalesce(b.${column}::text, '')`
const cell = (column: string) => `csv_cell(b.${column}::text)`

/** Heading → the SQL of its cell; what can hold nothing but letters, digits and dots needs no quotes. */
const csvColumns: readonly (readonly [string, string])[] = [
  ['id', plain('id')],
  ['orgId', plain('org_id')],
  ['at', iso],
  ['actorType', plain('actor_type')],
  ['actorId', plain('actor_id')],
  ['actorEmail', cell('actor_email')],
  ['action', cell('action')],
  ['resourceType', cell('resource_type')],
  ['resourceId', cell('resource_id')],
  ['result', plain('result')],
  ['ip', cell('ip')],
  ['userAgent', cell('user_agent')],
  ['requestId', cell('request_id')],
  ['details', cell('details')],
]

const formats = {
  csv: {
    type: 'text/csv; charset=utf-8; header=present',
    head: `${csvColumns.map(([name]) => name).join(',')}\r\n`,
    line: `${csvColumns.map(([, sql]) => sql).join(" || ',' || ")} || E'\\r\\n'`,
  },
  ndjson: {
    type: 'application/x-ndjson; charset=utf-8',
    head: '',
    line: `(select row_to_json(t)::text from (select ${columns.replaceAll('a.', 'b.')}) t) || E'\\n'`,
  },
} as const

/** Writes down that it begins; returns what is visible at this moment. */
async function recordExport(
  db: Context['auditDb'],
  call: Call<undefined, unknown, undefined>,
  format: Format,
  filters: Filters,
): Promise<string> {
  const { actor } = call
  const orgId = actor.orgId ?? filters.orgId ?? null
  return db.transaction(async (tx) => {
    // An organization sees it when the platform takes its audit.
    if (actor.orgId === null && orgId !== null) await requireOrganization(tx, orgId)
    const [row] = await tx.query<{ snapshot: string }>(
      'select pg_current_snapshot()::text as snapshot',
    )
    const subject = { action: 'audit.export', resourceType: 'audit', resourceId: null, orgId }
    await insertAudit(tx, [auditOf(call, { ...subject, details: { format, filters } })])
    const data = { userId: actor.userId, email: actor.email, format, filters }
    await insertEvents(tx, [{ orgId, type: 'audit.exported', data }])
    return row?.snapshot ?? ''
  })
}

interface ExportBatch extends Record<string, unknown> {
  /** Null when nothing was left. */
  text: string | null
  last: string
  more: boolean
}

/**
 * The next lines after an id. No transaction stays open between batches: what the snapshot did not see is
 * left out by each of them.
 */
async function exportBatch(
  db: Queryable,
  scope: Scope,
  filters: Filters,
  format: Format,
  snapshot: string,
  after: string,
): Promise<ExportBatch> {
  const where = conditions(scope, filters)
    .and('a.id > ?', after)
    .and('pg_visible_in_snapshot(a.xid, ?::pg_snapshot)', snapshot)
  const limit = where.value(limits.exportBatchMax)
  const bytesMax = where.value(limits.streamChunkBytesMax)
  const [batch] = await db.query<ExportBatch>(
    `with b as materialized (
      select a.* from audit a ${where.text()} order by a.id limit ${limit}
    ), lines as (
      select id, line, coalesce(sum(octet_length(line)) over (
        order by id rows between unbounded preceding and 1 preceding), 0) as bytes_before
      from (select b.id, ${formats[format].line} as line from b) l
    ), kept as (select * from lines where bytes_before < ${bytesMax})
    select string_agg(line, '' order by id) as text, (array_agg(id order by id desc))[1] as last,
      (select count(*) from b) = ${limit} or count(*) < (select count(*) from b) as more
    from kept`,
    where.values,
  )
  if (batch === undefined) throw new Error('an aggregate has a row')
  return batch
}

async function requireOrganization(db: Queryable, id: string): Promise<void> {
  const [row] = await db.query('select true as found from organizations where id = $1', [id])
  if (row === undefined) throw organizationNotFound(id)
}

function organizationNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no organization ${id}`)
}
