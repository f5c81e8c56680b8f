// The library of scripts: versions, parameters, whose they are.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, test } from 'node:test'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
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

let hub: TestHub
let platform: Person
let orgId: string
let admin: Person
let stranger: Person

before(async () => {
  hub = await startHub()
  platform = await signedIn(hub, 'platform_admin')
  orgId = await makeOrganization(hub)
  admin = await signedIn(hub, 'org_admin', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
})
after(() => hub.close())

const plain = { name: 'Say hello', language: 'sh', content: 'echo hello' }
const create = (body: unknown, { token } = admin) => call(hub, 'POST', '/scripts', { token, body })
const read = (id: string, { token } = admin) => call(hub, 'GET', `/scripts/${id}`, { token })
const patch = (id: string, body: unknown, { token } = admin) =>
  call(hub, 'PATCH', `/scripts/${id}`, { token, body })
const remove = (id: string, { token } = admin) => call(hub, 'DELETE', `/scripts/${id}`, { token })

const sha256 = (content: string) => createHash('sha256').update(content).digest('hex')

const versions = (id: string) =>
  hub.hub.ctx.db.query<{ version: number }>(
    'select version from script_versions where script_id = $1 order by version',
    [id],
  )

test('a new script is version 1 of who creates it, whole and audited by its hash', async () => {
  const body = {
    ...plain,
    description: 'For a test',
    os: ['linux', 'darwin', 'linux'],
    parameters: [
      { name: 'target', type: 'string', required: true },
      { name: 'COUNT', type: 'number', default: 3 },
      { name: 'token', type: 'string', secret: true },
    ],
    timeoutSeconds: 60,
  }
  const made = await create(body)
  assert.equal(made.status, 201, made.text)
  assert.equal(made.headers.get('location'), `/api/v1/scripts/${made.body.id}`)
  const { id, createdAt, updatedAt } = made.body
  assert.deepEqual(made.body, {
    id,
    orgId,
    name: body.name,
    description: body.description,
    language: 'sh',
    content: body.content,
    os: ['linux', 'darwin'],
    parameters: [
      { name: 'target', type: 'string', required: true, default: null, secret: false },
      { name: 'COUNT', type: 'number', required: false, default: 3, secret: false },
      { name: 'token', type: 'string', required: false, default: null, secret: true },
    ],
    timeoutSeconds: 60,
    version: 1,
    sha256: sha256(body.content),
    createdBy: admin.id,
    createdAt,
    updatedAt,
  })
  assert.deepEqual((await read(id)).body, made.body)
  const [row] = await auditOfResource(hub, 'script.create', id)
  assert.deepEqual([row?.orgId, row?.details.after.sha256], [orgId, sha256(body.content)])
  assert.ok(!JSON.stringify(row?.details).includes(body.content))
})

test('what is not named has its default', async () => {
  const { body } = await create(plain)
  assert.deepEqual(
    [body.os, body.parameters, body.timeoutSeconds, body.description],
    [['linux', 'darwin', 'windows'], [], 300, null],
  )
})

test('what a script may not be is refused by name', async () => {
  const parameter = { name: 'x', type: 'string' }
  const bodies: [object, string][] = [
    [{ name: '' }, '/name'],
    [{ language: 'perl' }, '/language'],
    [{ content: '' }, '/content'],
    [{ content: 'é'.repeat(limits.payloadBytesMax / 2 + 1) }, '/content'],
    [{ content: 'x'.repeat(limits.payloadBytesMax + 1) }, '/content'],
    [{ os: [] }, '/os'],
    [{ os: ['beos'] }, '/os/0'],
    [{ timeoutSeconds: 0 }, '/timeoutSeconds'],
    [{ timeoutSeconds: 3601 }, '/timeoutSeconds'],
    [{ version: 7 }, '/version'],
    [{ parameters: [{ ...parameter, name: 'a-b' }] }, '/parameters/0/name'],
    [{ parameters: [{ ...parameter, type: 'date' }] }, '/parameters/0/type'],
    [{ parameters: [{ ...parameter, color: 1 }] }, '/parameters/0/color'],
    [{ parameters: [parameter, { ...parameter, name: 'X' }] }, '/parameters/1/name'],
    [{ parameters: [{ ...parameter, default: 3 }] }, '/parameters/0/default'],
    [{ parameters: [{ ...parameter, secret: true, default: 'p' }] }, '/parameters/0/default'],
    [
      { parameters: Array.from({ length: 51 }, (_, n) => ({ name: `x${n}`, type: 'string' })) },
      '/parameters',
    ],
  ]
  for (const [change, path] of bodies) {
    const answer = await create({ ...plain, ...change })
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(change).slice(0, 200))
    assert.equal(answer.body.error.details[0].path, path)
  }
  const content = 'x'.repeat(limits.payloadBytesMax)
  assert.equal((await create({ ...plain, content })).status, 201)
})

test('a change makes a new version and forgets one that nobody ran; no change makes none', async () => {
  const { body: script } = await create(plain)
  const changed = await patch(script.id, { content: 'echo bye', os: ['linux'] })
  assert.equal(changed.status, 200, changed.text)
  assert.deepEqual(
    [changed.body.version, changed.body.content, changed.body.name, changed.body.os],
    [2, 'echo bye', plain.name, ['linux']],
  )
  assert.equal(changed.body.sha256, sha256('echo bye'))
  assert.equal((await patch(script.id, { content: 'echo bye' })).body.version, 2)
  assert.equal((await patch(script.id, { name: 'Bye' })).body.version, 3)
  assert.deepEqual(await versions(script.id), [{ version: 3 }])
  const rows = await auditOfResource(hub, 'script.update', script.id)
  assert.deepEqual(
    rows.map(({ details }) => [details.before.version, details.after.version]),
    [
      [1, 2],
      [2, 3],
    ],
  )
  assert.equal(outcome(await patch(script.id, {})), '400 VALIDATION_ERROR')
  assert.equal(outcome(await patch(script.id, { orgId: null })), '400 VALIDATION_ERROR')
})

test('a deleted script is not there any more', async () => {
  const { body: script } = await create(plain)
  assert.deepEqual((await remove(script.id)).body, script)
  for (const answer of [
    await read(script.id),
    await patch(script.id, { name: 'x' }),
    await remove(script.id),
    await call(hub, 'POST', `/scripts/${script.id}/execute`, {
      token: admin.token,
      body: { filter: {} },
    }),
  ]) {
    assert.equal(outcome(answer), '404 NOT_FOUND')
  }
  assert.equal((await auditOfResource(hub, 'script.delete', script.id)).length, 1)
})

test('the platform’s scripts are read by all and written by platform admins', async () => {
  const { body: script, status } = await create(plain, platform)
  assert.deepEqual([status, script.orgId], [201, null])
  assert.equal((await read(script.id, stranger)).status, 200)
  assert.equal(outcome(await patch(script.id, { name: 'mine' })), '403 FORBIDDEN')
  assert.equal(outcome(await remove(script.id)), '403 FORBIDDEN')
  assert.equal(outcome(await create({ ...plain, orgId: null })), '403 FORBIDDEN')
  assert.equal((await patch(script.id, { name: 'ours' }, platform)).body.name, 'ours')
  assert.equal((await create({ ...plain, orgId }, platform)).body.orgId, orgId)
  assert.equal(outcome(await create({ ...plain, orgId: newId() }, platform)), '404 NOT_FOUND')
})

test('a script of another organization is not there, and none is added there', async () => {
  const { body: script } = await create(plain)
  for (const answer of [
    await read(script.id, stranger),
    await patch(script.id, { name: 'mine' }, stranger),
    await remove(script.id, stranger),
    await create({ ...plain, orgId }, stranger),
  ]) {
    assert.equal(outcome(answer), '404 NOT_FOUND')
  }
})

test('everyone reads scripts, admins of the whole organization write them', async () => {
  const { body: script } = await create(plain)
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    const person = await signedIn(hub, role, { orgId })
    assert.equal((await read(script.id, person)).status, 200)
    assert.equal(outcome(await create(plain, person)), '403 FORBIDDEN')
    assert.equal(outcome(await patch(script.id, { name: 'x' }, person)), '403 FORBIDDEN')
    assert.equal(outcome(await remove(script.id, person)), '403 FORBIDDEN')
  }
  const siteIds = [await makeSite(hub, orgId)]
  const narrowed = await signedIn(hub, 'org_admin', { orgId, siteIds })
  assert.equal((await read(script.id, narrowed)).status, 200)
  assert.equal(outcome(await create(plain, narrowed)), '403 FORBIDDEN')
})

test('a list is one’s own and the platform’s, newest first, cut where contents are large', async () => {
  const own = await makeOrganization(hub)
  const person = await signedIn(hub, 'org_admin', { orgId: own })
  const ids: string[] = []
  const content = 'x'.repeat(limits.payloadBytesMax)
  // Forty of the largest are 10 MiB.
  for (let n = 0; n < 40; n++) {
    const made = await create({ ...plain, content }, n % 10 === 0 ? platform : person)
    ids.push(made.body.id)
  }
  const { items, pages } = await everyPage(hub, '/scripts?limit=500', person.token)
  assert.deepEqual(
    items.map(({ id }) => id).filter((id) => ids.includes(id)),
    ids.toReversed(),
  )
  assert.ok(
    !items.some((script) => 'orgId' in script && ![own, null].includes(script.orgId as never)),
  )
  assert.equal(pages, 2)
  const filtered = await everyPage(hub, `/scripts?limit=7&orgId=${own}`, platform.token)
  assert.equal(filtered.items.length, 36)
  assert.equal(filtered.pages, 6)
})
