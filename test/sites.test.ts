import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { sha256 } from '../src/auth.ts'
import { newId } from '../src/ids.ts'
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
/** An admin of another organization. */
let stranger: Person

before(async () => {
  hub = await startHub()
  platform = await signedIn(hub, 'platform_admin')
  orgId = await makeOrganization(hub)
  admin = await signedIn(hub, 'org_admin', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
})
after(() => hub.close())

const create = (body: unknown, { token } = admin) => call(hub, 'POST', '/sites', { token, body })
const read = (id: string, { token } = admin) => call(hub, 'GET', `/sites/${id}`, { token })
const patch = (id: string, body: unknown, { token } = admin) =>
  call(hub, 'PATCH', `/sites/${id}`, { token, body })

test('a new site belongs to the organization of who creates it', async () => {
  const site = { name: 'Zürich West', timezone: 'Europe/Zurich', address: 'Hardstrasse 1\n8005' }
  const { status, body, headers } = await create(site)
  assert.equal(status, 201)
  assert.equal(headers.get('location'), `/api/v1/sites/${body.id}`)
  assert.deepEqual(
    { ...body, createdAt: '', updatedAt: '' },
    { id: body.id, orgId, ...site, deviceCount: 0, createdAt: '', updatedAt: '' },
  )
  assert.deepEqual((await read(body.id)).body, body)
  const [row] = await auditOfResource(hub, 'site.create', body.id)
  assert.deepEqual([row?.orgId, row?.actorId, row?.details.after], [orgId, admin.id, site])
})

test('a platform admin names the organization, and nobody names a foreign one', async () => {
  const missing = await create({ name: 'x' }, platform)
  assert.equal(outcome(missing), '400 VALIDATION_ERROR')
  assert.equal(missing.body.error.details[0].path, '/orgId')
  assert.equal((await create({ name: 'x', orgId }, platform)).body.orgId, orgId)
  assert.equal((await create({ name: 'x', orgId })).status, 201)
  assert.equal(outcome(await create({ name: 'x', orgId: newId() }, platform)), '404 NOT_FOUND')
  assert.equal(outcome(await create({ name: 'x', orgId }, stranger)), '404 NOT_FOUND')
  assert.equal(outcome(await create({ name: 'x', orgId: 'acme' })), '400 VALIDATION_ERROR')
})

test('what a site may not be is refused by name', async () => {
  const bodies: [unknown, string][] = [
    [{}, '/name'],
    [{ name: ' ' }, '/name'],
    [{ name: 'x', timezone: 'Mars/Olympus' }, '/timezone'],
    [{ name: 'x', timezone: '' }, '/timezone'],
    [{ name: 'x', address: 'x'.repeat(501) }, '/address'],
    [{ name: 'x', deviceCount: 7 }, '/deviceCount'],
    [{ name: 'x', address: '\u0000' }, '/address'],
  ]
  for (const [body, path] of bodies) {
    const answer = await create(body)
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body))
    assert.equal(answer.body.error.details?.[0]?.path ?? '', path)
  }
  const name = `Robert'); drop table sites; --`
  assert.equal((await create({ name })).body.name, name)
})

test('a change keeps what it does not name and is audited with before and after', async () => {
  const { body: site } = await create({ name: 'Old', timezone: 'UTC' })
  const { status, body } = await patch(site.id, { name: 'New', timezone: null })
  assert.equal(status, 200)
  assert.deepEqual([body.name, body.timezone, body.address], ['New', null, null])
  const [row] = await auditOfResource(hub, 'site.update', site.id)
  assert.deepEqual(row?.details, {
    before: { name: 'Old', timezone: 'UTC', address: null },
    after: { name: 'New', timezone: null, address: null },
  })
  assert.equal((await patch(site.id, { name: 'New' })).status, 200)
  assert.equal((await auditOfResource(hub, 'site.update', site.id)).length, 1)
  assert.equal(outcome(await patch(site.id, { timezone: 'Nowhere' })), '400 VALIDATION_ERROR')
  assert.equal(outcome(await patch(site.id, { orgId: stranger.orgId })), '400 VALIDATION_ERROR')
  assert.equal(outcome(await patch(site.id, {})), '400 VALIDATION_ERROR')
})

test('a site of another organization is not there, whatever is asked of it', async () => {
  const id = await makeSite(hub, orgId, 'Ours')
  const key = (await call(hub, 'POST', `/sites/${id}/enrollment-keys`, { token: admin.token })).body
  const { token } = stranger
  for (const answer of [
    await read(id, stranger),
    await patch(id, { name: 'mine' }, stranger),
    await call(hub, 'POST', `/sites/${id}/enrollment-keys`, { token, body: {} }),
    await call(hub, 'GET', `/sites/${id}/enrollment-keys`, { token }),
    await call(hub, 'DELETE', `/sites/${id}/enrollment-keys/${key.id}`, { token }),
    await read(newId()),
  ]) {
    assert.equal(outcome(answer), '404 NOT_FOUND')
  }
  assert.equal((await read(id)).body.name, 'Ours')
  const { items } = await everyPage(hub, '/sites?limit=100', token)
  assert.ok(!items.some((site) => site.id === id))
  const others = await call(hub, 'GET', `/sites?orgId=${orgId}`, { token })
  assert.deepEqual(others.body, { data: [], pagination: { hasMore: false, cursor: null } })
})

test('everyone reads sites, admins write them', async () => {
  const id = await makeSite(hub, orgId)
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    const person = await signedIn(hub, role, { orgId })
    assert.equal((await read(id, person)).status, 200)
    assert.equal(outcome(await create({ name: 'x' }, person)), '403 FORBIDDEN')
    assert.equal(outcome(await patch(id, { name: 'x' }, person)), '403 FORBIDDEN')
    const keys = await call(hub, 'GET', `/sites/${id}/enrollment-keys`, { token: person.token })
    assert.equal(outcome(keys), '403 FORBIDDEN')
  }
})

test('who is narrowed to sites sees and changes those, and adds none', async () => {
  const organization = await makeOrganization(hub)
  const [mine, other] = [await makeSite(hub, organization), await makeSite(hub, organization)]
  const narrowed = await signedIn(hub, 'org_admin', { orgId: organization, siteIds: [mine] })
  const { items } = await everyPage(hub, '/sites?limit=1', narrowed.token)
  assert.deepEqual(
    items.map(({ id }) => id),
    [mine],
  )
  assert.equal((await patch(mine, { name: 'x' }, narrowed)).status, 200)
  assert.equal(outcome(await read(other, narrowed)), '404 NOT_FOUND')
  assert.equal(outcome(await patch(other, { name: 'x' }, narrowed)), '404 NOT_FOUND')
  assert.equal(outcome(await create({ name: 'x' }, narrowed)), '403 FORBIDDEN')
})

test('sites are listed newest first, of one organization when it is named', async () => {
  const organization = await makeOrganization(hub)
  const ids: string[] = []
  for (let n = 0; n < 5; n++) ids.push(await makeSite(hub, organization))
  const { items, pages } = await everyPage(
    hub,
    `/sites?limit=2&orgId=${organization}`,
    platform.token,
  )
  assert.deepEqual(
    items.map(({ id }) => id),
    ids.toReversed(),
  )
  assert.equal(pages, 3)
  const page = await call(hub, 'GET', `/sites?limit=2&orgId=${organization}`, platform)
  const moved = `/sites?limit=2&orgId=${orgId}&cursor=${page.body.pagination.cursor}`
  assert.equal(outcome(await call(hub, 'GET', moved, platform)), '400 INVALID_CURSOR')
})

// ---- enrollment keys -------------------------------------------------------------------------

const keysOf = (siteId: string) => `/sites/${siteId}/enrollment-keys`

test('an enrollment key is shown once and stored hashed', async () => {
  const siteId = await makeSite(hub, orgId)
  const body = { name: 'Roll-out', expiresInSeconds: 3600, maxUses: 5 }
  const made = await call(hub, 'POST', keysOf(siteId), { token: admin.token, body })
  assert.equal(made.status, 201)
  const { key, ...shown } = made.body
  assert.match(key, /^mek_[\w-]{43}$/)
  assert.equal(made.headers.get('location'), `/api/v1${keysOf(siteId)}/${shown.id}`)
  assert.deepEqual(
    { ...shown, createdAt: '', expiresAt: '' },
    {
      id: shown.id,
      orgId,
      siteId,
      name: 'Roll-out',
      uses: 0,
      maxUses: 5,
      expiresAt: '',
      revokedAt: null,
      createdBy: admin.id,
      createdAt: '',
    },
  )
  assert.equal(Date.parse(shown.expiresAt) - Date.parse(shown.createdAt), 3_600_000)
  const list = await call(hub, 'GET', keysOf(siteId), { token: admin.token })
  assert.deepEqual(list.body.data, [shown])
  const one = await call(hub, 'GET', `${keysOf(siteId)}/${shown.id}`, { token: admin.token })
  assert.deepEqual(one.body, shown)
  const [row] = await hub.hub.ctx.db.query<{ hash: Buffer; row: string }>(
    'select key_hash as hash, k::text as row from enrollment_keys k where id = $1',
    [shown.id],
  )
  assert.deepEqual(row?.hash, sha256(key))
  assert.ok(!row.row.includes(key.slice(4)))
  const [entry] = await auditOfResource(hub, 'enrollment_key.create', shown.id)
  assert.equal(entry?.orgId, orgId)
  assert.ok(!JSON.stringify(entry).includes(key.slice(4)))
})

test('a key without any wish never ends and has no bound of uses', async () => {
  const siteId = await makeSite(hub, orgId)
  const { status, body } = await call(hub, 'POST', keysOf(siteId), { token: admin.token })
  assert.equal(status, 201)
  assert.deepEqual([body.name, body.expiresAt, body.maxUses], [null, null, null])
  for (const wish of [
    { expiresInSeconds: 0 },
    { expiresInSeconds: 366 * 86_400 },
    { maxUses: 0 },
    { maxUses: 1.5 },
    { name: '' },
    { key: 'mek_mine' },
  ]) {
    const refused = await call(hub, 'POST', keysOf(siteId), { token: admin.token, body: wish })
    assert.equal(outcome(refused), '400 VALIDATION_ERROR', JSON.stringify(wish))
  }
})

test('a key is revoked once, stays listed, and revoking it again changes nothing', async () => {
  const siteId = await makeSite(hub, orgId)
  const elsewhere = await makeSite(hub, orgId)
  const { token } = admin
  const { body: key } = await call(hub, 'POST', keysOf(siteId), { token })
  const remove = (site: string, id: string) =>
    call(hub, 'DELETE', `${keysOf(site)}/${id}`, { token })
  assert.equal(outcome(await remove(elsewhere, key.id)), '404 NOT_FOUND')
  assert.equal(outcome(await remove(siteId, newId())), '404 NOT_FOUND')
  const [first, again] = [await remove(siteId, key.id), await remove(siteId, key.id)]
  assert.equal(first.status, 200)
  assert.ok(first.body.revokedAt)
  assert.deepEqual(again.body, first.body)
  assert.equal((await auditOfResource(hub, 'enrollment_key.revoke', key.id)).length, 1)
  const { items } = await everyPage(hub, `${keysOf(siteId)}?limit=1`, token)
  assert.deepEqual(items, [first.body])
})
