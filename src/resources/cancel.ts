// Cancelling a command: the wish is recorded, the actor that holds the device asked, wherever it is, and where nobody
// holds it, PostgreSQL ends it. What an actor makes of it is in `workers/device_queue.ts`.
import { auditOf, insertAudit } from '../audit.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { countEndsSql } from '../execution_ends.ts'
import { handOver } from '../handoff_sql.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { cancelledPending } from '../protocol.ts'
import type { Call, Context } from '../route.ts'
import { withinScope } from './devices.ts'

interface OpenRow extends Record<string, unknown> {
  orgId: string
  action: string
  status: string
  ended: boolean
}

/** Resolves when it has ended, or its agent is asked to stop it. Throws NOT_FOUND, CONFLICT. */
export async function cancel(
  ctx: Context,
  call: Call<{ id: string }, undefined, object>,
  id: string,
): Promise<void> {
  const { deviceId, nodes } = await requestCancel(ctx, call, id)
  ctx.handoffs.wake(nodes)
  const answer =
    nodes.length > 0 ? await answerOf(ctx, call, id) : await ctx.shards.cancel(deviceId, id)
  // No actor holds it: the device is off, so PostgreSQL alone decides.
  if (answer === 'unknown' && (await cancelPending(ctx, id))) ctx.handoffs.ended([id])
  if (answer === 'cancelled' || answer === 'ending') {
    await ctx.commands.ended(id, limits.cancelSecondsMax, call.onAbort)
  }
}

/** What the actor on another hub says; `ended` when that was faster, undefined when nobody says anything. */
async function answerOf(ctx: Context, call: Call<{ id: string }, undefined, unknown>, id: string) {
  const stops: (() => void)[] = []
  const onAbort = (gone: () => void) => {
    stops.push(gone)
    call.onAbort(gone)
  }
  const seconds = limits.cancelSecondsMax
  const ended = ctx.commands.ended(id, seconds, onAbort).then(() => 'ended' as const)
  const answer = await Promise.race([ended, ctx.handoffs.cancelAnswer(id, seconds, onAbort)])
  // Its end may be here already: that is what is waited for, not another one.
  if (answer === 'cancelled' || answer === 'ending') await ended
  for (const stop of stops) stop()
  return answer === 'cancelled' || answer === 'ending' ? 'ended' : answer
}

/** Of these hubs, those that may answer: one that went down leaves its devices to whichever they come to. */
async function alive(tx: Queryable, nodes: readonly string[]): Promise<string[]> {
  if (nodes.length === 0) return []
  const rows = await tx.query<{ id: string }>(
    `select id from nodes
    where id = any($1::uuid[]) and lease_until > now() and not coalesce(about ? 'left', false)`,
    [nodes],
  )
  return rows.map(({ id }) => id)
}

/** Records the wish, so that it outlives a socket or a hub. Throws NOT_FOUND, CONFLICT. */
async function requestCancel(
  ctx: Context,
  call: Call<{ id: string }, undefined, unknown>,
  id: string,
): Promise<{ deviceId: string; nodes: string[] }> {
  return ctx.db.transaction(async (tx) => {
    const where = withinScope(new Where().and('c.id = ?', id), call.actor)
    const [found] = await tx.query<{ deviceId: string }>(
      `select c.device_id as "deviceId"
      from commands c join devices d on d.id = c.device_id ${where.text()}`,
      where.values,
    )
    if (found === undefined) throw new AppError('NOT_FOUND', 'there is no such command')
    const { deviceId } = found
    // Presence before command, as everybody locks them.
    const nodes = await alive(tx, await handOver(tx, ctx.nodeId, [{ deviceId, commandId: id }]))
    const [row] = await tx.query<OpenRow>(
      `select org_id as "orgId", action, status, completed_at is not null as ended
      from commands where id = $1 for update`,
      [id],
    )
    if (row === undefined) throw new AppError('NOT_FOUND', 'there is no such command')
    if (row.ended) {
      throw new AppError('CONFLICT', `the command has ended already: ${row.status}`)
    }
    await tx.query(
      `update commands set cancel_requested_at = coalesce(cancel_requested_at, now())
      where id = $1`,
      [id],
    )
    await insertAudit(tx, [
      auditOf(call, {
        action: 'command.cancel',
        resourceType: 'command',
        resourceId: id,
        deviceId,
        orgId: row.orgId,
        details: { status: row.status, action: row.action },
      }),
    ])
    return { deviceId, nodes }
  })
}

async function cancelPending(ctx: Context, id: string): Promise<boolean> {
  const rows = await ctx.db.query(
    `with c as (
      update commands set status = 'cancelled', completed_at = now(),
        result = jsonb_build_object('exitCode', null, 'stdout', '', 'stderr', '', 'truncated', false,
          'error', $3::text, 'durationMs', null)
      where id = $1 and completed_at is null and status = 'pending'
      returning id, org_id, device_id, action, status, execution_id, completed_at
    ), counted as (
      ${countEndsSql('c')}
    )
    insert into events (id, org_id, type, at, site_id, data)
    select $2, c.org_id, 'command.cancelled', now(), d.site_id,
      jsonb_build_object('commandId', c.id, 'deviceId', c.device_id, 'action', c.action,
        'status', 'cancelled')
    from c join devices d on d.id = c.device_id
    returning id`,
    [id, newId(), cancelledPending],
  )
  return rows.length > 0
}
