// Roll-outs carried out: group after group, each judged by how its upgrades ended. One transaction is one
// step, under the roll-out's row, so that a pause counts from its answer on, and whoever comes after a crash
// goes on with the next step.
import { auditOfSystem, insertAudit } from '../src/audit.ts'
import { plainArray, type Database, type Queryable } from '../src/db.ts'
import { handOver } from '../src/handoff_sql.ts'
import { idFloor, newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import {
  changesOf,
  sendRollout,
  type AddedCommands,
  type DeviceCommand,
  type EndedCommand,
} from '../src/queue.ts'
import {
  addBatchSql,
  cancelPendingSql,
  endDevicesSql,
  lockEndedSql,
  upgradeEndsSql,
  withdrawSql,
} from './rollout_statements.ts'
import { nodesOf, type Placed } from './adding.ts'
import { takeTurn } from './turns.ts'
import { judge, openOf, pendingOf, type Group } from './verdicts.ts'

/** What a step asks to be told of after its commit. */
export interface RolloutNews extends AddedCommands {
  /** Commands that were cancelled. */
  ended: EndedCommand[]
  /** Commands that their actors are to cancel. */
  cancels: EndedCommand[]
}

interface AdvanceOptions {
  /** Plans its statements once. */
  db: Database
  tell: (news: RolloutNews) => void
  nodeId: string
  signal: AbortSignal
}

interface RolloutRow extends Record<string, unknown> {
  id: string
  orgId: string | null
  version: string
  status: 'running' | 'paused' | 'halted' | 'completed' | 'aborted'
  groupNumber: number
  batchFloor: string | null
}

/** What a step did: told of after the commit; `more`: the next step may follow at once. */
interface Step extends RolloutNews {
  more: boolean
  /** The batch is told of when this step is. */
  batchFloor?: string
}

/** Takes a roll-out as far as it can go now. */
export async function advance(
  id: string,
  { db, tell, nodeId, signal }: AdvanceOptions,
): Promise<void> {
  for (;;) {
    if (signal.aborted) throw new Error('the hub is stopping')
    const step = await db.transaction((tx) => takeStep(tx, nodeId, id))
    if (step === undefined) return
    tell(step)
    if (step.batchFloor !== undefined) await noteTold(db, id, step.batchFloor)
    if (!step.more) return
  }
}

async function takeStep(tx: Queryable, nodeId: string, id: string): Promise<Step | undefined> {
  const [rollout] = await tx.query<RolloutRow>(lockSql, [id])
  // Somebody else is at it, or it was deleted.
  if (rollout === undefined) return undefined
  // The batch before a crash may be committed and not told; an actor knows an id that it has.
  if (rollout.batchFloor !== null) return untold(tx, nodeId, rollout, rollout.batchFloor)
  switch (rollout.status) {
    case 'running':
      return goOn(tx, nodeId, rollout)
    case 'aborted':
    case 'paused':
    case 'halted':
      return takeBack(tx, nodeId, rollout)
    case 'completed':
      return rest(tx, id, null)
  }
}

const lockSql = `
select id, org_id as "orgId", version, status, group_number as "groupNumber",
  batch_floor as "batchFloor"
from rollouts where id = $1 for update skip locked`

const nothing = { commands: [], nodes: [], ended: [], cancels: [], more: false }

/** Nothing to do until something happens, or these seconds have passed. */
async function rest(tx: Queryable, id: string, seconds: number | null): Promise<Step> {
  await tx.query('update rollouts set due_at = now() + make_interval(secs => $2) where id = $1', [
    id,
    seconds,
  ])
  return nothing
}

// ---- forward ---------------------------------------------------------------------------------

async function goOn(tx: Queryable, nodeId: string, rollout: RolloutRow): Promise<Step> {
  const groups = await tx.query<Group & Record<string, unknown>>(groupsSql, [rollout.id])
  const begun = groups.filter(({ number }) => number <= rollout.groupNumber)
  const verdicts = begun.map(judge)
  const halt = verdicts.find((verdict) => verdict.type === 'halt')
  if (halt) return stop(tx, rollout, halt.reason)
  if (begun.some((group) => pendingOf(group) > 0)) return addBatch(tx, nodeId, rollout)
  if (verdicts.at(-1)?.type !== 'passed') return rest(tx, rollout.id, null)
  if (begun.length < groups.length) return beginNext(tx, rollout)
  if (groups.some((group) => openOf(group) > 0)) return rest(tx, rollout.id, null)
  return finish(tx, rollout, groups)
}

const groupsSql = `
select number, success_threshold as "successThreshold", error_threshold as "errorThreshold", despite,
  devices, running, completed, failed, timeout, expired, cancelled, skipped
from rollout_groups where rollout_id = $1 order by number`

async function beginNext(tx: Queryable, { id, groupNumber }: RolloutRow): Promise<Step> {
  await tx.query(
    `update rollout_groups set completed_at = case when number = $2 then now() else completed_at end,
       started_at = case when number = $2 then started_at else now() end
     where rollout_id = $1 and number in ($2, $2 + 1)`,
    [id, groupNumber],
  )
  await tx.query(
    'update rollouts set group_number = group_number + 1, updated_at = now() where id = $1',
    [id],
  )
  return { ...nothing, more: true }
}

/** Halts by itself; what its devices have not confirmed is taken back by the next steps. */
async function stop(tx: Queryable, rollout: RolloutRow, reason: string): Promise<Step> {
  const { id, orgId, version } = rollout
  await tx.query(
    `update rollouts set status = 'halted', reason = $2, updated_at = now(), due_at = now()
     where id = $1`,
    [id, reason],
  )
  await insertAudit(tx, [
    auditOfSystem({
      action: 'rollout.halt',
      resourceType: 'rollout',
      resourceId: id,
      orgId,
      details: { before: { status: 'running' }, after: { status: 'halted', version, reason } },
    }),
  ])
  return { ...nothing, more: true }
}

async function finish(
  tx: Queryable,
  { id, groupNumber, version }: RolloutRow,
  groups: readonly Group[],
): Promise<Step> {
  const sum = (of: (group: Group) => number) => groups.reduce((all, group) => all + of(group), 0)
  const done = sum(({ completed }) => completed)
  const asked = sum(({ devices, skipped }) => devices - skipped)
  await tx.query(
    'update rollout_groups set completed_at = now() where rollout_id = $1 and number = $2',
    [id, groupNumber],
  )
  await tx.query(
    `update rollouts set status = 'completed', reason = $2, completed_at = now(), updated_at = now(),
       due_at = null where id = $1`,
    [id, `${done} of ${asked} devices were upgraded to ${version}`],
  )
  return nothing
}

interface AddedRow extends Record<string, unknown> {
  deviceId: string
  id: string
  payload: string
  timeoutSeconds: number
  createdMs: number
  expiresMs: number
}

async function addBatch(
  tx: Queryable,
  nodeId: string,
  { id, groupNumber }: RolloutRow,
): Promise<Step> {
  const next = await tx.query<{ id: string }>(
    `select device_id as id from rollout_devices
     where rollout_id = $1 and status = 'pending' and group_number <= $2
     order by group_number, device_id limit ${limits.executionBatchMax}`,
    [id, groupNumber],
  )
  const devices = next.map((row) => row.id).toSorted()
  const createdMs = Date.now()
  const ids = devices.map(() => newId(createdMs))
  const rows = await tx.query<AddedRow & Placed>(addBatchSql, [
    id,
    plainArray(devices),
    plainArray(ids),
    plainArray(devices.map(() => newId())),
    plainArray(devices.map(() => newId())),
    createdMs,
    idFloor(createdMs - limits.openCommandDaysMax * 86_400_000),
    // Past what any hub's clock calls now.
    idFloor(createdMs + 3_600_000),
    limits.openCommandsMax,
    ids[0],
    nodeId,
  ])
  const told = ids[0] === undefined ? {} : { batchFloor: ids[0] }
  const commands = rows.filter(({ here }) => here).map(deviceCommand)
  return { ...nothing, commands, nodes: nodesOf(rows), more: true, ...told }
}

/** The commands of the last batch that still wait for their device, on whichever hub it is now. */
async function untold(
  tx: Queryable,
  nodeId: string,
  { id }: RolloutRow,
  batchFloor: string,
): Promise<Step> {
  const rows = await tx.query<{ deviceId: string; id: string }>(
    `select c.device_id as "deviceId", c.id
     from rollout_devices x join commands c on c.id = x.command_id
     where x.rollout_id = $1 and x.status = 'running' and x.command_id >= $2
       and c.completed_at is null and c.status = 'pending'
     order by c.id`,
    [id, batchFloor],
  )
  const nodes = await handOver(tx, nodeId, changesOf(rows))
  return { ...nothing, untold: rows, nodes, more: true, batchFloor }
}

function deviceCommand(row: AddedRow): DeviceCommand {
  const { deviceId, id, payload, timeoutSeconds, createdMs, expiresMs } = row
  const command = { id, payload, timeoutSeconds, createdMs, expiresMs }
  const more = { action: 'upgrade_agent', concurrent: false, awaited: false, executionId: null }
  return { deviceId, command: { ...command, ...more } }
}

async function noteTold(db: Queryable, id: string, batchFloor: string): Promise<void> {
  await db.query('update rollouts set batch_floor = null where id = $1 and batch_floor = $2', [
    id,
    batchFloor,
  ])
}

// ---- back ------------------------------------------------------------------------------------

/**
 * What a device has not confirmed it shall not get while the roll-out stands still. A device that comes back
 * would otherwise take a version that has just been halted.
 */
async function takeBack(tx: Queryable, nodeId: string, { id, status }: RolloutRow): Promise<Step> {
  if (status === 'aborted') {
    const cancelled = await tx.query(cancelPendingSql, [id, limits.rolloutCancelMax])
    if (cancelled.length > 0) return { ...nothing, more: true }
  }
  type Asked = EndedCommand & Placed & { ended: boolean } & Record<string, unknown>
  const values = [id, limits.executionBatchMax, limits.rolloutWithdrawSeconds, nodeId]
  const asked = await tx.query<Asked>(withdrawSql, values)
  if (asked.length === 0) {
    const [left] = await tx.query<{ waits: boolean }>(unconfirmedSql, [id])
    return rest(tx, id, left?.waits ? limits.rolloutWithdrawSeconds : null)
  }
  const named = (rows: typeof asked) =>
    rows.map(({ deviceId, id: command }) => ({ deviceId, id: command }))
  return {
    ...nothing,
    ended: named(asked.filter(({ ended }) => ended)),
    cancels: named(asked.filter(({ ended, elsewhere }) => !ended && elsewhere === null)),
    nodes: nodesOf(asked),
    more: true,
  }
}

const unconfirmedSql = `
select exists (
  select from rollout_devices x join commands c on c.id = x.command_id
  where x.rollout_id = $1 and x.status = 'running' and c.completed_at is null
    and c.status in ('pending', 'sent')) as waits`

// ---- what happens ----------------------------------------------------------------------------

interface UpgradeEnd extends Record<string, unknown> {
  xid: string
  eventId: string
  commandId: string
  status: string
}

/** Notes ends of upgrades with the devices of roll-outs; returns how many it read, at most a batch. */
export function noteUpgradeEnds(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    if (!(await takeTurn(tx, 'rollouts'))) return 0
    const [cursor] = await tx.query<{ xid: string; id: string }>(cursorSql)
    if (!cursor) return 0
    const values = [cursor.xid, cursor.id, limits.rolloutEndsMax]
    const ends = await tx.query<UpgradeEnd>(upgradeEndsSql, values)
    const last = ends.at(-1)
    if (!last) return 0
    const ids = plainArray(ends.map(({ commandId }) => commandId))
    const locked = await tx.query(lockEndedSql, [ids])
    if (locked.length > 0) {
      await tx.query(endDevicesSql, [ids, plainArray(ends.map(({ status }) => status))])
    }
    await tx.query(`update alert_cursors set xid = $1::xid8, id = $2 where name = 'upgrade_ends'`, [
      last.xid,
      last.eventId,
    ])
    return ends.length
  })
}

const cursorSql = `
select xid::text as xid, id
from alert_cursors where name = 'upgrade_ends'`

/** Sends a job for each roll-out that is due; one whose job died is due again. Returns how many. */
export function sendDueRollouts(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    const rows = await tx.query<{ id: string }>(
      `update rollouts set due_at = now() + make_interval(secs => $1) where id in (
         select id from rollouts where due_at <= now() order by due_at limit 10
         for update skip locked)
       returning id`,
      [limits.executionStallSeconds],
    )
    for (const { id } of rows) await sendRollout(tx, id)
    return rows.length
  })
}
