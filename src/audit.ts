// Who did what: the rows of the audit. A change writes its rows in its own transaction; what changes
// nothing (a denied call) is written by the trail, in batches. Rows are only ever added.
import { Batcher } from './batch.ts'
import { cleanText, jsonText } from './clean.ts'
import { plainArray, textArray, type Database, type Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import { newId } from './ids.ts'
import type { Logger } from './log.ts'

export interface AuditEntry {
  readonly id: string
  /** Whose audit it shows in; null: the platform's. */
  readonly orgId: string | null
  /** Milliseconds since 1970. */
  readonly atMs: number
  readonly actorType: 'user' | 'agent' | 'system'
  readonly actorId: string | null
  readonly actorEmail: string | null
  /** `<resource>.<verb>` */
  readonly action: string
  readonly resourceType: string | null
  readonly resourceId: string | null
  readonly deviceId: string | null
  readonly result: 'success' | 'failure' | 'denied'
  readonly ip: string | null
  readonly userAgent: string | null
  readonly requestId: string | null
  /** `before` and `after` of a change; never a secret. */
  readonly details: Readonly<Record<string, unknown>> | null
}

/** Where a request came from: a `Call`, or as much of it as there is. */
export interface AuditSource {
  /** Without an id: somebody who only claims this email. */
  readonly actor?: { readonly userId: string | null; readonly email: string } | undefined
  readonly ip: string
  readonly userAgent: string | null
  readonly requestId: string
}

export interface AuditSubject {
  action: string
  resourceType: string | null
  resourceId: string | null
  orgId: string | null
  deviceId?: string | null
  result?: AuditEntry['result']
  details?: Readonly<Record<string, unknown>>
}

/** The entry of a request: who and from where by the call, what by `subject`. */
export function auditOf(call: AuditSource, subject: AuditSubject): AuditEntry {
  return {
    id: newId(),
    orgId: subject.orgId,
    atMs: Date.now(),
    actorType: 'user',
    actorId: call.actor?.userId ?? null,
    actorEmail: call.actor?.email ?? null,
    action: subject.action,
    resourceType: subject.resourceType,
    resourceId: subject.resourceId,
    deviceId: subject.deviceId ?? null,
    result: subject.result ?? 'success',
    ip: call.ip || null,
    userAgent: call.userAgent,
    requestId: call.requestId,
    details: subject.details ?? null,
  }
}

/** The entry of something the hub did by itself. */
export function auditOfSystem(subject: AuditSubject): AuditEntry {
  const entry = auditOf({ ip: '', userAgent: null, requestId: '' }, subject)
  return { ...entry, actorType: 'system', requestId: null }
}

/** Adds rows in the caller's transaction. */
export async function insertAudit(tx: Queryable, entries: readonly AuditEntry[]): Promise<void> {
  if (entries.length > 0) await tx.query(`insert into audit ${auditRows(1)}`, auditValues(entries))
}

/**
 * Column list and select of an audit insert whose first placeholder is `$first`, for statements that
 * write audit rows beside others. Its values are `auditValues`.
 */
export function auditRows(first: number): string {
  const names = columns.map(([name]) => name).join(', ')
  const arrays = columns.map(([, type], index) => `$${first + index}::${type}[]`).join(', ')
  return `(${names}) select * from unnest(${arrays})`
}

/** The values of `auditRows`, one array literal per column; texts are cut to what is worth keeping. */
export function auditValues(entries: readonly AuditEntry[]): string[] {
  return columns.map(([, type, value]) => {
    const cells = entries.map(value)
    return type === 'uuid' ? plainArray(cells) : textArray(cells)
  })
}

type Column = readonly [name: string, type: string, value: (entry: AuditEntry) => string | null]

const text = (value: string | null, charsMax: number = limits.auditTextCharsMax) =>
  value === null ? null : cleanText(value, charsMax)

const columns: readonly Column[] = [
  ['id', 'uuid', (entry) => entry.id],
  ['org_id', 'uuid', (entry) => entry.orgId],
  ['at', 'timestamptz', (entry) => new Date(entry.atMs).toISOString()],
  ['actor_type', 'text', (entry) => entry.actorType],
  ['actor_id', 'uuid', (entry) => entry.actorId],
  ['actor_email', 'text', (entry) => text(entry.actorEmail)],
  ['action', 'text', (entry) => entry.action],
  ['resource_type', 'text', (entry) => text(entry.resourceType)],
  ['resource_id', 'text', (entry) => text(entry.resourceId)],
  ['device_id', 'uuid', (entry) => entry.deviceId],
  ['result', 'text', (entry) => entry.result],
  ['ip', 'text', (entry) => text(entry.ip)],
  ['user_agent', 'text', (entry) => text(entry.userAgent, limits.userAgentCharsMax)],
  ['request_id', 'text', (entry) => text(entry.requestId)],
  ['details', 'jsonb', (entry) => (entry.details === null ? null : jsonText(entry.details))],
]

// ---- the trail -------------------------------------------------------------------------------

/** Writes rows that belong to no change: denied calls. */
export interface AuditTrail {
  /**
   * Resolves once the row is committed. Throws OVERLOADED when too many wait, UNAVAILABLE when it can't
   * be written: a refusal that leaves no trace is not given.
   */
  denied(entry: AuditEntry): Promise<void>
  /** Writes what waits. */
  close(): Promise<void>
}

interface Waiting {
  entry: AuditEntry
  resolve: () => void
  reject: (error: unknown) => void
}

/** A trail over `db`: what arrives while a statement is in flight is the next batch. */
export function auditTrail(db: Database, log: Logger): AuditTrail {
  const batcher = new Batcher<Waiting>({
    rowsMax: limits.auditBatchMax,
    queueMax: limits.auditQueueMax,
    inFlight: 1,
    async write(items) {
      try {
        await insertAudit(
          db,
          items.map((item) => item.entry),
        )
        for (const item of items) item.resolve()
      } catch (error) {
        log.error({ err: error, rows: items.length }, 'audit rows could not be written')
        const refusal = unavailable(error)
        for (const item of items) item.reject(refusal)
      }
    },
  })
  return {
    denied: (entry) =>
      new Promise((resolve, reject) => {
        if (batcher.push({ entry, resolve, reject })) return
        const message = 'too many refusals wait for their audit row; try again shortly'
        reject(new AppError('OVERLOADED', message, { retryAfterSeconds: 2 }))
      }),
    close: () => batcher.drained(),
  }
}

function unavailable(cause: unknown): AppError {
  if (cause instanceof AppError) return cause
  const message = 'the audit can not be written; try again shortly'
  return new AppError('UNAVAILABLE', message, { retryAfterSeconds: 2, cause })
}
