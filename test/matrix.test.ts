// Every route, asked by everyone about everything: who may do what, told once more, by hand, and compared
// with what the hub answers. A route that is not in test/support/route_table.ts fails by its name.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { SignJWT } from 'jose'
import { roles, type Role } from '../src/auth.ts'
import { newId } from '../src/ids.ts'
import { routes } from '../src/resources/index.ts'
import type { Route } from '../src/route.ts'
import { removeFolder } from './support/folders.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { makeOrganization, signedIn, signInAgain, type Person } from './support/people.ts'
import { plant, type Plant } from './support/plant.ts'
import {
  awayMarker,
  foreignMarker,
  homeMarker,
  makeTenants,
  type Tenants,
} from './support/tenants.ts'
import { makeReleases, offered, type Folders } from './support/releases.ts'
import { may, open, table, type Row } from './support/route_table.ts'
import { Wire, type WireAnswer } from './support/wire.ts'

// ---- how it is asked -------------------------------------------------------------------------

let hub: TestHub
let folders: Folders
let wire: Wire
let tenants: Tenants

before(async () => {
  folders = await makeReleases(['2.0.0'])
  hub = await startHub({ WEBHOOK_ALLOWED_CIDRS: '127.0.0.1/32', ...folders.env })
  await offered(hub, 1)
  wire = new Wire(hub.origin)
  tenants = await makeTenants(hub)
})
after(async () => {
  wire.close()
  await hub.close()
  removeFolder(folders.base)
})

/** Where `route` finds what it is asked about: in the path things of `of`, else things of `names`. */
function asked(route: Route, row: Row, of: Plant, names = of) {
  let path = route.at === 'base' ? `/api/v1${route.path}` : route.path
  for (const [index, name] of route.parameters.entries()) {
    path = path.replace(`:${name}`, of[row.ids?.[index] ?? 'siteId'])
  }
  const { body, query } = row.named?.(names) ?? {}
  if (query) path += `?${new URLSearchParams(query).toString()}`
  return { method: route.method, path, body: body === undefined ? undefined : JSON.stringify(body) }
}

function as(token: string | undefined, request: ReturnType<typeof asked>): Promise<WireAnswer> {
  const type = request.body === undefined ? {} : { 'content-type': 'application/json' }
  const headers = { ...type, ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) }
  return wire.send({ ...request, headers })
}

/** Status and code; and that a refusal tells nothing of anybody. */
function outcome({ status, text, body }: WireAnswer): string {
  if (status < 400) return String(status)
  for (const marker of [homeMarker, awayMarker, foreignMarker]) {
    assert.ok(!text.includes(marker), `a refusal tells of what it refuses: ${text}`)
  }
  return `${status} ${body.error.code}`
}

const forbidden = '403 FORBIDDEN'
const notFound = '404 NOT_FOUND'

/** Somebody as whom nothing else is done: their session may end by it. */
async function fresh(person: Person): Promise<Person> {
  return { ...person, ...(await signInAgain(hub, person.id)) }
}

/** A plant that may be used up. */
function spare(like: Plant, row: Row): Promise<Plant> | Plant {
  return row.once ? plant(hub, like.orgId, like.marker, like.siteId) : like
}

/** The ids of a plant that never was. */
function nowhere(of: Plant): Plant {
  const ids = Object.entries(of).map(([name, id]) => [
    name,
    id.startsWith('term-') ? `term-${newId()}` : newId(),
  ])
  // The same members with other ids.
  return Object.fromEntries(ids) as Plant
}

/** What was spare must not fill up what an organization may have. */
async function clear(): Promise<void> {
  await hub.hub.ctx.db.query(`update webhooks set deleted_at = now() where id <> all($1::uuid[])`, [
    [tenants.home.webhook, tenants.away.webhook, tenants.foreign.webhook],
  ])
}

/** Every wrong token, with the code that it gets. */
async function wrongTokens(): Promise<[string, string | undefined, string][]> {
  const { token, id, sessionId } = tenants.people.org_admin
  const secret = hub.env['JWT_SECRET'] ?? ''
  const now = Math.floor(Date.now() / 1000)
  const signed = (key: string, expires: number, claims: Record<string, string>) =>
    new SignJWT({ sid: sessionId, typ: 'access', ...claims })
      .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
      .setIssuer(claims['iss'] ?? 'muster')
      .setAudience('muster-api')
      .setSubject(claims['sub'] ?? id)
      .setJti('x')
      .setIssuedAt(now - 1000)
      .setExpirationTime(expires)
      .sign(Buffer.from(key))
  const [head = '', claims = '', signature = ''] = token.split('.')
  const told = JSON.parse(Buffer.from(claims, 'base64url').toString()) as Record<string, unknown>
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const { people, stranger } = tenants
  const raised = encode({ ...told, sub: people.platform_admin.id })
  const left = await fresh(people.org_admin)
  await hub.post('/auth/logout', {}, { token: left.token })
  const invalid = '401 INVALID_TOKEN'
  return [
    ['none', undefined, '401 UNAUTHENTICATED'],
    ['garbage', 'garbage', invalid],
    ['an expired one', await signed(secret, now - 1, {}), '401 TOKEN_EXPIRED'],
    ['one of another secret', await signed(`${secret}x`, now + 900, {}), invalid],
    ['one of another issuer', await signed(secret, now + 900, { iss: 'else' }), invalid],
    ['one of another kind', await signed(secret, now + 900, { typ: 'refresh' }), invalid],
    [
      'one of another user’s session',
      await signed(secret, now + 900, { sub: stranger.id }),
      invalid,
    ],
    ['changed claims', `${head}.${raised}.${signature}`, invalid],
    ['no algorithm', `${encode({ alg: 'none', typ: 'JWT' })}.${claims}.`, invalid],
    ['an ended session', left.token, invalid],
    ['a refresh token', people.org_admin.refreshToken, invalid],
    ['an expired one of another secret', await signed(`${secret}x`, now - 1, {}), invalid],
  ]
}

// ---- the proofs ------------------------------------------------------------------------------

test('the table names every route, and nothing is public but what the contract lists', () => {
  const closed = routes.filter((route) => route.may !== 'public').map(({ name }) => name)
  assert.deepEqual(Object.keys(table).toSorted(), closed.toSorted())
  const found = routes.filter((route) => route.may === 'public').map(({ name }) => name)
  assert.deepEqual(found.toSorted(), open)
})

test('what anybody may call is answered without a token, and a token makes no difference', async () => {
  for (const route of routes.filter(({ may: who }) => who === 'public')) {
    const request = asked(route, { may: 'everyone', ok: '' }, tenants.home)
    const without = await as(undefined, request)
    assert.notEqual(without.status, 403, route.name)
    if (route.name !== 'metrics') assert.notEqual(without.body?.error?.code, 'UNAUTHENTICATED')
    const { token } = tenants.people.platform_admin
    assert.equal((await as(token, request)).status, without.status, route.name)
  }
})

test('a wrong token is 401 everywhere, whatever else is wrong with the request', async () => {
  const tokens = await wrongTokens()
  for (const route of routes.filter(({ may: who }) => who !== 'public')) {
    const row = table[route.name] as Row
    const requests = [asked(route, row, tenants.home), asked(route, row, tenants.foreign)]
    const broken = { ...asked(route, row, tenants.home), body: '{' }
    if (route.method !== 'GET') requests.push(broken)
    for (const [what, token, expected] of tokens) {
      for (const request of requests) {
        const answer = await as(token, request)
        assert.equal(outcome(answer), expected, `${route.name} with ${what}`)
        assert.match(String(answer.headers['www-authenticate']), /^Bearer realm="muster"/)
      }
    }
  }
})

test('who is disabled, or whose organization is suspended, gets 403 everywhere', async () => {
  const disabled = await signedIn(hub, 'org_admin', { orgId: tenants.orgId })
  await hub.hub.ctx.db.query(`update users set status = 'disabled' where id = $1`, [disabled.id])
  const orgId = await makeOrganization(hub, 'Suspended')
  const suspended = await signedIn(hub, 'org_admin', { orgId })
  await hub.hub.ctx.db.query(`update organizations set status = 'suspended' where id = $1`, [orgId])
  for (const route of routes.filter(({ may: who }) => who !== 'public')) {
    const request = asked(route, table[route.name] as Row, tenants.home)
    assert.equal(outcome(await as(disabled.token, request)), '403 USER_DISABLED', route.name)
    const answer = await as(suspended.token, request)
    assert.equal(outcome(answer), '403 ORGANIZATION_SUSPENDED', route.name)
  }
})

for (const route of routes.filter(({ may: who }) => who !== 'public')) {
  const row = table[route.name]
  if (row === undefined) continue
  const allowed: readonly Role[] = may[row.may]

  describe(`${route.method} ${route.path}`, () => {
    for (const role of roles) {
      test(`${role}: ${allowed.includes(role) ? row.ok : forbidden} on one’s own`, async () => {
        const { home, people } = tenants
        const { token } = await fresh(people[role])
        const request = asked(route, row, await spare(home, row))
        const answer = await as(token, request)
        assert.equal(outcome(answer), allowed.includes(role) ? row.ok : forbidden, answer.text)
        if (row.lists && allowed.includes(role)) {
          assert.ok(answer.text.includes(homeMarker), 'a list without what is one’s own')
          // A platform admin who names no organization asks for all of them.
          const all = role === 'platform_admin' && row.named === undefined
          assert.equal(answer.text.includes(foreignMarker), all, answer.text)
        }
        await clear()
      })
    }

    if (row.ids) {
      test('another organization’s is not there, just as what never was', async () => {
        const { foreign, people } = tenants
        for (const role of roles.filter((one) => one !== 'platform_admin')) {
          const { token } = await fresh(people[role])
          const expected = allowed.includes(role) ? notFound : forbidden
          // Not one word may tell the two apart, and what is refused by role is refused before.
          const messages: string[] = []
          for (const it of [foreign, nowhere(foreign)]) {
            const answer = await as(token, asked(route, row, it))
            assert.equal(outcome(answer), expected, `${role}: ${answer.text}`)
            let message = String(answer.body.error.message)
            for (const id of Object.values(it)) message = message.replaceAll(id, 'ID')
            messages.push(message)
          }
          assert.equal(messages[0], messages[1])
          assert.equal(outcome(await as(token, asked(route, row, foreign, tenants.home))), expected)
        }
      })

      test('a platform admin is of every organization, and finds nothing that never was', async () => {
        const { foreign, people } = tenants
        const { token } = await fresh(people.platform_admin)
        const answer = await as(token, asked(route, row, await spare(foreign, row)))
        assert.equal(outcome(answer), row.ok, answer.text)
        assert.equal(outcome(await as(token, asked(route, row, nowhere(foreign)))), notFound)
        await clear()
      })

      test('an id that is none is refused by name, once the role is right', async () => {
        const request = asked(route, row, tenants.home)
        const path = request.path.replace(tenants.home[row.ids?.[0] ?? 'siteId'], 'no-uuid')
        for (const role of roles) {
          const { token } = await fresh(tenants.people[role])
          const answer = await as(token, { ...request, path })
          const isCommand = row.ids?.[0] === 'command'
          const wrong = isCommand
            ? /^(400 VALIDATION_ERROR|404 NOT_FOUND)$/
            : /^400 VALIDATION_ERROR$/
          assert.match(outcome(answer), allowed.includes(role) ? wrong : /^403 FORBIDDEN$/)
        }
      })
    }

    if (row.ids && row.ids.length > 1) {
      test('what belongs to another is not found below one’s own', async () => {
        const { home, away, foreign, people } = tenants
        const [outer = 'siteId', inner = 'key'] = row.ids ?? []
        const { token } = await fresh(people.org_admin)
        for (const other of [foreign, away]) {
          const mixed = { ...home, [inner]: other[inner] }
          assert.equal(outcome(await as(token, asked(route, row, mixed))), notFound, outer)
        }
      })
    }

    if (row.reaching !== undefined) {
      test(`naming another organization’s things: ${row.reaching}, and nothing of them`, async () => {
        const { home, foreign, people } = tenants
        for (const role of roles.filter((one) => one !== 'platform_admin')) {
          const { token } = await fresh(people[role])
          const answer = await as(token, asked(route, row, home, foreign))
          const expected: string | undefined = allowed.includes(role) ? row.reaching : forbidden
          assert.equal(outcome(answer), expected, `${role}: ${answer.text}`)
          assert.ok(!answer.text.includes(foreignMarker), answer.text)
          if (route.name !== 'executeScript' || !allowed.includes(role)) continue
          const refused = answer.body.failed.map(({ code }: { code: string }) => code)
          assert.deepEqual([answer.body.counts.total, refused], [0, ['NOT_FOUND']])
        }
      })
    }

    test('who is narrowed to sites stays inside of them', async () => {
      const { home, away, foreign, narrowed } = tenants
      for (const role of ['org_admin', 'technician', 'viewer', 'auditor'] as const) {
        const { token } = await fresh(narrowed[role])
        const mayAsk: boolean = allowed.includes(role) && !row.organizationWide
        const own = await as(token, asked(route, row, await spare(home, row)))
        assert.equal(outcome(own), mayAsk ? row.ok : forbidden, own.text)
        if (row.lists) assert.ok(!own.text.includes(foreignMarker))
        if (row.lists === 'site') assert.ok(!own.text.includes(awayMarker), own.text)
        if (row.ids) {
          const seen: string = row.ofOrganization ? row.ok : notFound
          const other = await as(token, asked(route, row, away, home))
          assert.equal(outcome(other), mayAsk ? seen : forbidden, `${role}: ${other.text}`)
          const strange = outcome(await as(token, asked(route, row, foreign)))
          assert.equal(strange, mayAsk ? notFound : forbidden)
        }
        await clear()
      }
    })
  })
}

test('what is the platform’s own is read where it is shared, and changed by it alone', async () => {
  const platformScript = newId()
  const { people, home } = tenants
  await hub.hub.ctx.db.query(
    `with s as (insert into scripts (id, name) values ($1, 'everyone’s'))
     insert into script_versions (script_id, version, language, content, content_bytes, os,
       timeout_seconds, sha256) values ($1, 1, 'sh', 'true', 4, '{linux}', 60, '')`,
    [platformScript],
  )
  const of = { ...home, script: platformScript }
  for (const [name, foreignOutcome] of [
    ['getScript', '200'],
    ['executeScript', '202'],
    ['updateScript', forbidden],
    ['deleteScript', forbidden],
  ] as const) {
    const route = routes.find((one) => one.name === name) as Route
    const row = table[name] as Row
    for (const role of roles) {
      const { token } = people[role]
      const expected =
        role === 'platform_admin' || !(may[row.may] as readonly Role[]).includes(role)
          ? undefined
          : foreignOutcome
      if (expected === undefined) continue
      assert.equal(outcome(await as(token, asked(route, row, of))), expected, `${name} ${role}`)
    }
  }
  const remove = routes.find(({ name }) => name === 'deleteScript') as Route
  const { token } = people.platform_admin
  assert.equal(outcome(await as(token, asked(remove, table['deleteScript'] as Row, of))), '200')
})

test('the platform’s own alerts, users and executions are for platform admins alone', async () => {
  const { people, home } = tenants
  const db = hub.hub.ctx.db
  const [alert, execution] = [newId(), newId()]
  await db.query(
    `insert into alerts (id, kind, severity, title, message, context, dedupe_key, occurrences)
     values ($1::uuid, 'auth_abuse', 'high', 'x', 'x', '{}', $1::uuid::text, 1)`,
    [alert],
  )
  await db.query(
    `insert into executions (id, script_id, version, timeout_seconds, expires_at, fanned_out_at)
     values ($1, $2, 1, 60, now() + interval '1 day', now())`,
    [execution, home.script],
  )
  const of = { ...home, alert, execution, user: people.platform_admin.id }
  const names = ['getAlert', 'acknowledgeAlert', 'getExecution', 'listExecutionResults', 'getUser']
  for (const name of names) {
    const route = routes.find((one) => one.name === name) as Route
    const row = table[name] as Row
    for (const role of roles) {
      const allowed = (may[row.may] as readonly Role[]).includes(role)
      const answer = await as(people[role].token, asked(route, row, of))
      const seen = role === 'platform_admin' ? row.ok : notFound
      assert.equal(outcome(answer), allowed ? seen : forbidden, `${name} ${role}`)
    }
  }
})
