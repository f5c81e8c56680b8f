import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request, type ClientRequest, type IncomingMessage } from 'node:http'
import { connect } from 'node:net'
import { after, afterEach, before, test } from 'node:test'
import { insertEvents, type EventType } from '../src/events.ts'
import { notifyChange } from '../src/identities.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { run, type Hub } from '../src/main.ts'
import { EventReader } from './support/event_stream.ts'
import { metricsToken, startHub, type TestHub } from './support/hub.ts'
import {
  call,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  signInAgain,
  type Person,
} from './support/people.ts'
import { until } from './support/until.ts'

let hub: TestHub
let orgId: string
let otherOrgId: string
let viewer: Person
let platform: Person
const readers: EventReader[] = []

before(async () => {
  hub = await startHub()
  orgId = await makeOrganization(hub)
  otherOrgId = await makeOrganization(hub, 'Other')
  viewer = await signedIn(hub, 'viewer', { orgId })
  platform = await signedIn(hub, 'platform_admin')
})
afterEach(() => {
  for (const reader of readers.splice(0)) reader.close()
})
after(() => hub.close())

async function listen(token: string, options: Parameters<typeof EventReader.open>[2] = {}) {
  const reader = await EventReader.open(hub.origin, token, options)
  readers.push(reader)
  return reader
}

interface Happening {
  type?: EventType
  org?: string | null
  siteId?: string
}

/** Commits one event, told apart by `n`. */
async function happen(n: number | string, { type = 'device.online', ...more }: Happening = {}) {
  const { org = orgId, siteId = null } = more
  await insertEvents(hub.hub.ctx.db, [{ orgId: org, siteId, type, data: { n } }])
}

const numbers = (reader: EventReader) => reader.events.map((event) => event.data.data.n)
const reached = (reader: EventReader, n: number | string) =>
  until(`event ${n}`, () => numbers(reader).includes(n))

test('what happens after a stream began is told with its envelope', async () => {
  const reader = await listen(viewer.token)
  await happen('first', { type: 'device.updated' })
  const event = await reader.event('device.updated')
  assert.deepEqual(Object.keys(event.data), ['id', 'type', 'at', 'orgId', 'data'])
  assert.deepEqual([event.data.type, event.data.orgId], ['device.updated', orgId])
  assert.match(event.data.at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  assert.ok(event.id.endsWith(event.data.id))
  assert.equal(reader.retryMs, limits.streamRetryMs)
})

test('a change made over the API is told to who listens', async () => {
  const device = await hub.enroll()
  const reader = await listen(platform.token)
  await hub.patch(`/devices/${device.deviceId}`, { displayName: 'Cellar' })
  const { data } = await reader.event('device.updated')
  assert.equal(data.data.deviceId, device.deviceId)
})

test('nobody hears of another organization, and the platform hears of all or of one', async () => {
  const [own, all, one] = await Promise.all([
    listen(viewer.token),
    listen(platform.token),
    listen(platform.token, { query: `?orgId=${orgId}` }),
  ])
  await happen('theirs', { org: otherOrgId })
  await happen('nobody’s', { org: null })
  await happen('ours')
  await Promise.all([own, all, one].map((reader) => reached(reader, 'ours')))
  assert.deepEqual(numbers(own), ['ours'])
  assert.deepEqual(numbers(one), ['ours'])
  assert.deepEqual(numbers(all), ['theirs', 'nobody’s', 'ours'])
})

test('who is narrowed to sites hears of these alone', async () => {
  const [mine, other] = [await makeSite(hub, orgId), await makeSite(hub, orgId)]
  const narrowed = await signedIn(hub, 'technician', { orgId, siteIds: [mine] })
  const reader = await listen(narrowed.token)
  const began = reader.lastId
  await happen('other site', { siteId: other })
  await happen('no site')
  await happen('my site', { siteId: mine })
  await reached(reader, 'my site')
  assert.deepEqual(numbers(reader), ['my site'])
  // The way back is narrowed, too.
  const again = await listen(narrowed.token, { lastId: began })
  await reached(again, 'my site')
  assert.deepEqual(numbers(again), ['my site'])
})

test('a user who is narrowed while listening hears no more of the rest', async () => {
  const [mine, other] = [await makeSite(hub, orgId), await makeSite(hub, orgId)]
  const person = await signedIn(hub, 'technician', { orgId })
  const { ctx } = hub.hub
  const reader = await listen(person.token)
  await ctx.db.query('update users set site_ids = $2 where id = $1', [person.id, [mine]])
  ctx.identities.forgetUser(person.id)
  const claims = { userId: person.id, sessionId: person.sessionId, expiresAt: 0 }
  await until('the change to be known', async () => (await ctx.identities.of(claims)).siteIds)
  await happen('hidden', { siteId: other })
  await happen('shown', { siteId: mine })
  await reached(reader, 'shown')
  assert.deepEqual(numbers(reader), ['shown'])
})

test('of users and of exports hear those who may read users and the audit', async () => {
  const auditor = await signedIn(hub, 'auditor', { orgId })
  const technician = await signedIn(hub, 'technician', { orgId })
  const people = [viewer, technician, auditor, platform]
  const all = await Promise.all(people.map(({ token }) => listen(token)))
  const places = all.map(({ lastId }) => lastId)
  await happen('login', { type: 'user.login' })
  await happen('export', { type: 'audit.exported' })
  await happen('device')
  await Promise.all(all.map((reader) => reached(reader, 'device')))
  // The way back knows the role, too, and so does a stream that asks for types.
  const types = '?types=user.login,audit.exported,device.online'
  for (const [n, { token }] of people.entries()) {
    const again = await listen(token, { query: types, lastId: places[n] ?? '' })
    await reached(again, 'device')
    all.push(again)
  }
  for (const [n, reader] of all.entries()) {
    const heard = numbers(reader).filter((one) => typeof one === 'string')
    assert.deepEqual(heard, n % 4 < 2 ? ['device'] : ['login', 'export', 'device'])
  }
})

test('only the types that were asked for are told', async () => {
  const reader = await listen(viewer.token, { query: '?types=alert.triggered,%20script.started' })
  await happen(1)
  await happen(2, { type: 'script.started' })
  await happen(3, { type: 'alert.triggered' })
  await reached(reader, 3)
  assert.deepEqual(numbers(reader), [2, 3])
})

test('what can not be listened to is refused by name', async () => {
  const { token } = viewer
  const ask = (query: string, headers = {}) =>
    call(hub, 'GET', `/events${query}`, { token, headers })
  const unknown = await ask('?types=device.online,device.exploded')
  assert.equal(outcome(unknown), '400 VALIDATION_ERROR')
  assert.equal(unknown.body.error.details[0].path, '/query/types')
  assert.equal(outcome(await ask('?types=')), '400 VALIDATION_ERROR')
  assert.equal(outcome(await ask(`?orgId=${otherOrgId}`)), '404 NOT_FOUND')
  assert.equal(outcome(await ask('', { 'last-event-id': 'x' })), '400 INVALID_CURSOR')
  const beyond = `${'9'.repeat(25)}-${newId()}`
  assert.equal(outcome(await ask('', { 'last-event-id': beyond })), '400 INVALID_CURSOR')
  const ahead = `999999999999-${newId()}`
  assert.equal(outcome(await ask('', { 'last-event-id': ahead })), '400 INVALID_CURSOR')
  assert.equal(outcome(await call(hub, 'GET', '/events')), '401 UNAUTHENTICATED')
  const head = await call(hub, 'HEAD', '/events', { token })
  assert.equal(head.status, 200)
  assert.match(head.headers.get('content-type') ?? '', /^text\/event-stream/)
})

test('an id from before what retention has left is refused, not answered with a gap', async () => {
  const old = '1-018c0000-0000-7000-8000-000000000000'
  const answer = await call(hub, 'GET', '/events', {
    token: viewer.token,
    headers: { 'last-event-id': old },
  })
  assert.equal(outcome(answer), '400 INVALID_CURSOR')
  assert.match(answer.body.error.message, /no longer kept/)
})

test('a stream that is resumed misses nothing and doubles nothing, while more happens', async () => {
  const first = await listen(viewer.token)
  await happen('before')
  await reached(first, 'before')
  first.close()
  let n = 0
  const happening = async () => {
    for (let i = 0; i < 20; i++) {
      const batch = Array.from({ length: 75 }, () => n++)
      await insertEvents(
        hub.hub.ctx.db,
        batch.map((one) => ({ orgId, type: 'device.offline' as const, data: { n: one } })),
      )
    }
  }
  const producing = happening()
  // Keeps the tail alive and moving while the others catch up with it.
  const live = await listen(viewer.token)
  const resumed = await Promise.all(
    [1, 2, 3].map(() => listen(viewer.token, { lastId: first.lastId })),
  )
  await producing
  const expected = Array.from({ length: n }, (_, i) => i)
  for (const reader of resumed) {
    await reached(reader, n - 1)
    assert.deepEqual(numbers(reader), expected)
  }
  await reached(live, n - 1)
  assert.deepEqual(numbers(live), expected.slice(-live.events.length))
})

test('an event whose transaction commits late is not lost', async () => {
  const reader = await listen(viewer.token)
  await hub.hub.ctx.db.transaction(async (tx) => {
    await insertEvents(tx, [{ orgId, type: 'device.online', data: { n: 'early id' } }])
    await happen('committed meanwhile')
    assert.deepEqual(numbers(reader), [])
  })
  await reached(reader, 'committed meanwhile')
  assert.deepEqual(numbers(reader), ['early id', 'committed meanwhile'])
})

test('a stream ends when its user is disabled, logs out or is suspended with the organization', async () => {
  const { ctx } = hub.hub
  const org = await makeOrganization(hub)
  const disabled = await signedIn(hub, 'viewer', { orgId: org })
  const other = await signedIn(hub, 'viewer', { orgId: org })
  const elsewhere = { ...other, ...(await signInAgain(hub, other.id)) }
  const [a, b, c] = await Promise.all(
    [disabled, other, elsewhere].map((person) => listen(person.token)),
  )
  await ctx.db.transaction(async (tx) => {
    await tx.query(`update users set status = 'disabled' where id = $1`, [disabled.id])
    await notifyChange(tx, 'user', disabled.id)
  })
  await a?.finished()
  assert.equal((await call(hub, 'POST', '/auth/logout', { token: other.token })).status, 200)
  await b?.finished()
  assert.equal(c?.ended, false)
  const suspended = await hub.patch(`/organizations/${org}`, { status: 'suspended' })
  assert.equal(suspended.status, 200)
  await c?.finished()
  // Each as HTTP ends an answer.
  assert.deepEqual(
    [a, b, c].map((reader) => reader?.broken),
    [undefined, undefined, undefined],
  )
})

test('the streams of one user are bounded', async () => {
  const person = await signedIn(hub, 'viewer', { orgId })
  const open = await Promise.all(
    Array.from({ length: limits.streamsPerUserMax }, () => listen(person.token)),
  )
  const refused = await call(hub, 'GET', '/events', { token: person.token })
  assert.equal(outcome(refused), '409 SESSION_LIMIT')
  open[0]?.close()
  await until('a place to be free', async () => {
    const controller = new AbortController()
    const { status } = await fetch(`${hub.origin}/api/v1/events`, {
      headers: { authorization: `Bearer ${person.token}` },
      signal: controller.signal,
    })
    controller.abort()
    return status === 200
  })
})

test('the streams of a hub are bounded: past it 503, and a place that is given up is free', async () => {
  const full = await startHub()
  const people = Math.ceil(limits.streamsMax / limits.streamsPerUserMax)
  const open: ClientRequest[] = []
  const listenAs = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` }
    const asked = request(`${full.origin}/api/v1/events`, { agent: false, headers })
    asked.on('error', () => {})
    asked.end()
    const [answer] = (await once(asked, 'response')) as [IncomingMessage]
    open.push(asked)
    return answer
  }
  for (let n = 0; n < people; n++) {
    const { token } = await signedIn(full, 'viewer', { orgId: await makeOrganization(full) })
    const some = Array.from({ length: limits.streamsPerUserMax }, () => listenAs(token))
    for (const { statusCode } of await Promise.all(some)) assert.equal(statusCode, 200)
  }
  const refused = await full.get('/events')
  assert.equal(outcome(refused), '503 OVERLOADED')
  assert.ok(Number(refused.headers.get('retry-after')) > 0)
  // Who is connected hears on: nobody's stream was taken for it.
  const metrics = await full.get('{origin}/metrics', { token: metricsToken })
  assert.match(metrics.text, new RegExp(`^muster_event_streams ${limits.streamsMax}$`, 'm'))
  open[0]?.destroy()
  await until('a place to be free', async () => (await listenAs(full.token)).statusCode === 200)
  for (const asked of open) asked.destroy()
  await full.close()
})

test('a reader that takes nothing is closed at the bound, and others hear everything', async () => {
  const person = await signedIn(hub, 'viewer', { orgId })
  const { port } = new URL(hub.origin)
  const slow = connect(Number(port), '127.0.0.1')
  slow.on('error', () => {})
  let closed = false
  slow.on('close', () => (closed = true))
  slow.write(
    `GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${person.token}\r\n\r\n`,
  )
  await new Promise((resolve) => slow.once('data', resolve))
  slow.pause()
  const good = await listen(viewer.token)
  const padding = 'x'.repeat(50_000)
  const dropped = async () =>
    /streams_closed_total\{reason="slow"\} 1/.test(await hub.hub.ctx.metrics.text())
  let n = 0
  while (!(await dropped())) {
    assert.ok(n < 60, 'the slow reader was not closed')
    const events = Array.from({ length: 20 }, (_, i) => ({
      orgId,
      type: 'device.online' as const,
      data: { n: n * 20 + i, padding },
    }))
    await insertEvents(hub.hub.ctx.db, events)
    n++
    await reached(good, n * 20 - 1)
  }
  assert.deepEqual(
    numbers(good),
    Array.from({ length: n * 20 }, (_, i) => i),
  )
  slow.resume()
  await until('the slow reader to notice', () => closed)
})

test('a long past is read as fast as its reader takes it, however slow that is', async () => {
  const reader = await listen(viewer.token)
  reader.close()
  const padding = 'x'.repeat(20_000)
  for (let i = 0; i < 6; i++) {
    const events = Array.from({ length: 100 }, (_, k) => ({
      orgId,
      type: 'device.online' as const,
      data: { n: i * 100 + k, padding },
    }))
    await insertEvents(hub.hub.ctx.db, events)
  }
  const again = await listen(viewer.token, { lastId: reader.lastId })
  await reached(again, 599)
  assert.deepEqual(
    numbers(again),
    Array.from({ length: 600 }, (_, i) => i),
  )
})

test('a hub that stops ends its streams with a retry, and the next one resumes them', async () => {
  const env = { ...hub.env, ADMIN_EMAIL: 'second@example.com' }
  const hubs: Hub[] = []
  const start = async () => {
    const one = await run({ env })
    hubs.push(one)
    return one
  }
  const first = await start()
  const reader = await EventReader.open(first.origin, viewer.token)
  await happen('while it ran')
  await reached(reader, 'while it ran')
  await first.close()
  await reader.finished()
  assert.equal(reader.broken, undefined)
  assert.equal(reader.retries, 2)
  assert.ok(reader.retryMs >= limits.streamRetryMs && reader.retryMs <= 2 * limits.streamRetryMs)
  await happen('while it was down')
  const second = await start()
  const resumed = await EventReader.open(second.origin, viewer.token, { lastId: reader.lastId })
  await happen('afterwards')
  await reached(resumed, 'afterwards')
  assert.deepEqual(numbers(resumed), ['while it was down', 'afterwards'])
  resumed.close()
  await second.close()
})
