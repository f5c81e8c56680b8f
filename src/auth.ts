// Who may do what: actors, scopes, the one table of roles, and access tokens (the only user of jose).
// Never reads the database; who a token belongs to right now is `identities.ts`.
import { jwtVerify, SignJWT, errors as joseErrors } from 'jose'
import { createHash, hash, randomBytes, timingSafeEqual, type webcrypto } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { AppError } from './errors.ts'
import { isUuid } from './ids.ts'
import { limits } from './limits.ts'

/** Highest first: nobody grants a role that stands before their own. */
export const roles = ['platform_admin', 'org_admin', 'technician', 'viewer', 'auditor'] as const
export type Role = (typeof roles)[number]

/** Whose data a query may touch; the first argument of every query of tenant data. */
export interface Scope {
  /** Null: every organization. */
  readonly orgId: string | null
  /** Null: every site of it. */
  readonly siteIds: readonly string[] | null
}

/** A signed-in user as they are now. */
export interface Actor extends Scope {
  readonly userId: string
  readonly sessionId: string
  readonly email: string
  readonly role: Role
}

const everyone = roles
const readers = ['platform_admin', 'org_admin', 'technician', 'auditor'] as const
const operators = ['platform_admin', 'org_admin', 'technician'] as const
const admins = ['platform_admin', 'org_admin'] as const
const platform = ['platform_admin'] as const

/** Operation → the roles that may do it. The whole of who may do what, shown in OpenAPI as `x-roles`. */
export const operations = {
  'devices.read': everyone,
  'sites.read': everyone,
  'organizations.read': everyone,
  'scripts.read': everyone,
  'alerts.read': everyone,
  'releases.read': everyone,
  'events.read': everyone,
  'commands.read': readers,
  'executions.read': readers,
  'recordings.read': readers,
  'commands.write': operators,
  'executions.write': operators,
  'terminals.write': operators,
  'alerts.write': operators,
  'devices.write': operators,
  'commands.upgrade': admins,
  'rollouts.write': admins,
  'devices.decommission': admins,
  'scripts.write': admins,
  'sites.write': admins,
  'enrollment_keys.write': admins,
  'webhooks.write': admins,
  'organizations.create': platform,
  'organizations.suspend': platform,
  'organizations.write': admins,
  'users.read': ['platform_admin', 'org_admin', 'auditor'],
  'users.write': admins,
  'audit.read': ['platform_admin', 'org_admin', 'auditor'],
} as const satisfies Record<string, readonly Role[]>

export type Operation = keyof typeof operations

/** The one rule: may this role do this operation? */
export function can(role: Role, operation: Operation): boolean {
  return (operations[operation] as readonly Role[]).includes(role)
}

/** May a user of role `own` give `role` to somebody, or change somebody who has it? */
export function mayGrant(own: Role, role: Role): boolean {
  return roles.indexOf(role) >= roles.indexOf(own)
}

// ---- access tokens ---------------------------------------------------------------------------

export interface AccessClaims {
  readonly userId: string
  readonly sessionId: string
  /** Seconds since 1970. */
  readonly expiresAt: number
}

export interface AccessTokens {
  sign(userId: string, sessionId: string): Promise<string>
  /** Answers at once from the cache, else verifies. Throws INVALID_TOKEN or TOKEN_EXPIRED. */
  verify(token: string): AccessClaims | Promise<AccessClaims>
}

const issuer = 'muster'
const audience = 'muster-api'

/** Access JWTs: HS256 only. `previous` still verifies, so that a secret can be rotated. */
export function accessTokens(
  secret: string,
  previous: string | undefined,
  now: () => number = Date.now,
): AccessTokens {
  // Imported once: a raw secret costs 40 % more per verification.
  const signing = importKey(secret)
  const keys = [signing, ...(previous === undefined ? [] : [importKey(previous)])]
  const verified = new LRUCache<string, AccessClaims>({ max: limits.tokenCacheMax })

  async function verifyFresh(token: string): Promise<AccessClaims> {
    const claims = await verifyWith(keys, token, now())
    verified.set(token, claims)
    return claims
  }

  return {
    async sign(userId, sessionId) {
      const issuedAt = Math.floor(now() / 1000)
      return new SignJWT({ sid: sessionId, typ: 'access' })
        .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
        .setIssuer(issuer)
        .setAudience(audience)
        .setSubject(userId)
        .setJti(randomBytes(12).toString('base64url'))
        .setIssuedAt(issuedAt)
        .setExpirationTime(issuedAt + limits.accessTokenSeconds)
        .sign(await signing)
    },
    verify(token) {
      const claims = verified.get(token)
      if (claims === undefined) return verifyFresh(token)
      if (claims.expiresAt * 1000 <= now()) {
        verified.delete(token)
        throw tokenExpired()
      }
      return claims
    },
  }
}

async function verifyWith(
  keys: readonly Promise<webcrypto.CryptoKey>[],
  token: string,
  nowMs: number,
): Promise<AccessClaims> {
  let failure: unknown
  for (const key of keys) {
    try {
      const { payload } = await jwtVerify(token, await key, {
        algorithms: ['HS256'],
        issuer,
        audience,
        currentDate: new Date(nowMs),
        requiredClaims: ['sub', 'sid', 'jti', 'iat', 'exp'],
      })
      const { sub, sid } = payload
      if (payload['typ'] === 'access' && isId(sub) && isId(sid)) {
        return {
          userId: sub,
          sessionId: sid,
          expiresAt: payload.exp ?? 0,
        }
      }
      throw new joseErrors.JWTClaimValidationFailed('not an access token', payload)
    } catch (error) {
      if (error instanceof joseErrors.JWTExpired) throw tokenExpired()
      failure = error
    }
  }
  throw new AppError('INVALID_TOKEN', 'the access token is not valid; sign in again', {
    cause: failure,
  })
}

function isId(claim: unknown): claim is string {
  return typeof claim === 'string' && isUuid(claim)
}

function tokenExpired(): AppError {
  return new AppError('TOKEN_EXPIRED', 'the access token has expired; refresh it')
}

function importKey(secret: string): Promise<webcrypto.CryptoKey> {
  return crypto.subtle.importKey(
    'raw',
    Buffer.from(secret),
    { name: 'HMAC', hash: 'SHA-256' },
    false,
    ['sign', 'verify'],
  )
}

// ---- opaque secrets --------------------------------------------------------------------------

/** 256 random bits as base64url with a prefix that tells what it is. */
export function opaqueToken(prefix = ''): string {
  return prefix + randomBytes(32).toString('base64url')
}

/** SHA-256 of an opaque secret: how it is stored. */
export function sha256(secret: string): Buffer {
  return hash('sha256', secret, 'buffer')
}

/** Compares two secrets without telling by time where they differ, or how long they are. */
export function sameSecret(a: string, b: string): boolean {
  return timingSafeEqual(sha256(a), sha256(b))
}

/** A key of our own for one purpose, derived from the deployment's JWT secret. */
export function derivedKey(secret: string, purpose: string): Buffer {
  return createHash('sha256').update(`muster ${purpose}\n`).update(secret).digest()
}
