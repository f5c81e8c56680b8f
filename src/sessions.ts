// Sign-ins as rows: a session is a family of refresh tokens with one end, of which the newest counts.
// Tokens are stored hashed; a successor is also stored sealed under its predecessor, so that a replay
// within the leeway yields the same one. All of it inside the caller's transaction.
import { opaqueToken, sha256 } from './auth.ts'
import type { Queryable, Row } from './db.ts'
import { notifyChange } from './identities.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'
import { keyFrom, seal, unseal } from './seal.ts'

export interface Issued {
  sessionId: string
  refreshToken: string
}

/** Signs a user in: a new family with its first token. */
export async function startSession(
  tx: Queryable,
  user: { userId: string; ip: string; userAgent: string | null },
): Promise<Issued> {
  const sessionId = newId()
  await tx.query(
    `insert into sessions (id, user_id, ip, user_agent, ends_at)
     values ($1, $2, $3, left($4, ${limits.userAgentCharsMax}),
       now() + interval '${limits.refreshFamilyDays} days')`,
    [sessionId, user.userId, user.ip || null, user.userAgent],
  )
  return { sessionId, refreshToken: await insertToken(tx, sessionId) }
}

export interface Owner {
  sessionId: string
  userId: string
  orgId: string | null
  email: string
  userStatus: string
  organizationStatus: string | null
}

export type Rotation =
  /** No such token, or it or its session has ended. */
  | { outcome: 'ended' }
  /** An old token came back: somebody else has it. The family is revoked. */
  | { outcome: 'reused'; owner: Owner }
  /** The user or the organization may not sign in now; nothing was changed. */
  | { outcome: 'refused'; owner: Owner }
  | { outcome: 'rotated'; owner: Owner; refreshToken: string }

/**
 * Exchanges a refresh token for its successor. Parallel calls with one token agree: the row is locked,
 * the first makes the successor and the others unseal it.
 */
export async function rotate(
  tx: Queryable,
  presented: string,
  mayStay: (owner: Owner) => boolean,
): Promise<Rotation> {
  const hash = sha256(presented)
  await tx.query('select from refresh_tokens where token_hash = $1 for update', [hash])
  // A statement of its own, because the first one's snapshot is older than the lock it waited for.
  const token = await readToken(tx, hash)
  if (!token || token.ended) return { outcome: 'ended' }
  if (token.rotated && !token.repeatable) {
    await revokeSession(tx, token.owner.sessionId)
    return { outcome: 'reused', owner: token.owner }
  }
  if (!mayStay(token.owner)) return { outcome: 'refused', owner: token.owner }
  const refreshToken = token.rotated
    ? unseal(successorKey(presented), token.successor)
    : await succeed(tx, presented, token.owner.sessionId)
  return { outcome: 'rotated', owner: token.owner, refreshToken }
}

/** Whose refresh token it is, or undefined; for the rate limit before any lock. */
export async function ownerOfToken(db: Queryable, presented: string): Promise<string | undefined> {
  const [row] = await db.query<{ user_id: string }>(
    `select s.user_id from refresh_tokens r join sessions s on s.id = r.session_id
     where r.token_hash = $1`,
    [sha256(presented)],
  )
  return row?.user_id
}

/** Ends a session on every node once the transaction commits; false when it had ended before. */
export async function revokeSession(tx: Queryable, sessionId: string): Promise<boolean> {
  const ended = await tx.query(
    'update sessions set revoked_at = now() where id = $1 and revoked_at is null returning id',
    [sessionId],
  )
  await notifyChange(tx, 'session', sessionId)
  return ended.length > 0
}

/** Ends all sessions of a user but one; returns their ids. */
export async function revokeOtherSessions(
  tx: Queryable,
  userId: string,
  keptSessionId: string | null,
): Promise<string[]> {
  const ended = await tx.query<{ id: string }>(
    `update sessions set revoked_at = now()
     where user_id = $1 and id is distinct from $2 and revoked_at is null and ends_at > now()
     returning id`,
    [userId, keptSessionId],
  )
  const ids = ended.map((row) => row.id)
  await notifyChange(tx, 'session', ...ids)
  return ids
}

// ---- tokens ----------------------------------------------------------------------------------

interface Token {
  ended: boolean
  rotated: boolean
  /** Rotated just now, by another tab, and its successor was not used yet. */
  repeatable: boolean
  successor: Buffer
  owner: Owner
}

async function readToken(tx: Queryable, hash: Buffer): Promise<Token | undefined> {
  const [row] = await tx.query<Row & Omit<Token, 'owner'> & Owner>(
    `select r.expires_at <= now() or s.revoked_at is not null or s.ends_at <= now() as ended,
       r.rotated_at is not null as rotated,
       r.rotated_at > now() - interval '${limits.refreshLeewaySeconds} seconds'
         and n.rotated_at is null as repeatable,
       r.successor, s.id as "sessionId", u.id as "userId", u.org_id as "orgId", u.email,
       u.status as "userStatus", o.status as "organizationStatus"
     from refresh_tokens r
     join sessions s on s.id = r.session_id
     join users u on u.id = s.user_id
     left join organizations o on o.id = u.org_id
     left join refresh_tokens n on n.token_hash = r.successor_hash
     where r.token_hash = $1`,
    [hash],
  )
  if (!row) return undefined
  const { ended, rotated, repeatable, successor, ...owner } = row
  return { ended, rotated, repeatable, successor, owner }
}

async function succeed(tx: Queryable, presented: string, sessionId: string): Promise<string> {
  const successor = await insertToken(tx, sessionId)
  await tx.query(
    `update refresh_tokens set rotated_at = now(), successor = $2, successor_hash = $3
     where token_hash = $1`,
    [sha256(presented), seal(successorKey(presented), successor), sha256(successor)],
  )
  return successor
}

async function insertToken(tx: Queryable, sessionId: string): Promise<string> {
  const token = opaqueToken('mrt_')
  await tx.query(
    `insert into refresh_tokens (token_hash, session_id, expires_at)
     select $1, id, least(now() + interval '${limits.refreshTokenDays} days', ends_at)
     from sessions where id = $2`,
    [sha256(token), sessionId],
  )
  return token
}

function successorKey(presented: string): Buffer {
  return keyFrom(presented, 'refresh token successor')
}
