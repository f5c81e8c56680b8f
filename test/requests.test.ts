// What every request meets before its route does: bounds of headers, content types, queries, keys, names,
// and how refusals are worded.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { text } from 'node:stream/consumers'
import { SignJWT } from 'jose'
import { openDatabase } from '../src/db.ts'
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

test('who reads among a herd of writers waits for some of them, not for all', async () => {
  const herd = 300
  const sockets = await Promise.all(
    Array.from({ length: herd + 1 }, async () => {
      const socket = connect(hub.hub.port, '127.0.0.1')
      await once(socket, 'connect')
      return socket
    }),
  )
  let answered = 0
  const written = sockets.slice(1).map(async (socket) => {
    socket.write(requestOf(['Content-Type: application/json'], '{', 'POST /api/v1/auth/login'))
    assert.match(await text(socket), /^HTTP\/1\.1 400 .*INVALID_JSON/s)
    answered++
  })
  const reader = sockets[0] as Socket
  reader.write(requestOf([]))
  assert.match(await text(reader), /^HTTP\/1\.1 200 /)
  assert.ok(answered < herd / 2, `${answered} of ${herd} were answered before`)
  await Promise.all(written)
})

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

test('a body may hold 1 MiB; more is 413 as soon as it is announced or there, and ends the connection', async () => {
  const login = 'POST /api/v1/auth/login'
  const max = limits.bodyBytesMax
  // Not asked to close: the refusal has to.
  const head = (...headers: string[]) =>
    `${login} HTTP/1.1\r\n${['Host: hub', 'Content-Type: application/json', ...headers].join('\r\n')}\r\n\r\n`
  const refused = /^HTTP\/1\.1 413 .*connection: close.*"PAYLOAD_TOO_LARGE"/is
  assert.match(await exchange(head(`Content-Length: ${max + 1}`)), refused)
  assert.match(await exchange(head('Content-Length: 99999999999') + '{}'), refused)
  const piece = `${(64 * 1024).toString(16)}\r\n${'x'.repeat(64 * 1024)}\r\n`
  const pieces = piece.repeat(Math.floor(max / (64 * 1024)) + 1)
  assert.match(await exchange(head('Transfer-Encoding: chunked') + pieces), refused)
  const json = ['Content-Type: application/json']
  assert.equal(await statusOf(requestOf(json, 'x'.repeat(max), login)), 400)
  // Who may not ask at all hears that first.
  const path = 'POST /api/v1/organizations'
  assert.equal(await statusOf(requestOf([...json, `Content-Length: ${max + 1}`], '', path)), 401)
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

test('one set of RateLimit headers is told, whichever rate refuses', async (t) => {
  const strict = await startHub({ LIMIT_API: '600', LIMIT_LOGIN: '2', LIMIT_LOGIN_IP: '100' })
  t.after(() => strict.close())
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

test('however many fields are unknown, they are named', async () => {
  const many = Object.fromEntries(Array.from({ length: 20 }, (_, n) => [`field${n}`, n]))
  const { message, details } = await wrong('PATCH', `/devices/${deviceId}`, many)
  assert.match(message, /^\/field\d+ is not a known field/)
  assert.ok(details.length >= 5)
  const query = Array.from({ length: 12 }, (_, n) => `q${n}=1`).join('&')
  const inQuery = await wrong('GET', `/devices?${query}`)
  assert.match(inQuery.message, /^\/query\/q\d+ is not a known field/)
})

test('what a route does not take is refused there too', async () => {
  assert.equal(
    (await wrong('GET', `/devices/${deviceId}?x=1`)).message,
    '/query/x is not a known field',
  )
  assert.equal((await wrong('POST', '/auth/logout', { x: 1 })).message, '/x is not a known field')
  const answer = await hub.ask('DELETE', `/devices/${newId()}`, { raw: '{' })
  assert.equal(answer.body.error.code, 'INVALID_JSON')
  assert.equal((await hub.ask('DELETE', `/devices/${newId()}`, { body: {} })).status, 404)
})

test('a method that a path does not take is 405 and told which it takes', async () => {
  for (const [path, allow] of [
    ['/devices', 'GET, HEAD'],
    [`/devices/${deviceId}`, 'GET, HEAD, PATCH, DELETE'],
    ['/auth/login', 'POST'],
  ] as const) {
    const answer = await hub.ask('OPTIONS', path)
    assert.deepEqual([answer.status, answer.headers.get('allow')], [405, allow])
  }
})

test('a list of half a million repeats is refused like one of two', async () => {
  for (const count of [2, 400_000]) {
    const events = Array.from({ length: count }, () => 0)
    const { details } = await wrong('POST', '/webhooks', {
      url: 'https://example.com',
      orgId,
      events,
    })
    assert.match(details[0]?.path ?? '', /^\/events/)
  }
  const events = ['device.online', 'device.online']
  const twice = await wrong('POST', '/webhooks', { url: 'https://example.com', orgId, events })
  assert.equal(twice.message, '/events must not hold the same twice')
})

test('a string that cannot be stored is told by its place', async () => {
  for (const [body, path] of [
    [{ tags: ['good', 'a\u0000'] }, '/tags/1'],
    [{ displayName: '\ud800' }, '/displayName'],
    [{ 'a/b~c': { d: '\udfff' } }, '/a~1b~0c/d'],
    [{ tags: [{ 'x\u0000': 1 }] }, '/tags/0'],
    [{ 'x\u0000': 1 }, ''],
    [{ ['x'.repeat(limits.errorPathCharsMax)]: '\u0000' }, ''],
  ] as const) {
    const { message, details } = await wrong('PATCH', `/devices/${deviceId}`, body)
    assert.deepEqual([details.length, details[0]?.path], [1, path])
    assert.match(message, /holds U\+0000 or half a surrogate pair/)
  }
})

test('a body that is nested deeper than any stack is refused', async () => {
  const deep = `${'['.repeat(200_000)}"\\u0041"${']'.repeat(200_000)}`
  for (const password of [deep, deep.replace('\\u0041', '\\u0000')]) {
    const raw = `{"email":"a@example.com","password":${password}}`
    const answer = await hub.ask('POST', '/auth/login', { raw, token: undefined })
    assert.deepEqual([answer.status, answer.body.error.code], [400, 'VALIDATION_ERROR'])
  }
})

test('a cursor goes with its filters in any order', async () => {
  await hub.enroll()
  const first = await hub.get('/devices?os=linux&status=offline&limit=1')
  const { cursor } = first.body.pagination
  const second = await hub.get(`/devices?status=offline&limit=1&os=linux&cursor=${cursor}`)
  assert.equal(second.status, 200, second.text)
  assert.notEqual(second.body.data[0].id, first.body.data[0].id)
})

test('a script on an unknown organization is 404, also when it is only tried', async () => {
  const script = await hub.post('/scripts', {
    name: 'x',
    orgId: null,
    language: 'bash',
    content: 'true',
    os: ['linux'],
    parameters: [],
  })
  assert.equal(script.status, 201, script.text)
  for (const dryRun of [true, false]) {
    const body = { filter: { orgId: newId() }, dryRun }
    const answer = await hub.post(`/scripts/${script.body.id}/execute`, body)
    assert.deepEqual([answer.status, answer.body.error?.code], [404, 'NOT_FOUND'])
  }
})

test('lines of X-Forwarded-For are one list, read from the right', async () => {
  const proxied = await startHub({ TRUSTED_PROXIES: '127.0.0.1' })
  const body = JSON.stringify({ email: admin.email, password: 'wrong' })
  const head = [
    'POST /api/v1/auth/login HTTP/1.1',
    'Host: hub',
    'Connection: close',
    'Content-Type: application/json',
    'X-Forwarded-For: 198.51.100.7',
    'X-Forwarded-For: 203.0.113.9',
    `Content-Length: ${body.length}`,
  ]
  const socket = connect(proxied.hub.port, '127.0.0.1')
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`)
  assert.match(await text(socket), /^HTTP\/1\.1 401/)
  const { data } = (await proxied.get('/audit?action=user.login&result=failure')).body
  assert.equal(data[0]?.ip, '203.0.113.9')
  await proxied.close()
})

test('more searches than a hub gives names to are answered', async () => {
  const db = openDatabase({ url: hub.database.url, name: 'names', connections: 1, planEach: true })
  for (let n = 0; n <= limits.searchNamesMax; n++) {
    assert.deepEqual(await db.query(`select ${n} as n`), [{ n }])
  }
  const [named] = await db.query<{ n: number }>(
    'select count(*)::int as n from pg_prepared_statements',
  )
  assert.ok((named?.n ?? 0) <= limits.searchNamesMax)
  await db.close()
})
