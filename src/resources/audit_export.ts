// The export of the audit: lines that PostgreSQL writes, batch by batch, as fast as they are read.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import type { Database, Queryable } from '../db.ts'
import { insertEvents } from '../events.ts'
import { idFloor } from '../ids.ts'
import { limits } from '../limits.ts'
import type { Call, Context, Reply } from '../route.ts'
import { auditConditions, auditFilters, type AuditFilters } from './audit_filters.ts'
import { auditColumns, requireOrganization } from './audit_rows.ts'

export const ExportQuery = Type.Object({
  ...auditFilters,
  format: Type.Optional(Type.Enum(['csv', 'ndjson'], { default: 'csv' })),
})

export function startExport(
  ctx: Context,
  call: Call<undefined, Static<typeof ExportQuery>, undefined>,
): Reply {
  const { format = 'csv', ...filters } = call.query
  // Checked here, before anything is written down about it.
  auditConditions(call.actor, filters)
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
  filters: AuditFilters,
): AsyncGenerator<string> {
  const release = ctx.exports.take(call.actor.userId)
  try {
    const snapshot = await recordExport(ctx.auditDb, call, format, filters)
    let head = formats[format].head
    let rowsMax: number = limits.exportBatchMax
    for (let after = idFloor(0); ;) {
      const from = { snapshot, after, rowsMax }
      const batch = await exportBatch(ctx.auditDb, call.actor, filters, format, from)
      // The head goes with the first rows, so that a failure to read these is still a refusal.
      if (head !== '' || batch.text !== null) yield head + (batch.text ?? '')
      if (!batch.more) return
      head = ''
      after = batch.last
      // Rows as long as these fill the next chunk, and not many more are read in vain.
      rowsMax = Math.min(limits.exportBatchMax, batch.rows + Math.ceil(batch.rows / 8))
    }
  } finally {
    release()
  }
}
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
    line: `(select row_to_json(t)::text from (select ${auditColumns.replaceAll('a.', 'b.')}) t) || E'\\n'`,
  },
} as const

/** Writes down that it begins; returns what is visible at this moment. */
async function recordExport(
  db: Database,
  call: Call<undefined, unknown, undefined>,
  format: Format,
  filters: AuditFilters,
): Promise<string> {
  const { actor } = call
  const orgId = actor.orgId ?? filters.orgId ?? null
  return db.transaction(async (tx) => {
    // An organization sees it when the platform takes its audit.
    if (actor.orgId === null && orgId !== null) await requireOrganization(tx, orgId)
    const [row] = await tx.query<{ snapshot: string }>('select hub_snapshot()::text as snapshot')
    const subject = { action: 'audit.export', resourceType: 'audit', resourceId: null, orgId }
    await insertAudit(tx, [auditOf(call, { ...subject, details: { format, filters } })])
    const data = { userId: actor.userId, email: actor.email, format, filters }
    await insertEvents(tx, [{ orgId, type: 'audit.exported', data }])
    return row?.snapshot ?? ''
  })
}

/** Where a batch begins, and the rows it may read. */
interface From {
  snapshot: string
  after: string
  rowsMax: number
}

interface ExportBatch extends Record<string, unknown> {
  /** Null when nothing was left. */
  text: string | null
  last: string
  rows: number
  more: boolean
}

/**
 * The next lines after an id. No transaction stays open between batches: what the snapshot did not see is
 * left out by each of them.
 */
async function exportBatch(
  db: Queryable,
  scope: Scope,
  filters: AuditFilters,
  format: Format,
  { snapshot, after, rowsMax }: From,
): Promise<ExportBatch> {
  const where = auditConditions(scope, filters)
    .and('a.id > ?', after)
    .and('pg_visible_in_snapshot(a.xid, ?::pg_snapshot)', snapshot)
  const limit = where.value(rowsMax)
  const bytesMax = where.value(limits.streamChunkBytesMax)
  const [batch] = await db.query<ExportBatch>(
    `with b as materialized (
      select a.* from audit a ${where.text()} order by a.id limit ${limit}
    ), lines as (
      select id, line, coalesce(sum(octet_length(line)) over (
        order by id rows between unbounded preceding and 1 preceding), 0) as bytes_before
      from (select b.id, ${formats[format].line} as line from b offset 0) l
    ), kept as (select * from lines where bytes_before < ${bytesMax})
    select string_agg(line, '' order by id) as text, (array_agg(id order by id desc))[1] as last, count(*)::int as rows,
      (select count(*) from b) = ${limit} or count(*) < (select count(*) from b) as more
    from kept`,
    where.values,
  )
  if (batch === undefined) throw new Error('an aggregate has a row')
  return batch
}
