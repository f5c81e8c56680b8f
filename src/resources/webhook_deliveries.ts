// Deliveries: what was, is or will be sent to a webhook, and how it was answered. The log, and what a person
// may do with it: send again, try out.
import { Type } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { newId } from '../ids.ts'
import { pageOf, pageQuery, pager, type PageQuery, type PageRow, type Pager } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, nullable, Time } from './shapes.ts'
import { getWebhook, lockWebhook, scopedWebhooks } from './webhooks.ts'

export const WebhookDelivery = Type.Object({
  id: Id,
  webhookId: Id,
  eventId: Type.String({
    description: 'Sent as `webhook-id`; the same in every attempt and replay.',
  }),
  eventType: Type.String({ description: 'A type of event, or `webhook.test`.' }),
  status: Type.Enum(['pending', 'succeeded', 'failed']),
  attempts: Type.Integer(),
  responseStatus: nullable(Type.Integer({ description: 'Of the last attempt.' })),
  durationMs: nullable(Type.Integer({ description: 'Of the last attempt.' })),
  response: nullable(Type.String({ description: 'The begin of the last answer.' })),
  error: nullable(Type.String({ description: 'Why the last attempt failed.' })),
  createdAt: Time,
  attemptedAt: nullable(Time),
  nextAttemptAt: nullable(Time),
  completedAt: nullable(Time),
})

const deliveryParams = Type.Object({ ...idParams.properties, deliveryId: Id })

const common = { tag: 'webhooks', may: 'webhooks.write', organizationWide: true } as const

export const webhookDeliveryRoutes: Route[] = [
  route({
    ...common,
    method: 'GET',
    path: '/webhooks/:id/deliveries',
    name: 'listWebhookDeliveries',
    summary: 'List what was sent to a webhook, newest first.',
    params: idParams,
    query: Type.Object(pageQuery),
    responses: { 200: pageOf(WebhookDelivery) },
    handle: list,
  }),
  route({
    ...common,
    method: 'GET',
    path: '/webhooks/:id/deliveries/:deliveryId',
    name: 'getWebhookDelivery',
    summary: 'Get a delivery.',
    params: deliveryParams,
    responses: { 200: WebhookDelivery },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getDelivery(db, actor, params.id, params.deliveryId),
    }),
  }),
  route({
    ...common,
    method: 'POST',
    path: '/webhooks/:id/deliveries/:deliveryId/replay',
    name: 'replayWebhookDelivery',
    summary:
      'Send a delivery that has ended again, as a new one; also while the webhook is disabled.',
    params: deliveryParams,
    responses: { 201: WebhookDelivery },
    handle: replay,
  }),
  route({
    ...common,
    method: 'POST',
    path: '/webhooks/:id/test',
    name: 'testWebhook',
    summary: 'Send an event `webhook.test`; also while the webhook is disabled.',
    params: idParams,
    responses: { 201: WebhookDelivery },
    handle: sendTest,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, params, query }: Call<{ id: string }, PageQuery, undefined>,
): Promise<Reply> {
  const page = pager(ctx.cursorKey, ['webhook-deliveries', actor.orgId, params.id], query)
  // An empty log and a webhook of somebody else must not look the same.
  await getWebhook(ctx.db, actor, params.id)
  return { status: 200, json: page.envelope(await listDeliveries(ctx.db, actor, params.id, page)) }
}

async function replay(
  ctx: Context,
  call: Call<{ id: string; deliveryId: string }, undefined, undefined>,
): Promise<Reply> {
  const { id, deliveryId } = call.params
  const newDeliveryId = newId()
  const json = await ctx.db.transaction(async (tx) => {
    const { orgId } = await lockWebhook(tx, call.actor, id)
    await insertReplay(tx, call.actor, id, deliveryId, newDeliveryId)
    const subject = { action: 'webhook.replay', resourceType: 'webhook', resourceId: id, orgId }
    const details = { deliveryId, newDeliveryId }
    await insertAudit(tx, [auditOf(call, { ...subject, details })])
    return getDelivery(tx, call.actor, id, newDeliveryId)
  })
  return created(id, newDeliveryId, json)
}

async function sendTest(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
): Promise<Reply> {
  const { id } = call.params
  const deliveryId = newId()
  const json = await ctx.db.transaction(async (tx) => {
    const { orgId } = await lockWebhook(tx, call.actor, id)
    const type = 'webhook.test'
    const event = {
      id: newId(),
      type,
      at: new Date().toISOString(),
      orgId,
      data: { webhookId: id },
    }
    await tx.query(
      `insert into webhook_deliveries (id, webhook_id, event_id, event_type, body, manual)
       values ($1, $2, $3, $4, $5, true)`,
      [deliveryId, id, event.id, type, JSON.stringify(event)],
    )
    const subject = { action: 'webhook.test', resourceType: 'webhook', resourceId: id, orgId }
    await insertAudit(tx, [auditOf(call, { ...subject, details: { deliveryId } })])
    return getDelivery(tx, call.actor, id, deliveryId)
  })
  return created(id, deliveryId, json)
}

function created(webhookId: string, id: string, json: string): Reply {
  const headers = { Location: `/api/v1/webhooks/${webhookId}/deliveries/${id}` }
  return { status: 201, json, headers }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `d.id, d.webhook_id as "webhookId", d.event_id as "eventId", d.event_type as "eventType",
  d.status, d.attempts, d.response_status as "responseStatus", d.duration_ms as "durationMs", d.response,
  d.error, iso(d.created_at) as "createdAt", iso(d.attempted_at) as "attemptedAt",
  case when d.status = 'pending' then iso(d.next_attempt_at) end as "nextAttemptAt",
  iso(d.completed_at) as "completedAt"`

const deliveries = 'webhook_deliveries d join webhooks w on w.id = d.webhook_id'

const source: Source = { columns, tables: deliveries, id: 'd.id' }

function listDeliveries(
  db: Queryable,
  scope: Scope,
  webhookId: string,
  page: Pager,
): Promise<PageRow[]> {
  const where = scopedWebhooks(scope).and('d.webhook_id = ?', webhookId)
  return newestFirst(db, source, where, page)
}

/** A delivery as JSON text. Throws NOT_FOUND outside of the scope. */
async function getDelivery(
  db: Queryable,
  scope: Scope,
  webhookId: string,
  id: string,
): Promise<string> {
  const where = scopedWebhooks(scope).and('d.webhook_id = ?', webhookId).and('d.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw deliveryNotFound(id)
}

/** Adds a delivery of the same message. Throws NOT_FOUND, or CONFLICT while the first is still under way. */
async function insertReplay(
  tx: Queryable,
  scope: Scope,
  webhookId: string,
  id: string,
  newDeliveryId: string,
): Promise<void> {
  const where = scopedWebhooks(scope).and('d.webhook_id = ?', webhookId).and('d.id = ?', id)
  const [row] = await tx.query<{ status: string }>(
    `select d.status from ${deliveries} ${where.text()}`,
    where.values,
  )
  if (!row) throw deliveryNotFound(id)
  if (row.status === 'pending') {
    throw new AppError('CONFLICT', 'this delivery has not ended; it is still being tried')
  }
  await tx.query(
    `insert into webhook_deliveries (id, webhook_id, event_id, event_type, body, manual)
     select $2, webhook_id, event_id, event_type, body, true from webhook_deliveries where id = $1`,
    [id, newDeliveryId],
  )
}

function deliveryNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no delivery ${id} of this webhook`)
}
