// Webhooks: who outside is told of an organization's events. Their shape, queries and routes; who delivers
// is `workers/webhooks.ts`. The secret is shown when it is made, never again.
import { isDeepStrictEqual } from 'node:util'
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { destinations } from '../destinations.ts'
import { AppError } from '../errors.ts'
import { eventTypes } from '../events.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageRow, type Pager } from '../page.ts'
import {
  idParams,
  invalid,
  route,
  type Call,
  type Context,
  type Reply,
  type Route,
} from '../route.ts'
import { newWebhookSecret, sealSecret } from '../webhook_secrets.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, Time } from './shapes.ts'

const EventTypes = Type.Array(Type.Enum([...eventTypes]), { minItems: 1, uniqueItems: true })
const Status = Type.Enum(['active', 'disabled'], {
  description: 'The hub disables a webhook that has not worked for days, or that answers 410.',
})
const Url = Type.String({
  minLength: 1,
  maxLength: limits.urlCharsMax,
  description: 'https or http, without credentials. Redirects are not followed.',
})

export const Webhook = Type.Object({
  id: Id,
  orgId: Id,
  url: Type.String(),
  events: Type.Array(Type.Enum([...eventTypes])),
  status: Status,
  createdAt: Time,
})

const WebhookWithSecret = Type.Object({
  ...Webhook.properties,
  secret: Type.String({
    description: 'whsec_…, for the library of Standard Webhooks; shown only here.',
  }),
})

const NewWebhook = Type.Object({
  orgId: Type.Optional(Type.String({ format: 'uuid', description: 'Yours when absent.' })),
  url: Url,
  events: EventTypes,
})

const WebhookPatch = Type.Object(
  {
    url: Type.Optional(Url),
    events: Type.Optional(EventTypes),
    status: Type.Optional(Status),
  },
  { minProperties: 1 },
)

const WebhookQuery = Type.Object({ ...pageQuery, orgId: Type.Optional(Id) })

// A webhook hears of every site, so what it is told is not for who is narrowed to some.
const common = { tag: 'webhooks', may: 'webhooks.write', organizationWide: true } as const

export const webhookRoutes: Route[] = [
  route({
    ...common,
    method: 'GET',
    path: '/webhooks',
    name: 'listWebhooks',
    summary: 'List webhooks, newest first.',
    query: WebhookQuery,
    responses: { 200: pageOf(Webhook) },
    handle: list,
  }),
  route({
    ...common,
    method: 'POST',
    path: '/webhooks',
    name: 'createWebhook',
    summary: 'Have events sent to a URL, signed with the secret in the answer.',
    body: NewWebhook,
    responses: { 201: WebhookWithSecret },
    handle: create,
  }),
  route({
    ...common,
    method: 'GET',
    path: '/webhooks/:id',
    name: 'getWebhook',
    summary: 'Get a webhook.',
    params: idParams,
    responses: { 200: Webhook },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getWebhook(db, actor, params.id),
    }),
  }),
  route({
    ...common,
    method: 'PATCH',
    path: '/webhooks/:id',
    name: 'updateWebhook',
    summary: 'Change URL, events or status. What waits while it is disabled ends as failed.',
    params: idParams,
    body: WebhookPatch,
    responses: { 200: Webhook },
    handle: update,
  }),
  route({
    ...common,
    method: 'POST',
    path: '/webhooks/:id/secret',
    name: 'rotateWebhookSecret',
    summary: `Make a new secret; the old one signs beside it for ${limits.webhookOverlapSeconds / 3600} hours.`,
    params: idParams,
    responses: { 200: WebhookWithSecret },
    handle: rotate,
  }),
  route({
    ...common,
    method: 'DELETE',
    path: '/webhooks/:id',
    name: 'deleteWebhook',
    summary: 'Delete a webhook and its log of deliveries.',
    params: idParams,
    responses: { 204: null },
    handle: remove,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof WebhookQuery>, undefined>,
): Promise<Reply> {
  const page = pager(ctx.cursorKey, ['webhooks', actor.orgId, query.orgId ?? null], query)
  return { status: 200, json: page.envelope(await listWebhooks(ctx.db, actor, query.orgId, page)) }
}

async function create(
  ctx: Context,
  call: Call<undefined, undefined, Static<typeof NewWebhook>>,
): Promise<Reply> {
  const { url, events } = call.body
  const orgId = call.body.orgId ?? call.actor.orgId
  if (orgId === null) throw invalid('/orgId', 'is required')
  requireDestination(ctx, url)
  const id = newId()
  const secret = newWebhookSecret()
  const json = await ctx.db.transaction(async (tx) => {
    await requireRoom(tx, call.actor, orgId)
    await tx.query(
      `insert into webhooks (id, org_id, url, events, secret, created_by)
       values ($1, $2, $3, $4, $5, $6)`,
      [id, orgId, url, events, sealSecret(ctx.webhookKeys, secret), call.actor.userId],
    )
    const details = { after: audited({ url, events, status: 'active' }) }
    await insertAudit(tx, [auditOf(call, { ...subject('create', id, orgId), details })])
    return getWebhook(tx, call.actor, id)
  })
  const headers = { Location: `/api/v1/webhooks/${id}` }
  return { status: 201, json: withSecret(json, secret), headers }
}

async function update(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof WebhookPatch>>,
): Promise<Reply> {
  if (call.body.url !== undefined) requireDestination(ctx, call.body.url)
  const json = await ctx.db.transaction(async (tx) => {
    await updateWebhook(tx, call.actor, call)
    return getWebhook(tx, call.actor, call.params.id)
  })
  return { status: 200, json }
}

async function rotate(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
): Promise<Reply> {
  const { id } = call.params
  const secret = newWebhookSecret()
  const json = await ctx.db.transaction(async (tx) => {
    const { orgId } = await lockWebhook(tx, call.actor, id)
    await tx.query(
      `update webhooks set previous_secret = secret, secret = $2, updated_at = now(),
         previous_until = now() + make_interval(secs => $3) where id = $1`,
      [id, sealSecret(ctx.webhookKeys, secret), limits.webhookOverlapSeconds],
    )
    await insertAudit(tx, [auditOf(call, subject('rotate_secret', id, orgId))])
    return getWebhook(tx, call.actor, id)
  })
  return { status: 200, json: withSecret(json, secret) }
}

async function remove(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
): Promise<Reply> {
  const { id } = call.params
  await ctx.db.transaction(async (tx) => {
    const { orgId, url, events, status } = await lockWebhook(tx, call.actor, id)
    // Its log may be long: what can't be seen any more is removed in batches afterwards.
    await tx.query(
      `update webhooks set deleted_at = now(), status = 'disabled', secret = '', previous_secret = null
       where id = $1`,
      [id],
    )
    const details = { before: audited({ url, events, status }) }
    await insertAudit(tx, [auditOf(call, { ...subject('delete', id, orgId), details })])
  })
  return { status: 204 }
}

function requireDestination(ctx: Context, url: string): void {
  const refusal = destinations(ctx.config.webhookAllowedCidrs).refusal(url)
  if (refusal !== undefined) throw invalid('/url', refusal)
}

function withSecret(json: string, secret: string): string {
  return `${json.slice(0, -1)},"secret":"${secret}"}`
}

function subject(verb: string, id: string, orgId: string) {
  return { action: `webhook.${verb}`, resourceType: 'webhook', resourceId: id, orgId }
}

/** What of a webhook may be audited: paths of URLs are secrets with some receivers. */
function audited({ url, events, status }: { url: string; events: string[]; status: string }) {
  return { origin: new URL(url).origin, events, status }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `w.id, w.org_id as "orgId", w.url, w.events, w.status, iso(w.created_at) as "createdAt"`

/** The condition that a webhook `w` is the scope's and not deleted. Narrowed users never get this far. */
export function scopedWebhooks(scope: Scope): Where {
  const where = new Where().and('w.deleted_at is null')
  if (scope.orgId !== null) where.and('w.org_id = ?', scope.orgId)
  return where
}

const source: Source = { columns, tables: 'webhooks w', id: 'w.id' }

function listWebhooks(
  db: Queryable,
  scope: Scope,
  orgId: string | undefined,
  page: Pager,
): Promise<PageRow[]> {
  const where = scopedWebhooks(scope)
  if (orgId !== undefined) where.and('w.org_id = ?', orgId)
  return newestFirst(db, source, where, page)
}

/** A webhook as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getWebhook(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scopedWebhooks(scope).and('w.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw webhookNotFound(id)
}

interface Editable extends Row {
  orgId: string
  url: string
  events: string[]
  status: string
}

/** Locks a webhook until the transaction ends. Throws NOT_FOUND outside of the scope. */
export async function lockWebhook(tx: Queryable, scope: Scope, id: string): Promise<Editable> {
  const where = scopedWebhooks(scope).and('w.id = ?', id)
  const [row] = await tx.query<Editable>(
    `select w.org_id as "orgId", w.url, w.events, w.status from webhooks w ${where.text()}
     for no key update`,
    where.values,
  )
  if (row) return row
  throw webhookNotFound(id)
}

/** Locks the organization, so that two who create at once don't pass the bound together. */
async function requireRoom(tx: Queryable, scope: Scope, orgId: string): Promise<void> {
  const found = await tx.query(
    `select true as found from organizations where id = $1 and ($2::uuid is null or id = $2)
     for no key update`,
    [orgId, scope.orgId],
  )
  if (found.length === 0) throw new AppError('NOT_FOUND', `there is no organization ${orgId}`)
  const [row] = await tx.query<{ count: number }>(
    'select count(*)::int as count from webhooks where org_id = $1 and deleted_at is null',
    [orgId],
  )
  if ((row?.count ?? 0) < limits.webhooksMax) return
  throw new AppError('CONFLICT', `an organization may have at most ${limits.webhooksMax} webhooks`)
}

async function updateWebhook(
  tx: Queryable,
  scope: Scope,
  call: Call<{ id: string }, undefined, Static<typeof WebhookPatch>>,
): Promise<void> {
  const { id } = call.params
  const { orgId, url, events, status } = await lockWebhook(tx, scope, id)
  const before = { url, events, status }
  const after = { ...before, ...call.body }
  if (isDeepStrictEqual(after, before)) return
  // A new address or a new start has not failed yet.
  const isFresh = after.url !== url || (after.status === 'active' && status !== 'active')
  await tx.query(
    `update webhooks set url = $2, events = $3, status = $4, updated_at = now(),
       failures = case when $5 then 0 else failures end,
       failing_since = case when $5 then null else failing_since end
     where id = $1`,
    [id, after.url, after.events, after.status, isFresh],
  )
  const details = { before: audited(before), after: audited(after) }
  await insertAudit(tx, [auditOf(call, { ...subject('update', id, orgId), details })])
}

function webhookNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no webhook ${id}`)
}
