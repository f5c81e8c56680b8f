// Executions carried out: a fan-out over any number of devices in batches, each of which happens once or
// not at all, and the end of an execution once all its commands have theirs.
import { isConnectionFailure, plainArray, type Database, type Queryable } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import { targetConditions, type DeviceFilter } from '../src/execution_targets.ts'
import { handOver } from '../src/handoff_sql.ts'
import { idFloor, newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { changesOf, sendExecution, type AddedCommands, type DeviceCommand } from '../src/queue.ts'
import { nodesOf, type Placed } from './adding.ts'
import { acceptBatchSql, completeSql } from './execution_statements.ts'

interface FanOutOptions {
  db: Database
  /** Plans its statements once. */
  fanOutDb: Database
  /** Told after the commit. */
  tell: (added: AddedCommands) => void
  nodeId: string
  signal: AbortSignal
}

interface ExecutionRow extends Record<string, unknown> {
  id: string
  scopeOrgId: string | null
  scopeSiteIds: string[] | null
  deviceIds: string[] | null
  filter: DeviceFilter | null
  cursor: string | null
  batchFloor: string | null
  createdAt: Date
  expired: boolean
}

/**
 * Adds the commands of an execution, batch after batch in the order of device ids. The last device is kept
 * in the execution's row by the statement that adds a batch, so whoever comes after a crash goes on behind
 * it, and of two at once only one moves it. Throws where it should be tried again.
 */
export async function fanOut(
  id: string,
  { db, fanOutDb, tell, nodeId, signal }: FanOutOptions,
): Promise<void> {
  const execution = await findUnfinished(db, id)
  if (execution === undefined) return
  // The batch before a crash may be committed and not told.
  if (execution.cursor !== null) tell(await lastBatch(db, nodeId, execution))
  try {
    let { cursor } = execution
    for (;;) {
      if (signal.aborted) throw new Error('the hub is stopping')
      const ids = execution.expired ? [] : await nextDevices(db, execution, cursor)
      if (ids.length === 0) break
      const added = await acceptBatch(fanOutDb, nodeId, { id, cursor }, ids)
      if (added === undefined) return
      tell(added)
      cursor = ids.at(-1) ?? cursor
    }
    await endFanOut(db, id, execution.expired ? expiredError : null)
  } catch (error) {
    const again = signal.aborted || error instanceof AppError || isConnectionFailure(error)
    // What fails for any other reason would fail for ever.
    if (!again) await endFanOut(db, id, 'the hub failed to add its commands; its log says why')
    throw error
  }
}

const expiredError = 'it expired before all devices were dealt with'

async function findUnfinished(db: Queryable, id: string): Promise<ExecutionRow | undefined> {
  const [row] = await db.query<ExecutionRow>(
    `select id, scope_org_id as "scopeOrgId", scope_site_ids as "scopeSiteIds",
       device_ids as "deviceIds", filter, device_cursor as cursor, batch_floor as "batchFloor",
       created_at as "createdAt", expires_at <= now() as expired
     from executions where id = $1 and fanned_out_at is null`,
    [id],
  )
  return row
}

/** The next devices in order of id, none when all were dealt with. */
async function nextDevices(
  db: Queryable,
  { scopeOrgId, scopeSiteIds, deviceIds, filter, createdAt }: ExecutionRow,
  cursor: string | null,
): Promise<string[]> {
  if (deviceIds !== null) {
    const from = cursor === null ? 0 : deviceIds.findIndex((id) => id > cursor)
    return from === -1 ? [] : deviceIds.slice(from, from + limits.executionBatchMax)
  }
  const scope = { orgId: scopeOrgId, siteIds: scopeSiteIds }
  // Who enrolls while it runs was not meant.
  const where = targetConditions(scope, filter ?? {}).and('d.created_at <= ?', createdAt)
  if (cursor !== null) where.and('d.id > ?::uuid', cursor)
  const rows = await db.query<{ id: string }>(
    `select d.id from devices d join device_presence p on p.device_id = d.id ${where.text()}
     order by d.id limit ${limits.executionBatchMax}`,
    where.values,
  )
  return rows.map((row) => row.id)
}

interface AcceptedRow extends Record<string, unknown> {
  deviceId: string
  id: string
  payload: string
  timeoutSeconds: number
  expiresMs: number
  executionId: string
}

/** Adds the commands of these devices; undefined when somebody else moved the cursor first. */
async function acceptBatch(
  db: Queryable,
  nodeId: string,
  { id: executionId, cursor }: { id: string; cursor: string | null },
  deviceIds: readonly string[],
): Promise<AddedCommands | undefined> {
  const createdMs = Date.now()
  const ids = deviceIds.map(() => newId(createdMs))
  type Row = AcceptedRow & Placed & { skip: string | null }
  const rows = await db.query<Row>(acceptBatchSql, [
    executionId,
    cursor,
    plainArray(deviceIds),
    plainArray(ids),
    plainArray(deviceIds.map(() => newId())),
    plainArray(deviceIds.map(() => newId())),
    createdMs,
    idFloor(createdMs - limits.openCommandDaysMax * 86_400_000),
    // Past what any hub's clock calls now.
    idFloor(createdMs + 3_600_000),
    limits.openCommandsMax,
    deviceIds.at(-1),
    ids[0],
    nodeId,
  ])
  if (rows.length === 0) return undefined
  const taken = rows.filter(({ skip }) => skip === null)
  // Whoever claims a device that nobody holds reads its queue then.
  const here = taken.filter((row) => row.here)
  return {
    commands: here.map((row) => deviceCommand(row, createdMs)),
    nodes: nodesOf(taken),
  }
}

/** The commands of the last batch that still wait for their device, on whichever hub it is now. */
async function lastBatch(
  db: Queryable,
  nodeId: string,
  { id, batchFloor }: ExecutionRow,
): Promise<AddedCommands> {
  const untold = await db.query<{ deviceId: string; id: string }>(
    `select device_id as "deviceId", id from commands
     where execution_id = $1 and id >= $2 and completed_at is null and status = 'pending'
     order by id limit $3`,
    [id, batchFloor, limits.executionBatchMax],
  )
  return { commands: [], untold, nodes: await handOver(db, nodeId, changesOf(untold)) }
}

function deviceCommand(row: AcceptedRow, createdMs: number): DeviceCommand {
  const { deviceId, id, payload, timeoutSeconds, expiresMs, executionId } = row
  return {
    deviceId,
    command: {
      id,
      action: 'run_script',
      payload,
      timeoutSeconds,
      createdMs,
      expiresMs,
      concurrent: false,
      awaited: false,
      executionId,
    },
  }
}

/** All devices were dealt with, or `error` says why not. */
async function endFanOut(db: Database, id: string, error: string | null): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query(
      `update executions set fanned_out_at = now(), device_ids = null, error = $2,
         started_at = coalesce(started_at, now()),
         status = case status when 'pending' then 'running' else status end
       where id = $1 and fanned_out_at is null`,
      [id, error],
    )
    await complete(tx, [id])
  })
}

// ---- ends ------------------------------------------------------------------------------------

/** Ends the executions of which the last command ended; returns how many. */
export async function finishExecutions(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<{ id: string }>(freshSql, [limits.sweepBatchMax])
    const ids = [...new Set(rows.map((row) => row.id))]
    return ids.length === 0 ? 0 : complete(tx, ids)
  })
}

/**
 * Completes those whose commands have all ended. Each is locked first, so that the sums are taken after
 * whoever else looks: the end of the fan-out and the last end of a command may be committed side by side.
 */
async function complete(tx: Queryable, ids: readonly string[]): Promise<number> {
  await tx.query('select from executions where id = any($1::uuid[]) order by id for update', [ids])
  const done = await tx.query<{ id: string }>(completeSql, [
    plainArray(ids),
    plainArray(ids.map(() => newId())),
  ])
  if (done.length === 0) return 0
  await tx.query('delete from execution_ends where execution_id = any($1::uuid[])', [
    done.map(({ id }) => id),
  ])
  return done.length
}

/** What changed is looked at once; a row that is being counted up right now comes again after that. */
const freshSql = `
update execution_ends set fresh = false
where (execution_id, slot) in (
  select execution_id, slot from execution_ends where fresh
  order by execution_id, slot limit $1
  for update skip locked)
returning execution_id as id`

/** Sends executions again whose fan-out has not moved for a while; returns how many. */
export async function resendStalled(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<{ id: string }>(
      `update executions set touched_at = now() where id in (
         select id from executions
         where fanned_out_at is null and touched_at < now() - make_interval(secs => $1)
         order by touched_at limit 10
         for update skip locked)
       returning id`,
      [limits.executionStallSeconds],
    )
    for (const { id } of rows) await sendExecution(tx, id)
    return rows.length
  })
}
