// What a soak holds against the hub: the operators' ledger, the agents' deeds, the table, the outbox, the event
// stream and the API are to tell the same story of every command. `judgeSoak` is pure; the rest reads.
import { readFileSync } from 'node:fs'
import type { BenchDatabase } from './database.ts'
import { endsOf, type Asked, type ScriptRun } from './soak_operators.ts'

export interface StoredCommand {
  id: string
  deviceId: string
  status: string
  executionId: string | null
  /** Its end came so many seconds after its deadline; 0 for one in time, or without one. */
  lateSeconds: number
  /** What its agent said of it after it had ended otherwise; empty where it said nothing. */
  lateStatus: string
}

/** What an agent says of an id. */
export interface Deed {
  runs: number
  frames: number
  end: string
}

export interface StoredExecution {
  id: string
  status: string
  total: number
  completed: number
}

export interface Evidence {
  ledger: ReadonlyMap<string, Asked>
  scripts: ReadonlyMap<string, ScriptRun>
  scriptsUnknown: number
  stored: readonly StoredCommand[]
  executions: readonly StoredExecution[]
  deeds: ReadonlyMap<string, Deed>
  /** Ended commands whose end is not exactly one event of the outbox. */
  oddEnds: readonly { id: string; ends: number }[]
  heard: ReadonlyMap<string, number>
}

export const rules = ['lost', 'doubled', 'stuck', 'wrong', 'scripts', 'events'] as const
export type Rule = (typeof rules)[number]
export type Violations = Record<Rule, string[]>

const open = new Set(['pending', 'sent', 'delivered', 'running'])
/** Sweeps and writes wait while PostgreSQL is away, or a machine is busy; what is later than that is stuck. */
const lateSecondsMax = 60

export function judgeSoak(evidence: Evidence): Violations {
  const violations: Violations = {
    lost: [],
    doubled: [],
    stuck: [],
    wrong: [],
    scripts: [],
    events: [],
  }
  const rows = new Map(evidence.stored.map((row) => [row.id, row]))
  for (const [id, asked] of evidence.ledger) {
    const row = rows.get(id)
    if (row) judgeAsked(violations, row, asked)
    else violations.lost.push(`${describe(id, asked)}: accepted, and not in the table`)
  }
  const visitors = new Set(
    [...evidence.ledger].filter(([, { kind }]) => kind === 'visitor').map(([id]) => id),
  )
  for (const row of evidence.stored) {
    const asked = evidence.ledger.get(row.id)
    if (!asked && row.executionId === null) {
      violations.doubled.push(`${row.id} of ${row.deviceId}: in the table, and nobody got its id`)
    }
    if (!asked && row.executionId !== null && row.status !== 'completed') {
      const rule = open.has(row.status) ? 'stuck' : 'wrong'
      violations[rule].push(`${row.id} of execution ${row.executionId} is ${row.status}`)
    }
    // A visitor's agent lives in the bench itself and is gone with its device.
    if (!visitors.has(row.id)) judgeDeed(violations, row, evidence.deeds.get(row.id))
  }
  for (const id of evidence.deeds.keys()) {
    if (!rows.has(id)) violations.lost.push(`${id}: an agent got it, and the table has it not`)
  }
  judgeScripts(violations, evidence)
  judgeEvents(violations, evidence)
  return violations
}

function judgeAsked(violations: Violations, row: StoredCommand, asked: Asked): void {
  const text = `${describe(row.id, asked)} is ${row.status}`
  if (open.has(row.status)) violations.stuck.push(text)
  else if (row.lateSeconds > lateSecondsMax) {
    violations.stuck.push(`${text}, ${Math.round(row.lateSeconds)} s after its deadline`)
  } else if (!endsOf[asked.kind].includes(row.status)) violations.wrong.push(text)
}

/** The table and the agent: what one calls done the other did, once. */
function judgeDeed(violations: Violations, row: StoredCommand, deed: Deed | undefined): void {
  const text = `${row.id} of ${row.deviceId} is ${row.status}; its agent ran it ${deed?.runs ?? 0} times, end ${deed?.end ?? 'none'}`
  if (deed && deed.runs > 1) violations.doubled.push(text)
  const byAgent = row.status === 'completed' || row.status === 'failed'
  if (byAgent && deed?.end !== row.status) violations.lost.push(text)
  // What an agent finished may be called otherwise only where the hub had to decide before it heard of it.
  const byClock = row.status === 'expired' || row.status === 'timeout'
  // A cancel and a loss of socket or shard may cross the result: then the command shows both.
  const both = row.status === 'cancelled' && row.lateStatus === deed?.end
  const told = deed?.end === 'completed' || deed?.end === 'failed'
  if (told && !both && !byAgent && !byClock && !open.has(row.status)) violations.wrong.push(text)
}

function judgeScripts(violations: Violations, evidence: Evidence): void {
  const { executions, scripts, scriptsUnknown, stored } = evidence
  const known = new Map(executions.map((one) => [one.id, one]))
  for (const [id, { devices }] of scripts) {
    const one = known.get(id)
    if (one?.status === 'completed' && one.total === devices && one.completed === devices) continue
    violations.scripts.push(
      `execution ${id} on ${devices} devices: ${one ? JSON.stringify(one) : 'not in the table'}`,
    )
  }
  if (executions.length > scripts.size + scriptsUnknown) {
    violations.scripts.push(
      `${executions.length} executions; ${scripts.size} answered, ${scriptsUnknown} without an answer`,
    )
  }
  const seen = new Set<string>()
  for (const { id, deviceId, executionId } of stored) {
    if (executionId === null) continue
    const key = `${executionId} ${deviceId}`
    if (seen.has(key))
      violations.doubled.push(`${id}: a second command of execution and device ${key}`)
    seen.add(key)
  }
}

/** Every end is one event, and was heard once. */
function judgeEvents(violations: Violations, { oddEnds, stored, heard }: Evidence): void {
  for (const { id, ends } of oddEnds) {
    const rule = ends === 0 ? 'events' : 'doubled'
    violations[rule].push(`${id} has ended and has ${ends} events of it`)
  }
  for (const { id, status } of stored) {
    if (open.has(status)) continue
    const times = heard.get(id) ?? 0
    if (times !== 1) violations.events.push(`the end of ${id}, ${status}, was heard ${times} times`)
  }
}

function describe(id: string, { kind, deviceId, atSeconds }: Asked): string {
  return `${id} of ${deviceId} (${kind}, asked for at ${Math.round(atSeconds)} s)`
}

// ---- reading ---------------------------------------------------------------------------------

/** What lasting agents wrote: the devices whose sockets they hold, and what they did. */
export function readLedger(file: string): { held: Set<string>; deeds: Map<string, Deed> } {
  const held = new Set<string>()
  const deeds = new Map<string, Deed>()
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    const [what, id = '', runs, frames, end = ''] = line.split(' ')
    if (what === 'open') held.add(id)
    else if (what === 'ran') deeds.set(id, { runs: Number(runs), frames: Number(frames), end })
  }
  return { held, deeds }
}

const pageRows = 20_000

export async function readStored(database: BenchDatabase): Promise<StoredCommand[]> {
  const all: StoredCommand[] = []
  let after = '00000000-0000-0000-0000-000000000000'
  for (;;) {
    const rows = await database.read(
      `select id, device_id, status, coalesce(execution_id::text, '') as execution, coalesce(extract(epoch from completed_at - case status
           when 'expired' then expires_at
           when 'timeout' then coalesce(started_at, delivered_at)
             + make_interval(secs => timeout_seconds + 30)
         end), 0)::float8 as late_seconds, coalesce(late_result ->> 'status', '') as late_status
       from commands where id > '${after}' order by id limit ${pageRows}`,
    )
    for (const row of rows) {
      all.push({
        id: String(row['id']),
        deviceId: String(row['device_id']),
        status: String(row['status']),
        executionId: row['execution'] === '' ? null : String(row['execution']),
        lateSeconds: Number(row['late_seconds']),
        lateStatus: String(row['late_status']),
      })
    }
    if (rows.length < pageRows) return all
    after = all.at(-1)!.id
  }
}

export async function readOddEnds(
  database: BenchDatabase,
): Promise<{ id: string; ends: number }[]> {
  const rows = await database.read(
    `select c.id, count(e.id)::int as ends from commands c
     left join events e on e.data ->> 'commandId' = c.id::text and e.type in
       ('command.completed', 'command.failed', 'command.timeout', 'command.expired', 'command.cancelled')
     where c.completed_at is not null group by c.id having count(e.id) <> 1`,
  )
  return rows.map((row) => ({ id: String(row['id']), ends: Number(row['ends']) }))
}

export async function readExecutions(database: BenchDatabase): Promise<StoredExecution[]> {
  const rows = await database.read('select id, status, total, completed from executions')
  return rows.map((row) => ({
    id: String(row['id']),
    status: String(row['status']),
    total: Number(row['total']),
    completed: Number(row['completed']),
  }))
}
