// Invitations: how a user comes to be. One link, used once, sets the first password; only its hash is
// stored, so it is shown in the answer, mailed where SMTP_URL is set, and made anew when it is lost.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { opaqueToken, roles, sha256, type Actor, type Role } from '../auth.ts'
import type { Queryable, Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { insertEvents } from '../events.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import type { Mail } from '../mail.ts'
import { invalid, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { Name } from './shapes.ts'
import {
  getUser,
  organizationName,
  requireGrant,
  requireNoOrganization,
  requireSites,
  SiteIds,
  User,
} from './users.ts'

const NewInvitation = Type.Object({
  email: Type.String({ format: 'email', maxLength: limits.emailCharsMax }),
  role: Type.Enum([...roles], { description: 'Not above your own.' }),
  orgId: Type.Optional(
    Type.String({ format: 'uuid', description: 'Yours when absent; a platform admin has none.' }),
  ),
  siteIds: Type.Optional(SiteIds),
  name: Type.Optional(Name),
})

const Invited = Type.Object({
  ...User.properties,
  inviteUrl: Type.String({
    description: `The link that sets the password, once and within ${limits.inviteHours} hours. Shown only here.`,
  }),
})

export const invitationRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/users/invite',
    name: 'inviteUser',
    tag: 'users',
    summary: 'Invite a user, or make a new link for one who has not accepted; the old link ends.',
    may: 'users.write',
    organizationWide: true,
    body: NewInvitation,
    responses: { 201: Invited },
    handle: invite,
  }),
]

type InviteCall = Call<undefined, undefined, Static<typeof NewInvitation>>

async function invite(ctx: Context, call: InviteCall): Promise<Reply> {
  const { actor, body } = call
  requireGrant(actor.role, body.role)
  const orgId = organizationOf(actor, body)
  const invitation = newInvitation()
  const { id, organization, json } = await ctx.db.transaction(async (tx) => {
    const name = orgId === null ? undefined : await organizationName(tx, actor, orgId)
    if (orgId !== null && body.siteIds) await requireSites(tx, orgId, body.siteIds)
    const userId = await record(tx, call, { ...body, orgId }, invitation)
    return { id: userId, organization: name, json: await getUser(tx, actor, userId) }
  })
  const url = inviteUrl(ctx.publicOrigin, invitation)
  const about = { action: 'user.mail_invitation', resourceType: 'user', resourceId: id, orgId }
  ctx.mailer?.send({ ...letter(actor.email, organization, url), to: body.email, about })
  return {
    status: 201,
    json: `${json.slice(0, -1)},"inviteUrl":${JSON.stringify(url)}}`,
    headers: { Location: `/api/v1/users/${id}` },
  }
}

function organizationOf(actor: Actor, body: Static<typeof NewInvitation>): string | null {
  if (body.role === 'platform_admin') {
    requireNoOrganization(body)
    return null
  }
  const orgId = body.orgId ?? actor.orgId
  if (orgId === null) throw invalid('/orgId', 'is required')
  return orgId
}

/** Adds or renews the user with audit row and event; returns the id. */
async function record(
  tx: Queryable,
  call: InviteCall,
  user: NewUser,
  invitation: Invitation,
): Promise<string> {
  const { email, role, orgId, siteIds, name } = user
  const id =
    (await insertInvited(tx, user, invitation)) ?? (await renewInvited(tx, user, invitation))
  const subject = { action: 'user.invite', resourceType: 'user', resourceId: id, orgId }
  const details = { after: { email, role, siteIds, name } }
  await insertAudit(tx, [auditOf(call, { ...subject, details })])
  const data = { userId: id, email, role, invitedBy: call.actor.userId }
  await insertEvents(tx, [{ orgId, type: 'user.invited', data }])
  return id
}

// ---- rows ------------------------------------------------------------------------------------

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

/**
 * A new link for a user of the same organization who never accepted one, also when withdrawn meanwhile;
 * the old link ends. Absent name and sites stay as they were: to repeat must not widen.
 */
async function renewInvited(tx: Queryable, user: NewUser, invitation: Invitation): Promise<string> {
  const [known] = await tx.query<
    Row & { id: string; same: boolean; open: boolean; status: string }
  >(
    `select id, status, org_id is not distinct from $2 as same,
       status <> 'active' and password_hash is null as open
     from users where lower(email) = lower($1) for update`,
    [user.email, user.orgId],
  )
  if (!known?.same) throw taken(user.email, 'is taken')
  if (!known.open) {
    const disabled = known.status === 'disabled'
    throw taken(
      user.email,
      disabled ? 'is a disabled user; enable it instead' : 'is a user already',
    )
  }
  await tx.query(
    `update users set status = 'invited', email = $2, role = $3, invite_hash = $4,
       site_ids = case when $5 then $6 else site_ids end, name = coalesce($7, name),
       invite_expires_at = now() + interval '${limits.inviteHours} hours', updated_at = now()
     where id = $1`,
    [
      known.id,
      user.email,
      user.role,
      invitation.hash,
      user.siteIds !== undefined,
      user.siteIds ?? null,
      user.name ?? null,
    ],
  )
  return known.id
}

/** One answer for every other organization: who its users are is its own. */
function taken(email: string, message: string): AppError {
  return new AppError('ALREADY_EXISTS', `${email} ${message}`, {
    details: [{ path: '/email', message }],
  })
}

// ---- the mail --------------------------------------------------------------------------------

function letter(
  inviter: string,
  organization: string | undefined,
  url: string,
): Pick<Mail, 'subject' | 'text' | 'html'> {
  const where = organization === undefined ? 'Muster' : `${organization} on Muster`
  const lines = [
    `${inviter} invites you to ${where}.`,
    `This link sets your password. It works once, for ${limits.inviteHours} hours:`,
    'If you did not expect this, ignore it: nothing happens without the link.',
  ] as const
  const [greeting, instruction, end] = lines
  const link = `<a href="${escaped(url)}">${escaped(url)}</a>`
  return {
    subject: `Your invitation to ${where}`,
    text: `${greeting}\n\n${instruction}\n${url}\n\n${end}\n`,
    html: `<p>${escaped(greeting)}</p>\n<p>${instruction}<br>${link}</p>\n<p>${end}</p>\n`,
  }
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
}
