import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import type { AccessClaims } from '../src/auth.ts'
import { openDatabase, type Database, type Row } from '../src/db.ts'
import { identities, notifyChange, type Identities } from '../src/identities.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { createDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'

const log = createLog('silent', 'test')
let database: Awaited<ReturnType<typeof createDatabase>>
let db: Database
let owner: Database
/** Two hubs on one database. */
let here: Identities
let there: Identities
const clock = { ms: 0 }

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 4 })
  owner = openDatabase({ url: database.url, name: 'owner', connections: 1, role: 'owner' })
})
after(async () => {
  await Promise.all([db.close(), owner.close()])
  await database.drop()
})
beforeEach(() => {
  clock.ms = 0
  const now = () => performance.now() + clock.ms
  here = identities({ db, url: database.url, log, now })
  there = identities({ db, url: database.url, log, now })
})
afterEach(async () => {
  await Promise.all([here.close(), there.close()])
})

async function signedIn(role = 'technician'): Promise<AccessClaims & { orgId: string }> {
  const [orgId, userId, sessionId] = [newId(), newId(), newId()]
  const isPlatform = role === 'platform_admin'
  await db.query(`insert into organizations (id, name, slug) values ($1::uuid, 'o', $1::text)`, [
    orgId,
  ])
  await db.query('insert into users (id, org_id, email, role) values ($1, $2, $3, $4)', [
    userId,
    isPlatform ? null : orgId,
    `${userId}@example.org`,
    role,
  ])
  await db.query(
    `insert into sessions (id, user_id, ends_at) values ($1, $2, now() + interval '1 hour')`,
    [sessionId, userId],
  )
  return { userId, sessionId, orgId, expiresAt: 0 }
}

/** Asks until the answer comes from the cache, without waiting. */
async function cached(identity: Identities, claims: AccessClaims) {
  for (;;) {
    const actor = identity.of(claims)
    if (!(actor instanceof Promise)) return actor
    await actor
  }
}

/** Resolves with the next change of this kind that the hub is told. */
function told(identity: Identities, kind: string): Promise<string> {
  return new Promise((resolve) => {
    const stop = identity.onChange((changed, id) => {
      if (changed !== kind) return
      stop()
      resolve(id)
    })
  })
}

async function disable(userId: string): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query(`update users set status = 'disabled' where id = $1`, [userId])
    await notifyChange(tx, 'user', userId)
  })
}

/** Ends every LISTEN connection of this database on the server's side. */
async function killListeners(): Promise<void> {
  const killed = await owner.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
     where datname = current_database() and application_name = 'muster listen'`,
  )
  assert.ok(killed.length > 0)
}

/** PostgreSQL behind a proxy whose open connections can fall silent without being closed. */
async function proxyTo(target: string) {
  const url = new URL(target)
  const host = url.searchParams.get('host') ?? url.hostname
  const port = Number(url.port || 5432)
  const pairs = new Set<[Socket, Socket]>()
  const server = createServer((socket) => {
    const upstream = host.startsWith('/')
      ? connect(`${host}/.s.PGSQL.${port}`)
      : connect(port, host)
    pairs.add([socket, upstream])
    socket.pipe(upstream).pipe(socket)
    for (const end of [socket, upstream]) end.on('error', () => {})
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  url.searchParams.delete('host')
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as AddressInfo).port)
  return {
    url: url.href,
    stall() {
      for (const [socket, upstream] of pairs) {
        socket.unpipe(upstream)
        upstream.unpipe(socket)
        upstream.resume()
      }
    },
    close() {
      server.close()
      for (const [socket, upstream] of pairs) {
        socket.destroy()
        upstream.destroy()
      }
    },
  }
}

test('an actor is read once and then answered from the cache', async () => {
  const claims = await signedIn()
  const actor = await cached(here, claims)
  assert.deepEqual(actor, {
    userId: claims.userId,
    sessionId: claims.sessionId,
    orgId: claims.orgId,
    siteIds: null,
    email: `${claims.userId}@example.org`,
    role: 'technician',
  })
  assert.equal(here.of(claims), actor)
})

test('a disabled user with a live token is refused at once here and, once told, elsewhere', async () => {
  const claims = await signedIn()
  await Promise.all([cached(here, claims), cached(there, claims)])
  const elsewhere = told(there, 'user')
  await disable(claims.userId)
  here.forgetUser(claims.userId)
  await assert.rejects(async () => here.of(claims), { code: 'USER_DISABLED', status: 403 })
  assert.equal(await elsewhere, claims.userId)
  await assert.rejects(async () => there.of(claims), { code: 'USER_DISABLED' })
  // Refused from the cache as well.
  assert.throws(() => void there.of(claims), { code: 'USER_DISABLED' })
})

test('users of a suspended organization are refused, platform admins belong to none', async () => {
  const claims = await signedIn()
  const admin = await signedIn('platform_admin')
  await Promise.all([cached(here, claims), cached(here, admin)])
  const change = told(here, 'organization')
  await db.transaction(async (tx) => {
    await tx.query(`update organizations set status = 'suspended'`)
    await notifyChange(tx, 'organization', claims.orgId, admin.orgId)
  })
  await change
  await assert.rejects(async () => here.of(claims), { code: 'ORGANIZATION_SUSPENDED', status: 403 })
  assert.equal((await here.of(admin)).role, 'platform_admin')
})

test('a revoked, ended, unknown or foreign session is an invalid token', async () => {
  const claims = await signedIn()
  await cached(here, claims)
  const refused = (of: AccessClaims) =>
    assert.rejects(async () => here.of(of), { code: 'INVALID_TOKEN', status: 401 })
  await refused({ ...claims, sessionId: newId() })
  await refused({ ...claims, userId: newId() })
  await db.query('update sessions set revoked_at = now() where id = $1', [claims.sessionId])
  here.forgetSession(claims.sessionId)
  await refused(claims)
  const other = await signedIn()
  await db.query(`update sessions set ends_at = now() - interval '1 second' where id = $1`, [
    other.sessionId,
  ])
  await refused(other)
})

test('a change that is announced while its row is being read is not missed', async () => {
  const claims = await signedIn()
  await cached(here, await signedIn())
  const reading = here.of(claims)
  here.forgetUser(claims.userId)
  await reading
  assert.ok(here.of(claims) instanceof Promise, 'the row of before the change was kept')
})

test('who asks after a change does not share what was being read before it', async (t) => {
  const claims = await signedIn()
  const reads: PromiseWithResolvers<void>[] = []
  const slow: Database = {
    ...db,
    query: async <T extends Row>(text: string, values?: readonly unknown[]) => {
      const rows = await db.query<T>(text, values)
      const held = Promise.withResolvers<void>()
      reads.push(held)
      await held.promise
      return rows
    },
  }
  const slowly = identities({ db: slow, url: database.url, log })
  t.after(() => slowly.close())
  const earlier = slowly.of(claims)
  await until('the first read', () => reads.length === 1)
  await disable(claims.userId)
  slowly.forgetUser(claims.userId)
  const later = assert.rejects(async () => slowly.of(claims), { code: 'USER_DISABLED' })
  await until('the second read', () => reads.length === 2)
  for (const { resolve } of reads) resolve()
  assert.equal((await earlier).userId, claims.userId)
  await later
})

test('a rolled-back change is announced to nobody', async () => {
  const claims = await signedIn()
  const actor = await cached(here, claims)
  await assert.rejects(
    db.transaction(async (tx) => {
      await notifyChange(tx, 'user', claims.userId)
      throw new Error('no')
    }),
  )
  const next = told(here, 'session')
  await notifyChange(db, 'session', newId())
  await next
  assert.equal(here.of(claims), actor)
})

test('a thousand requests of one session that arrive together are one statement', async (t) => {
  const claims = await signedIn()
  let statements = 0
  const counting: Database = {
    ...db,
    query: (text, values) => {
      statements++
      return db.query(text, values)
    },
  }
  const counted = identities({ db: counting, url: database.url, log })
  t.after(() => counted.close())
  await Promise.all(Array.from({ length: 1000 }, async () => counted.of(claims)))
  assert.equal(statements, 1)
})

test('without an answer within two seconds the cache is not trusted and the row decides', async () => {
  const claims = await signedIn()
  await cached(here, claims)
  // No NOTIFY: only reading the row can tell.
  await db.query(`update users set status = 'disabled' where id = $1`, [claims.userId])
  assert.equal((await here.of(claims)).userId, claims.userId)
  clock.ms += limits.identityTrustMs
  await assert.rejects(async () => here.of(claims), { code: 'USER_DISABLED' })
})

test('with the LISTEN connection killed every answer is right, and the cache comes back', async () => {
  const claims = await signedIn()
  const second = await signedIn()
  await Promise.all([cached(here, claims), cached(here, second)])
  const back = told(here, 'missed')
  await killListeners()
  await disable(claims.userId)
  await back
  await assert.rejects(async () => here.of(claims), { code: 'USER_DISABLED' })
  await cached(here, second)
  const change = told(here, 'user')
  await disable(second.userId)
  await change
  await assert.rejects(async () => here.of(second), { code: 'USER_DISABLED' })
})

test('a connection that went silent is replaced, and what it missed is told', async (t) => {
  const proxy = await proxyTo(database.url)
  const behind = identities({ db, url: proxy.url, log })
  t.after(async () => {
    await behind.close()
    proxy.close()
  })
  const claims = await signedIn()
  await cached(behind, claims)
  const missed = told(behind, 'missed')
  proxy.stall()
  await disable(claims.userId)
  await missed
  await assert.rejects(async () => behind.of(claims), { code: 'USER_DISABLED' })
})

test('payloads that are none of ours are ignored', async () => {
  const claims = await signedIn()
  const actor = await cached(here, claims)
  for (const payload of ['', ':', 'device:1', 'constructor:x', 'user']) {
    await db.query('select pg_notify($1, $2)', ['muster_changes', payload])
  }
  const next = told(here, 'session')
  await notifyChange(db, 'session', newId())
  await next
  assert.equal(here.of(claims), actor)
})
