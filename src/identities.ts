// Who a session is right now: its user, their organization, and whether it still counts. A cache that a
// change empties at once here (`forget…`) and, by NOTIFY, within two seconds on every other node; it is
// trusted only while the LISTEN connection answers, else the row is read.
import { LRUCache } from 'lru-cache'
import type { AccessClaims, Actor, Role } from './auth.ts'
import type { Database, Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import { listen } from './listener.ts'
import type { Logger } from './log.ts'

export const changeKinds = ['user', 'organization', 'session'] as const
export type ChangeKind = (typeof changeKinds)[number]

/**
 * Told of every change, on whichever node it was made; the same one may come twice. `missed` (with an
 * empty id) comes after a gap in listening: look again at everything you hold.
 */
export type ChangeListener = (kind: ChangeKind | 'missed', id: string) => void

export interface Identities {
  /**
   * The actor of a verified token, at once from the cache or else read. Throws INVALID_TOKEN when the
   * session has ended, USER_DISABLED, ORGANIZATION_SUSPENDED.
   */
  of(claims: AccessClaims): Actor | Promise<Actor>
  /** Call these after the commit of the change and before answering it. */
  forgetUser(id: string): void
  forgetOrganization(id: string): void
  forgetSession(id: string): void
  /** Returns what stops the telling. */
  onChange(listener: ChangeListener): () => void
  close(): Promise<void>
}

const channel = 'muster_changes'

/** Tells every node, once the transaction commits, that what it cached of these is old. */
export async function notifyChange(
  tx: Queryable,
  kind: ChangeKind,
  ...ids: readonly string[]
): Promise<void> {
  if (ids.length === 0) return
  await tx.query(`select pg_notify('${channel}', $1 || ':' || id) from unnest($2::text[]) as id`, [
    kind,
    ids,
  ])
}

export interface IdentitiesOptions {
  db: Database
  /** For the connection that listens. */
  url: string
  log: Logger
  now?: () => number
}

/** Starts the cache and its listening connection. */
export function identities(options: IdentitiesOptions): Identities {
  return new Cache(options)
}

/** What a session's row says. Kept also when it refuses: a refused token is presented again. */
interface Identity {
  readonly actor: Actor
  readonly userStatus: string
  readonly organizationStatus: string | null
  readonly revoked: boolean
  /** Milliseconds since 1970. */
  readonly endsAtMs: number
}

class Cache implements Identities {
  private readonly known = new LRUCache<string, Identity>({ max: limits.identityCacheMax })
  private readonly loading = new Map<string, Promise<Identity | undefined>>()
  private readonly listeners = new Set<ChangeListener>()
  /** Counts changes, so that a row read before one is not kept after it. */
  private changes = 0
  private connections = 0
  private readonly db: Database
  private readonly now: () => number
  private readonly listener

  constructor({ db, url, log, now = () => performance.now() }: IdentitiesOptions) {
    this.db = db
    this.now = now
    this.listener = listen({
      url,
      channel,
      log,
      now,
      onMessage: (payload) => this.changed(payload),
      onConnect: () => this.reconnected(),
    })
  }

  of(claims: AccessClaims): Actor | Promise<Actor> {
    const identity = this.isTrusted() ? this.known.get(claims.sessionId) : undefined
    return identity === undefined ? this.read(claims) : admitted(identity, claims)
  }

  forgetUser(id: string): void {
    this.forget('user', id)
  }

  forgetOrganization(id: string): void {
    this.forget('organization', id)
  }

  forgetSession(id: string): void {
    this.forget('session', id)
  }

  onChange(listener: ChangeListener): () => void {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  close(): Promise<void> {
    return this.listener.close()
  }

  private isTrusted(): boolean {
    return this.now() - this.listener.completeUntil() < limits.identityTrustMs
  }

  private async read(claims: AccessClaims): Promise<Actor> {
    const id = claims.sessionId
    // A thousand requests of one session that miss together are one statement.
    const shared = this.loading.get(id)
    if (shared) return admitted(await shared, claims)
    const loading = this.load(id)
    this.loading.set(id, loading)
    try {
      return admitted(await loading, claims)
    } finally {
      if (this.loading.get(id) === loading) this.loading.delete(id)
    }
  }

  private async load(sessionId: string): Promise<Identity | undefined> {
    const before = this.changes
    const identity = await readIdentity(this.db, sessionId)
    if (identity && before === this.changes && this.isTrusted()) this.known.set(sessionId, identity)
    return identity
  }

  private changed(payload: string): void {
    const colon = payload.indexOf(':')
    const kind = changeKinds.find((known) => known === payload.slice(0, colon))
    if (kind) this.forget(kind, payload.slice(colon + 1))
  }

  private reconnected(): void {
    this.startOver()
    this.known.clear()
    if (this.connections++ > 0) this.tell('missed', '')
  }

  private forget(kind: ChangeKind, id: string): void {
    this.startOver()
    if (kind === 'session') this.known.delete(id)
    else {
      // A walk of the whole cache is a millisecond or two, and users change a few times a day.
      for (const [sessionId, { actor }] of this.known.entries()) {
        if ((kind === 'user' ? actor.userId : actor.orgId) === id) this.known.delete(sessionId)
      }
    }
    this.tell(kind, id)
  }

  /** What is being read now may be older than the change: nobody who asks from here on gets it. */
  private startOver(): void {
    this.changes++
    this.loading.clear()
  }

  private tell(kind: ChangeKind | 'missed', id: string): void {
    for (const listener of this.listeners) listener(kind, id)
  }
}

function admitted(identity: Identity | undefined, claims: AccessClaims): Actor {
  const ended = !identity || identity.revoked || identity.endsAtMs <= Date.now()
  if (ended || identity.actor.userId !== claims.userId) {
    throw new AppError('INVALID_TOKEN', 'the session has ended; sign in again')
  }
  const refusal = inactive(identity)
  if (refusal) throw refusal
  return identity.actor
}

/** Why a user may not be signed in now, or undefined; a platform admin has no organization. */
export function inactive(user: {
  userStatus: string
  organizationStatus: string | null
}): AppError | undefined {
  if (user.userStatus !== 'active') {
    return new AppError('USER_DISABLED', 'this user is disabled; an administrator can enable it')
  }
  if (user.organizationStatus === 'suspended') {
    return new AppError('ORGANIZATION_SUSPENDED', 'your organization is suspended')
  }
  return undefined
}

interface IdentityRow extends Record<string, unknown> {
  userId: string
  orgId: string | null
  siteIds: string[] | null
  email: string
  role: Role
  userStatus: string
  organizationStatus: string | null
  revoked: boolean
  endsAtMs: number
}

async function readIdentity(db: Queryable, sessionId: string): Promise<Identity | undefined> {
  const [row] = await db.query<IdentityRow>(
    `select u.id as "userId", u.org_id as "orgId", u.site_ids as "siteIds", u.email, u.role,
       u.status as "userStatus", o.status as "organizationStatus", s.revoked_at is not null as revoked,
       (extract(epoch from s.ends_at) * 1000)::float8 as "endsAtMs"
     from sessions s
     join users u on u.id = s.user_id
     left join organizations o on o.id = u.org_id
     where s.id = $1`,
    [sessionId],
  )
  if (!row) return undefined
  const { userId, orgId, siteIds, email, role, ...rest } = row
  return { ...rest, actor: { userId, sessionId, orgId, siteIds, email, role } }
}
