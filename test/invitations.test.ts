import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { sha256 } from '../src/auth.ts'
import { limits } from '../src/limits.ts'
import { newId } from '../src/ids.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  type Person,
} from './support/people.ts'
import { startSmtp, type TestSmtp } from './support/smtp.ts'
import { until } from './support/until.ts'

const password = 'correct horse battery'
let smtp: TestSmtp
let hub: TestHub
let platform: Person
let orgId: string
let admin: Person
let stranger: Person

before(async () => {
  smtp = await startSmtp()
  hub = await startHub({
    SMTP_URL: `${smtp.url}?from=hub@example.com`,
    PUBLIC_API_URL: 'https://muster.example.com/api/v1',
  })
  platform = await signedIn(hub, 'platform_admin')
  orgId = await makeOrganization(hub, 'Müller & Söhne <AG>')
  admin = await signedIn(hub, 'org_admin', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
})
after(async () => {
  await hub.close()
  await smtp.close()
})

const someone = () => `${crypto.randomUUID()}@example.org`
const invite = (body: unknown, { token } = admin) =>
  call(hub, 'POST', '/users/invite', { token, body })
const accept = (url: string) =>
  call(hub, 'POST', '/auth/accept-invite', { body: { token: tokenOf(url), password } })
const tokenOf = (url: string) => url.split('#token=')[1] ?? ''
const mailTo = (email: string) =>
  until(`a mail to ${email}`, () => smtp.received.findLast((mail) => mail.to === email))

test('an invited user has a link that sets the password, stored as a hash', async () => {
  const email = someone()
  const site = await makeSite(hub, orgId)
  const body = { email, role: 'technician', siteIds: [site], name: 'Ann' }
  const { status, body: made, headers } = await invite(body)
  assert.equal(status, 201)
  const { inviteUrl, ...user } = made
  assert.equal(headers.get('location'), `/api/v1/users/${user.id}`)
  assert.match(inviteUrl, /^https:\/\/muster\.example\.com\/accept-invite#token=min_[\w-]{43}$/)
  const { createdAt: _created, updatedAt: _updated, ...rest } = user
  assert.deepEqual(rest, {
    id: user.id,
    email,
    name: 'Ann',
    role: 'technician',
    orgId,
    siteIds: [site],
    status: 'invited',
    lastLoginAt: null,
  })
  const shown = await call(hub, 'GET', `/users/${user.id}`, { token: admin.token })
  assert.deepEqual(shown.body, user)
  const { db } = hub.hub.ctx
  const [row] = await db.query<{ hash: Buffer; hours: number; row: string }>(
    `select invite_hash as hash, u::text as row,
       round(extract(epoch from invite_expires_at - now()) / 3600)::int as hours
     from users u where id = $1`,
    [user.id],
  )
  assert.deepEqual([row?.hash, row?.hours], [sha256(tokenOf(inviteUrl)), limits.inviteHours])
  assert.ok(!row?.row.includes(tokenOf(inviteUrl)))

  const [entry] = await auditOfResource(hub, 'user.invite', user.id)
  assert.deepEqual([entry?.orgId, entry?.actorId, entry?.details.after], [orgId, admin.id, body])
  const events = await db.query<{ org_id: string; data: Record<string, unknown> }>(
    `select org_id, data from events where type = 'user.invited' and data->>'userId' = $1`,
    [user.id],
  )
  assert.deepEqual(events, [
    {
      org_id: orgId,
      data: { userId: user.id, email, role: 'technician', invitedBy: admin.id },
    },
  ])
  assert.ok(!JSON.stringify([entry, events]).includes(tokenOf(inviteUrl)))
  assert.equal((await accept(inviteUrl)).body.user.status, 'active')
})

test('to invite again makes a new link and ends the old one', async () => {
  const email = someone()
  const site = await makeSite(hub, orgId)
  const first = await invite({ email, role: 'viewer', siteIds: [site], name: 'Ann' })
  const second = await invite({ email: email.toUpperCase(), role: 'technician' })
  assert.deepEqual([second.status, second.body.id], [201, first.body.id])
  // What was not said again stays: to repeat an invitation does not widen it.
  const { role, siteIds, name, status } = second.body
  assert.deepEqual([role, siteIds, name, status], ['technician', [site], 'Ann', 'invited'])
  assert.equal(outcome(await accept(first.body.inviteUrl)), '401 INVALID_TOKEN')
  assert.equal((await accept(second.body.inviteUrl)).status, 200)
  const again = await invite({ email, role: 'viewer' })
  assert.equal(outcome(again), '409 ALREADY_EXISTS')
  assert.equal(again.body.error.details[0].path, '/email')
  assert.equal((await auditOfResource(hub, 'user.invite', first.body.id)).length, 2)
})

test('two who invite one person at once make one user with one link that works', async () => {
  const email = someone()
  const answers = await Promise.all([1, 2, 3].map(() => invite({ email, role: 'viewer' })))
  assert.deepEqual(answers.map(outcome), ['201', '201', '201'])
  assert.equal(new Set(answers.map(({ body }) => body.id)).size, 1)
  const accepted = await Promise.all(answers.map(({ body }) => accept(body.inviteUrl)))
  assert.equal(accepted.filter(({ status }) => status === 200).length, 1)
})

test('a withdrawn invitation is dead until a new one is made', async () => {
  const email = someone()
  const { body } = await invite({ email, role: 'viewer' })
  const patch = (status: string) =>
    call(hub, 'PATCH', `/users/${body.id}`, { token: admin.token, body: { status } })
  assert.equal(outcome(await patch('active')), '409 CONFLICT')
  assert.equal((await patch('disabled')).body.status, 'disabled')
  assert.equal(outcome(await accept(body.inviteUrl)), '401 INVALID_TOKEN')
  assert.equal(outcome(await patch('active')), '409 CONFLICT')
  const renewed = await invite({ email, role: 'viewer' })
  assert.equal(renewed.body.status, 'invited')
  assert.equal((await accept(renewed.body.inviteUrl)).status, 200)
  assert.equal((await patch('disabled')).status, 200)
  assert.equal(outcome(await invite({ email, role: 'viewer' })), '409 ALREADY_EXISTS')
})

test('nobody invites above their own role, and only admins of the whole organization invite', async () => {
  const body = { email: someone(), role: 'viewer' }
  const outranked = await invite({ ...body, role: 'platform_admin' })
  assert.equal(outcome(outranked), '403 FORBIDDEN')
  for (const role of ['technician', 'viewer', 'auditor'] as const) {
    assert.equal(outcome(await invite(body, await signedIn(hub, role, { orgId }))), '403 FORBIDDEN')
  }
  const siteIds = [await makeSite(hub, orgId)]
  const narrowed = await signedIn(hub, 'org_admin', { orgId, siteIds })
  assert.equal(outcome(await invite(body, narrowed)), '403 FORBIDDEN')
  assert.equal((await invite({ ...body, role: 'org_admin' })).status, 201)
})

test('an organization is named by a platform admin, and is never a foreign one', async () => {
  const user = { email: someone(), role: 'viewer' }
  const missing = await invite(user, platform)
  assert.equal(outcome(missing), '400 VALIDATION_ERROR')
  assert.equal(missing.body.error.details[0].path, '/orgId')
  assert.equal(outcome(await invite({ ...user, orgId }, stranger)), '404 NOT_FOUND')
  assert.equal(outcome(await invite({ ...user, orgId: newId() }, platform)), '404 NOT_FOUND')
  const site = await makeSite(hub, orgId)
  const peer = { email: someone(), role: 'platform_admin' }
  for (const wrong of [{ orgId }, { siteIds: [site] }]) {
    assert.equal(outcome(await invite({ ...peer, ...wrong }, platform)), '400 VALIDATION_ERROR')
  }
  assert.equal((await invite({ ...user, orgId }, platform)).body.orgId, orgId)
  assert.equal((await invite(peer, platform)).body.orgId, null)
  // An email belongs to one user; whose it is stays untold.
  const taken = await invite(user, stranger)
  assert.equal(outcome(taken), '409 ALREADY_EXISTS')
  assert.ok(!taken.text.includes(orgId))
  assert.equal(
    outcome(await invite({ ...user, role: 'platform_admin' }, platform)),
    '409 ALREADY_EXISTS',
  )
})

test('what an invitation may not hold is refused by name', async () => {
  const user = { email: someone(), role: 'viewer' }
  const foreign = await makeSite(hub, stranger.orgId as string)
  const bodies: [unknown, string][] = [
    [{ role: 'viewer' }, '/email'],
    [{ ...user, email: 'nobody' }, '/email'],
    [{ ...user, email: 'a b@example.org' }, '/email'],
    [{ ...user, email: 'a@example.org\r\nBcc: b@example.org' }, '/email'],
    [{ ...user, email: `${'x'.repeat(250)}@example.org` }, '/email'],
    [{ email: user.email }, '/role'],
    [{ ...user, role: 'root' }, '/role'],
    [{ ...user, siteIds: [foreign] }, '/siteIds/0'],
    [{ ...user, siteIds: Array.from({ length: 501 }, () => newId()) }, '/siteIds'],
    [{ ...user, password }, '/password'],
  ]
  for (const [body, path] of bodies) {
    const answer = await invite(body)
    assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body))
    assert.equal(answer.body.error.details[0].path, path)
  }
})

// ---- mail ------------------------------------------------------------------------------------

test('the invitation comes by mail, as text and as HTML, and the outcome is audited', async () => {
  const email = someone()
  const { body } = await invite({ email, role: 'viewer' })
  const mail = await mailTo(email)
  assert.deepEqual([mail.from, mail.headers.get('to')], ['hub@example.com', email])
  assert.equal(mail.headers.get('from'), 'Muster <hub@example.com>')
  assert.equal(mail.headers.get('auto-submitted'), 'auto-generated')
  assert.ok(mail.text.includes(`\n${body.inviteUrl}`), mail.text)
  assert.ok(mail.text.includes(`${admin.email} invites you to Müller & Söhne <AG> on Muster.`))
  assert.ok(mail.html.includes(`<a href="${body.inviteUrl}">`))
  assert.ok(!mail.html.includes('<AG>'), 'a name is text, not markup')
  const [row] = await until('the audit row', async () => {
    const rows = await auditOfResource(hub, 'user.mail_invitation', body.id)
    return rows.length > 0 && rows
  })
  assert.deepEqual([row?.result, row?.orgId], ['success', orgId])
  assert.ok(!JSON.stringify(row).includes(tokenOf(body.inviteUrl)))
})

test('an invitation that was refused is not mailed, and a refused mail costs nobody the link', async () => {
  const email = someone()
  await invite({ email, role: 'platform_admin' })
  smtp.refuseNext(
    '550 no such user; blocked: https://x/#token=min_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
  )
  const { status, body } = await invite({ email, role: 'viewer' })
  assert.equal(status, 201)
  const [row] = await until('the audit row', async () => {
    const rows = await auditOfResource(hub, 'user.mail_invitation', body.id)
    return rows.length > 0 && rows
  })
  assert.equal(row?.result, 'failure')
  assert.match(row?.details.reason, /550 no such user.*\[secret\]/)
  assert.ok(!smtp.received.some((mail) => mail.to === email))
  assert.equal((await accept(body.inviteUrl)).status, 200)
})
