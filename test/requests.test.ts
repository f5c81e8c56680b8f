// What every request meets before its route does: bounds of headers, content types, queries, keys, names,
// and how refusals are worded.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { text } from 'node:stream/consumers'
import { SignJWT } from 'jose'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { admin, enrollmentSecret, startHub, type TestHub } from './support/hub.ts'

let hub: TestHub
let orgId: string
let deviceId: string

before(async () => {
  hub = await startHub()
  ;({ deviceId, orgId } = await hub.enroll())
})
after(() => hub.close())

/** Bytes as they are, so that nothing between corrects them; returns the whole answer. */
async function exchange(bytes: string): Promise<string> {
  const socket = connect(hub.hub.port, '127.0.0.1')
  socket.write(bytes, 'latin1')
  return text(socket)
}

const statusOf = async (bytes: string) =>
  Number(/^HTTP\/1\.1 (\d+)/.exec(await exchange(bytes))?.[1])

function requestOf(headers: string[], body = '', line = 'GET /health'): string {
  const all = ['Host: hub', 'Connection: close', ...headers]
  if (body !== '') all.push(`Content-Length: ${Buffer.byteLength(body, 'latin1')}`)
  return `${line} HTTP/1.1\r\n${all.join('\r\n')}\r\n\r\n${body}`
}

const wrong = async (method: string, path: string, body?: unknown) => {
  const answer = await hub.ask(method, path, body === undefined ? {} : { body })
  assert.equal(answer.status, 400, answer.text)
  return answer.body.error as { code: string; message: string; details: { path: string }[] }
}
const command = (payload: unknown, action = 'run_command') =>
  wrong('POST', `/devices/${deviceId}/commands`, { action, payload })

test('headers may hold 16 KiB, and no more', async () => {
  const padded = (bytes: number) => requestOf([`X-Padding: ${'z'.repeat(bytes)}`])
  assert.equal(await statusOf(padded(15 * 1024)), 200)
  assert.equal(await statusOf(padded(limits.headerBytesMax)), 431)
  assert.equal(await statusOf(requestOf(Array.from({ length: 96 }, (_, n) => `X-${n}: y`))), 200)
  assert.equal(await statusOf(requestOf(Array.from({ length: 97 }, (_, n) => `X-${n}: y`))), 431)
})

test('a body is JSON in UTF-8, not packed; everything else is 415', async () => {
  const body = JSON.stringify({ email: admin.email, password: admin.password })
  const login = async (headers: Record<string, string>) =>
    (await hub.ask('POST', '/auth/login', { raw: body, token: undefined, headers })).status
  for (const type of [
    'application/json',
    'Application/JSON; charset=UTF-8',
    'application/json;charset="utf-8"',
  ]) {
    assert.equal(await login({ 'content-type': type }), 200, type)
  }
  for (const type of [
    'text/plain',
    'application/json-patch+json',
    'application/json; charset=latin1',
    'application/json; charset=utf-16',
    'application/json, text/plain',
  ]) {
    assert.equal(await login({ 'content-type': type }), 415, type)
  }
  for (const encoding of ['gzip', 'identity', 'br']) {
    assert.equal(await login({ 'content-encoding': encoding }), 415, encoding)
  }
})

test('a query that is not escaped as UTF-8 is 400 and names the parameter', async () => {
  for (const query of ['q=%zz', 'q=%', 'limit=5&q=%ff', 'q=a%2']) {
    const { code, details } = await wrong('GET', `/devices?${query}`)
    assert.deepEqual([code, details[0]?.path], ['VALIDATION_ERROR', '/query/q'])
  }
  assert.equal((await hub.get('/devices?q=%C3%A9')).status, 200)
})

test('names that mean something to JavaScript are names like any other', async () => {
  for (const name of ['__proto__', 'constructor', 'toString']) {
    const query = await wrong('GET', `/devices?${name}=x`)
    assert.deepEqual(
      query.details.map(({ path }) => path),
      [`/query/${name}`],
    )
    assert.match((await wrong('GET', `/devices?${name}=x&${name}=y`)).message, /is given twice/)
    const body = await hub.ask('POST', '/sites', {
      raw: `{"orgId":"${orgId}","name":"x","${name}":1}`,
    })
    assert.deepEqual([body.status, body.body.error.details[0].path], [400, `/${name}`])
  }
})

describe('Idempotency-Key', () => {
  const send = (line: string, token: string, key: string, body: unknown) =>
    exchange(
      requestOf(
        [
          'Content-Type: application/json',
          `Authorization: Bearer ${token}`,
          `Idempotency-Key:${key}`,
        ],
        JSON.stringify(body),
        line,
      ),
    )

  test('is 1 to 255 visible ASCII characters, wherever it is taken', async () => {
    const facts = { enrollmentSecret, hostname: 'box', os: 'linux', arch: 'amd64' }
    for (const key of ['', ' ', ' a b', ' caf\xe9s', ` ${'k'.repeat(256)}`]) {
      const answers = await Promise.all([
        send(`POST /api/v1/devices/${deviceId}/commands`, hub.token, key, { action: 'ping' }),
        send('POST /api/v1/agents/enroll', '', key, facts),
      ])
      for (const answer of answers) {
        assert.match(answer, /^HTTP\/1\.1 400 /, JSON.stringify(key))
        assert.match(answer, /\/headers\/Idempotency-Key must be 1 to 255 visible ASCII/)
      }
    }
    const fine = await send(`POST /api/v1/devices/${deviceId}/commands`, hub.token, ' k', {
      action: 'ping',
    })
    assert.match(fine, /^HTTP\/1\.1 202 /)
  })
})

test('a rightly signed token whose ids are none is 401', async () => {
  const sign = (sub: string, sid: string) =>
    new SignJWT({ sid, typ: 'access' })
      .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
      .setIssuer('muster')
      .setAudience('muster-api')
      .setSubject(sub)
      .setJti('x')
      .setIssuedAt()
      .setExpirationTime('5m')
      .sign(Buffer.from(hub.env['JWT_SECRET'] ?? ''))
  for (const [sub, sid] of [
    [newId(), 'session'],
    ['user', newId()],
    [newId(), newId()],
  ] as const) {
    const answer = await hub.get('/auth/me', { token: await sign(sub, sid) })
    assert.deepEqual([answer.status, answer.body.error.code], [401, 'INVALID_TOKEN'])
  }
})

test('the new password must be another one', async () => {
  const body = { currentPassword: admin.password, newPassword: admin.password }
  assert.deepEqual((await wrong('POST', '/auth/password', body)).details[0]?.path, '/newPassword')
})

test('one set of RateLimit headers is told, whichever rate refuses', async () => {
  const strict = await startHub({ LIMIT_API: '600', LIMIT_LOGIN: '2', LIMIT_LOGIN_IP: '100' })
  const body = { currentPassword: 'not the password', newPassword: 'another long password' }
  const answers: Awaited<ReturnType<TestHub['post']>>[] = []
  for (let n = 0; n < 3; n++) answers.push(await strict.post('/auth/password', body))
  assert.deepEqual(
    answers.map(({ status, headers }) => [
      status,
      headers.get('ratelimit-limit'),
      headers.get('ratelimit-remaining'),
    ]),
    [
      [401, '2', '1'],
      [401, '2', '0'],
      [429, '2', '0'],
    ],
  )
  const [retry, reset] = ['retry-after', 'ratelimit-reset'].map((name) =>
    Number(answers[2]?.headers.get(name)),
  )
  assert.deepEqual([retry, reset], [150, 300])
  await strict.close()
})

test('names are trimmed, and a blank one is none', async () => {
  const site = (await hub.post('/sites', { orgId, name: ' \t Nord \n' })).body
  assert.equal(site.name, 'Nord')
  const { message } = await wrong('PATCH', `/sites/${site.id}`, { name: ' \u00a0 ' })
  assert.equal(message, '/name must not be empty')
  const renamed = await hub.patch(`/devices/${deviceId}`, { displayName: ' Till 4 ' })
  assert.equal(renamed.body.displayName, 'Till 4')
  const invited = { email: 'x@example.org', role: 'viewer', orgId, name: ' Ann ' }
  assert.equal((await hub.post('/users/invite', invited)).body.name, 'Ann')
})

test('what the agent must refuse is refused before it is queued', async () => {
  const shell = await command({ command: 'ls', shell: 'fish' })
  assert.equal(shell.message, '/payload/shell must be one of sh, bash, zsh, powershell, pwsh, cmd')
  for (const name of ['1ST', 'A-B', 'A=B', '', 'é', 'A'.repeat(256)]) {
    const script = { language: 'sh', content: 'true', env: { [name]: 'x' } }
    const { details } = await command(script, 'run_script')
    assert.deepEqual(
      details.map(({ path }) => path),
      [`/payload/env/${name}`],
    )
  }
  await command({ pid: 2 ** 31 }, 'kill_process')
  const script = { language: 'sh', content: 'true', env: { _ok: 'x', A1: '' } }
  const taken = { action: 'run_script', payload: script }
  assert.equal((await hub.post(`/devices/${deviceId}/commands`, taken)).status, 202)
})

describe('refusals say each thing once, in words', () => {
  const said = async (method: string, path: string, body: unknown, message: string) =>
    assert.equal((await wrong(method, path, body)).message, message)

  test('of the whole body', async () => {
    await said('POST', '/sites', [], 'the body must be a JSON object')
    await said('POST', '/sites', 'x', 'the body must be a JSON object')
    await said('POST', '/sites', undefined, 'the body must be a JSON object; there is none')
    await said('PATCH', `/users/${newId()}`, {}, 'the body must not be empty')
  })

  test('of lengths, types, choices and patterns', async () => {
    const sites = (body: unknown, message: string) => said('POST', '/sites', body, message)
    await sites({ orgId }, '/name is required')
    await sites({ orgId, name: 'x'.repeat(256) }, '/name may hold at most 255 characters')
    await sites({ orgId, name: 5 }, '/name must be a string')
    await sites({ orgId: 'x', name: 'a' }, '/orgId must be a UUID')
    await sites({ orgId, name: 'a', colour: 'red' }, '/colour is not a known field')
    await said(
      'POST',
      '/organizations',
      { name: 'a', slug: 'Not So' },
      '/slug is not written as it must be: Lower-case letters and digits, with single hyphens between them. Unique; made from the name when absent.',
    )
    const roles = 'platform_admin, org_admin, technician, viewer, auditor'
    const invited = { email: 'a@example.org', role: 'king', orgId }
    await said('POST', '/users/invite', invited, `/role must be one of ${roles}`)
    await said(
      'PATCH',
      `/devices/${deviceId}`,
      { displayName: 5 },
      '/displayName must be a string or null',
    )
    const token = { token: 'x'.repeat(1025), password: 'correct horse battery' }
    await said('POST', '/auth/accept-invite', token, '/token may hold at most 1024 bytes')
  })

  test('of payloads', async () => {
    assert.equal(
      (await command({ command: 'ls', extra: 1 })).message,
      '/payload/extra is not a known field',
    )
    assert.equal((await command({})).message, '/payload/command is required')
    const upgrade = await command({ version: 'latest' }, 'upgrade_agent')
    assert.equal(
      upgrade.message,
      '/payload/version is not written as it must be: A version such as 1.2.3 or 1.2.3-rc.1.',
    )
  })
})
