import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { after, before, test } from 'node:test'
import { accessTokens, sha256 } from '../src/auth.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  endsTold,
  makeOrganization,
  outcome,
  signedIn,
  signInAgain,
  type Person,
} from './support/people.ts'

const password = 'correct horse battery'
const wrong = 'incorrect horse battery'
let hub: TestHub
let orgId: string
let ann: Person

before(async () => {
  // One address makes every failure of this file, so only the rate per person is on.
  hub = await startHub({ LIMIT_LOGIN: '5' })
  orgId = await makeOrganization(hub)
  ann = await signedIn(hub, 'technician', { orgId, password })
})
after(() => hub.close())

const login = (email: string, secret: string) =>
  call(hub, 'POST', '/auth/login', { body: { email, password: secret } })
const refresh = (refreshToken: string) =>
  call(hub, 'POST', '/auth/refresh', { body: { refreshToken } })
const me = (token?: string) => call(hub, 'GET', '/auth/me', { token })

async function setStatus(userId: string, status: string): Promise<void> {
  await hub.hub.ctx.db.query('update users set status = $2 where id = $1', [userId, status])
  hub.hub.ctx.identities.forgetUser(userId)
}

async function suspend(organization: string, status = 'suspended'): Promise<void> {
  await hub.hub.ctx.db.query('update organizations set status = $2 where id = $1', [
    organization,
    status,
  ])
  hub.hub.ctx.identities.forgetOrganization(organization)
}

// ---- login -----------------------------------------------------------------------------------

test('a login yields tokens that work and the user they are for', async () => {
  const { status, body, headers } = await login(ann.email.toUpperCase(), password)
  assert.equal(status, 200)
  assert.deepEqual(Object.keys(body), [
    'accessToken',
    'refreshToken',
    'tokenType',
    'expiresIn',
    'user',
  ])
  assert.equal(body.tokenType, 'Bearer')
  assert.equal(body.expiresIn, 900)
  assert.equal(headers.get('cache-control'), 'no-store')
  const answer = await me(body.accessToken)
  assert.equal(answer.status, 200)
  assert.deepEqual(answer.body, body.user)
  assert.deepEqual(
    { ...body.user, lastLoginAt: '', createdAt: '', updatedAt: '' },
    {
      id: ann.id,
      email: ann.email,
      name: null,
      role: 'technician',
      orgId,
      siteIds: null,
      status: 'active',
      lastLoginAt: '',
      createdAt: '',
      updatedAt: '',
    },
  )
  assert.match(body.user.lastLoginAt, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
})

test('unknown user, wrong password and an invited user get the same answer', async () => {
  const invited = await signedIn(hub, 'viewer', { orgId })
  await setStatus(invited.id, 'invited')
  const answers = [
    await login('nobody@example.org', password),
    await login(ann.email, wrong),
    await login(invited.email, ''),
    await login("' or 1=1; --@example.org", password),
  ]
  for (const answer of answers) {
    assert.equal(outcome(answer), '401 INVALID_CREDENTIALS')
    assert.equal(answer.body.error.message, answers[0]?.body.error.message)
    assert.deepEqual(Object.keys(answer.body.error), ['code', 'message', 'requestId'])
    assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer /)
  }
})

test('a login that is no login is refused before anything is looked up', async () => {
  const bodies: [unknown, string][] = [
    [{ email: ann.email }, '400 VALIDATION_ERROR'],
    [{ email: ann.email, password, remember: true }, '400 VALIDATION_ERROR'],
    [{ email: 7, password }, '400 VALIDATION_ERROR'],
    [{ email: 'a\u0000b', password }, '400 VALIDATION_ERROR'],
    [{ email: ann.email, password: `${password}\u0000` }, '400 VALIDATION_ERROR'],
    [{ email: ann.email, password: 'x'.repeat(1025) }, '400 VALIDATION_ERROR'],
    [{ email: ann.email, password: 'ü'.repeat(513) }, '400 VALIDATION_ERROR'],
    [{ email: ann.email, password: 'x'.repeat(1024) }, '401 INVALID_CREDENTIALS'],
    ['{"email"', '400 INVALID_JSON'],
    ['[]', '400 VALIDATION_ERROR'],
    ['null', '400 VALIDATION_ERROR'],
  ]
  for (const [body, expected] of bodies) {
    assert.equal(outcome(await call(hub, 'POST', '/auth/login', { body })), expected)
  }
})

test('after five failures even the right password waits, and the answer says how long', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  for (let left = 4; left >= 0; left--) {
    const { headers } = await login(bob.email, wrong)
    assert.equal(headers.get('ratelimit-remaining'), String(left))
  }
  const refused = await login(bob.email, password)
  assert.equal(outcome(refused), '429 RATE_LIMITED')
  assert.equal(refused.headers.get('ratelimit-limit'), '5')
  assert.equal(refused.headers.get('ratelimit-remaining'), '0')
  assert.ok(Number(refused.headers.get('retry-after')) > 0)
  assert.ok(Number(refused.headers.get('retry-after')) <= 60)
  assert.equal((await login(ann.email, password)).status, 200)
})

test('guesses sent in parallel learn no more than five sent in a row', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  const answers = await Promise.all(Array.from({ length: 16 }, () => login(bob.email, wrong)))
  const told = Map.groupBy(answers.map(outcome), (text) => text)
  assert.equal(told.get('401 INVALID_CREDENTIALS')?.length, 5)
  assert.equal(told.get('429 RATE_LIMITED')?.length, 11)
})

test('who is disabled, or given another password, while it is being checked stays out', async () => {
  const hasher = hub.hub.ctx.passwords
  const verify = hasher.verify.bind(hasher)
  const changes = [`status = 'disabled'`, `password_hash = 'another'`]
  try {
    for (const change of changes) {
      const bob = await signedIn(hub, 'viewer', { orgId, password })
      hasher.verify = async (...args) => {
        const fits = await verify(...args)
        await hub.hub.ctx.db.query(`update users set ${change} where id = $1`, [bob.id])
        return fits
      }
      assert.equal(outcome(await login(bob.email, password)), '401 INVALID_CREDENTIALS')
    }
  } finally {
    hasher.verify = verify
  }
})

test('many logins of one person at once all succeed', async () => {
  const answers = await Promise.all(Array.from({ length: 8 }, () => login(ann.email, password)))
  assert.deepEqual(answers.map(outcome), Array<string>(8).fill('200'))
  assert.equal(new Set(answers.map(({ body }) => body.refreshToken)).size, 8)
})

test('logins are audited in the organization of the user and told as events', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  await login(bob.email, wrong)
  await login(bob.email, password)
  const rows = await auditOfResource(hub, 'user.login', bob.id)
  assert.deepEqual(
    rows.map((row) => [row.result, row.orgId, row.actorId, row.actorEmail]),
    [
      ['failure', orgId, bob.id, bob.email],
      ['success', orgId, bob.id, bob.email],
    ],
  )
  const events = await hub.hub.ctx.db.query<{ type: string; data: unknown }>(
    `select type, data from events where data ->> 'userId' = $1 order by id`,
    [bob.id],
  )
  assert.deepEqual(
    events.map(({ type }) => type),
    ['user.login_failed', 'user.login'],
  )
  assert.ok(!JSON.stringify([rows, events]).includes(wrong))

  const stranger = `stranger.${bob.id}@example.org`
  await login(stranger, wrong)
  const [unknown] = await hub.hub.ctx.db.query(
    `select org_id, actor_id, resource_id, result from audit where actor_email = $1`,
    [stranger],
  )
  assert.deepEqual(unknown, { org_id: null, actor_id: null, resource_id: null, result: 'failure' })
})

test('disabled and suspended are told only to who knows the password', async () => {
  const organization = await makeOrganization(hub)
  const bob = await signedIn(hub, 'viewer', { orgId: organization, password })
  await suspend(organization)
  assert.equal(outcome(await login(bob.email, password)), '403 ORGANIZATION_SUSPENDED')
  await setStatus(bob.id, 'disabled')
  assert.equal(outcome(await login(bob.email, password)), '403 USER_DISABLED')
  assert.equal(outcome(await login(bob.email, wrong)), '401 INVALID_CREDENTIALS')
  const rows = await auditOfResource(hub, 'user.login', bob.id)
  assert.deepEqual(
    rows.map((row) => [row.result, row.details.reason]),
    [
      ['failure', 'ORGANIZATION_SUSPENDED'],
      ['failure', 'USER_DISABLED'],
      ['failure', 'wrong email or password'],
    ],
  )
})

// ---- access tokens ---------------------------------------------------------------------------

test('only a token that this hub signed, unchanged and in time, is a token', async () => {
  const [header = '', payload = '', signature = ''] = ann.token.split('.')
  const text = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
  const claims = JSON.parse(Buffer.from(payload, 'base64url').toString())
  const forged = text({ ...claims, sub: newUuid() })
  const none = text({ alg: 'none', typ: 'JWT' })
  const secret = hub.hub.ctx.config.jwtSecret
  const hs384 = `${text({ alg: 'HS384', typ: 'JWT' })}.${payload}`
  const refreshTyped = `${header}.${text({ ...claims, typ: 'refresh' })}`
  const sign = (data: string, algorithm: string) =>
    `${data}.${createHmac(algorithm, secret).update(data).digest('base64url')}`
  const past = accessTokens(secret, undefined, () => Date.now() - 901_000)
  const stranger = accessTokens('another secret of at least 32 bytes', undefined)
  const cases: [string | undefined, string][] = [
    [undefined, '401 UNAUTHENTICATED'],
    ['', '401 UNAUTHENTICATED'],
    [`${header}.${forged}.${signature}`, '401 INVALID_TOKEN'],
    [`${header}.${payload}.${signature.slice(0, -2)}AA`, '401 INVALID_TOKEN'],
    [`${none}.${payload}.`, '401 INVALID_TOKEN'],
    [`${none}.${payload}.${signature}`, '401 INVALID_TOKEN'],
    [sign(hs384, 'sha384'), '401 INVALID_TOKEN'],
    [sign(refreshTyped, 'sha256'), '401 INVALID_TOKEN'],
    [await stranger.sign(ann.id, ann.sessionId), '401 INVALID_TOKEN'],
    [await past.sign(ann.id, ann.sessionId), '401 TOKEN_EXPIRED'],
    [ann.refreshToken, '401 INVALID_TOKEN'],
    ['x.y.z', '401 INVALID_TOKEN'],
    // The forging itself is right: signed with the secret, the same claims pass.
    [sign(`${header}.${payload}`, 'sha256'), '200'],
  ]
  for (const [token, expected] of cases) {
    const answer = await me(token)
    assert.equal(outcome(answer), expected, token)
    if (answer.status === 401) assert.ok(answer.headers.get('www-authenticate'))
  }
})

function newUuid(): string {
  return crypto.randomUUID()
}

test('a live token ends with its user, its organization and its session, at once', async () => {
  const organization = await makeOrganization(hub)
  const bob = await signedIn(hub, 'org_admin', { orgId: organization })
  assert.equal((await me(bob.token)).status, 200)
  await setStatus(bob.id, 'disabled')
  assert.equal(outcome(await me(bob.token)), '403 USER_DISABLED')
  await setStatus(bob.id, 'active')
  assert.equal((await me(bob.token)).status, 200)
  await suspend(organization)
  assert.equal(outcome(await me(bob.token)), '403 ORGANIZATION_SUSPENDED')
  await suspend(organization, 'active')
  assert.equal((await me(bob.token)).status, 200)
})

// ---- refresh and logout ----------------------------------------------------------------------

test('a refresh yields new tokens for the same session', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId })
  const { status, body } = await refresh(bob.refreshToken)
  assert.equal(status, 200)
  assert.notEqual(body.refreshToken, bob.refreshToken)
  assert.equal(body.user.id, bob.id)
  assert.equal((await me(body.accessToken)).status, 200)
  assert.equal((await me(bob.token)).status, 200)
})

test('two tabs that refresh together stay signed in', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId })
  const [one, two] = await Promise.all([refresh(bob.refreshToken), refresh(bob.refreshToken)])
  assert.equal(one.status, 200)
  assert.equal(one.body.refreshToken, two.body.refreshToken)
  for (const { body } of [one, two]) assert.equal((await me(body.accessToken)).status, 200)
  assert.equal((await refresh(one.body.refreshToken)).status, 200)
})

test('a replay after the leeway ends the session: access and refresh tokens, and it is audited', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId })
  const { body } = await refresh(bob.refreshToken)
  await hub.hub.ctx.db.query(
    `update refresh_tokens set rotated_at = rotated_at - interval '31 seconds' where token_hash = $1`,
    [sha256(bob.refreshToken)],
  )
  assert.equal((await me(body.accessToken)).status, 200)
  const told = endsTold(hub, bob.sessionId)
  assert.equal(outcome(await refresh(bob.refreshToken)), '401 REFRESH_TOKEN_REUSED')
  await told()
  for (const token of [bob.token, body.accessToken]) {
    assert.equal(outcome(await me(token)), '401 INVALID_TOKEN')
  }
  assert.equal(outcome(await refresh(body.refreshToken)), '401 INVALID_REFRESH_TOKEN')
  const [row] = await auditOfResource(hub, 'session.revoke', bob.sessionId)
  assert.deepEqual([row?.result, row?.orgId, row?.actorId], ['denied', orgId, bob.id])
})

test('a refresh token that is none, or too long, or used by who may not sign in, is refused', async () => {
  assert.equal(outcome(await refresh('x')), '401 INVALID_REFRESH_TOKEN')
  assert.equal(outcome(await refresh('')), '401 INVALID_REFRESH_TOKEN')
  assert.equal(outcome(await refresh(ann.token)), '401 INVALID_REFRESH_TOKEN')
  assert.equal(outcome(await refresh('x'.repeat(1025))), '400 VALIDATION_ERROR')
  const bob = await signedIn(hub, 'viewer', { orgId: await makeOrganization(hub) })
  await setStatus(bob.id, 'disabled')
  assert.equal(outcome(await refresh(bob.refreshToken)), '403 USER_DISABLED')
  await setStatus(bob.id, 'active')
  await suspend(bob.orgId ?? '')
  assert.equal(outcome(await refresh(bob.refreshToken)), '403 ORGANIZATION_SUSPENDED')
  await suspend(bob.orgId ?? '', 'active')
  assert.equal(outcome(await refresh(bob.refreshToken)), '200')
})

test('a user who refreshes in a loop is told to wait', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId })
  let token = bob.refreshToken
  for (let n = 0; n < 10; n++) {
    const { status, body } = await refresh(token)
    assert.equal(status, 200)
    token = body.refreshToken
  }
  const refused = await refresh(token)
  assert.equal(outcome(refused), '429 RATE_LIMITED')
  assert.match(refused.headers.get('retry-after') ?? '', /^[1-6]$/)
  assert.equal(refused.headers.get('ratelimit-limit'), '10')
})

test('a logout ends this session and no other', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId })
  const other = await signInAgain(hub, bob.id)
  const told = endsTold(hub, bob.sessionId)
  assert.equal(outcome(await call(hub, 'POST', '/auth/logout', { token: bob.token })), '200')
  await told()
  assert.equal(outcome(await me(bob.token)), '401 INVALID_TOKEN')
  assert.equal(outcome(await refresh(bob.refreshToken)), '401 INVALID_REFRESH_TOKEN')
  assert.equal((await me(other.token)).status, 200)
  const [row, ...more] = await auditOfResource(hub, 'user.logout', bob.id)
  assert.deepEqual([row?.result, row?.actorId, more.length], ['success', bob.id, 0])
  assert.equal(outcome(await call(hub, 'POST', '/auth/logout')), '401 UNAUTHENTICATED')
})
