// Enrollment keys: secrets of one site with which agents enroll. Shown once, stored hashed.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { opaqueToken, sha256, type Scope } from '../auth.ts'
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageQuery, type PageRow, type Pager } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, Name, nullable, Time } from './shapes.ts'
import { getSite, scopedSites, siteNotFound } from './sites.ts'

export const EnrollmentKey = Type.Object({
  id: Id,
  orgId: Id,
  siteId: Id,
  name: nullable(Type.String()),
  uses: Type.Integer({ description: 'Devices enrolled with it.' }),
  maxUses: nullable(Type.Integer()),
  expiresAt: nullable(Time),
  revokedAt: nullable(Time),
  createdBy: nullable(Id),
  createdAt: Time,
})

export const NewEnrollmentKey = Type.Object({
  ...EnrollmentKey.properties,
  key: Type.String({ description: 'The secret; shown only here.' }),
})

const KeyRequest = Type.Object({
  name: Type.Optional(Name),
  expiresInSeconds: Type.Optional(
    Type.Integer({ minimum: 1, maximum: limits.enrollmentKeySecondsMax }),
  ),
  maxUses: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.enrollmentKeyUsesMax })),
})

const keyParams = Type.Object({ ...idParams.properties, keyId: Id })

export const enrollmentKeyRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/sites/:id/enrollment-keys',
    name: 'createEnrollmentKey',
    tag: 'sites',
    summary: 'Create a key with which agents enroll into this site.',
    may: 'enrollment_keys.write',
    params: idParams,
    body: KeyRequest,
    bodyOptional: true,
    responses: { 201: NewEnrollmentKey },
    handle: create,
  }),
  route({
    method: 'GET',
    path: '/sites/:id/enrollment-keys',
    name: 'listEnrollmentKeys',
    tag: 'sites',
    summary: 'List the keys of a site, newest first, revoked ones too.',
    may: 'enrollment_keys.write',
    params: idParams,
    query: Type.Object(pageQuery),
    responses: { 200: pageOf(EnrollmentKey) },
    handle: list,
  }),
  route({
    method: 'GET',
    path: '/sites/:id/enrollment-keys/:keyId',
    name: 'getEnrollmentKey',
    tag: 'sites',
    summary: 'Read a key, without its secret.',
    may: 'enrollment_keys.write',
    params: keyParams,
    responses: { 200: EnrollmentKey },
    handle: async (ctx, { actor, params }) => ({
      status: 200,
      json: await getKey(ctx.db, actor, params.id, params.keyId),
    }),
  }),
  route({
    method: 'DELETE',
    path: '/sites/:id/enrollment-keys/:keyId',
    name: 'revokeEnrollmentKey',
    tag: 'sites',
    summary: 'Revoke a key; devices that enrolled with it stay. Again: no change.',
    may: 'enrollment_keys.write',
    params: keyParams,
    responses: { 200: EnrollmentKey },
    handle: revoke,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function create(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof KeyRequest>>,
): Promise<Reply> {
  const { actor, params, body } = call
  const key = opaqueToken('mek_')
  const id = newId()
  const json = await ctx.db.transaction(async (tx) => {
    const orgId = await insertKey(tx, actor, { id, key, siteId: params.id, ...body }, actor.userId)
    const subject = { action: 'enrollment_key.create', resourceType: 'enrollment_key' }
    const details = { after: { siteId: params.id, ...body } }
    await insertAudit(tx, [auditOf(call, { ...subject, resourceId: id, orgId, details })])
    return getKey(tx, actor, params.id, id)
  })
  return {
    status: 201,
    json: `${json.slice(0, -1)},"key":"${key}"}`,
    headers: { Location: `/api/v1/sites/${params.id}/enrollment-keys/${id}` },
  }
}

async function list(
  ctx: Context,
  { actor, params, query }: Call<{ id: string }, PageQuery, undefined>,
): Promise<Reply> {
  const binding = ['enrollment-keys', actor.orgId, actor.siteIds, params.id]
  const page = pager(ctx.cursorKey, binding, query)
  // An empty list and a site of somebody else must not look the same.
  await getSite(ctx.db, actor, params.id)
  return { status: 200, json: page.envelope(await listKeys(ctx.db, actor, params.id, page)) }
}

async function revoke(
  ctx: Context,
  call: Call<{ id: string; keyId: string }, undefined, undefined>,
): Promise<Reply> {
  const { actor, params } = call
  const json = await ctx.db.transaction(async (tx) => {
    const orgId = await revokeKey(tx, actor, params.id, params.keyId)
    if (orgId !== undefined) {
      const subject = { action: 'enrollment_key.revoke', resourceType: 'enrollment_key' }
      const details = { siteId: params.id }
      await insertAudit(tx, [
        auditOf(call, { ...subject, resourceId: params.keyId, orgId, details }),
      ])
    }
    return getKey(tx, actor, params.id, params.keyId)
  })
  return { status: 200, json }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `k.id, k.org_id as "orgId", k.site_id as "siteId", k.name, k.uses,
  k.max_uses as "maxUses", iso(k.expires_at) as "expiresAt", iso(k.revoked_at) as "revokedAt",
  k.created_by as "createdBy", iso(k.created_at) as "createdAt"`

const keys = 'enrollment_keys k join sites s on s.id = k.site_id'

const source: Source = { columns, tables: keys, id: 'k.id' }

function listKeys(db: Queryable, scope: Scope, siteId: string, page: Pager): Promise<PageRow[]> {
  const where = scopedSites(scope).and('k.site_id = ?', siteId)
  return newestFirst(db, source, where, page)
}

/** A key as JSON text, without its secret. Throws NOT_FOUND outside of the scope. */
async function getKey(db: Queryable, scope: Scope, siteId: string, id: string): Promise<string> {
  const where = scopedSites(scope).and('k.site_id = ?', siteId).and('k.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw new AppError('NOT_FOUND', `there is no enrollment key ${id} of this site`)
}

interface NewKey {
  id: string
  siteId: string
  key: string
  name?: string
  maxUses?: number
  expiresInSeconds?: number
}

/** Adds a key; returns the organization. Throws NOT_FOUND when the site is not the scope's. */
async function insertKey(
  tx: Queryable,
  scope: Scope,
  key: NewKey,
  createdBy: string,
): Promise<string> {
  const where = scopedSites(scope).and('s.id = ?', key.siteId)
  const values = [
    where.value(key.id),
    where.value(key.name ?? null),
    where.value(sha256(key.key)),
    where.value(key.maxUses ?? null),
    `now() + make_interval(secs => ${where.value(key.expiresInSeconds ?? null)})`,
    where.value(createdBy),
  ]
  const [row] = await tx.query<{ org_id: string }>(
    `insert into enrollment_keys
       (org_id, site_id, id, name, key_hash, max_uses, expires_at, created_by)
     select s.org_id, s.id, ${values.join(', ')} from sites s ${where.text()} returning org_id`,
    where.values,
  )
  if (row) return row.org_id
  throw siteNotFound(key.siteId)
}

/** Revokes a key; returns its organization, or undefined when nothing changed. */
async function revokeKey(
  tx: Queryable,
  scope: Scope,
  siteId: string,
  id: string,
): Promise<string | undefined> {
  const where = scopedSites(scope)
    .and('s.id = ?', siteId)
    .and('k.id = ?', id)
    .and('s.id = k.site_id')
    .and('k.revoked_at is null')
  const [row] = await tx.query<{ org_id: string }>(
    `update enrollment_keys k set revoked_at = now() from sites s
     ${where.text()} returning k.org_id`,
    where.values,
  )
  return row?.org_id
}
