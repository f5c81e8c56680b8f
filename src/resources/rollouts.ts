// Roll-outs of an agent version: the routes that start, read, pause, resume and abort one. Who is in it is
// decided by `new_rollout.ts`; what happens to it, by `workers/rollouts.ts`.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Queryable, Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { pageOf, pageQuery, pager } from '../page.ts'
import { sendRollout } from '../queue.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { createRollout, NewRollout, RolloutDryRun } from './new_rollout.ts'
import {
  getRollout,
  listRolloutDevices,
  listRollouts,
  requireRollout,
  Rollout,
  RolloutDevice,
  rolloutDeviceFilters,
  rolloutNotFound,
  scopedRollouts,
  type RolloutStatus,
} from './rollout_row.ts'
import { Id } from './shapes.ts'

const RolloutQuery = Type.Object({ ...pageQuery, orgId: Type.Optional(Id) })
const DeviceQuery = Type.Object({ ...pageQuery, ...rolloutDeviceFilters })

// A roll-out concerns devices of every site, so it is not for who is narrowed to some.
const common = { tag: 'rollouts', may: 'rollouts.write', organizationWide: true } as const

const change = { ...common, method: 'POST', params: idParams, responses: { 200: Rollout } } as const

export const rolloutRoutes: Route[] = [
  route({
    ...common,
    method: 'POST',
    path: '/agents/rollouts',
    name: 'createRollout',
    summary:
      'Upgrade agents group by group. Each group is judged by its thresholds; the roll-out goes on, or halts by itself.',
    body: NewRollout,
    responses: { 200: RolloutDryRun, 201: Rollout },
    handle: createRollout,
  }),
  route({
    ...common,
    method: 'GET',
    path: '/agents/rollouts',
    name: 'listRollouts',
    summary: 'List roll-outs, newest first.',
    query: RolloutQuery,
    responses: { 200: pageOf(Rollout) },
    handle: list,
  }),
  route({
    ...common,
    method: 'GET',
    path: '/agents/rollouts/:id',
    name: 'getRollout',
    summary: 'Get a roll-out with the counts of its groups.',
    params: idParams,
    responses: { 200: Rollout },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getRollout(db, actor, params.id),
    }),
  }),
  route({
    ...common,
    method: 'GET',
    path: '/agents/rollouts/:id/devices',
    name: 'listRolloutDevices',
    summary: 'List the devices of a roll-out, by group and id.',
    params: idParams,
    query: DeviceQuery,
    responses: { 200: pageOf(RolloutDevice) },
    handle: listDevices,
  }),
  route({
    ...change,
    path: '/agents/rollouts/:id/pause',
    name: 'pauseRollout',
    summary:
      'Pause: no device begins; commands that their devices have not confirmed are taken back.',
    handle: (ctx, call) => changeStatus(ctx, call, 'pause'),
  }),
  route({
    ...change,
    path: '/agents/rollouts/:id/resume',
    name: 'resumeRollout',
    summary:
      'Go on. One that halted goes on despite the groups that have begun: their thresholds halt it no more.',
    handle: (ctx, call) => changeStatus(ctx, call, 'resume'),
  }),
  route({
    ...change,
    path: '/agents/rollouts/:id/abort',
    name: 'abortRollout',
    summary:
      'End it: commands that their devices have not confirmed are cancelled, the others run on.',
    handle: (ctx, call) => changeStatus(ctx, call, 'abort'),
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof RolloutQuery>, undefined>,
): Promise<Reply> {
  const page = pager(ctx.cursorKey, ['rollouts', actor.orgId, query.orgId ?? null], query)
  const rows = await listRollouts(ctx.db, actor, query.orgId, page)
  return { status: 200, json: page.envelope(rows, rows.length < (rows[0]?.found ?? 0)) }
}

async function listDevices(
  ctx: Context,
  { actor, params, query }: Call<{ id: string }, Static<typeof DeviceQuery>, undefined>,
): Promise<Reply> {
  await requireRollout(ctx.db, actor, params.id)
  const { status = null, group = null } = query
  const binding = ['rollout_devices', params.id, status, group, actor.orgId]
  const page = pager(ctx.cursorKey, binding, query)
  const rows = await listRolloutDevices(ctx.db, params.id, query, page)
  return { status: 200, json: page.envelope(rows) }
}

type Verb = 'pause' | 'resume' | 'abort'

/** From which status a verb leads, and whereto; in its own it is a no-op. */
const changes: Record<Verb, { from: RolloutStatus[]; to: RolloutStatus; told: string }> = {
  pause: { from: ['running'], to: 'paused', told: 'paused' },
  resume: { from: ['paused', 'halted'], to: 'running', told: 'resumed' },
  abort: { from: ['running', 'paused', 'halted'], to: 'aborted', told: 'aborted' },
}

interface Locked extends Row {
  orgId: string | null
  status: RolloutStatus
  version: string
}

async function changeStatus(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
  verb: Verb,
): Promise<Reply> {
  const { id } = call.params
  const { from, to } = changes[verb]
  const json = await ctx.db.transaction(async (tx) => {
    const before = await lockRollout(tx, call)
    if (before.status !== to) {
      if (!from.includes(before.status)) {
        throw new AppError('CONFLICT', `the roll-out is ${before.status}; you can't ${verb} it`)
      }
      // Who goes on with a version that was withdrawn would fail device by device.
      if (verb === 'resume') ctx.releases.platformsOf(before.version)
      await setStatus(tx, call, verb, before)
      await sendRollout(tx, id)
    }
    return getRollout(tx, call.actor, id)
  })
  return { status: 200, json }
}

/** Waits for the step under way, if any: after it nothing is added that the answer does not know. */
async function lockRollout(
  tx: Queryable,
  { actor, params }: Call<{ id: string }, undefined, undefined>,
): Promise<Locked> {
  const where = scopedRollouts(actor).and('r.id = ?', params.id)
  const [row] = await tx.query<Locked>(
    `select r.org_id as "orgId", r.status, r.version from rollouts r ${where.text()} for update`,
    where.values,
  )
  if (row) return row
  throw rolloutNotFound(params.id)
}

async function setStatus(
  tx: Queryable,
  call: Call<{ id: string }, undefined, undefined>,
  verb: Verb,
  { orgId, status, version }: Locked,
): Promise<void> {
  const { id } = call.params
  const { to, told } = changes[verb]
  const despite = verb === 'resume' && status === 'halted'
  const reason = `${told}${despite ? ' despite its errors' : ''} by ${call.actor.email}`
  await tx.query(
    `update rollouts set status = $2, reason = $3, updated_at = now(), due_at = now(),
       completed_at = case when $2 = 'aborted' then now() end
     where id = $1`,
    [id, to, reason],
  )
  if (despite) {
    await tx.query(
      'update rollout_groups set despite = true where rollout_id = $1 and started_at is not null',
      [id],
    )
  }
  await insertAudit(tx, [
    auditOf(call, {
      action: `rollout.${verb}`,
      resourceType: 'rollout',
      resourceId: id,
      orgId,
      details: { before: { status }, after: { status: to, version } },
    }),
  ])
}
