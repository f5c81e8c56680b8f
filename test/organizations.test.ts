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
import { until } from './support/until.ts'

let hub: TestHub
let platform: Person

before(async () => {
  hub = await startHub()
  platform = await signedIn(hub, 'platform_admin')
})
after(() => hub.close())

const create = (body: unknown, token = platform.token) =>
  call(hub, 'POST', '/organizations', { token, body })
const read = (id: string, token = platform.token) =>
  call(hub, 'GET', `/organizations/${id}`, { token })
const patch = (id: string, body: unknown, token = platform.token) =>
  call(hub, 'PATCH', `/organizations/${id}`, { token, body })

test('a new organization is empty, active and found at its Location', async () => {
  const { status, body, headers } = await create({ name: 'Müller & Söhne AG' })
  assert.equal(status, 201)
  assert.equal(headers.get('location'), `/api/v1/organizations/${body.id}`)
  assert.deepEqual(
    { ...body, createdAt: '', updatedAt: '' },
    {
      id: body.id,
      name: 'Müller & Söhne AG',
      slug: 'muller-sohne-ag',
      status: 'active',
      settings: { offlineGraceSeconds: 60, globalEnrollment: true },
      deviceCount: 0,
      createdAt: '',
      updatedAt: '',
    },
  )
  assert.deepEqual((await read(body.id)).body, body)
  const [row] = await auditOfResource(hub, 'organization.create', body.id)
  assert.equal(row?.actorId, platform.id)
  assert.equal(row?.orgId, body.id)
  assert.deepEqual(row?.details.after, { name: 'Müller & Söhne AG', slug: 'muller-sohne-ag' })
})

test('a slug is unique, and the refusal names the field', async () => {
  const slug = `taken-${newId().slice(-12)}`
  const { body: first } = await create({ name: 'First', slug })
  const second = await create({ name: 'Second', slug })
  assert.equal(outcome(second), '409 ALREADY_EXISTS')
  assert.equal(second.body.error.details[0].path, '/slug')
  const together = await Promise.all([1, 2, 3].map(() => create({ name: 'T', slug: `${slug}-2` })))
  assert.deepEqual(together.map(outcome).toSorted(), [
    '201',
    '409 ALREADY_EXISTS',
    '409 ALREADY_EXISTS',
  ])
  assert.equal((await read(first.id)).body.name, 'First')
})

test('a slug that is made of the name is never taken', async () => {
  const name = `Twice ${newId()}`
  const [one, two] = [await create({ name }), await create({ name })]
  assert.deepEqual([one.status, two.status], [201, 201])
  assert.equal(two.body.slug, `${one.body.slug}-${two.body.id.slice(-12)}`)
  const long = newId() + 'y'.repeat(100)
  const slugs = [(await create({ name: `${long}1` })).body.slug]
  slugs.push((await create({ name: `${long}2` })).body.slug)
  assert.deepEqual(
    slugs.map((slug) => slug.length),
    [63, 63],
  )
  assert.notEqual(slugs[0], slugs[1])
  const together = await Promise.all([1, 2, 3].map(() => create({ name: `At once ${name}` })))
  assert.equal(new Set(together.map(({ body }) => body.slug)).size, 3)
})

test('a name without Latin letters gets a slug of its own', async () => {
  const [one, two] = [await create({ name: '株式会社' }), await create({ name: '株式会社' })]
  for (const { status, body } of [one, two]) {
    assert.equal(status, 201)
    assert.match(body.slug, /^org-[0-9a-f]{12}$/)
  }
})

test('what an organization may not be is refused by name', async () => {
  const bodies: [unknown, string][] = [
    [{}, '/name'],
    [{ name: '' }, '/name'],
    [{ name: '   ' }, '/name'],
    [{ name: 'x'.repeat(256) }, '/name'],
    [{ name: 'x\u0000y' }, '/name'],
    [{ name: 7 }, '/name'],
    [{ name: 'x', slug: 'No Slug' }, '/slug'],
    [{ name: 'x', slug: '-x' }, '/slug'],
    [{ name: 'x', slug: 'x'.repeat(64) }, '/slug'],
    [{ name: 'x', status: 'suspended' }, '/status'],
    [{ name: 'x', __proto__: undefined, id: newId() }, '/id'],
  ]
  for (const [body, path] of bodies) {
    const answer = await create(body)
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body))
    assert.equal(answer.body.error.details?.[0]?.path ?? '', path)
  }
  assert.equal((await create({ name: 'x'.repeat(255), slug: newId() })).status, 201)
})

test('a name is data: quotes, statements and braces come back as they went in', async () => {
  for (const name of [
    `'; drop table organizations; --`,
    '"}, {"id": 1',
    '{{7*7}} ${process.env} \\u0041 %00',
    '<script>alert(1)</script>\n\t\u007f',
  ]) {
    const { status, body } = await create({ name, slug: newId() })
    assert.equal(status, 201)
    assert.equal(body.name, name)
    const changed = await patch(body.id, { name: `${name}!` })
    assert.equal(changed.body.name, `${name}!`)
  }
})

test('only a platform admin creates, and who tried is audited under their organization', async () => {
  const orgId = await makeOrganization(hub)
  for (const role of ['org_admin', 'technician', 'viewer', 'auditor'] as const) {
    const person = await signedIn(hub, role, { orgId })
    assert.equal(outcome(await create({ name: 'mine' }, person.token)), '403 FORBIDDEN')
    const [row] = await hub.hub.ctx.db.query(
      `select org_id as "orgId", result from audit where actor_id = $1`,
      [person.id],
    )
    assert.deepEqual(row, { orgId, result: 'denied' })
  }
  assert.equal(
    outcome(await call(hub, 'POST', '/organizations', { body: { name: 'x' } })),
    '401 UNAUTHENTICATED',
  )
})

test('users see their own organization and no other', async () => {
  const [orgId, foreign] = [await makeOrganization(hub), await makeOrganization(hub)]
  for (const role of ['org_admin', 'technician', 'viewer', 'auditor'] as const) {
    const { token } = await signedIn(hub, role, { orgId })
    assert.equal((await read(orgId, token)).status, 200)
    assert.equal(outcome(await read(foreign, token)), '404 NOT_FOUND')
    assert.equal(outcome(await read(newId(), token)), '404 NOT_FOUND')
    const { items } = await everyPage(hub, '/organizations?limit=10', token)
    assert.deepEqual(
      items.map(({ id }) => id),
      [orgId],
    )
  }
  const admin = await signedIn(hub, 'org_admin', { orgId })
  assert.equal(outcome(await patch(foreign, { name: 'mine now' }, admin.token)), '404 NOT_FOUND')
  assert.equal((await read(foreign)).body.name, 'Acme')
  assert.equal(outcome(await read('not-an-id', admin.token)), '400 VALIDATION_ERROR')
})

test('a list is walked newest first, each once, whatever arrives meanwhile', async () => {
  for (let n = 0; n < 7; n++) await makeOrganization(hub)
  const [row] = await hub.hub.ctx.db.query<{ count: number }>(
    'select count(*)::int as count from organizations',
  )
  const { items, pages } = await everyPage(hub, '/organizations?limit=2', platform.token)
  const ids = items.map(({ id }) => id)
  assert.equal(ids.length, row?.count)
  assert.equal(pages, Math.ceil(ids.length / 2))
  assert.deepEqual(ids, ids.toSorted().toReversed())

  const first = await call(hub, 'GET', '/organizations?limit=2', { token: platform.token })
  const added = await makeOrganization(hub)
  const { cursor } = first.body.pagination
  // The cursor belongs to the list, not to the size of its pages.
  const rest = await call(hub, 'GET', `/organizations?limit=500&cursor=${cursor}`, platform)
  const listed = rest.body.data.map(({ id }: { id: string }) => id)
  assert.deepEqual(listed, ids.slice(2))
  assert.ok(!listed.includes(added))
})

test('a page has 1 to 500 items', async () => {
  const list = (query: string) =>
    call(hub, 'GET', `/organizations${query}`, { token: platform.token })
  for (const limit of ['0', '501', '-1', '1.5', 'many', '']) {
    assert.equal(outcome(await list(`?limit=${limit}`)), '400 VALIDATION_ERROR', limit)
  }
  assert.equal((await list('?limit=500')).status, 200)
  assert.equal((await list('')).status, 200)
  assert.equal(outcome(await list('?limit=1&limit=2')), '400 VALIDATION_ERROR')
  assert.equal(outcome(await list('?order=name')), '400 VALIDATION_ERROR')
})

test('a cursor that was altered, or is of another list or caller, is refused', async () => {
  const orgId = await makeOrganization(hub)
  for (let n = 0; n < 3; n++) await makeSite(hub, orgId)
  const admin = await signedIn(hub, 'org_admin', { orgId })
  const cursorOf = async (path: string, token: string) =>
    (await call(hub, 'GET', `${path}?limit=1`, { token })).body.pagination.cursor as string
  const cursor = await cursorOf('/organizations', platform.token)
  const use = async (text: string, token = platform.token, path = '/organizations') =>
    outcome(await call(hub, 'GET', `${path}?cursor=${encodeURIComponent(text)}`, { token }))
  assert.equal(await use(cursor), '200')
  const flipped = `${cursor.startsWith('A') ? 'B' : 'A'}${cursor.slice(1)}`
  const middle = cursor.length - 10
  const deeper = `${cursor.slice(0, middle)}${cursor[middle] === 'A' ? 'B' : 'A'}${cursor.slice(middle + 1)}`
  for (const text of ['x', flipped, deeper, cursor.slice(0, -1), `${cursor}=`, "' or 1=1", '%00']) {
    assert.equal(await use(text), '400 INVALID_CURSOR', text)
  }
  assert.equal(await use('x'.repeat(1025)), '400 VALIDATION_ERROR')
  assert.equal(await use(cursor, admin.token), '400 INVALID_CURSOR')
  assert.equal(await use(cursor, platform.token, '/sites'), '400 INVALID_CURSOR')
  const sites = await cursorOf('/sites', admin.token)
  assert.equal(await use(sites, admin.token, '/sites'), '200')
  assert.equal(await use(sites, platform.token, '/sites'), '400 INVALID_CURSOR')
})

test('settings are merged, removed by null, and audited with before and after', async () => {
  const id = await makeOrganization(hub)
  const first = await patch(id, {
    settings: { offlineGraceSeconds: 0, thresholds: { cpuPercent: 90, diskPercent: 85.5 } },
  })
  assert.equal(first.status, 200)
  assert.deepEqual(first.body.settings, {
    offlineGraceSeconds: 0,
    globalEnrollment: true,
    thresholds: { cpuPercent: 90, diskPercent: 85.5 },
  })
  const second = await patch(id, {
    settings: { retentionDays: 90, globalEnrollment: false, thresholds: { cpuPercent: null } },
  })
  assert.deepEqual(second.body.settings, {
    offlineGraceSeconds: 0,
    globalEnrollment: false,
    retentionDays: 90,
    thresholds: { diskPercent: 85.5 },
  })
  const third = await patch(id, {
    settings: { retentionDays: null, thresholds: { diskPercent: null } },
  })
  assert.deepEqual(third.body.settings, { offlineGraceSeconds: 0, globalEnrollment: false })
  const rows = await auditOfResource(hub, 'organization.update', id)
  assert.equal(rows.length, 3)
  assert.deepEqual(rows[1]?.details.before.settings, {
    offlineGraceSeconds: 0,
    thresholds: { cpuPercent: 90, diskPercent: 85.5 },
  })
  assert.deepEqual(rows[2]?.details.after.settings, {
    offlineGraceSeconds: 0,
    globalEnrollment: false,
  })
})

test('settings outside of their ranges, and unknown ones, are refused', async () => {
  const id = await makeOrganization(hub)
  for (const settings of [
    { offlineGraceSeconds: -1 },
    { offlineGraceSeconds: 3601 },
    { offlineGraceSeconds: 1.5 },
    { offlineGraceSeconds: null },
    { retentionDays: 0 },
    { thresholds: { cpuPercent: 101 } },
    { thresholds: { cpuPercent: 0 } },
    { thresholds: { cpu: 1 } },
    { thresholds: [] },
    { globalEnrollment: 'yes' },
    { unknown: 1 },
    null,
    [],
  ]) {
    const answer = await patch(id, { settings })
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(settings))
  }
  assert.equal(outcome(await patch(id, {})), '400 VALIDATION_ERROR')
  assert.equal(outcome(await patch(id, { slug: 'x' })), '400 VALIDATION_ERROR')
  assert.equal(outcome(await patch(id, { status: 'gone' })), '400 VALIDATION_ERROR')
})

test('two who change different settings together both succeed', async () => {
  const id = await makeOrganization(hub)
  await Promise.all([
    patch(id, { settings: { offlineGraceSeconds: 5 } }),
    patch(id, { settings: { retentionDays: 7 } }),
    patch(id, { settings: { thresholds: { cpuPercent: 50 } } }),
    patch(id, { settings: { thresholds: { memoryPercent: 60 } } }),
    patch(id, { name: 'Together' }),
  ])
  const { body } = await read(id)
  assert.equal(body.name, 'Together')
  assert.deepEqual(body.settings, {
    offlineGraceSeconds: 5,
    globalEnrollment: true,
    retentionDays: 7,
    thresholds: { cpuPercent: 50, memoryPercent: 60 },
  })
})

test('a change that changes nothing is no change', async () => {
  const { body } = await create({ name: 'Same', slug: newId() })
  const answer = await patch(body.id, { name: 'Same', settings: {}, status: 'active' })
  assert.deepEqual([answer.status, answer.body], [200, body])
  assert.deepEqual(await auditOfResource(hub, 'organization.update', body.id), [])
})

test('an admin changes name and settings of the own organization, not its status', async () => {
  const orgId = await makeOrganization(hub)
  const admin = await signedIn(hub, 'org_admin', { orgId })
  assert.equal((await patch(orgId, { name: 'Renamed' }, admin.token)).body.name, 'Renamed')
  const refused = await patch(orgId, { name: 'Again', status: 'suspended' }, admin.token)
  assert.equal(outcome(refused), '403 FORBIDDEN')
  assert.equal((await read(orgId)).body.name, 'Renamed')
  const denied = await auditOfResource(hub, 'request.denied', orgId)
  assert.equal(denied[0]?.resourceType, 'organization')
  assert.deepEqual(
    denied.map((row) => [row.result, row.orgId, row.actorId]),
    [['denied', orgId, admin.id]],
  )
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    const { token } = await signedIn(hub, role, { orgId })
    assert.equal(outcome(await patch(orgId, { name: 'x' }, token)), '403 FORBIDDEN')
  }
  const siteIds = [await makeSite(hub, orgId)]
  const narrowed = await signedIn(hub, 'org_admin', { orgId, siteIds })
  assert.equal(outcome(await patch(orgId, { name: 'x' }, narrowed.token)), '403 FORBIDDEN')
  assert.equal((await read(orgId, narrowed.token)).status, 200)
})

test('the users of a suspended organization are out at once and back when it is active', async () => {
  const orgId = await makeOrganization(hub)
  const admin = await signedIn(hub, 'org_admin', { orgId })
  assert.equal((await read(orgId, admin.token)).status, 200)
  const told: string[] = []
  const stop = hub.hub.ctx.identities.onChange((kind, id) => told.push(`${kind} ${id}`))
  assert.equal((await patch(orgId, { status: 'suspended' })).body.status, 'suspended')
  // At once here, and by NOTIFY on every hub.
  await until('the change to be told', () => told.length === 2)
  stop()
  assert.deepEqual(new Set(told), new Set([`organization ${orgId}`]))
  assert.equal(outcome(await read(orgId, admin.token)), '403 ORGANIZATION_SUSPENDED')
  assert.equal((await patch(orgId, { status: 'active' })).status, 200)
  assert.equal((await read(orgId, admin.token)).status, 200)
})

test('devices are counted, decommissioned ones are not', async () => {
  const orgId = await makeOrganization(hub)
  const siteId = await makeSite(hub, orgId)
  for (let n = 0; n < 3; n++) {
    await hub.hub.ctx.db.query(
      `insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
       values ($1, $2, $3, 'host', 'linux', 'amd64', $4)`,
      [newId(), orgId, siteId, sha256(newId())],
    )
  }
  assert.equal((await read(orgId)).body.deviceCount, 3)
  await hub.hub.ctx.db.query(
    `update devices set decommissioned_at = now()
     where id = (select id from devices where org_id = $1 limit 1)`,
    [orgId],
  )
  assert.equal((await read(orgId)).body.deviceCount, 2)
})

test('who is narrowed to sites counts the devices of those, in one and in the list', async () => {
  const orgId = await makeOrganization(hub)
  const [elsewhere, ...siteIds] = [
    await makeSite(hub, orgId),
    await makeSite(hub, orgId),
    await makeSite(hub, orgId),
    await makeSite(hub, orgId),
  ]
  for (const siteId of [elsewhere, elsewhere, elsewhere, ...siteIds.slice(1)]) {
    await hub.hub.ctx.db.query(
      `insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
       values ($1, $2, $3, 'host', 'linux', 'amd64', $4)`,
      [newId(), orgId, siteId, sha256(newId())],
    )
  }
  const { token } = await signedIn(hub, 'technician', { orgId, siteIds })
  assert.equal((await read(orgId, token)).body.deviceCount, 2)
  const { body } = await hub.get('/organizations', { token })
  assert.equal(body.data[0].deviceCount, 2)
  const empty = await signedIn(hub, 'viewer', { orgId, siteIds: siteIds.slice(0, 1) })
  assert.equal((await read(orgId, empty.token)).body.deviceCount, 0)
  assert.equal((await read(orgId)).body.deviceCount, 5)
})
