// Terminal sessions as rows: begun, ended and recorded, each with its audit row and event in the same
// transaction. Who may have one and what passes through it is `terminals.ts`'.
import { auditOf, auditOfSystem, insertAudit, type AuditSource } from './audit.ts'
import { plainArray, textArray, type Database, type Queryable, type Row } from './db.ts'
import { insertEvents } from './events.ts'
import { limits } from './limits.ts'
import { isTerminalId, type TerminalSize } from './terminal_frames.ts'

/** Why a session ended. */
export const endReasons = [
  /** The operator closed it. */
  'closed',
  'exited',
  'operator_lost',
  'agent_lost',
  /** The agent could not start a shell, or was restarted. */
  'agent_refused',
  /** The operator was signed out, disabled, or may not reach the device any more. */
  'access_ended',
  /** The device was decommissioned, or its organization suspended. */
  'device_refused',
  'hub_stopped',
  /** The hub that held it is gone. */
  'interrupted',
] as const
export type EndReason = (typeof endReasons)[number]

export interface NewTerminal {
  /** A UUID; in the API `term-` stands before it. */
  id: string
  orgId: string
  siteId: string
  deviceId: string
  userId: string
  email: string
  nodeId: string
  size: TerminalSize
}

/** Adds a session that begins. */
export function insertTerminal(
  db: Database,
  source: AuditSource,
  terminal: NewTerminal,
): Promise<void> {
  const { id, orgId, siteId, deviceId, userId, email, nodeId, size } = terminal
  return db.transaction(async (tx) => {
    await tx.query(
      `insert into terminals (id, org_id, device_id, user_id, user_email, node_id, cols, rows)
       values ($1, $2, $3, $4, $5, $6, $7, $8)`,
      [id, orgId, deviceId, userId, email, nodeId, size.cols, size.rows],
    )
    const subject = { action: 'terminal.start', resourceType: 'terminal', resourceId: `term-${id}` }
    await insertAudit(tx, [auditOf(source, { ...subject, orgId, deviceId, details: { ...size } })])
    const data = { terminalId: `term-${id}`, deviceId, userId }
    await insertEvents(tx, [{ orgId, siteId, type: 'terminal.started', data }])
  })
}

/** The hub that an open session lives on; `id` is a session's, or anything. */
export async function homeOf(db: Queryable, id: string): Promise<string | undefined> {
  if (!isTerminalId(id)) return undefined
  const [row] = await db.query<{ nodeId: string }>(
    'select node_id as "nodeId" from terminals where id = $1 and ended_at is null',
    [id.slice('term-'.length)],
  )
  return row?.nodeId
}

export interface TerminalEnd {
  reason: EndReason
  exitCode: number | null
  bytesIn: number
  bytesOut: number
  /** Whether everything that was shown is in the recording. */
  recordingComplete: boolean
  /** Who ended it; absent: the hub by itself. */
  by?: AuditSource
}

interface EndedRow extends Row {
  id: string
  orgId: string
  siteId: string
  deviceId: string
  userId: string | null
  bytesIn: number | null
  bytesOut: number | null
  recordingComplete: boolean
}

const endedColumns = `t.id, t.org_id as "orgId", d.site_id as "siteId", t.device_id as "deviceId",
  t.user_id as "userId", t.bytes_in::float8 as "bytesIn", t.bytes_out::float8 as "bytesOut",
  t.recording_complete as "recordingComplete"`

/** Ends a session; one that has ended stays as it is. */
export function endTerminal(db: Database, id: string, end: TerminalEnd): Promise<void> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<EndedRow>(
      `update terminals t set ended_at = now(), end_reason = $2, exit_code = $3, bytes_in = $4, bytes_out = $5,
         recording_complete = $6
       from devices d where t.id = $1 and t.ended_at is null and d.id = t.device_id
       returning ${endedColumns}`,
      [id, end.reason, end.exitCode, end.bytesIn, end.bytesOut, end.recordingComplete],
    )
    await tell(tx, rows, end.reason, end.exitCode, end.by)
  })
}

/** Ends sessions whose hub is gone; one batch. Returns how many. */
export function endInterrupted(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<EndedRow>(interruptedSql, [limits.sweepBatchMax])
    await tell(tx, rows, 'interrupted', null)
    return rows.length
  })
}

/** Those of the sessions that have ended, and why. `ids` are of the API. */
export async function endedAmong(
  db: Queryable,
  ids: readonly string[],
): Promise<{ id: string; reason: EndReason }[]> {
  if (ids.length === 0) return []
  return db.query<{ id: string; reason: EndReason }>(
    `select 'term-' || id as id, end_reason as reason from terminals
     where id = any($1::uuid[]) and ended_at is not null`,
    [plainArray(ids.map((id) => id.slice('term-'.length)))],
  )
}

// A node's row is gone once its devices are dealt with; a living one renews its lease.
const interruptedSql = `
with lost as materialized (
  select t.id from terminals t
  where t.ended_at is null
    and not exists (select from nodes n where n.id = t.node_id and n.lease_until > now())
  limit $1
  for update skip locked
)
update terminals t set ended_at = now(), end_reason = 'interrupted', recording_complete = false
from devices d where t.id = any(array(select id from lost)) and d.id = t.device_id
returning ${endedColumns}`

async function tell(
  tx: Queryable,
  rows: readonly EndedRow[],
  reason: EndReason,
  exitCode: number | null,
  by?: AuditSource,
): Promise<void> {
  const ends = rows.map((row) => {
    const { bytesIn, bytesOut, recordingComplete, deviceId, orgId } = row
    const resourceId = `term-${row.id}`
    const details = { reason, exitCode, bytesIn, bytesOut, recordingComplete }
    const subject = { action: 'terminal.end', resourceType: 'terminal', resourceId }
    const entry = { ...subject, orgId, deviceId, details }
    const data = { terminalId: resourceId, deviceId, userId: row.userId, ...details }
    const event = { orgId, siteId: row.siteId, type: 'terminal.ended' as const, data }
    return { audit: by ? auditOf(by, entry) : auditOfSystem(entry), event }
  })
  await insertAudit(
    tx,
    ends.map(({ audit }) => audit),
  )
  await insertEvents(
    tx,
    ends.map(({ event }) => event),
  )
}

export interface RecordingChunk {
  terminalId: string
  seq: number
  lines: string
}

/** Adds pieces of recordings; a piece that is there already stays. */
export async function insertRecordings(
  db: Queryable,
  chunks: readonly RecordingChunk[],
): Promise<void> {
  await db.query(
    `insert into terminal_recordings (terminal_id, seq, lines)
     select * from unnest($1::uuid[], $2::integer[], $3::text[])
     on conflict do nothing`,
    [
      plainArray(chunks.map(({ terminalId }) => terminalId)),
      plainArray(chunks.map(({ seq }) => seq)),
      textArray(chunks.map(({ lines }) => lines)),
    ],
  )
}
