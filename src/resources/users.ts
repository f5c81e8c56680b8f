// Users: their shape, how they are read, and how one is made by invitation.
import { Type } from 'typebox'
import { opaqueToken, roles, sha256, type Role, type Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { asItem, Id, nullable, Time, type Item } from './shapes.ts'

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

/** The columns of a user `u` as the API names them. */
export const userColumns = `u.id, u.email, u.name, u.role, u.org_id as "orgId", u.site_ids as "siteIds",
  u.status, iso(u.last_login_at) as "lastLoginAt", iso(u.created_at) as "createdAt",
  iso(u.updated_at) as "updatedAt"`

/** A user as JSON text. Throws NOT_FOUND outside of the scope. */
export async function getUser(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = new Where().and('u.id = ?', id)
  if (scope.orgId !== null) where.and('u.org_id = ?', scope.orgId)
  const [row] = await db.query<Item>(
    asItem(`select ${userColumns} from users u ${where.text()}`),
    where.values,
  )
  if (row) return row.item
  throw new AppError('NOT_FOUND', `there is no user ${id}`)
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

export interface NewUser {
  email: string
  role: Role
  orgId: string | null
  siteIds?: readonly string[] | null
  name?: string | null
}

/** A one-time link that lets its holder set the first password. */
export interface Invitation {
  token: string
  hash: Buffer
}

export function newInvitation(): Invitation {
  const token = opaqueToken('min_')
  return { token, hash: sha256(token) }
}

/** The token is in the fragment, which browsers send to nobody. */
export function inviteUrl(publicOrigin: string, invitation: Invitation): string {
  return `${publicOrigin}/accept-invite#token=${invitation.token}`
}

/** Adds an invited user; returns the id, or undefined when the email is taken. */
export async function insertInvited(
  tx: Queryable,
  user: NewUser,
  invitation: Invitation,
): Promise<string | undefined> {
  const [row] = await tx.query<{ id: string }>(
    `insert into users (id, email, role, org_id, site_ids, name, status, invite_hash, invite_expires_at)
     values ($1, $2, $3, $4, $5, $6, 'invited', $7, now() + interval '${limits.inviteHours} hours')
     on conflict (lower(email)) do nothing
     returning id`,
    [
      newId(),
      user.email,
      user.role,
      user.orgId,
      user.siteIds ?? null,
      user.name ?? null,
      invitation.hash,
    ],
  )
  return row?.id
}
