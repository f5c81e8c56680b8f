import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import { insertEvents, type EventType, type NewEvent } from '../src/events.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { run } from '../src/main.ts'
import { resealSecrets, sealKeys } from '../src/webhook_secrets.ts'
import { retrySeconds } from '../workers/webhooks.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  everyPage,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  type Person,
} from './support/people.ts'
import { Receiver, verify, type Hit } from './support/receiver.ts'
import { until } from './support/until.ts'

let hub: TestHub
let orgId: string
let admin: Person
/** An admin of another organization. */
let stranger: Person
let receiver: Receiver
const made: { id: string; token: string }[] = []

before(async () => {
  hub = await startHub({ WEBHOOK_ALLOWED_CIDRS: '127.0.0.1/32' })
  orgId = await makeOrganization(hub)
  admin = await signedIn(hub, 'org_admin', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
  receiver = await Receiver.start()
})
afterEach(async () => {
  for (const { id, token } of made.splice(0))
    await call(hub, 'DELETE', `/webhooks/${id}`, { token })
  receiver.answer = undefined
  receiver.hits.length = 0
})
after(async () => {
  await hub.close()
  await receiver.close()
})

const ask = (method: string, path: string, body?: unknown, { token } = admin) =>
  call(hub, method, `/webhooks${path}`, { token, body })

interface Made {
  id: string
  secret: string
}

async function create(more: Record<string, unknown> = {}, who = admin): Promise<Made> {
  const body = { url: receiver.url, events: ['device.online'], ...more }
  const answer = await ask('POST', '', body, who)
  assert.equal(answer.status, 201, answer.text)
  made.push({ id: answer.body.id, token: who.token })
  return answer.body
}

/** Commits one event, told apart by `n`. */
async function happen(n: unknown, more: { org?: string; type?: EventType } = {}) {
  const { org = orgId, type = 'device.online' } = more
  await insertEvents(hub.hub.ctx.db, [{ orgId: org, type, data: { n } }])
}

const about =
  (n: unknown) =>
  ({ event }: Hit): boolean =>
    event.data.n === n

/** The latest delivery of a webhook, once `fact` holds of it. */
function delivery(id: string, fact: (d: Record<string, unknown>) => boolean) {
  return until('a delivery', async () => {
    const [latest] = (await ask('GET', `/${id}/deliveries`)).body.data
    return latest !== undefined && fact(latest) && latest
  })
}

const endedAs = (status: string) => (d: Record<string, unknown>) => d['status'] === status

/** Lets the next attempt of whatever waits be now. */
const hasten = (id: string) =>
  hub.hub.ctx.db.query(
    `update webhook_deliveries set next_attempt_at = now() where webhook_id = $1 and status = 'pending'`,
    [id],
  )

// ---- the resource ----------------------------------------------------------------------------

test('a webhook is created with a secret that is shown once', async () => {
  const body = { url: receiver.url, events: ['device.online', 'alert.triggered'] }
  const answer = await ask('POST', '', body)
  assert.equal(answer.status, 201)
  const { secret, ...webhook } = answer.body
  made.push({ id: webhook.id, token: admin.token })
  assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/)
  assert.deepEqual(
    { ...webhook, createdAt: '' },
    {
      id: webhook.id,
      orgId,
      ...body,
      status: 'active',
      createdAt: '',
    },
  )
  assert.equal(answer.headers.get('location'), `/api/v1/webhooks/${webhook.id}`)
  assert.deepEqual((await ask('GET', `/${webhook.id}`)).body, webhook)
  const [row] = await auditOfResource(hub, 'webhook.create', webhook.id)
  assert.deepEqual(row?.details.after.origin, new URL(receiver.url).origin)
  const { rows } = await everything(webhook.id)
  assert.ok(!rows.includes(secret) && !rows.includes(secret.slice(6)))
})

/** All that the database holds of a webhook, as text. */
async function everything(id: string) {
  const rows = await hub.hub.ctx.db.query(
    `select row_to_json(w)::text as t, encode(w.secret, 'escape') as s from webhooks w where id = $1
     union all select row_to_json(a)::text, '' from audit a where resource_id = $1::uuid::text`,
    [id],
  )
  return { rows: JSON.stringify(rows) }
}

test('what a webhook may not be is refused by name', async () => {
  const good = { url: receiver.url, events: ['device.online'] }
  const bodies: [unknown, string][] = [
    [{ events: good.events }, '/url'],
    [{ ...good, url: 'ftp://example.com' }, '/url'],
    [{ ...good, url: 'https://u:p@example.com' }, '/url'],
    [{ ...good, url: 'http://169.254.169.254/latest' }, '/url'],
    [{ ...good, url: 'http://[::1]/' }, '/url'],
    [{ ...good, url: 'http://127.0.0.2/' }, '/url'],
    [{ ...good, url: `https://example.com/${'x'.repeat(2048)}` }, '/url'],
    [{ ...good, events: [] }, '/events'],
    [{ ...good, events: ['device.exploded'] }, '/events/0'],
    [{ ...good, events: ['device.online', 'device.online'] }, '/events'],
    [{ ...good, secret: 'mine' }, '/secret'],
  ]
  for (const [body, path] of bodies) {
    const answer = await ask('POST', '', body)
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body))
    assert.equal(answer.body.error.details[0].path, path, JSON.stringify(body))
  }
  const { id } = await create()
  const patch = await ask('PATCH', `/${id}`, { url: 'http://10.0.0.1/' })
  assert.equal(outcome(patch), '400 VALIDATION_ERROR')
  assert.equal(outcome(await ask('PATCH', `/${id}`, {})), '400 VALIDATION_ERROR')
})

test('a platform admin names the organization, and nobody names a foreign one', async () => {
  const platform = await signedIn(hub, 'platform_admin')
  const body = { url: receiver.url, events: ['device.online'] }
  assert.equal((await ask('POST', '', body, platform)).body.error.details[0].path, '/orgId')
  assert.equal((await create({ orgId }, platform)).id.length, 36)
  const foreign = { ...body, orgId: stranger.orgId }
  assert.equal(outcome(await ask('POST', '', foreign)), '404 NOT_FOUND')
  assert.equal(
    outcome(await ask('POST', '', { ...body, orgId: newId() }, platform)),
    '404 NOT_FOUND',
  )
})

test('a webhook of another organization is not there, whatever is asked of it', async () => {
  const { id } = await create()
  await ask('POST', `/${id}/test`)
  const sent = await delivery(id, endedAs('succeeded'))
  for (const [method, path, body] of [
    ['GET', `/${id}`],
    ['PATCH', `/${id}`, { status: 'disabled' }],
    ['POST', `/${id}/secret`],
    ['POST', `/${id}/test`],
    ['GET', `/${id}/deliveries`],
    ['GET', `/${id}/deliveries/${sent.id}`],
    ['POST', `/${id}/deliveries/${sent.id}/replay`],
    ['DELETE', `/${id}`],
  ] as const) {
    assert.equal(outcome(await ask(method, path, body, stranger)), '404 NOT_FOUND', method + path)
  }
  // A delivery of another webhook is none of this one.
  const other = await create()
  const path = `/${other.id}/deliveries/${sent.id}`
  assert.equal(outcome(await ask('GET', path)), '404 NOT_FOUND')
  assert.equal(outcome(await ask('POST', `${path}/replay`)), '404 NOT_FOUND')
  const { items } = await everyPage(hub, '/webhooks?limit=1', stranger.token)
  assert.deepEqual(items, [])
  assert.equal((await ask('GET', `/${id}`)).body.status, 'active')
})

test('admins alone have webhooks, and none who is narrowed to sites', async () => {
  const { id } = await create()
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    const person = await signedIn(hub, role, { orgId })
    assert.equal(outcome(await ask('GET', '', undefined, person)), '403 FORBIDDEN')
    assert.equal(outcome(await ask('DELETE', `/${id}`, undefined, person)), '403 FORBIDDEN')
  }
  const siteIds = [await makeSite(hub, orgId)]
  const narrowed = await signedIn(hub, 'org_admin', { orgId, siteIds })
  for (const path of ['', `/${id}`, `/${id}/deliveries`]) {
    assert.equal(outcome(await ask('GET', path, undefined, narrowed)), '403 FORBIDDEN')
  }
})

test('an organization has a bounded number of webhooks, also when they are made at once', async () => {
  const org = await makeOrganization(hub)
  const person = await signedIn(hub, 'org_admin', { orgId: org })
  const body = { url: 'https://example.com/', events: ['user.login'] }
  const answers = await Promise.all(
    Array.from({ length: limits.webhooksMax + 5 }, () => ask('POST', '', body, person)),
  )
  const refused = answers.filter(({ status }) => status !== 201)
  assert.deepEqual(refused.map(outcome), Array(5).fill('409 CONFLICT'))
  const { items, pages } = await everyPage(hub, '/webhooks?limit=20', person.token)
  assert.deepEqual([items.length, pages], [limits.webhooksMax, 3])
  const ids = items.map(({ id }) => id)
  assert.deepEqual(ids, ids.toSorted().toReversed())
})

test('a change is audited with before and after, and what changes nothing is not', async () => {
  const { id } = await create()
  const changed = await ask('PATCH', `/${id}`, { events: ['user.login'], status: 'disabled' })
  assert.deepEqual([changed.body.events, changed.body.status], [['user.login'], 'disabled'])
  await ask('PATCH', `/${id}`, { status: 'disabled' })
  const rows = await auditOfResource(hub, 'webhook.update', id)
  assert.equal(rows.length, 1)
  const { origin } = new URL(receiver.url)
  assert.deepEqual(rows[0]?.details, {
    before: { origin, events: ['device.online'], status: 'active' },
    after: { origin, events: ['user.login'], status: 'disabled' },
  })
})

test('a deleted webhook is gone with its log, and hears nothing more', async () => {
  const { id } = await create()
  await ask('POST', `/${id}/test`)
  await delivery(id, endedAs('succeeded'))
  const answer = await ask('DELETE', `/${id}`)
  assert.deepEqual([answer.status, answer.text], [204, ''])
  assert.equal(outcome(await ask('GET', `/${id}`)), '404 NOT_FOUND')
  assert.equal(outcome(await ask('DELETE', `/${id}`)), '404 NOT_FOUND')
  const other = await create()
  await happen('after')
  await receiver.hit('the other', about('after'))
  await delivery(other.id, endedAs('succeeded'))
  assert.equal(receiver.hits.filter(about('after')).length, 1)
  const left = () =>
    hub.hub.ctx.db.query('select 1 from webhook_deliveries where webhook_id = $1', [id])
  await until('its log to be removed', async () => (await left()).length === 0)
  assert.equal((await auditOfResource(hub, 'webhook.delete', id)).length, 1)
})

// ---- deliveries ------------------------------------------------------------------------------

test('an event is delivered once, signed as Standard Webhooks want it', async () => {
  const { id, secret } = await create({ events: ['device.online', 'user.login'] })
  await happen('not asked for', { type: 'device.offline' })
  await happen('theirs', { org: stranger.orgId ?? '' })
  await happen('Zürich 🙂')
  const hit = await receiver.hit('the event', about('Zürich 🙂'))
  assert.deepEqual(verify(secret, hit), JSON.parse(hit.body))
  assert.throws(() => verify('whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=', hit))
  assert.throws(() => verify(secret, { ...hit, body: hit.body.replace('online', 'offline') }))
  assert.deepEqual(Object.keys(hit.event), ['id', 'type', 'at', 'orgId', 'data'])
  assert.deepEqual([hit.event.type, hit.event.orgId], ['device.online', orgId])
  assert.equal(hit.headers['webhook-id'], hit.event.id)
  assert.equal(hit.headers['content-type'], 'application/json')
  assert.match(hit.headers['user-agent'] ?? '', /^Muster\//)
  const log = await delivery(id, endedAs('succeeded'))
  assert.deepEqual(
    [log.eventId, log.eventType, log.attempts, log.responseStatus, log.response, log.error],
    [hit.event.id, 'device.online', 1, 204, '', null],
  )
  assert.ok(log.durationMs >= 0 && log.completedAt && log.nextAttemptAt === null)
  assert.deepEqual((await ask('GET', `/${id}/deliveries/${log.id}`)).body, log)
  assert.equal(receiver.hits.length, 1)
})

test('every event reaches every webhook that matches, in any number', async () => {
  const all = await Promise.all([create(), create(), create({ events: ['user.login'] })])
  const events = Array.from({ length: 700 }, (_, n): NewEvent => {
    const type = n % 7 === 0 ? 'user.login' : 'device.online'
    return { orgId, type, data: { n } }
  })
  await insertEvents(hub.hub.ctx.db, events)
  const expected = 600 * 2 + 100
  await until('all of them', () => receiver.hits.length >= expected, 40_000)
  assert.equal(receiver.hits.length, expected)
  const secretOf = new Map<number, number>()
  for (const hit of receiver.hits) {
    secretOf.set(hit.event.data.n, (secretOf.get(hit.event.data.n) ?? 0) + 1)
    const count = all.filter(({ secret }) => {
      try {
        return verify(secret, hit)
      } catch {
        return false
      }
    }).length
    assert.equal(count, 1)
  }
  assert.equal(secretOf.size, 700)
})

test('a failed attempt is repeated as the same message, and the log tells of it', async () => {
  const { id, secret } = await create()
  receiver.answer = (response) => response.writeHead(503).end('not yet')
  await happen('retried')
  const failed = await delivery(id, (d) => d['attempts'] === 1 && d['error'] !== null)
  assert.deepEqual(
    [failed.status, failed.responseStatus, failed.response, failed.error, failed.completedAt],
    ['pending', 503, 'not yet', 'answered 503', null],
  )
  assert.ok(failed.nextAttemptAt > failed.attemptedAt)
  const early = await ask('POST', `/${id}/deliveries/${failed.id}/replay`)
  assert.equal(outcome(early), '409 CONFLICT')
  receiver.answer = undefined
  // Not hastened: the second attempt comes by itself after some seconds.
  const ended = await delivery(id, endedAs('succeeded'))
  assert.deepEqual([ended.id, ended.attempts, ended.responseStatus], [failed.id, 2, 204])
  const [first, second] = receiver.hits
  assert.equal(first?.body, second?.body)
  assert.equal(first?.headers['webhook-id'], second?.headers['webhook-id'])
  for (const hit of receiver.hits) assert.ok(verify(secret, hit))
})

test('attempts end after about a day, each later than the one before', () => {
  const delays: number[] = []
  for (let attempt = 1; ; attempt++) {
    const seconds = retrySeconds(attempt, () => 0.5)
    if (seconds === null) break
    delays.push(seconds)
  }
  assert.equal(delays.length, limits.webhookAttemptsMax - 1)
  assert.deepEqual(
    delays,
    delays.toSorted((a, b) => a - b),
  )
  const hours = delays.reduce((sum, seconds) => sum + seconds, 0) / 3600
  assert.ok(hours > 20 && hours < 28, String(hours))
  assert.equal(
    retrySeconds(2, () => 0),
    16,
  )
  assert.equal(
    retrySeconds(2, () => 0.75),
    22,
  )
})

test('after the last attempt a delivery has failed, and a person may send it again', async () => {
  const { id } = await create()
  receiver.answer = (response) => response.writeHead(500).end()
  await happen('given up')
  const { db } = hub.hub.ctx
  const first = await delivery(id, (d) => d['error'] !== null)
  await db.query('update webhook_deliveries set attempts = $2 where id = $1', [
    first.id,
    limits.webhookAttemptsMax - 1,
  ])
  await hasten(id)
  const failed = await delivery(id, endedAs('failed'))
  assert.deepEqual([failed.attempts, failed.nextAttemptAt], [limits.webhookAttemptsMax, null])
  receiver.answer = undefined
  const replayed = await ask('POST', `/${id}/deliveries/${failed.id}/replay`)
  assert.equal(replayed.status, 201)
  const location = `/api/v1/webhooks/${id}/deliveries/${replayed.body.id}`
  assert.equal(replayed.headers.get('location'), location)
  assert.deepEqual([replayed.body.status, replayed.body.eventId], ['pending', failed.eventId])
  await delivery(id, endedAs('succeeded'))
  assert.equal(new Set(receiver.hits.map(({ body }) => body)).size, 1)
  assert.equal((await auditOfResource(hub, 'webhook.replay', id)).length, 1)
  const { items, pages } = await everyPage(hub, `/webhooks/${id}/deliveries?limit=1`, admin.token)
  assert.deepEqual([items.map((one) => one.id), pages], [[replayed.body.id, failed.id], 2])
})

test('a test is sent at once, also while the webhook is disabled', async () => {
  const { id, secret } = await create()
  await ask('PATCH', `/${id}`, { status: 'disabled' })
  await create()
  await happen('heard by one')
  await receiver.hit('the one', about('heard by one'))
  const answer = await ask('POST', `/${id}/test`)
  assert.equal(answer.status, 201)
  assert.equal(answer.body.eventType, 'webhook.test')
  const hit = await receiver.hit('the test', ({ event }) => event.type === 'webhook.test')
  assert.deepEqual(hit.event.data, { webhookId: id })
  assert.ok(verify(secret, hit))
  await delivery(id, endedAs('succeeded'))
  // It was disabled when it happened, so it is not told when it listens again.
  const other = await create()
  await happen('for the other')
  await receiver.hit('the other', about('for the other'))
  await delivery(other.id, endedAs('succeeded'))
  assert.equal(receiver.hits.filter(about('heard by one')).length, 1)
})

test('what waits while a webhook is disabled ends as failed', async () => {
  const { id } = await create()
  receiver.answer = (response) => response.writeHead(500).end()
  await happen('waits')
  await delivery(id, (d) => d['error'] !== null)
  await ask('PATCH', `/${id}`, { status: 'disabled' })
  await hasten(id)
  const failed = await delivery(id, endedAs('failed'))
  assert.equal(failed.error, 'the webhook is disabled')
  assert.equal(receiver.hits.length, 1)
  // What the receiver answered stays, and nothing counts as sent that was not.
  assert.deepEqual([failed['attempts'], failed['responseStatus']], [1, 500])
})

test('a new secret and the old one both sign until the overlap ends', async () => {
  const { id, secret } = await create()
  const rotated = await ask('POST', `/${id}/secret`)
  assert.equal(rotated.status, 200)
  const fresh = rotated.body.secret
  assert.notEqual(fresh, secret)
  await happen('both')
  const both = await receiver.hit('both', about('both'))
  assert.ok(verify(fresh, both) && verify(secret, both))
  await hub.hub.ctx.db.query('update webhooks set previous_until = now() where id = $1', [id])
  await happen('one')
  const one = await receiver.hit('one', about('one'))
  assert.ok(verify(fresh, one))
  assert.throws(() => verify(secret, one))
  assert.equal((await auditOfResource(hub, 'webhook.rotate_secret', id)).length, 1)
})

test('after a rotation of JWT_SECRET secrets are sealed anew and still sign', async () => {
  const { secret } = await create()
  const { ctx } = hub.hub
  const old = ctx.config.jwtSecret
  const [present, next] = [sealKeys(old, undefined), sealKeys('another secret, as long', old)]
  assert.ok((await resealSecrets(ctx.db, next)) > 0)
  assert.equal(await resealSecrets(ctx.db, next), 0)
  assert.equal(await resealSecrets(ctx.db, present), 0)
  // And back, for this hub.
  const back = sealKeys(old, 'another secret, as long')
  assert.ok((await resealSecrets(ctx.db, back)) > 0)
  await happen('resealed')
  assert.ok(verify(secret, await receiver.hit('it', about('resealed'))))
})

test('a receiver that never answers delays nobody else', async (t) => {
  const dead = await Receiver.start()
  t.after(() => dead.close())
  dead.answer = () => {}
  const dying = await create({ url: dead.url })
  const alive = await create({ events: ['user.login'] })
  await insertEvents(
    hub.hub.ctx.db,
    Array.from({ length: 300 }, (_, n): NewEvent => ({
      orgId,
      type: 'device.online',
      data: { n },
    })),
  )
  await dead.hit('the dead one')
  const beganMs = performance.now()
  for (let n = 0; n < 5; n++) {
    await happen(`alive ${n}`, { type: 'user.login' })
    await receiver.hit(`alive ${n}`, about(`alive ${n}`))
  }
  assert.ok(performance.now() - beganMs < 8_000)
  assert.ok(dead.hits.length <= limits.webhookConcurrencyMax)
  await delivery(alive.id, endedAs('succeeded'))
  // Once it is known to fail, it is tried one by one.
  await until('it to be failing', async () => {
    const [row] = await hub.hub.ctx.db.query('select failures from webhooks where id = $1', [
      dying.id,
    ])
    return Number(row?.['failures']) >= limits.webhookConcurrencyMax
  })
  const tried = dead.hits.length
  await dead.hit('one more', () => dead.hits.length > tried, 30_000)
  assert.equal(dead.hits.length, tried + 1)
})

test('a webhook that has not worked for days is disabled, with an audit row', async () => {
  const { id } = await create()
  receiver.answer = (response) => response.writeHead(500).end()
  await hub.hub.ctx.db.query(
    `update webhooks set failures = $2, failing_since = now() - make_interval(days => $3) where id = $1`,
    [id, limits.webhookFailuresMin - 1, limits.webhookFailingDaysMax + 1],
  )
  await happen('the last straw')
  await until(
    'it to be disabled',
    async () => (await ask('GET', `/${id}`)).body.status === 'disabled',
  )
  const [row] = await auditOfResource(hub, 'webhook.disable', id)
  assert.deepEqual(
    [row?.actorId, row?.orgId, row?.details.reason],
    [null, orgId, 'nothing was delivered for days'],
  )
  // Enabled again, it has not failed yet.
  receiver.answer = undefined
  await ask('PATCH', `/${id}`, { status: 'active' })
  await happen('a new start')
  await receiver.hit('a new start', about('a new start'))
  assert.equal((await ask('GET', `/${id}`)).body.status, 'active')
})

test('a success forgets the failures before it', async () => {
  const { id } = await create()
  const { db } = hub.hub.ctx
  const past = [id, limits.webhookFailingDaysMax + 1]
  await db.query(
    `update webhooks set failures = 500, failing_since = now() - make_interval(days => $2) where id = $1`,
    past,
  )
  await happen('works')
  await delivery(id, endedAs('succeeded'))
  const rows = await db.query('select failures, failing_since from webhooks where id = $1', [id])
  assert.deepEqual(rows, [{ failures: 0, failing_since: null }])
})

test('a receiver that is gone for good is told nothing more', async () => {
  const { id } = await create()
  receiver.answer = (response) => response.writeHead(410).end()
  await happen('gone')
  const { attempts, responseStatus, error } = await delivery(id, endedAs('failed'))
  assert.deepEqual([attempts, responseStatus, error], [1, 410, 'answered 410'])
  await until(
    'it to be disabled',
    async () => (await ask('GET', `/${id}`)).body.status === 'disabled',
  )
  assert.match((await auditOfResource(hub, 'webhook.disable', id))[0]?.details.reason, /410/)
})

test('more waiting deliveries than may be disable the webhook', async () => {
  const { id } = await create()
  // In pieces: all of them at once would take as long as a statement may, on a busy machine.
  const piece = 10_000
  for (let rows = 0; rows <= limits.webhookBacklogMax; rows += piece) {
    await hub.hub.ctx.db.query(
      `insert into webhook_deliveries (id, webhook_id, event_id, event_type, body, next_attempt_at)
       select new_uuid7(), $1, new_uuid7(), 'device.online', '{}', now() + interval '1 day'
       from generate_series(1, $2::int)`,
      [id, piece],
    )
  }
  await until(
    'it to be disabled',
    async () => (await ask('GET', `/${id}`)).body.status === 'disabled',
  )
  assert.match((await auditOfResource(hub, 'webhook.disable', id))[0]?.details.reason, /waited/)
})

test('an event of any size is a message of bounded size', async () => {
  const { id, secret } = await create()
  const { db } = hub.hub.ctx
  const data = { padding: 'x'.repeat(limits.webhookBodyBytesMax) }
  await insertEvents(db, [{ orgId, type: 'device.online', data }])
  const hit = await receiver.hit('it')
  assert.deepEqual(hit.event.data, { truncated: true })
  assert.ok(verify(secret, hit))
  await delivery(id, endedAs('succeeded'))
})

test('a suspended organization is told nothing', async () => {
  const org = await makeOrganization(hub)
  const person = await signedIn(hub, 'org_admin', { orgId: org })
  await create({}, person)
  await create()
  await hub.patch(`/organizations/${org}`, { status: 'suspended' })
  await happen('suspended', { org })
  await happen('active')
  await receiver.hit('the active one', about('active'))
  assert.equal(receiver.hits.filter(about('suspended')).length, 0)
  await hub.patch(`/organizations/${org}`, { status: 'active' })
})

test('two hubs share the work, and nothing is sent twice', async (t) => {
  const second = await run({ env: { ...hub.env, ADMIN_EMAIL: 'second@example.com' } })
  t.after(() => second.close())
  await Promise.all([create(), create(), create()])
  for (let i = 0; i < 4; i++) {
    const events = Array.from({ length: 50 }, (_, n): NewEvent => {
      return { orgId, type: 'device.online', data: { n: i * 50 + n } }
    })
    await insertEvents(hub.hub.ctx.db, events)
    await until('all of them', () => receiver.hits.length >= (i + 1) * 150)
  }
  assert.equal(receiver.hits.length, 600)
})

test('a jobs thread that dies in the middle of a delivery: it is sent again', async () => {
  const { id, secret } = await create()
  receiver.answer = () => {}
  await happen('interrupted')
  await receiver.hit('the first attempt', about('interrupted'))
  await hub.hub.jobs.current().terminate()
  receiver.answer = undefined
  const ended = await until(
    'the second attempt',
    async () => {
      const [latest] = (await ask('GET', `/${id}/deliveries`)).body.data
      return latest.status === 'succeeded' && latest
    },
    60_000,
  )
  assert.equal(ended.attempts, 2)
  assert.equal(receiver.hits.length, 2)
  for (const hit of receiver.hits) assert.ok(verify(secret, hit))
  await happen('goes on')
  await receiver.hit('the next', about('goes on'))
})
