// Who asks, in tests: organizations and users of every role, made by rows and signed in without hashing,
// and the requests they make.
import assert from 'node:assert/strict'
import type { Role } from '../../src/auth.ts'
import { newId } from '../../src/ids.ts'
import { startSession } from '../../src/sessions.ts'
import type { Answer, TestHub } from './hub.ts'
import { until } from './until.ts'

export interface Person {
  id: string
  email: string
  orgId: string | null
  sessionId: string
  token: string
  refreshToken: string
}

interface CallOptions {
  token?: string | undefined
  body?: unknown
  headers?: Record<string, string>
}

/** One request as whoever holds the token, or as nobody; a body that is a string is sent as it is. */
export function call(
  hub: TestHub,
  method: string,
  path: string,
  { token, body, headers = {} }: CallOptions = {},
): Promise<Answer> {
  const content = typeof body === 'string' ? { raw: body } : { body }
  return hub.ask(method, path, { token, headers, ...content })
}

/** Status and error code in one, for one assertion. */
export function outcome({ status, body }: Answer): string {
  return body?.error ? `${status} ${body.error.code}` : String(status)
}

/** Adds an organization; returns its id. */
export async function makeOrganization(hub: TestHub, name = 'Acme'): Promise<string> {
  const id = newId()
  await hub.hub.ctx.db.query('insert into organizations (id, name, slug) values ($1, $2, $3)', [
    id,
    name,
    id,
  ])
  return id
}

/** Adds a site; returns its id. */
export async function makeSite(hub: TestHub, orgId: string, name = 'Zurich'): Promise<string> {
  const id = newId()
  await hub.hub.ctx.db.query('insert into sites (id, org_id, name) values ($1, $2, $3)', [
    id,
    orgId,
    name,
  ])
  return id
}

interface PersonOptions {
  orgId?: string | null
  siteIds?: string[]
  /** Hashed, which takes time; without it nobody can log in as them. */
  password?: string
}

/** Adds a user of a role and signs them in. */
export async function signedIn(
  hub: TestHub,
  role: Role,
  { orgId = null, siteIds, password }: PersonOptions = {},
): Promise<Person> {
  const id = newId()
  const email = `${role}.${id.slice(-12)}@example.org`
  const hash = password === undefined ? null : await hub.hub.ctx.passwords.hash(password)
  await hub.hub.ctx.db.query(
    `insert into users (id, org_id, email, role, site_ids, password_hash) values ($1, $2, $3, $4, $5, $6)`,
    [id, orgId, email, role, siteIds ?? null, hash],
  )
  return { id, email, orgId, ...(await signInAgain(hub, id)) }
}

/** Another session of a user. */
export async function signInAgain(
  hub: TestHub,
  userId: string,
): Promise<Pick<Person, 'sessionId' | 'token' | 'refreshToken'>> {
  const issued = await startSession(hub.hub.ctx.db, { userId, ip: '192.0.2.1', userAgent: 'test' })
  return { ...issued, token: await hub.hub.ctx.tokens.sign(userId, issued.sessionId) }
}

/**
 * Counts how often a session's end is told: at once by the hub that ends it, and once more by its NOTIFY,
 * by which every other hub learns.
 */
export function endsTold(hub: TestHub, sessionId: string): () => Promise<void> {
  let times = 0
  const stop = hub.hub.ctx.identities.onChange((kind, id) => {
    if (kind === 'session' && id === sessionId) times++
  })
  return async () => {
    await until('a session to end here and everywhere', () => times === 2)
    stop()
  }
}

interface AuditRow extends Record<string, unknown> {
  orgId: string | null
  actorId: string | null
  actorEmail: string | null
  action: string
  resourceType: string | null
  resourceId: string | null
  result: string
  // oxlint-disable-next-line typescript/no-explicit-any -- as above
  details: any
}

/** The audit rows of an action on a resource, oldest first. */
export function auditOfResource(
  hub: TestHub,
  action: string,
  resourceId: string | null,
): Promise<AuditRow[]> {
  return hub.hub.ctx.db.query<AuditRow>(
    `select org_id as "orgId", actor_id as "actorId", actor_email as "actorEmail", action,
       resource_type as "resourceType", resource_id as "resourceId", result, details
     from audit where action = $1 and resource_id is not distinct from $2 order by id`,
    [action, resourceId],
  )
}

/** Walks a list to its end; returns every item and how many pages there were. */
export async function everyPage(hub: TestHub, path: string, token: string) {
  const items: { id: string }[] = []
  let pages = 0
  let cursor: string | null = null
  do {
    const next: string = cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`
    const { status, body } = await call(hub, 'GET', `${path}${next}`, { token })
    assert.equal(status, 200)
    items.push(...body.data)
    cursor = body.pagination.cursor
    assert.equal(body.pagination.hasMore, cursor !== null)
    pages++
  } while (cursor !== null)
  return { items, pages }
}
