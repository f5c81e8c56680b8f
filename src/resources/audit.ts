// The audit as people read it: search and verification; its export is `audit_export.ts`. Rows are written where
// the change is.
import { Type, type Static } from 'typebox'
import { verifyChain, verifyChains, type Verdict } from '../audit_chains.ts'
import type { Queryable, Where } from '../db.ts'
import { pageOf, pageQuery, pager, type PageRow, type Pager } from '../page.ts'
import { route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { ExportQuery, startExport } from './audit_export.ts'
import { auditConditions, auditFilters, AuditResult } from './audit_filters.ts'
import { auditColumns, organizationNotFound, requireOrganization } from './audit_rows.ts'
import { newestFirst, type Source } from './rows.ts'
import { Id, nullable, Time } from './shapes.ts'

const text = nullable(Type.String())

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
  result: AuditResult,
  ip: text,
  userAgent: text,
  requestId: text,
  details: Type.Union([Type.Record(Type.String(), Type.Unknown()), Type.Null()], {
    description: '`before` and `after` of a change, or why something was refused.',
  }),
})

const AuditQuery = Type.Object({ ...pageQuery, ...auditFilters })
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
  const where = auditConditions(actor, filters)
  // All rows have one order and one index of it; any other search is planned for what is searched.
  const everything = actor.orgId === null && Object.keys(filters).length === 0
  const db = everything ? ctx.commandDb : ctx.auditDb
  return { status: 200, json: page.envelope(await listAudit(db, where, page)) }
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

const source: Source = { columns: auditColumns, tables: 'audit a', id: 'a.id' }

function listAudit(db: Queryable, where: Where, page: Pager): Promise<PageRow[]> {
  return newestFirst(db, source, where, page)
}
