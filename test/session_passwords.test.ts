import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { limits } from '../src/limits.ts'
import { insertInvited, newInvitation } from '../src/resources/invitations.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  endsTold,
  makeOrganization,
  outcome,
  signedIn,
  signInAgain,
} from './support/people.ts'

const password = 'correct horse battery'
const wrong = 'incorrect horse battery'
let hub: TestHub
let orgId: string

before(async () => {
  hub = await startHub({ LIMIT_LOGIN: '5' })
  orgId = await makeOrganization(hub)
})
after(() => hub.close())

const login = (email: string, secret: string) =>
  call(hub, 'POST', '/auth/login', { body: { email, password: secret } })
const refresh = (refreshToken: string) =>
  call(hub, 'POST', '/auth/refresh', { body: { refreshToken } })
const me = (token?: string) => call(hub, 'GET', '/auth/me', { token })

const change = (token: string, currentPassword: string, newPassword: string) =>
  call(hub, 'POST', '/auth/password', { token, body: { currentPassword, newPassword } })

test('a new password ends the other sessions and the old password, not this session', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  const other = await signInAgain(hub, bob.id)
  const next = 'an entirely new password'
  const told = endsTold(hub, other.sessionId)
  const answer = await change(bob.token, password, next)
  await told()
  assert.deepEqual([answer.status, answer.body], [200, { sessionsRevoked: 1 }])
  assert.equal(outcome(await me(other.token)), '401 INVALID_TOKEN')
  assert.equal(outcome(await refresh(other.refreshToken)), '401 INVALID_REFRESH_TOKEN')
  assert.equal((await me(bob.token)).status, 200)
  assert.equal(outcome(await login(bob.email, password)), '401 INVALID_CREDENTIALS')
  assert.equal((await login(bob.email, next)).status, 200)
  const [row] = await auditOfResource(hub, 'user.change_password', bob.id)
  assert.equal(row?.result, 'success')
  assert.ok(!JSON.stringify(row).includes(next))
})

test('a new password has 12 to 256 characters, the current one must be right', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  assert.equal(outcome(await change(bob.token, password, 'x'.repeat(11))), '400 VALIDATION_ERROR')
  assert.equal(outcome(await change(bob.token, password, 'x'.repeat(257))), '400 VALIDATION_ERROR')
  assert.equal(outcome(await change(bob.token, 'x'.repeat(1025), password)), '400 VALIDATION_ERROR')
  for (let n = 0; n < 5; n++) {
    assert.equal(outcome(await change(bob.token, wrong, 'x'.repeat(12))), '401 INVALID_CREDENTIALS')
  }
  // A stolen access token is no way to guess the password.
  assert.equal(outcome(await change(bob.token, password, 'x'.repeat(12))), '429 RATE_LIMITED')
  const rows = await auditOfResource(hub, 'user.change_password', bob.id)
  assert.deepEqual(
    rows.map((row) => row.result),
    Array<string>(5).fill('failure'),
  )
})

test('a password of 256 characters of any script can be set and used', async () => {
  const bob = await signedIn(hub, 'viewer', { orgId, password })
  const next = '密'.repeat(limits.passwordCharsMax)
  assert.equal(outcome(await change(bob.token, password, next)), '200')
  assert.equal(outcome(await login(bob.email, next)), '200')
})

// ---- invitations -----------------------------------------------------------------------------

async function invite(name: string | null = null) {
  const invitation = newInvitation()
  const email = `${crypto.randomUUID()}@example.org`
  const user = { email, role: 'viewer', orgId, name } as const
  const id = await insertInvited(hub.hub.ctx.db, user, invitation)
  assert.ok(id)
  return { id, email, token: invitation.token }
}

const accept = (body: Record<string, unknown>) => call(hub, 'POST', '/auth/accept-invite', { body })

test('an invitation sets the first password, once', async () => {
  const { id, email, token } = await invite('Invited Name')
  assert.equal(outcome(await login(email, password)), '401 INVALID_CREDENTIALS')
  const { status, body } = await accept({ token, password, name: 'My Name' })
  assert.equal(status, 200)
  assert.deepEqual([body.user.id, body.user.status, body.user.name], [id, 'active', 'My Name'])
  assert.equal((await login(email, password)).status, 200)
  assert.equal(outcome(await accept({ token, password })), '401 INVALID_TOKEN')
  const [row] = await auditOfResource(hub, 'user.accept_invite', id)
  assert.deepEqual([row?.result, row?.actorId, row?.orgId], ['success', id, orgId])
})

test('two browsers that accept one invitation together make one password', async () => {
  const { email, token } = await invite()
  const passwords = ['the first of two passwords', 'the second of two passwords']
  const answers = await Promise.all(passwords.map((secret) => accept({ token, password: secret })))
  assert.deepEqual(answers.map(outcome).toSorted(), ['200', '401 INVALID_TOKEN'])
  const logins = await Promise.all(passwords.map((secret) => login(email, secret)))
  assert.deepEqual(
    logins.map(outcome),
    answers.map(({ status }) => (status === 200 ? '200' : '401 INVALID_CREDENTIALS')),
  )
})

test('a bad, old or withdrawn invitation, and a bad password, are refused', async () => {
  const { id, token } = await invite()
  const setStatus = (status: string) =>
    hub.hub.ctx.db.query('update users set status = $2 where id = $1', [id, status])
  assert.equal(outcome(await accept({ token: `${token}x`, password })), '401 INVALID_TOKEN')
  assert.equal(outcome(await accept({ token: '', password })), '401 INVALID_TOKEN')
  assert.equal(outcome(await accept({ token, password: 'short' })), '400 VALIDATION_ERROR')
  assert.equal(outcome(await accept({ token, password, name: ' ' })), '400 VALIDATION_ERROR')
  assert.equal(
    outcome(await accept({ token, password, role: 'org_admin' })),
    '400 VALIDATION_ERROR',
  )
  await setStatus('disabled')
  assert.equal(outcome(await accept({ token, password })), '401 INVALID_TOKEN')
  await setStatus('invited')
  await hub.hub.ctx.db.query('update users set invite_expires_at = now() where id = $1', [id])
  assert.equal(outcome(await accept({ token, password })), '401 INVALID_TOKEN')
})
