import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  endsTold,
  everyPage,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  type Person,
} from './support/people.ts'

const password = 'correct horse battery'
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

const read = (id: string, { token } = admin) => call(hub, 'GET', `/users/${id}`, { token })
const patch = (id: string, body: unknown, { token } = admin) =>
  call(hub, 'PATCH', `/users/${id}`, { token, body })
const me = ({ token }: Person) => call(hub, 'GET', '/auth/me', { token })
const ids = (items: { id: string }[]) => items.map(({ id }) => id)

test('users are listed newest first, by organization, status, role and begin of the email', async () => {
  const organization = await makeOrganization(hub)
  const people: Person[] = []
  for (const role of ['org_admin', 'viewer', 'viewer', 'auditor'] as const) {
    people.push(await signedIn(hub, role, { orgId: organization }))
  }
  const { token } = people[0] as Person
  const { items, pages } = await everyPage(hub, '/users?limit=3', token)
  assert.deepEqual(ids(items), ids(people).toReversed())
  assert.equal(pages, 2)
  const list = async (query: string, by = token) =>
    ids((await everyPage(hub, `/users?${query}`, by)).items)
  assert.deepEqual(await list('role=viewer'), [people[2]?.id, people[1]?.id])
  assert.deepEqual(await list('status=disabled'), [])
  assert.deepEqual(await list(`q=AUDITOR.${people[3]?.id.slice(-12)}`), [people[3]?.id])
  // Signs that a pattern would read are signs of an email.
  assert.deepEqual(await list(`q=${encodeURIComponent('%')}`), [])
  assert.deepEqual(await list(`q=${encodeURIComponent('view_r')}`), [])
  assert.equal((await list(`orgId=${organization}`, platform.token)).length, 4)
  assert.deepEqual(await list(`orgId=${orgId}`), [])
  const page = await call(hub, 'GET', '/users?limit=1&role=viewer', { token })
  const moved = `/users?limit=1&cursor=${page.body.pagination.cursor}`
  assert.equal(outcome(await call(hub, 'GET', moved, { token })), '400 INVALID_CURSOR')
})

test('admins and auditors read users, admins alone change them', async () => {
  const target = await signedIn(hub, 'viewer', { orgId })
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    const person = await signedIn(hub, role, { orgId })
    const may = role === 'auditor' ? '200' : '403 FORBIDDEN'
    assert.equal(outcome(await read(target.id, person)), may)
    assert.equal(outcome(await call(hub, 'GET', '/users', person)), may)
    assert.equal(outcome(await patch(target.id, { name: 'x' }, person)), '403 FORBIDDEN')
    // Nobody raises their own role.
    assert.equal(outcome(await patch(person.id, { role: 'org_admin' }, person)), '403 FORBIDDEN')
  }
})

test('a change keeps what it does not name and is audited with before and after', async () => {
  const { id } = await signedIn(hub, 'viewer', { orgId })
  const answer = await patch(id, { name: 'Ann', role: 'technician' })
  assert.equal(answer.status, 200)
  assert.deepEqual((await read(id)).body, answer.body)
  assert.deepEqual([answer.body.name, answer.body.role], ['Ann', 'technician'])
  assert.equal((await patch(id, { role: 'technician' })).status, 200)
  const rows = await auditOfResource(hub, 'user.update', id)
  const rest = { orgId, siteIds: null, status: 'active' }
  assert.deepEqual(
    rows.map(({ details }) => details),
    [
      {
        before: { name: null, role: 'viewer', ...rest },
        after: { name: 'Ann', role: 'technician', ...rest },
      },
    ],
  )
  assert.deepEqual([rows[0]?.orgId, rows[0]?.actorId], [orgId, admin.id])
})

test('what a user may not become is refused by name', async () => {
  const { id } = await signedIn(hub, 'viewer', { orgId })
  const foreign = await makeSite(hub, stranger.orgId as string)
  const own = await makeSite(hub, orgId)
  const bodies: [unknown, string][] = [
    [{}, ''],
    [{ name: ' ' }, '/name'],
    [{ role: 'root' }, '/role'],
    [{ status: 'invited' }, '/status'],
    [{ email: 'new@example.org' }, '/email'],
    [{ siteIds: [] }, '/siteIds'],
    [{ siteIds: [own, own] }, '/siteIds'],
    [{ siteIds: ['x'] }, '/siteIds/0'],
    [{ siteIds: [own, foreign] }, '/siteIds/1'],
    [{ siteIds: [newId()] }, '/siteIds/0'],
    [{ orgId: stranger.orgId }, '/orgId'],
    [{ passwordHash: 'x' }, '/passwordHash'],
  ]
  for (const [body, path] of bodies) {
    const answer = await patch(id, body)
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body))
    assert.equal(answer.body.error.details[0].path, path, JSON.stringify(body))
  }
})

test('a user of another organization is not there', async () => {
  const { id } = await signedIn(hub, 'viewer', { orgId })
  for (const answer of [
    await read(id, stranger),
    await patch(id, { name: 'mine' }, stranger),
    await patch(id, { status: 'disabled' }, stranger),
    await patch(platform.id, { name: 'mine' }),
    await read(platform.id),
    await read(newId()),
  ]) {
    assert.equal(outcome(answer), '404 NOT_FOUND')
  }
})

test('nobody gives a role above their own', async () => {
  const { id } = await signedIn(hub, 'viewer', { orgId })
  for (const target of [id, admin.id]) {
    const answer = await patch(target, { role: 'platform_admin' })
    assert.equal(outcome(answer), '403 FORBIDDEN')
  }
  assert.equal((await read(id)).body.role, 'viewer')
  assert.equal((await patch(id, { role: 'org_admin' })).body.role, 'org_admin')
})

test('who is disabled is out at once, with every session, and stays out of the old ones', async () => {
  const person = await signedIn(hub, 'viewer', { orgId, password })
  assert.equal((await me(person)).status, 200)
  const told = endsTold(hub, person.sessionId)
  assert.equal((await patch(person.id, { status: 'disabled' })).body.status, 'disabled')
  assert.equal(outcome(await me(person)), '401 INVALID_TOKEN')
  await told()
  const login = () => call(hub, 'POST', '/auth/login', { body: { email: person.email, password } })
  assert.equal(outcome(await login()), '403 USER_DISABLED')
  const { refreshToken } = person
  const refreshed = await call(hub, 'POST', '/auth/refresh', { body: { refreshToken } })
  assert.equal(outcome(refreshed), '401 INVALID_REFRESH_TOKEN')
  assert.equal((await patch(person.id, { status: 'active' })).status, 200)
  assert.equal(outcome(await me(person)), '401 INVALID_TOKEN')
  assert.equal((await login()).status, 200)
})

test('a new role and new sites count with the next request of a signed-in user', async () => {
  const [mine, other] = [await makeSite(hub, orgId), await makeSite(hub, orgId)]
  const person = await signedIn(hub, 'technician', { orgId })
  const site = (id: string) => call(hub, 'GET', `/sites/${id}`, person)
  assert.equal((await site(other)).status, 200)
  assert.deepEqual((await patch(person.id, { siteIds: [mine] })).body.siteIds, [mine])
  assert.deepEqual(
    [outcome(await site(mine)), outcome(await site(other))],
    ['200', '404 NOT_FOUND'],
  )
  assert.equal((await patch(person.id, { siteIds: null, role: 'auditor' })).status, 200)
  assert.equal((await site(other)).status, 200)
  assert.equal((await call(hub, 'GET', '/users', person)).status, 200)
})

test('an admin narrowed to sites changes no user', async () => {
  const site = await makeSite(hub, orgId)
  const narrowed = await signedIn(hub, 'org_admin', { orgId, siteIds: [site] })
  assert.equal(outcome(await patch(narrowed.id, { siteIds: null }, narrowed)), '403 FORBIDDEN')
  assert.equal((await call(hub, 'GET', '/users', narrowed)).status, 200)
})

// ---- the last admin --------------------------------------------------------------------------

async function newOrganization(...siteIds: (string[] | undefined)[]) {
  const organization = await makeOrganization(hub)
  const site = await makeSite(hub, organization)
  const admins: Person[] = []
  for (const sites of siteIds) {
    const narrowing = sites && { siteIds: [site] }
    admins.push(await signedIn(hub, 'org_admin', { orgId: organization, ...narrowing }))
  }
  return { site, admins: admins as [Person, Person] }
}

test('the last active admin of an organization is neither disabled, demoted nor narrowed', async () => {
  const { site, admins } = await newOrganization(undefined)
  const [only] = admins
  for (const by of [only, platform]) {
    for (const body of [{ status: 'disabled' }, { role: 'viewer' }, { siteIds: [site] }]) {
      assert.equal(outcome(await patch(only.id, body, by)), '409 LAST_ADMIN', JSON.stringify(body))
    }
  }
  assert.equal((await patch(only.id, { name: 'Still here' }, only)).status, 200)
  const second = await signedIn(hub, 'org_admin', { orgId: only.orgId })
  assert.equal((await patch(second.id, { status: 'disabled' }, only)).status, 200)
  assert.equal(outcome(await patch(only.id, { role: 'viewer' }, only)), '409 LAST_ADMIN')
})

test('an admin narrowed to sites does not stand in for one who manages users', async () => {
  const { admins } = await newOrganization(undefined, [])
  const [full, narrowed] = admins
  const refused = await patch(full.id, { role: 'viewer' }, full)
  assert.equal(outcome(refused), '409 LAST_ADMIN')
  assert.match(refused.body.error.message, /org_admin who sees the whole organization/)
  assert.equal((await patch(narrowed.id, { role: 'viewer' }, full)).status, 200)
})

test('of two admins who demote or disable each other at once, one stays', async () => {
  for (let round = 0; round < 8; round++) {
    const { admins } = await newOrganization(undefined, undefined)
    const [ann, bob] = admins
    const answers = await Promise.all([
      patch(ann.id, { role: 'viewer' }, bob),
      patch(bob.id, { status: 'disabled' }, ann),
      patch(bob.id, { role: 'auditor' }, platform),
    ])
    for (const answer of answers) {
      assert.match(outcome(answer), /^(200|409 LAST_ADMIN|40[13] \w+)$/)
    }
    const left = await call(hub, 'GET', `/users?orgId=${ann.orgId}&role=org_admin&status=active`, {
      token: platform.token,
    })
    assert.equal(left.body.data.length, 1)
  }
})

test('the last platform admin stays; another one can become a user of an organization', async (t) => {
  const alone = await startHub()
  t.after(() => alone.close())
  const { id } = (await alone.get('/auth/me')).body
  const change = (userId: string, body: unknown) => alone.patch(`/users/${userId}`, body)
  for (const body of [{ status: 'disabled' }, { role: 'viewer' }]) {
    assert.equal(outcome(await change(id, body)), '409 LAST_ADMIN', JSON.stringify(body))
  }
  const organization = await makeOrganization(alone)
  const second = await signedIn(alone, 'viewer', { orgId: organization })
  const raised = await change(second.id, { role: 'platform_admin' })
  assert.deepEqual([raised.body.role, raised.body.orgId], ['platform_admin', null])
  const answers = await Promise.all([
    change(id, { status: 'disabled' }),
    alone.patch(`/users/${second.id}`, { status: 'disabled' }, { token: second.token }),
  ])
  assert.equal(answers.filter(({ status }) => status === 200).length, 1)
  const [left] = await alone.hub.ctx.db.query<{ count: string }>(
    `select count(*) from users where role = 'platform_admin' and status = 'active'`,
  )
  assert.equal(Number(left?.count), 1)
})

test('a platform admin who becomes a user of an organization names it', async () => {
  const other = await signedIn(hub, 'platform_admin')
  const change = (body: unknown) => patch(other.id, body, platform)
  const missing = await change({ role: 'viewer' })
  assert.deepEqual(
    [outcome(missing), missing.body.error.details[0].path],
    ['400 VALIDATION_ERROR', '/orgId'],
  )
  assert.equal(outcome(await change({ role: 'viewer', orgId: newId() })), '404 NOT_FOUND')
  const narrowed = await change({ siteIds: [await makeSite(hub, orgId)] })
  assert.equal(outcome(narrowed), '400 VALIDATION_ERROR')
  const moved = await change({ role: 'viewer', orgId })
  assert.deepEqual([moved.body.role, moved.body.orgId], ['viewer', orgId])
  assert.equal((await call(hub, 'GET', '/users', other)).status, 403)
})

// Last, for it leaves many rows.
test('of many users a few are found by an index, whichever filter is set', async (t) => {
  // The hub's own role may not analyze.
  const options = { url: hub.hub.databaseUrl, name: 'test', connections: 1, role: 'owner' } as const
  const db = openDatabase(options)
  t.after(() => db.close())
  await db.query(
    `insert into users (id, org_id, email, role)
     select gen_random_uuid(), $1, 'many' || n || '@example.org', 'viewer'
     from generate_series(1, 20000) as n`,
    [orgId],
  )
  await db.query('analyze users')
  const plan = async (where: string) => {
    const query = `explain select u.* from users u where ${where} order by u.id desc limit 51`
    return JSON.stringify(await db.query(query))
  }
  assert.match(await plan(`u.role = 'auditor'`), /users_by_role/)
  assert.match(await plan(`u.status = 'disabled'`), /users_by_status/)
  assert.match(await plan(`lower(u.email) like 'auditor.%'`), /users_by_all_email_prefix/)
  assert.match(
    await plan(`u.org_id = '${orgId}' and lower(u.email) like 'auditor.%'`),
    /users_by_(all_)?email_prefix/,
  )
})
