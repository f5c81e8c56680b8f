// Signing in and out: login, refresh, logout, who am I, change of password, acceptance of an invitation.
// No pooled connection is held while a password is hashed.
import { Type } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import { sha256 } from '../auth.ts'
import { AppError } from '../errors.ts'
import { insertEvents } from '../events.ts'
import { inactive } from '../identities.ts'
import { limits } from '../limits.ts'
import type { RateHeaders } from '../rates.ts'
import { invalid, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import {
  ownerOfToken,
  revokeOtherSessions,
  revokeSession,
  rotate,
  startSession,
  type Issued,
  type Owner,
} from '../sessions.ts'
import { Name, presented } from './shapes.ts'
import { findSignIn, getUser, User, type SignIn } from './users.ts'

export const TokenResponse = Type.Object({
  accessToken: Type.String(),
  refreshToken: Type.String(),
  tokenType: Type.Literal('Bearer'),
  expiresIn: Type.Integer({ description: 'Seconds until the access token expires.' }),
  user: User,
})

/** A credential as presented; `presented()` bounds its bytes. */
const Credential = Type.String()
const NewPassword = Type.String({
  minLength: limits.passwordCharsMin,
  maxLength: limits.passwordCharsMax,
})

export const sessionRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/auth/login',
    name: 'login',
    tag: 'session',
    summary: 'Sign in with email and password.',
    may: 'public',
    body: Type.Object({
      email: Type.String({ maxLength: limits.emailCharsMax }),
      password: Credential,
    }),
    responses: { 200: TokenResponse },
    handle: login,
  }),
  route({
    method: 'POST',
    path: '/auth/refresh',
    name: 'refresh',
    tag: 'session',
    summary: 'Exchange a refresh token for new tokens.',
    may: 'public',
    body: Type.Object({ refreshToken: Credential }),
    responses: { 200: TokenResponse },
    handle: refresh,
  }),
  route({
    method: 'POST',
    path: '/auth/logout',
    name: 'logout',
    tag: 'session',
    summary: 'End this session: its tokens, event streams and terminals.',
    may: 'signed-in',
    body: Type.Object({}),
    bodyOptional: true,
    responses: { 200: Type.Object({}) },
    handle: logout,
  }),
  route({
    method: 'GET',
    path: '/auth/me',
    name: 'me',
    tag: 'session',
    summary: 'The signed-in user.',
    may: 'signed-in',
    responses: { 200: User },
    handle: async ({ db }, { actor }) => ({
      status: 200,
      json: await getUser(db, actor, actor.userId),
    }),
  }),
  route({
    method: 'POST',
    path: '/auth/password',
    name: 'changePassword',
    tag: 'session',
    summary: 'Change your password; every other session of yours ends.',
    may: 'signed-in',
    body: Type.Object({ currentPassword: Credential, newPassword: NewPassword }),
    responses: {
      200: Type.Object({
        sessionsRevoked: Type.Integer({ description: 'Your other sessions, all ended now.' }),
      }),
    },
    handle: changePassword,
  }),
  route({
    method: 'POST',
    path: '/auth/accept-invite',
    name: 'acceptInvite',
    tag: 'session',
    summary: 'Set the first password with the token of an invitation.',
    may: 'public',
    body: Type.Object({ token: Credential, password: NewPassword, name: Type.Optional(Name) }),
    responses: { 200: Type.Object({ user: User }) },
    handle: acceptInvite,
  }),
]

type BodyCall<B> = Call<undefined, undefined, B>

// ---- login -----------------------------------------------------------------------------------

async function login(
  ctx: Context,
  call: BodyCall<{ email: string; password: string }>,
): Promise<Reply> {
  const { email } = call.body
  const password = presented('password', call.body.password)
  admitLogin(ctx, call.ip, email)
  const user = await findSignIn(ctx.db, email)
  const fits = await ctx.passwords.verify(password, user?.passwordHash ?? null)
  // Again: what failed meanwhile counts, so that guesses in parallel learn no more than in a row.
  const headers = admitLogin(ctx, call.ip, email)
  if (!user || !fits) {
    const failed = ctx.rates.loginFailed(call.ip, email)
    return refuseLogin(ctx, call, user, wrongCredentials(failed), 'wrong email or password')
  }
  const refusal = inactive(user)
  if (refusal) return refuseLogin(ctx, call, user, refusal, refusal.code)
  const issued = await admit(ctx, call, user)
  ctx.rates.loginSucceeded(call.ip, email)
  return tokenReply(ctx, { ...issued, userId: user.id }, headers)
}

/** Asks the rates, and tells of it when they refuse: somebody guesses. */
function admitLogin(ctx: Context, ip: string, email: string): RateHeaders {
  try {
    return ctx.rates.login(ip, email)
  } catch (error) {
    ctx.abuse.refused(ip, email)
    throw error
  }
}

/** One message for every reason: whoever guesses must not learn which emails exist. */
function wrongCredentials(headers: RateHeaders): AppError {
  return new AppError('INVALID_CREDENTIALS', 'email or password is wrong', { headers })
}

async function refuseLogin(
  ctx: Context,
  call: BodyCall<{ email: string }>,
  user: SignIn | undefined,
  refusal: AppError,
  reason: string,
): Promise<never> {
  const { ip, userAgent } = call
  const orgId = user?.orgId ?? null
  const email = user?.email ?? call.body.email
  const source = { ...call, actor: { userId: user?.id ?? null, email } }
  const details = { reason }
  const entry = { ...signInSubject('user.login', user?.id ?? null, orgId), details }
  await ctx.db.transaction(async (tx) => {
    await insertAudit(tx, [auditOf(source, { ...entry, result: 'failure' })])
    const data = { userId: user?.id ?? null, email, ip, userAgent, reason }
    await insertEvents(tx, [{ orgId, type: 'user.login_failed', data }])
  })
  throw refusal
}

/** Signs in, unless the user was disabled or given another password since it was read. */
async function admit(ctx: Context, call: BodyCall<unknown>, user: SignIn): Promise<Issued> {
  const { ip, userAgent } = call
  return ctx.db.transaction(async (tx) => {
    const [current] = await tx.query(
      `update users set last_login_at = now()
       where id = $1 and status = 'active' and password_hash = $2 returning id`,
      [user.id, user.passwordHash],
    )
    if (!current) throw wrongCredentials({})
    const issued = await startSession(tx, { userId: user.id, ip, userAgent })
    const source = { ...call, actor: { userId: user.id, email: user.email } }
    await insertAudit(tx, [auditOf(source, signInSubject('user.login', user.id, user.orgId))])
    const data = { userId: user.id, email: user.email, ip, userAgent }
    await insertEvents(tx, [{ orgId: user.orgId, type: 'user.login', data }])
    return issued
  })
}

function signInSubject(action: string, resourceId: string | null, orgId: string | null) {
  return { action, resourceType: 'user', resourceId, orgId }
}

/** The answer of login and refresh. */
async function tokenReply(
  ctx: Context,
  issued: Issued & { userId: string },
  headers: RateHeaders,
): Promise<Reply> {
  const everything = { orgId: null, siteIds: null }
  const [accessToken, user] = await Promise.all([
    ctx.tokens.sign(issued.userId, issued.sessionId),
    getUser(ctx.db, everything, issued.userId),
  ])
  const tokens = JSON.stringify({
    accessToken,
    refreshToken: issued.refreshToken,
    tokenType: 'Bearer',
    expiresIn: limits.accessTokenSeconds,
  })
  return { status: 200, json: `${tokens.slice(0, -1)},"user":${user}}`, headers }
}

// ---- refresh and logout ----------------------------------------------------------------------

async function refresh(ctx: Context, call: BodyCall<{ refreshToken: string }>): Promise<Reply> {
  const token = presented('refreshToken', call.body.refreshToken)
  const userId = await ownerOfToken(ctx.db, token)
  if (userId === undefined) throw endedToken()
  const headers = ctx.rates.refresh(userId)
  const rotation = await ctx.db.transaction(async (tx) => {
    const result = await rotate(tx, token, (owner) => inactive(owner) === undefined)
    // The revocation must be committed, so the refusal is thrown after the transaction.
    if (result.outcome === 'reused') await insertAudit(tx, [reuseEntry(call, result.owner)])
    return result
  })
  switch (rotation.outcome) {
    case 'ended':
      throw endedToken()
    case 'reused':
      ctx.identities.forgetSession(rotation.owner.sessionId)
      throw new AppError(
        'REFRESH_TOKEN_REUSED',
        'this refresh token was exchanged before; its session has been ended, sign in again',
      )
    case 'refused':
      throw inactive(rotation.owner) ?? endedToken()
    case 'rotated':
      return tokenReply(ctx, { ...rotation.owner, ...rotation }, headers)
  }
}

function endedToken(): AppError {
  const message = 'the refresh token is unknown or has ended; sign in again'
  return new AppError('INVALID_REFRESH_TOKEN', message)
}

function reuseEntry(call: BodyCall<unknown>, owner: Owner) {
  const { sessionId, orgId } = owner
  return auditOf(
    { ...call, actor: owner },
    {
      action: 'session.revoke',
      resourceType: 'session',
      resourceId: sessionId,
      orgId,
      result: 'denied',
      details: { reason: 'a refresh token was used again' },
    },
  )
}

async function logout(ctx: Context, call: BodyCall<unknown>): Promise<Reply> {
  const { sessionId, userId, orgId } = call.actor
  await ctx.db.transaction(async (tx) => {
    if (await revokeSession(tx, sessionId)) {
      await insertAudit(tx, [auditOf(call, signInSubject('user.logout', userId, orgId))])
    }
  })
  ctx.identities.forgetSession(sessionId)
  return { status: 200, body: {} }
}

// ---- passwords -------------------------------------------------------------------------------

async function changePassword(
  ctx: Context,
  call: BodyCall<{ currentPassword: string; newPassword: string }>,
): Promise<Reply> {
  const { userId, sessionId, orgId, email } = call.actor
  const password = presented('currentPassword', call.body.currentPassword)
  if (call.body.newPassword === password) {
    throw invalid('/newPassword', 'is the same as the current password')
  }
  // The rate of logins: a stolen access token must not become a way to guess the password.
  admitLogin(ctx, call.ip, email)
  const [stored] = await ctx.db.query<{ hash: string | null }>(
    'select password_hash as hash from users where id = $1',
    [userId],
  )
  const fits = await ctx.passwords.verify(password, stored?.hash ?? null)
  admitLogin(ctx, call.ip, email)
  const subject = signInSubject('user.change_password', userId, orgId)
  if (!fits) {
    const headers = ctx.rates.loginFailed(call.ip, email)
    await ctx.audit.denied(auditOf(call, { ...subject, result: 'failure' }))
    throw new AppError('INVALID_CREDENTIALS', 'the current password is wrong', { headers })
  }
  const hash = await ctx.passwords.hash(call.body.newPassword)
  const revoked = await ctx.db.transaction(async (tx) => {
    const [changed] = await tx.query(
      `update users set password_hash = $3, updated_at = now()
       where id = $1 and password_hash = $2 and status = 'active' returning id`,
      [userId, stored?.hash, hash],
    )
    if (!changed) throw new AppError('CONFLICT', 'the password was changed by somebody else')
    const ids = await revokeOtherSessions(tx, userId, sessionId)
    const details = { sessionsRevoked: ids.length }
    await insertAudit(tx, [auditOf(call, { ...subject, details })])
    return ids
  })
  for (const id of revoked) ctx.identities.forgetSession(id)
  ctx.rates.loginSucceeded(call.ip, email)
  return { status: 200, body: { sessionsRevoked: revoked.length } }
}

async function acceptInvite(
  ctx: Context,
  call: BodyCall<{ token: string; password: string; name?: string }>,
): Promise<Reply> {
  const hash = sha256(presented('token', call.body.token))
  const open = `invite_hash = $1 and invite_expires_at > now() and status = 'invited'`
  const [invited] = await ctx.db.query(`select id from users where ${open}`, [hash])
  // Looked up first: only the holder of an invitation makes the hub hash.
  if (!invited) throw badInvitation()
  const passwordHash = await ctx.passwords.hash(call.body.password)
  const user = await ctx.db.transaction(async (tx) => {
    const [accepted] = await tx.query<{ id: string; email: string; orgId: string | null }>(
      `update users set password_hash = $2, name = coalesce($3, name), status = 'active',
         invite_hash = null, invite_expires_at = null, updated_at = now()
       where ${open} returning id, email, org_id as "orgId"`,
      [hash, passwordHash, call.body.name ?? null],
    )
    if (!accepted) throw badInvitation()
    const source = { ...call, actor: { userId: accepted.id, email: accepted.email } }
    const subject = signInSubject('user.accept_invite', accepted.id, accepted.orgId)
    await insertAudit(tx, [auditOf(source, subject)])
    return getUser(tx, { orgId: null, siteIds: null }, accepted.id)
  })
  return { status: 200, json: `{"user":${user}}` }
}

function badInvitation(): AppError {
  const message = 'the invitation is unknown, used or older than three days; ask for a new one'
  return new AppError('INVALID_TOKEN', message)
}
