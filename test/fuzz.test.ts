// Every route, asked for nonsense: requests made from the routes' own schemas, fitting, nearly fitting and not
// at all. Never a 500, never silence, never a word or a change of another tenant's; and every answer fits its
// declared schema, which closing the hub checks. FUZZ_SEED repeats a run, FUZZ_RUNS makes it a longer one.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import fc from 'fast-check'
import { roles } from '../src/auth.ts'
import { statusOf } from '../src/errors.ts'
import { newId } from '../src/ids.ts'
import { routes } from '../src/resources/index.ts'
import type { Route } from '../src/route.ts'
import { fitting, garbage, nearly, oddTexts, type Known, type Schema } from './support/arbitrary.ts'
import { enrollmentSecret, startHub, type TestHub } from './support/hub.ts'
import { signInAgain, type Person } from './support/people.ts'
import { plant, type Plant } from './support/plant.ts'
import { foreignMarker, makeTenants, type Tenants } from './support/tenants.ts'
import { Wire, type WireAnswer, type WireRequest } from './support/wire.ts'

const seed = Number(process.env['FUZZ_SEED'] ?? Date.now() & 0x7fffffff)
const runs = Number(process.env['FUZZ_RUNS'] ?? 80)
/** Each of these hashes a password for most of what it gets. */
const slow = new Set(['login', 'changePassword', 'acceptInvite'])
/** Statuses that no request may cause; 503 is an answer of readiness alone. */
const broken = new Set([500, 502, 503, 504])

let hub: TestHub
let wire: Wire
let tenants: Tenants
/** Cursors that lists gave to the one who asks, and to others. */
const cursors: string[] = []
/** Where the other tenant's stream of events began. */
let position = ''
/** Of a session that nobody needs. */
let refreshToken = ''

before(async () => {
  hub = await startHub({
    WEBHOOK_ALLOWED_CIDRS: '127.0.0.1/32',
    LIMIT_ENROLL: '0',
    LIMIT_ENROLL_FAILURES: '0',
    LIMIT_REFRESH: '0',
  })
  wire = new Wire(hub.origin)
  tenants = await makeTenants(hub)
  const { org_admin: admin, platform_admin: platform, viewer } = tenants.people
  ;({ refreshToken } = await signInAgain(hub, viewer.id))
  const headers = { authorization: `Bearer ${tenants.stranger.token}` }
  const stream = await wire.send({ method: 'GET', path: '/api/v1/events', headers })
  position = /^id: ?(.+)$/m.exec(stream.text)?.[1] ?? ''
  assert.notEqual(position, '', stream.text)
  for (const { token } of [admin, tenants.stranger, platform]) {
    for (const path of ['/devices', '/sites', '/audit', '/users', '/scripts', '/alerts']) {
      const { body } = await hub.get(`${path}?limit=1`, { token })
      if (body.pagination?.cursor) cursors.push(body.pagination.cursor)
    }
  }
})
after(async () => {
  wire.close()
  await hub.close()
})

// ---- requests --------------------------------------------------------------------------------

interface Fuzzed {
  params: string[]
  query: [string, string][]
  headers: Record<string, string>
  body: string | undefined
}

const idsOf = ({ marker: _marker, ...ids }: Plant): string[] => Object.values(ids)

/** What of both tenants, or of one's own alone, a request may name. */
function knownOf(reach: 'everyone' | 'own'): Known {
  const { home, away, foreign, people } = tenants
  const seen = [home, home, away, ...(reach === 'everyone' ? [foreign] : [])]
  const all = (name: keyof Plant) => seen.map((one) => one[name])
  const byName: Record<string, readonly unknown[]> = {
    orgId: all('orgId'),
    siteId: all('siteId'),
    siteIds: all('siteId').map((id) => [id]),
    deviceId: all('device'),
    deviceIds: [all('device'), [home.device]],
    scriptId: all('script'),
    actorId: [people.org_admin.id, ...all('user')],
    resourceId: seen.flatMap(idsOf),
    cursor: cursors,
    action: ['ping', 'run_command', 'kill_process', 'upgrade_agent', 'user.*', 'device.update'],
    payload: [{}, {}, { command: 'true' }, { pid: 1 }, { version: '1.0.0' }],
    parameters: [{}, []],
    filter: [{}, ...all('siteId').map((siteId) => ({ siteId })), { orgId: home.orgId }],
    url: ['http://127.0.0.1:9/hook', 'http://127.0.0.1:9', 'https://127.0.0.1:1', 'ftp://x', '//'],
    enrollmentSecret: [enrollmentSecret],
    types: ['device.online', 'user.login,alert.triggered', ','],
    timezone: ['UTC', 'Europe/Zurich', null],
    refreshToken: [refreshToken],
    tag: all('marker'),
    q: ['host', 'home', '%', '\\', foreign.marker],
  }
  const ids = seen.flatMap(idsOf)
  const anyId = [...ids, ...ids.map((id) => id.toUpperCase()), newId()]
  return (name, { format }) => byName[name] ?? (format === 'uuid' ? anyId : undefined)
}

function fuzzed(route: Route, known: Known): fc.Arbitrary<Fuzzed> {
  return fc.record({
    params: fc.tuple(...route.parameters.map((name) => aParam(route, known, name))),
    query: aQuery(route, known),
    headers: someHeaders(route),
    body: route.method === 'GET' ? fc.constant(undefined) : aBody(route, known),
  })
}

/** Mostly of the right kind of resource, so that there is something to be found. */
function aParam(route: Route, known: Known, name: string): fc.Arbitrary<string> {
  const { home, foreign } = tenants
  const kinds: Record<string, keyof Plant> = {
    devices: 'device',
    commands: 'command',
    alerts: 'alert',
    organizations: 'orgId',
    sites: 'siteId',
    users: 'user',
    scripts: 'script',
    executions: 'execution',
    webhooks: 'webhook',
  }
  const inner: Record<string, keyof Plant> = { keyId: 'key', deliveryId: 'delivery' }
  const kind = inner[name] ?? kinds[route.path.split('/')[1] ?? '']
  const all = (known('id', { format: 'uuid' }) ?? []).map(String)
  const right = kind ? [home[kind], foreign[kind]].filter((id) => all.includes(id)) : []
  return fc.oneof(
    ...(right.length > 0 ? [{ weight: 6, arbitrary: fc.constantFrom(...right) }] : []),
    { weight: 2, arbitrary: fc.constantFrom(...all) },
    { weight: 1, arbitrary: fc.constantFrom(...oddTexts, 'term-x', 'swagger-ui.css') },
    { weight: 1, arbitrary: fc.string({ unit: 'binary', maxLength: 40 }) },
  )
}

function aQuery(route: Route, known: Known): fc.Arbitrary<[string, string][]> {
  const odd = fc.tuple(
    fc.constantFrom(...oddTexts, 'limit', 'cursor'),
    fc.constantFrom(...oddTexts),
  )
  const strange = fc.array(odd, { maxLength: 3 })
  if (!route.query)
    return fc.oneof({ weight: 4, arbitrary: fc.constant<[string, string][]>([]) }, strange)
  // A wait would be kept: nothing answers its command.
  const schema = route.query.schema as Schema
  const bounded = { ...schema, properties: { ...schema.properties } }
  if (bounded.properties['wait'])
    bounded.properties['wait'] = { type: 'integer', minimum: 0, maximum: 0 }
  const texts = (value: unknown): [string, string][] =>
    Object.entries(value ?? {})
      .filter(([name, text]) => name !== 'wait' || !(Number(text) > 0))
      .map(([name, text]) => [name, typeof text === 'string' ? text : JSON.stringify(text)])
  // A cursor fits one list with one set of filters: with most others it hides all that comes after it.
  const first = ([name]: [string, string]) => name !== 'cursor'
  return fc.oneof(
    { weight: 6, arbitrary: fitting(bounded, known).map((value) => texts(value).filter(first)) },
    {
      weight: 1,
      arbitrary: fc.constantFrom(...cursors).map((cursor) => texts({ limit: 1, cursor })),
    },
    { weight: 1, arbitrary: fitting(bounded, known).map(texts) },
    { weight: 2, arbitrary: nearly(bounded, known).map(texts) },
    { weight: 1, arbitrary: strange },
  )
}

function aBody(route: Route, known: Known): fc.Arbitrary<string | undefined> {
  const json = (value: unknown) => JSON.stringify(value)
  const raw = fc.constantFrom(undefined, '', '{', 'null', '[]', '"x"', '{"a":1,"a":2}', '\u0000')
  if (!route.body)
    return fc.oneof({ weight: 4, arbitrary: fc.constant(undefined) }, garbage.map(json))
  const schema = route.body.schema as Schema
  return fc.oneof(
    { weight: 8, arbitrary: fitting(schema, known).map(json) },
    { weight: 4, arbitrary: nearly(schema, known).map(json) },
    { weight: 1, arbitrary: garbage.map(json) },
    { weight: 1, arbitrary: raw },
  )
}

function someHeaders(route: Route): fc.Arbitrary<Record<string, string>> {
  // What a header can carry at all: no control characters, no code point above a byte.
  const text = fc.oneof(
    fc.string({ unit: fc.integer({ min: 0x20, max: 0xff }).map((n) => String.fromCharCode(n)) }),
    fc.constantFrom(
      '',
      '"',
      '*',
      'a-key',
      'another',
      position,
      'x'.repeat(300),
      '../..',
      '1-2',
      'W/"x"',
      'gzip, br;q=0',
    ),
  )
  const value = text.map((one) => one.replaceAll('\u007f', ''))
  const own = route.headers.filter((name) => name !== 'authorization' && name !== 'host')
  const names = [...own, 'x-request-id', 'user-agent', 'x-forwarded-for', 'accept', 'last-event-id']
  // No key is required, and none is there without a value.
  return fc.dictionary(fc.constantFrom(...names), value, { maxKeys: 3 })
}

function written(route: Route, { params, query, headers, body }: Fuzzed): WireRequest {
  let path = route.at === 'base' ? `/api/v1${route.path}` : route.path
  for (const [index, name] of route.parameters.entries()) {
    path = path.replace(`:${name}`, () => encodeURIComponent((params[index] ?? '').toWellFormed()))
  }
  if (query.length > 0) path += `?${new URLSearchParams(query).toString()}`
  const type = body === undefined ? {} : { 'content-type': 'application/json' }
  return { method: route.method, path, headers: { ...type, ...headers }, body }
}

/** Asks as somebody, or as nobody; in a session of its own where the route ends sessions. */
async function ask(route: Route, request: Fuzzed, person: Person | undefined): Promise<WireAnswer> {
  const { headers = {}, ...rest } = written(route, request)
  if (person === undefined) return wire.send({ ...rest, headers })
  const ends = route.name === 'logout' || route.name === 'changePassword'
  const { token } = ends ? await signInAgain(hub, person.id) : person
  return wire.send({ ...rest, headers: { ...headers, authorization: `Bearer ${token}` } })
}

// ---- what holds of every answer ----------------------------------------------------------------

function judge(route: Route, answer: WireAnswer): void {
  const { status, text, body, headers } = answer
  const declared = status in route.responses
  assert.ok(!broken.has(status) || declared, `${status}: ${text}`)
  // What uWebSockets.js refuses by itself, before any route is asked, has no body of ours.
  if (headers['x-request-id'] === undefined) return
  if (status < 400 || declared) return
  assert.ok(body?.error?.code in statusOf, `${status} without a code: ${text}`)
  assert.equal(body.error.requestId, headers['x-request-id'])
}

async function fuzz(
  route: Route,
  people: readonly (Person | undefined)[],
  known: Known,
  more: (answer: WireAnswer) => void = () => {},
): Promise<void> {
  const numRuns = slow.has(route.name) ? Math.ceil(runs / 6) : runs
  await fc.assert(
    fc.asyncProperty(fc.nat(), fuzzed(route, known), async (who, request) => {
      const answer = await ask(route, request, people[who % people.length])
      judge(route, answer)
      more(answer)
    }),
    // What is written down stays, so that a smaller example need not fail any more: it is not looked for long.
    { seed, numRuns, interruptAfterTimeLimit: 30_000, markInterruptAsFailure: true },
  )
}

/** All that the other tenant has, as one text. */
async function everythingForeign(): Promise<string> {
  const { orgId, webhook, script, device } = tenants.foreign
  const db = hub.hub.ctx.db
  const tables = 'sites enrollment_keys users devices device_presence commands audit events'.split(
    ' ',
  )
  const parts = [...tables, 'alerts', 'scripts', 'executions', 'webhooks'].map(
    (table) => `select '${table}', to_jsonb(t)::text from ${table} t where org_id = $1`,
  )
  const rows = await db.query(
    `${parts.join(' union all ')}
     union all select 'organization', to_jsonb(t)::text from organizations t where id = $1
     union all select 'delivery', to_jsonb(t)::text from webhook_deliveries t where webhook_id = $2
     union all select 'version', to_jsonb(t)::text from script_versions t where script_id = $3
     union all select 'inventory', to_jsonb(t)::text from device_inventory t where device_id = $4
     order by 1, 2`,
    [orgId, webhook, script, device],
  )
  return JSON.stringify(rows, null, 1)
}

/** Things to ask about, in the place of those that were taken away. */
async function replant(): Promise<void> {
  const { orgId, siteId, marker } = tenants.home
  tenants.home = await plant(hub, orgId, marker, siteId)
}

// What takes something away comes last, so that there is something to ask about until then.
const closed = routes
  .filter(({ may }) => may !== 'public')
  .toSorted((a, b) => Number(a.method === 'DELETE') - Number(b.method === 'DELETE'))
const open = routes.filter(({ may }) => may === 'public')

describe(`requests of the seed ${seed}`, () => {
  describe('of one tenant, about both', () => {
    let untouched: string
    before(async () => {
      untouched = await everythingForeign()
    })
    after(replant)
    for (const route of closed) {
      test(`${route.method} ${route.path}`, async () => {
        const { people, narrowed } = tenants
        const insiders = roles
          .filter((role) => role !== 'platform_admin')
          .map((role) => people[role])
        // Admins twice: they get furthest.
        const whoever = [...insiders, people.org_admin, narrowed.org_admin, narrowed.technician]
        await fuzz(route, whoever, knownOf('everyone'), ({ text }) =>
          assert.ok(!text.includes(foreignMarker), `another tenant’s data in ${text}`),
        )
      })
    }
    test('have left the other tenant as it was', async () => {
      assert.equal(await everythingForeign(), untouched)
    })
  })

  describe('of nobody', () => {
    for (const route of open) {
      test(`${route.method} ${route.path}`, async () => {
        await fuzz(route, [undefined], knownOf('own'), ({ text }) =>
          assert.ok(!text.includes(foreignMarker), `a tenant’s data in ${text}`),
        )
      })
    }
  })

  // Last: it may suspend the organization of all others.
  describe('of a platform admin', () => {
    for (const route of closed) {
      test(`${route.method} ${route.path}`, async () => {
        await fuzz(route, [tenants.people.platform_admin], knownOf('own'))
      })
    }
  })
})
