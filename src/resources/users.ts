// Users: their shape, how they are read and changed. How one comes to be is `invitations.ts`.
import { isDeepStrictEqual } from 'node:util'
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { mayGrant, roles, type Role, type Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { notifyChange } from '../identities.ts'
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
import { revokeOtherSessions } from '../sessions.ts'
import { findItem, newestFirst, type Source } from './rows.ts'
import { Id, Name, nullable, Time } from './shapes.ts'

export const User = Type.Object({
  id: Id,
  email: Type.String(),
  name: nullable(Type.String()),
  role: Type.Enum([...roles]),
  orgId: nullable(Id),
  siteIds: nullable(Type.Array(Id)),
  status: Type.Enum(['active', 'invited', 'disabled']),
  lastLoginAt: nullable(Time),
  createdAt: Time,
  updatedAt: Time,
})

/** The sites a user is narrowed to; null: all of the organization. */
export const SiteIds = nullable(
  Type.Array(Id, { minItems: 1, maxItems: limits.userSitesMax, uniqueItems: true }),
)

const UserQuery = Type.Object({
  ...pageQuery,
  status: Type.Optional(Type.Enum(['active', 'invited', 'disabled'])),
  role: Type.Optional(Type.Enum([...roles])),
  orgId: Type.Optional(Id),
  q: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: limits.emailCharsMax,
      description: 'What the email begins with, in any case.',
    }),
  ),
})

const UserPatch = Type.Object(
  {
    name: Type.Optional(nullable(Name)),
    role: Type.Optional(Type.Enum([...roles], { description: 'Not above your own.' })),
    status: Type.Optional(
      Type.Enum(['active', 'disabled'], { description: 'Disabling ends every session at once.' }),
    ),
    siteIds: Type.Optional(SiteIds),
    orgId: Type.Optional(
      Type.String({
        format: 'uuid',
        description: 'Only when a platform admin becomes a user of an organization.',
      }),
    ),
  },
  { minProperties: 1 },
)

export const userRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/users',
    name: 'listUsers',
    tag: 'users',
    summary: 'List users, newest first.',
    may: 'users.read',
    query: UserQuery,
    responses: { 200: pageOf(User) },
    handle: list,
  }),
  route({
    method: 'GET',
    path: '/users/:id',
    name: 'getUser',
    tag: 'users',
    summary: 'Get a user.',
    may: 'users.read',
    params: idParams,
    responses: { 200: User },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getUser(db, actor, params.id),
    }),
  }),
  route({
    method: 'PATCH',
    path: '/users/:id',
    name: 'updateUser',
    tag: 'users',
    summary: 'Change name, role, status or sites of a user; in force at once.',
    may: 'users.write',
    organizationWide: true,
    params: idParams,
    body: UserPatch,
    responses: { 200: User },
    handle: update,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof UserQuery>, undefined>,
): Promise<Reply> {
  const { limit: _limit, cursor: _cursor, ...filters } = query
  const page = pager(ctx.cursorKey, ['users', actor.orgId, filters], query)
  return { status: 200, json: page.envelope(await listUsers(ctx.db, actor, filters, page)) }
}

type PatchCall = Call<{ id: string }, undefined, Static<typeof UserPatch>>

async function update(ctx: Context, call: PatchCall): Promise<Reply> {
  const { id } = call.params
  const { ended, json } = await ctx.db.transaction(async (tx) => {
    const sessions = await updateUser(tx, call.actor, call)
    return { ended: sessions, json: await getUser(tx, call.actor, id) }
  })
  ctx.identities.forgetUser(id)
  for (const sessionId of ended) ctx.identities.forgetSession(sessionId)
  return { status: 200, json }
}

// ---- queries ---------------------------------------------------------------------------------

/** The columns of a user `u` as the API names them. */
const userColumns = `u.id, u.email, u.name, u.role, u.org_id as "orgId", u.site_ids as "siteIds",
  u.status, iso(u.last_login_at) as "lastLoginAt", iso(u.created_at) as "createdAt",
  iso(u.updated_at) as "updatedAt"`

function scoped(scope: Scope): Where {
  const where = new Where()
  return scope.orgId === null ? where : where.and('u.org_id = ?', scope.orgId)
}

const source: Source = { columns: userColumns, tables: 'users u', id: 'u.id' }

function listUsers(
  db: Queryable,
  scope: Scope,
  { status, role, orgId, q }: Omit<Static<typeof UserQuery>, 'limit' | 'cursor'>,
  page: Pager,
): Promise<PageRow[]> {
  const where = scoped(scope)
  if (orgId !== undefined) where.and('u.org_id = ?', orgId)
  if (status !== undefined) where.and('u.status = ?', status)
  if (role !== undefined) where.and('u.role = ?', role)
  if (q !== undefined) {
    where.and('lower(u.email) like ?', `${q.toLowerCase().replace(/[\\%_]/g, '\\$&')}%`)
  }
  return newestFirst(db, source, where, page)
}

/** A user as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getUser(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = scoped(scope).and('u.id = ?', id)
  const item = await findItem(db, source, where)
  if (item !== undefined) return item
  throw userNotFound(id)
}

export interface SignIn extends Record<string, unknown> {
  id: string
  orgId: string | null
  email: string
  passwordHash: string | null
  userStatus: string
  organizationStatus: string | null
}

/** What a login needs to know of an email. Not scoped: nobody is signed in yet. */
export async function findSignIn(db: Queryable, email: string): Promise<SignIn | undefined> {
  const [row] = await db.query<SignIn>(
    `select u.id, u.org_id as "orgId", u.email, u.password_hash as "passwordHash",
       u.status as "userStatus", o.status as "organizationStatus"
     from users u left join organizations o on o.id = u.org_id
     where lower(u.email) = lower($1)`,
    [email],
  )
  return row
}

// ---- changes ---------------------------------------------------------------------------------

interface Editable {
  name: string | null
  role: Role
  orgId: string | null
  siteIds: string[] | null
  status: 'active' | 'invited' | 'disabled'
}

/** Applies a patch; returns the sessions it ended. Throws NOT_FOUND outside of the scope, LAST_ADMIN. */
async function updateUser(tx: Queryable, scope: Scope, call: PatchCall): Promise<string[]> {
  const { params, body, actor } = call
  requireGrant(actor.role, body.role)
  // One such change at a time: of two admins who demote each other at once, one stays. Such changes are
  // rare and short; locking the rows of the admins instead would deadlock, each waiting for the other's.
  await tx.query(`select pg_advisory_xact_lock(hashtext('muster.admins'))`)
  const { accepted, ...before } = await lockUser(tx, scope, params.id)
  requireGrant(actor.role, before.role)
  const after = patched(before, body)
  if (isDeepStrictEqual(after, before)) return []
  await requireOtherAdmin(tx, params.id, before, after)
  await requireCoherent(tx, scope, before, after, body)
  if (before.status !== 'active' && after.status === 'active' && !accepted) {
    throw new AppError('CONFLICT', 'this user has no password yet; invite them again')
  }
  await tx.query(
    `update users set name = $2, role = $3, org_id = $4, site_ids = $5, status = $6, updated_at = now(),
       invite_hash = case when $6 = 'invited' then invite_hash end,
       invite_expires_at = case when $6 = 'invited' then invite_expires_at end
     where id = $1`,
    [params.id, after.name, after.role, after.orgId, after.siteIds, after.status],
  )
  const orgId = before.orgId ?? after.orgId
  const subject = { action: 'user.update', resourceType: 'user', resourceId: params.id, orgId }
  await insertAudit(tx, [auditOf(call, { ...subject, details: { before, after } })])
  await notifyChange(tx, 'user', params.id)
  return after.status === 'disabled' ? revokeOtherSessions(tx, params.id, null) : []
}

async function lockUser(tx: Queryable, scope: Scope, id: string) {
  const where = scoped(scope).and('u.id = ?', id)
  const [row] = await tx.query<Row & Editable & { accepted: boolean }>(
    `select u.name, u.role, u.org_id as "orgId", u.site_ids as "siteIds", u.status,
       u.password_hash is not null as accepted
     from users u ${where.text()} for update`,
    where.values,
  )
  if (!row) throw userNotFound(id)
  const { name, role, orgId, siteIds, status, accepted } = row
  return { name, role, orgId, siteIds, status, accepted }
}

function patched(before: Editable, body: Static<typeof UserPatch>): Editable {
  const role = body.role ?? before.role
  const platform = role === 'platform_admin'
  const siteIds = body.siteIds === undefined ? before.siteIds : body.siteIds
  return {
    name: body.name === undefined ? before.name : body.name,
    role,
    orgId: platform ? null : (body.orgId ?? before.orgId),
    // Whoever becomes a platform admin leaves the sites with the organization.
    siteIds: platform && body.siteIds === undefined ? null : siteIds,
    status: body.status ?? before.status,
  }
}

/** Throws VALIDATION_ERROR where role, organization and sites don't go together, NOT_FOUND. */
async function requireCoherent(
  tx: Queryable,
  scope: Scope,
  before: Editable,
  after: Editable,
  body: Static<typeof UserPatch>,
): Promise<void> {
  if (after.role === 'platform_admin') return requireNoOrganization(body)
  if (after.orgId === null) {
    throw invalid('/orgId', 'is required when a platform admin becomes a user of an organization')
  }
  if (before.orgId === null) await organizationName(tx, scope, after.orgId)
  else if (before.orgId !== after.orgId) throw invalid('/orgId', 'of a user can’t be changed')
  if (body.siteIds) await requireSites(tx, after.orgId, body.siteIds)
}

/**
 * Throws LAST_ADMIN when the change would leave an organization, or the platform, without an active
 * admin, or an organization with none but those narrowed to sites, who may not manage its users.
 */
async function requireOtherAdmin(
  tx: Queryable,
  id: string,
  before: Editable,
  after: Editable,
): Promise<void> {
  const { role, orgId } = before
  if (before.status !== 'active' || (role !== 'org_admin' && role !== 'platform_admin')) return
  const narrowed = before.siteIds === null && after.siteIds !== null
  if (after.status === 'active' && after.role === role && !narrowed) return
  const others = await tx.query(
    `select from users where id <> $1 and role = $2 and org_id is not distinct from $3
       and status = 'active' and (site_ids is null or $4) limit 1`,
    [id, role, orgId, before.siteIds !== null],
  )
  if (others.length > 0) return
  const whole = before.siteIds === null ? 'who sees the whole organization' : 'of the organization'
  const who = role === 'platform_admin' ? role : `${role} ${whole}`
  const message = `this is the last active ${who}; make somebody else one first`
  throw new AppError('LAST_ADMIN', message)
}

// ---- rules that invitations share ------------------------------------------------------------

/** Throws FORBIDDEN when `role` is above the actor's own: nobody raises anyone, themselves included. */
export function requireGrant(own: Role, role: Role | undefined): void {
  if (role === undefined || mayGrant(own, role)) return
  throw new AppError(
    'FORBIDDEN',
    `your role ${own} may neither give the role ${role} nor change it`,
  )
}

/** A platform admin sees every organization and every site. */
export function requireNoOrganization(body: {
  orgId?: string
  siteIds?: readonly string[] | null
}): void {
  if (body.orgId !== undefined) throw invalid('/orgId', 'a platform admin has none')
  if (body.siteIds) throw invalid('/siteIds', 'a platform admin is not narrowed to sites')
}

/** The organization's name. Throws NOT_FOUND when it is not there or not the scope's. */
export async function organizationName(tx: Queryable, scope: Scope, id: string): Promise<string> {
  const where = new Where().and('o.id = ?', id)
  if (scope.orgId !== null) where.and('o.id = ?', scope.orgId)
  const [row] = await tx.query<{ name: string }>(
    `select o.name from organizations o ${where.text()}`,
    where.values,
  )
  if (row) return row.name
  throw new AppError('NOT_FOUND', `there is no organization ${id}`)
}

/** Throws VALIDATION_ERROR when one is no site of the organization. */
export async function requireSites(
  tx: Queryable,
  orgId: string,
  siteIds: readonly string[],
): Promise<void> {
  const [foreign] = await tx.query<{ position: string }>(
    `select position from unnest($2::uuid[]) with ordinality as wanted (id, position)
     where not exists (select from sites s where s.id = wanted.id and s.org_id = $1)
     order by position limit 1`,
    [orgId, siteIds],
  )
  if (!foreign) return
  throw invalid(`/siteIds/${Number(foreign.position) - 1}`, 'is no site of the organization')
}

function userNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no user ${id}`)
}
