// Organizations: the tenants. Their shape, queries and routes.
import { isDeepStrictEqual } from 'node:util'
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { can, type Actor, type Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { notifyChange } from '../identities.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageQuery, type PageRow, type Pager } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { mergeSettings, OrganizationSettings, SettingsPatch, type Settings } from './settings.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, Name, Time } from './shapes.ts'

export const Organization = Type.Object({
  id: Id,
  name: Type.String(),
  slug: Type.String(),
  status: Type.Enum(['active', 'suspended']),
  settings: OrganizationSettings,
  deviceCount: Type.Integer({ description: 'devices that the caller may see' }),
  createdAt: Time,
  updatedAt: Time,
})

const NewOrganization = Type.Object({
  name: Name,
  slug: Type.Optional(
    Type.String({
      maxLength: limits.slugCharsMax,
      pattern: '^[a-z0-9]+(-[a-z0-9]+)*$',
      description:
        'Lower-case letters and digits, with single hyphens between them. Unique; made from the name when absent.',
    }),
  ),
})

const OrganizationPatch = Type.Object(
  {
    name: Type.Optional(Name),
    settings: Type.Optional(SettingsPatch),
    status: Type.Optional(
      Type.Enum(['active', 'suspended'], { description: 'Only a platform admin may change it.' }),
    ),
  },
  { minProperties: 1 },
)

export const organizationRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/organizations',
    name: 'listOrganizations',
    tag: 'organizations',
    summary: 'List organizations, newest first.',
    may: 'organizations.read',
    query: Type.Object(pageQuery),
    responses: { 200: pageOf(Organization) },
    handle: list,
  }),
  route({
    method: 'POST',
    path: '/organizations',
    name: 'createOrganization',
    tag: 'organizations',
    summary: 'Create an organization; it starts without sites and users.',
    may: 'organizations.create',
    body: NewOrganization,
    responses: { 201: Organization },
    handle: create,
  }),
  route({
    method: 'GET',
    path: '/organizations/:id',
    name: 'getOrganization',
    tag: 'organizations',
    summary: 'Get an organization.',
    may: 'organizations.read',
    params: idParams,
    responses: { 200: Organization },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getOrganization(db, actor, params.id),
    }),
  }),
  route({
    method: 'PATCH',
    path: '/organizations/:id',
    name: 'updateOrganization',
    tag: 'organizations',
    summary: 'Change name, settings (merged) or status of an organization.',
    may: 'organizations.write',
    organizationWide: true,
    params: idParams,
    body: OrganizationPatch,
    responses: { 200: Organization },
    handle: update,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, PageQuery, undefined>,
): Promise<Reply> {
  const page = pager(ctx.cursorKey, ['organizations', actor.orgId], query)
  return { status: 200, json: page.envelope(await listOrganizations(ctx.db, actor, page)) }
}

async function create(
  ctx: Context,
  call: Call<undefined, undefined, Static<typeof NewOrganization>>,
): Promise<Reply> {
  const { name } = call.body
  const id = newId()
  const json = await ctx.db.transaction(async (tx) => {
    const slug = await insertOrganization(tx, { id, name, slug: call.body.slug })
    const subject = { action: 'organization.create', resourceType: 'organization', resourceId: id }
    const details = { after: { name, slug } }
    await insertAudit(tx, [auditOf(call, { ...subject, orgId: id, details })])
    return getOrganization(tx, call.actor, id)
  })
  return { status: 201, json, headers: { Location: `/api/v1/organizations/${id}` } }
}

async function update(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof OrganizationPatch>>,
): Promise<Reply> {
  const { actor, body } = call
  if (body.status !== undefined && !can(actor.role, 'organizations.suspend')) {
    throw new AppError('FORBIDDEN', 'only a platform admin may change the status')
  }
  const changed = await ctx.db.transaction((tx) => updateOrganization(tx, actor, call))
  // The shards are told by it too, here and on every other node.
  if (changed) ctx.identities.forgetOrganization(changed)
  return { status: 200, json: await getOrganization(ctx.db, actor, call.params.id) }
}

// ---- queries ---------------------------------------------------------------------------------

/** Defaults are shown, so that a reader sees what is in force; whoever is narrowed to sites counts their devices. */
function sourceOf({ siteIds }: Scope, where: Where): Source {
  const deviceCount =
    siteIds === null
      ? 'device_count(o.id)'
      : `(select coalesce(sum(device_count(site)), 0)::bigint from unnest(${where.value(siteIds)}::uuid[]) as site)`
  const columns = `o.id, o.name, o.slug, o.status,
    jsonb_build_object('offlineGraceSeconds', ${limits.offlineGraceSecondsDefault},
      'globalEnrollment', true) || o.settings as settings,
    ${deviceCount} as "deviceCount", iso(o.created_at) as "createdAt", iso(o.updated_at) as "updatedAt"`
  return { columns, tables: 'organizations o', id: 'o.id' }
}

function scoped(scope: Scope): Where {
  const where = new Where()
  return scope.orgId === null ? where : where.and('o.id = ?', scope.orgId)
}

function listOrganizations(db: Queryable, scope: Scope, page: Pager): Promise<PageRow[]> {
  const where = scoped(scope)
  return newestFirst(db, sourceOf(scope, where), where, page)
}

/** An organization as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getOrganization(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scoped(scope).and('o.id = ?', id)
  const item = await findItem(db, sourceOf(scope, where), where)
  if (item !== undefined) return item
  throw notFound(id)
}

/**
 * Adds an organization; returns its slug, which is made from the name where none is given. Throws ALREADY_EXISTS when
 * the given one is taken.
 */
export async function insertOrganization(
  tx: Queryable,
  organization: { id: string; name: string; slug: string | undefined },
): Promise<string> {
  const { id, name, slug } = organization
  for (const candidate of slug === undefined ? slugsOf(name, id) : [slug]) {
    const made = await tx.query(
      `insert into organizations (id, name, slug) values ($1, $2, $3)
       on conflict (slug) do nothing returning id`,
      [id, name, candidate],
    )
    if (made.length > 0) return candidate
  }
  throw new AppError('ALREADY_EXISTS', `an organization has the slug ${slug} already`, {
    details: [{ path: '/slug', message: 'is taken; choose another' }],
  })
}

interface Editable extends Row {
  id: string
  name: string
  status: 'active' | 'suspended'
  settings: Settings
}

/** Applies a patch; returns the id when anything changed. Throws NOT_FOUND outside of the scope. */
async function updateOrganization(
  tx: Queryable,
  scope: Actor,
  call: Call<{ id: string }, undefined, Static<typeof OrganizationPatch>>,
): Promise<string | undefined> {
  const { params, body } = call
  const where = scoped(scope).and('o.id = ?', params.id)
  const [row] = await tx.query<Editable>(
    `select o.id, o.name, o.status, o.settings from organizations o ${where.text()} for update`,
    where.values,
  )
  if (!row) throw notFound(params.id)
  const { id, ...before } = row
  const after = {
    name: body.name ?? before.name,
    status: body.status ?? before.status,
    settings: mergeSettings(before.settings, body.settings),
  }
  if (isDeepStrictEqual(after, before)) return undefined
  await tx.query(
    'update organizations set name = $2, status = $3, settings = $4, updated_at = now() where id = $1',
    [id, after.name, after.status, after.settings],
  )
  const subject = { action: 'organization.update', resourceType: 'organization', resourceId: id }
  await insertAudit(tx, [auditOf(call, { ...subject, orgId: id, details: { before, after } })])
  await notifyChange(tx, 'organization', id)
  return id
}

function notFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no organization ${id}`)
}

/** Throws NOT_FOUND when there is no such organization in the scope. */
export async function requireOrganization(
  db: Queryable,
  { orgId }: Pick<Scope, 'orgId'>,
  id: string,
): Promise<void> {
  const found = await db.query(
    'select true as found from organizations where id = $1 and ($2::uuid is null or id = $2)',
    [id, orgId],
  )
  if (found.length === 0) throw notFound(id)
}

/** Of the name, and where that is taken or says nothing, with the random end of the id. */
function slugsOf(name: string, id: string): string[] {
  const own = `-${id.slice(-12)}`
  const slug = slugOf(name)
  if (slug === '') return [`org${own}`]
  return [slug, slug.slice(0, limits.slugCharsMax - own.length).replace(/-+$/, '') + own]
}

/** `Müller & Söhne` → `muller-sohne`; '' for a name without a Latin letter or digit. */
function slugOf(name: string): string {
  return name
    .normalize('NFKD')
    .toLowerCase()
    .replace(/[\u0300-\u036f]/g, '')
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, limits.slugCharsMax)
    .replace(/^-+|-+$/g, '')
}
