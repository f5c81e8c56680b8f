// Enrolling again: by the old token, by the Idempotency-Key, and what either may never do.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { newId } from '../src/ids.ts'
import { FakeAgent } from './support/agent.ts'
import { enrollmentSecret, startHub, type TestHub } from './support/hub.ts'

let hub: TestHub
let site: { id: string; orgId: string }
let otherSite: { id: string; orgId: string }
let key: string
let otherKey: string

before(async () => {
  hub = await startHub({ LIMIT_ENROLL_FAILURES: '0' })
  await hub.enroll()
  site = await makeSite('Acme')
  otherSite = await makeSite('Bolt')
  key = await makeKey(site.id)
  otherKey = await makeKey(otherSite.id)
})
after(() => hub.close())

const facts = { hostname: 'box', os: 'linux', arch: 'amd64' }
const enroll = (body: object, headers: Record<string, string> = {}) =>
  hub.post('/agents/enroll', { ...facts, ...body }, { token: undefined, headers })
const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

async function makeSite(name: string): Promise<{ id: string; orgId: string }> {
  const org = (await hub.post('/organizations', { name })).body
  return (await hub.post('/sites', { orgId: org.id, name: 'HQ' })).body
}

async function makeKey(siteId: string): Promise<string> {
  return (await hub.post(`/sites/${siteId}/enrollment-keys`, {})).body.key
}

async function deviceCount(): Promise<number> {
  const [row] = await hub.hub.ctx.db.query<{ n: number }>('select count(*)::int as n from devices')
  return row?.n ?? 0
}

test('who has no secret is told that before anything of the body', async () => {
  const broken = { os: 'beos', hostname: '' }
  const code = async (body: object | string, headers: Record<string, string> = {}) => {
    const sent = typeof body === 'string' ? { raw: body } : { body }
    const answer = await hub.ask('POST', '/agents/enroll', { ...sent, token: undefined, headers })
    return `${answer.status} ${answer.body.error.code}`
  }
  const wrong = '401 INVALID_ENROLLMENT_SECRET'
  assert.equal(await code(broken), wrong)
  assert.equal(await code({ ...broken, enrollmentSecret: 'guessed' }), wrong)
  assert.equal(await code({ ...broken, enrollmentSecret: 7 }), wrong)
  assert.equal(await code(broken, { 'x-enrollment-secret': 'guessed' }), wrong)
  assert.equal(await code('{"hostname":'), wrong)
  const used = (await hub.post(`/sites/${site.id}/enrollment-keys`, { maxUses: 1 })).body.key
  assert.equal(await code({ ...broken, enrollmentSecret: used }), '400 VALIDATION_ERROR')
  // That was no use of it.
  assert.equal((await enroll({ enrollmentSecret: used })).status, 201)
  assert.equal(await code({ ...broken, enrollmentSecret: used }), wrong)
  for (const secret of [enrollmentSecret, key]) {
    assert.equal(await code({ ...broken, enrollmentSecret: secret }), '400 VALIDATION_ERROR')
    assert.equal(await code(broken, { 'x-enrollment-secret': secret }), '400 VALIDATION_ERROR')
    assert.equal(await code('{', { 'x-enrollment-secret': secret }), '400 INVALID_JSON')
  }
})

test('secrets guessed beside broken fields count as guesses', async () => {
  const strict = await startHub({ LIMIT_ENROLL_FAILURES: '2' })
  const guess = async (body: object) =>
    (await strict.post('/agents/enroll', body, { token: undefined })).status
  assert.deepEqual([await guess({ enrollmentSecret: 'a' }), await guess({})], [401, 401])
  assert.equal(await guess({ enrollmentSecret: 'b' }), 429)
  assert.equal(await guess({ ...facts, enrollmentSecret }), 429)
  await strict.close()
})

describe('the old token', () => {
  test('with the global secret enrolls the same device again, wherever it lives', async () => {
    const first = (await enroll({ enrollmentSecret: key })).body
    const devices = await deviceCount()
    const again = await enroll({ enrollmentSecret }, bearer(first.agentToken))
    assert.equal(again.status, 201, again.text)
    const { deviceId, orgId, siteId } = again.body
    assert.deepEqual([deviceId, orgId, siteId], [first.deviceId, site.orgId, site.id])
    assert.equal(await deviceCount(), devices)
    // The token that was replaced proves nothing any more.
    await assert.rejects(FakeAgent.open(first, hub.origin), /401/)
  })

  test('enrolls the device once more when the answer got lost, for some minutes', async () => {
    const first = (await enroll({ enrollmentSecret: key })).body
    const lost = (await enroll({ enrollmentSecret: key }, bearer(first.agentToken))).body
    const devices = await deviceCount()
    const again = await enroll({ enrollmentSecret: key }, bearer(first.agentToken))
    assert.deepEqual([again.status, again.body.deviceId], [201, first.deviceId])
    assert.equal(await deviceCount(), devices)
    // Only the last answer counts, and neither of the tokens before opens a socket.
    for (const { agentToken } of [first, lost]) {
      await assert.rejects(FakeAgent.open({ ...first, agentToken }, hub.origin), /401/)
    }
    await (await FakeAgent.connect(again.body, hub.origin)).close()
    await hub.hub.ctx.db.query(
      `update devices set token_made_at = now() - interval '11 minutes' where id = $1`,
      [first.deviceId],
    )
    const late = await enroll({ enrollmentSecret: key }, bearer(first.agentToken))
    assert.notEqual(late.body.deviceId, first.deviceId)
  })

  test('needs an organization that takes the global secret and is not suspended', async () => {
    const strict = await makeSite('Strict')
    const first = (await enroll({ enrollmentSecret: await makeKey(strict.id) })).body
    const path = `/organizations/${strict.orgId}`
    const devices = await deviceCount()
    await hub.patch(path, { settings: { globalEnrollment: false } })
    const refused = await enroll({ enrollmentSecret }, bearer(first.agentToken))
    assert.deepEqual([refused.status, refused.body.error.code], [401, 'INVALID_ENROLLMENT_SECRET'])
    await hub.patch(path, { settings: { globalEnrollment: true }, status: 'suspended' })
    const suspended = await enroll({ enrollmentSecret }, bearer(first.agentToken))
    assert.equal(suspended.body.error.code, 'ORGANIZATION_SUSPENDED')
    assert.equal(await deviceCount(), devices)
  })

  test('in another organization is refused: its siteId with 400, its key with 409', async () => {
    const first = (await enroll({ enrollmentSecret: key })).body
    const devices = await deviceCount()
    const used = async () =>
      (await hub.get(`/sites/${otherSite.id}/enrollment-keys`)).body.data[0].uses
    const uses = await used()
    for (const secret of [enrollmentSecret, otherKey]) {
      const body = { enrollmentSecret: secret, siteId: otherSite.id }
      const named = await enroll(body, bearer(first.agentToken))
      assert.deepEqual([named.status, named.body.error.details?.[0]?.path], [400, '/siteId'])
    }
    const keyed = await enroll({ enrollmentSecret: otherKey }, bearer(first.agentToken))
    assert.deepEqual([keyed.status, keyed.body.error.code], [409, 'CONFLICT'])
    assert.equal(await deviceCount(), devices)
    assert.equal(await used(), uses)
    await (await FakeAgent.connect(first, hub.origin)).close()
  })
})

describe('an Idempotency-Key', () => {
  test('with another body is 409, and the first device keeps its token', async () => {
    const headers = { 'idempotency-key': newId() }
    const first = (await enroll({ enrollmentSecret }, headers)).body
    const devices = await deviceCount()
    for (const other of [
      { hostname: 'other' },
      { siteId: site.id },
      { machineId: 'm' },
      { osVersion: '12' },
    ]) {
      const answer = await enroll({ enrollmentSecret, ...other }, headers)
      assert.deepEqual([answer.status, answer.body.error.code], [409, 'IDEMPOTENCY_KEY_REUSED'])
    }
    assert.equal(await deviceCount(), devices)
    await (await FakeAgent.connect(first, hub.origin)).close()
    // Also after it connected.
    assert.equal((await enroll({ enrollmentSecret, hostname: 'other' }, headers)).status, 409)
  })

  test('repeats the same body, whatever the order of its fields and wherever the secret stands', async () => {
    const headers = { 'idempotency-key': newId() }
    const first = (await enroll({ enrollmentSecret, machineId: 'm', osVersion: '1' }, headers)).body
    const again = await enroll(
      { osVersion: '1', machineId: 'm' },
      { ...headers, 'x-enrollment-secret': enrollmentSecret },
    )
    assert.equal(again.body.deviceId, first.deviceId)
  })

  test('of another secret is another key', async () => {
    const headers = { 'idempotency-key': newId() }
    const first = (await enroll({ enrollmentSecret }, headers)).body
    const other = await enroll({ enrollmentSecret: key, hostname: 'other' }, headers)
    assert.equal(other.status, 201)
    assert.notEqual(other.body.deviceId, first.deviceId)
  })
})

test('secrets guessed in parallel are judged no more often than in a row', async (t) => {
  const strict = await startHub({ LIMIT_ENROLL_FAILURES: '10' })
  t.after(() => strict.close())
  const guess = (secret: string) =>
    strict.post('/agents/enroll', { ...facts, enrollmentSecret: secret }, { token: undefined })
  const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => guess(`guess ${n}`)))
  const judged = answers.filter(({ status }) => status === 401).length
  assert.ok(judged <= 11, `${judged} were judged`)
  for (const { status } of answers) assert.ok(status === 401 || status === 429, String(status))
  // And the right one is not told from the others.
  assert.equal((await guess(enrollmentSecret)).status, 429)
})
