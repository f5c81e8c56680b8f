// Sites: where devices stand. Their shape, queries and routes.
import { isDeepStrictEqual } from 'node:util'
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
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
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, Name, nullable, Time } from './shapes.ts'

export const Site = Type.Object({
  id: Id,
  orgId: Id,
  name: Type.String(),
  timezone: nullable(Type.String({ description: 'An IANA name, such as Europe/Zurich.' })),
  address: nullable(Type.String()),
  deviceCount: Type.Integer(),
  createdAt: Time,
  updatedAt: Time,
})

const Timezone = Type.Optional(nullable(Type.String({ maxLength: 64 })))
const Address = Type.Optional(nullable(Type.String({ maxLength: limits.addressCharsMax })))

const NewSite = Type.Object({
  orgId: Type.Optional(Type.String({ format: 'uuid', description: 'Yours when absent.' })),
  name: Name,
  timezone: Timezone,
  address: Address,
})

const SitePatch = Type.Object(
  { name: Type.Optional(Name), timezone: Timezone, address: Address },
  { minProperties: 1 },
)

const SiteQuery = Type.Object({ ...pageQuery, orgId: Type.Optional(Id) })

export const siteRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/sites',
    name: 'listSites',
    tag: 'sites',
    summary: 'List sites, newest first.',
    may: 'sites.read',
    query: SiteQuery,
    responses: { 200: pageOf(Site) },
    handle: list,
  }),
  route({
    method: 'POST',
    path: '/sites',
    name: 'createSite',
    tag: 'sites',
    summary: 'Create a site.',
    may: 'sites.write',
    organizationWide: true,
    body: NewSite,
    responses: { 201: Site },
    handle: create,
  }),
  route({
    method: 'GET',
    path: '/sites/:id',
    name: 'getSite',
    tag: 'sites',
    summary: 'Get a site.',
    may: 'sites.read',
    params: idParams,
    responses: { 200: Site },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getSite(db, actor, params.id),
    }),
  }),
  route({
    method: 'PATCH',
    path: '/sites/:id',
    name: 'updateSite',
    tag: 'sites',
    summary: 'Change name, time zone or address of a site.',
    may: 'sites.write',
    params: idParams,
    body: SitePatch,
    responses: { 200: Site },
    handle: update,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof SiteQuery>, undefined>,
): Promise<Reply> {
  const binding = ['sites', actor.orgId, actor.siteIds, query.orgId ?? null]
  const page = pager(ctx.cursorKey, binding, query)
  return { status: 200, json: page.envelope(await listSites(ctx.db, actor, query.orgId, page)) }
}

async function create(
  ctx: Context,
  call: Call<undefined, undefined, Static<typeof NewSite>>,
): Promise<Reply> {
  const { name, timezone = null, address = null } = call.body
  const orgId = call.body.orgId ?? call.actor.orgId
  if (orgId === null) throw invalid('/orgId', 'is required')
  requireTimezone(timezone)
  const id = newId()
  const json = await ctx.db.transaction(async (tx) => {
    await insertSite(tx, call.actor, { id, orgId, name, timezone, address })
    const subject = { action: 'site.create', resourceType: 'site', resourceId: id, orgId }
    const details = { after: { name, timezone, address } }
    await insertAudit(tx, [auditOf(call, { ...subject, details })])
    return getSite(tx, call.actor, id)
  })
  return { status: 201, json, headers: { Location: `/api/v1/sites/${id}` } }
}

async function update(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof SitePatch>>,
): Promise<Reply> {
  requireTimezone(call.body.timezone)
  const json = await ctx.db.transaction(async (tx) => {
    await updateSite(tx, call.actor, call)
    return getSite(tx, call.actor, call.params.id)
  })
  return { status: 200, json }
}

/** What Node's own time zone data knows is what the rest of the hub can reckon with. */
function requireTimezone(timezone: string | null | undefined): void {
  if (timezone === null || timezone === undefined) return
  try {
    Intl.DateTimeFormat('en', { timeZone: timezone })
  } catch {
    throw invalid('/timezone', 'is no IANA time zone, such as Europe/Zurich')
  }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `s.id, s.org_id as "orgId", s.name, s.timezone, s.address,
  device_count(s.id) as "deviceCount", iso(s.created_at) as "createdAt", iso(s.updated_at) as "updatedAt"`

/** The condition that a site `s` is the scope's. */
export function scopedSites(scope: Scope): Where {
  const where = new Where()
  if (scope.orgId !== null) where.and('s.org_id = ?', scope.orgId)
  if (scope.siteIds !== null) where.and('s.id = any(?::uuid[])', scope.siteIds)
  return where
}

const source: Source = { columns, tables: 'sites s', id: 's.id' }

function listSites(
  db: Queryable,
  scope: Scope,
  orgId: string | undefined,
  page: Pager,
): Promise<PageRow[]> {
  const where = scopedSites(scope)
  if (orgId !== undefined) where.and('s.org_id = ?', orgId)
  return newestFirst(db, source, where, page)
}

/** A site as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getSite(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scopedSites(scope).and('s.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw siteNotFound(id)
}

export interface NewSiteRow {
  id: string
  orgId: string
  name: string
  timezone: string | null
  address: string | null
}

/** Adds a site. Throws NOT_FOUND when the organization is not there or not the scope's. */
export async function insertSite(tx: Queryable, scope: Scope, site: NewSiteRow): Promise<void> {
  const made = await tx.query(
    `insert into sites (id, org_id, name, timezone, address)
     select $1, o.id, $3, $4, $5 from organizations o
     where o.id = $2 and ($6::uuid is null or o.id = $6) returning id`,
    [site.id, site.orgId, site.name, site.timezone, site.address, scope.orgId],
  )
  if (made.length > 0) return
  throw new AppError('NOT_FOUND', `there is no organization ${site.orgId}`)
}

interface Editable extends Row {
  id: string
  orgId: string
  name: string
  timezone: string | null
  address: string | null
}

async function updateSite(
  tx: Queryable,
  scope: Scope,
  call: Call<{ id: string }, undefined, Static<typeof SitePatch>>,
): Promise<void> {
  const where = scopedSites(scope).and('s.id = ?', call.params.id)
  const [row] = await tx.query<Editable>(
    `select s.id, s.org_id as "orgId", s.name, s.timezone, s.address from sites s ${where.text()} for update`,
    where.values,
  )
  if (!row) throw siteNotFound(call.params.id)
  const { id, orgId, ...before } = row
  const after = { ...before, ...call.body }
  if (isDeepStrictEqual(after, before)) return
  await tx.query(
    'update sites set name = $2, timezone = $3, address = $4, updated_at = now() where id = $1',
    [id, after.name, after.timezone, after.address],
  )
  const subject = { action: 'site.update', resourceType: 'site', resourceId: id, orgId }
  await insertAudit(tx, [auditOf(call, { ...subject, details: { before, after } })])
}

export function siteNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no site ${id}`)
}
