// Enrollment through the real command line.

import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { compiled, enrollAt, makeFolder, runCli } from './support/agent.ts'
import { secret, startFakeHub } from './support/fake_hub.ts'

test('enroll writes a private identity and token and tells what to do next', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const state = join(folder.path, 'state')
  const args = ['enroll', '--url', `${hub.url}/api/v1/`, '--secret', secret, '--state', state]
  const { code, stdout } = await runCli(args)
  assert.equal(code, 0)
  assert.match(stdout, new RegExp(`Enrolled as device ${hub.deviceId}`))
  const next = compiled ? 'muster-agent run --supervised' : 'npm run -s agent -- run'
  assert.match(stdout, new RegExp(`Next: ${next} --state`))
  assert.equal(statSync(state).mode & 0o777, 0o700)
  assert.equal(statSync(join(state, 'token')).mode & 0o777, 0o600)
  assert.ok(hub.tokens.has(readFileSync(join(state, 'token'), 'utf8').trim()))
  for (const name of readdirSync(state)) {
    assert.ok(!readFileSync(join(state, name), 'utf8').includes(secret), `${name} keeps the secret`)
  }
})

test('enroll describes the device and sends an Idempotency-Key', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  const { body, headers } = hub.enrolls[0] ?? assert.fail('no request came')
  assert.ok(['linux', 'darwin', 'windows'].includes(body['os'] as string))
  assert.ok(['amd64', 'arm64'].includes(body['arch'] as string))
  assert.equal(typeof body['hostname'], 'string')
  assert.equal(typeof body['osVersion'], 'string')
  assert.match(headers['idempotency-key'] as string, /^[\w-]{36}$/)
  assert.ok(!('siteId' in body))
})

test('the machine id is stable and not the raw one', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, join(folder.path, 'a'))
  await enrollAt(hub.url, join(folder.path, 'b'))
  const [first, second] = hub.enrolls.map(({ body }) => body['machineId'])
  assert.match(String(first), /^[0-9a-f]{64}$/)
  assert.equal(first, second)
  assert.notEqual(first, readFileSync('/etc/machine-id', 'utf8').trim())
})

test('enroll reads the secret from standard input for "-" and passes the site', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const args = [
    'enroll',
    '--url',
    hub.url,
    '--secret',
    '-',
    '--site',
    'site-9',
    '--state',
    folder.path,
  ]
  assert.equal((await runCli(args, `${secret}\n`)).code, 0)
  assert.equal(hub.enrolls[0]?.body['enrollmentSecret'], secret)
  assert.equal(hub.enrolls[0]?.body['siteId'], 'site-9')
})

test('a wrong secret is one clear line, exit 1, and leaves no identity', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const args = ['enroll', '--url', hub.url, '--secret', 'wrong', '--state', folder.path]
  const { code, stderr } = await runCli(args)
  assert.equal(code, 1)
  assert.match(stderr, /^muster-agent: .*INVALID_ENROLLMENT_SECRET.*\n$/)
  assert.equal(stderr.split('\n').length, 2)
  assert.deepEqual(readdirSync(folder.path), [])
})

test('enroll retries a busy hub with the same key', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  hub.enrollRefusals.push({ status: 503, code: 'OVERLOADED' })
  await enrollAt(hub.url, folder.path)
  const keys = hub.enrolls.map(({ headers }) => headers['idempotency-key'])
  assert.equal(keys.length, 2)
  assert.equal(keys[0], keys[1])
})

test('enrolling again proves the identity with the old token', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  const [token] = hub.tokens
  await enrollAt(hub.url, folder.path)
  assert.equal(hub.enrolls[0]?.headers.authorization, undefined)
  assert.equal(hub.enrolls[1]?.headers.authorization, `Bearer ${token}`)
})

test('a decommissioned device that is enrolled again becomes a new device', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  hub.enrollRefusals.push({ status: 403, code: 'DEVICE_DECOMMISSIONED' })
  await enrollAt(hub.url, folder.path)
  assert.equal(hub.enrolls[2]?.headers.authorization, undefined)
})

test('plain http to another host needs --insecure', async () => {
  using folder = makeFolder()
  const args = ['enroll', '--url', 'http://hub.invalid', '--secret', 'x', '--state', folder.path]
  const { code, stderr } = await runCli(args)
  assert.equal(code, 2)
  assert.match(stderr, /--url .* plain http.* --insecure/)
})

test('usage errors name the flag and exit 2', async () => {
  const cases: [string[], RegExp][] = [
    [['enroll', '--secret', 'x'], /--url is missing/],
    [['enroll', '--url', 'https://a.example'], /--secret is missing/],
    [['enroll', '--url', 'nonsense', '--secret', 'x'], /--url must be/],
    [['enroll', '--url', 'https://a.example/path', '--secret', 'x'], /--url must end/],
    [['run', '--forever'], /--forever/],
    [['status', '--state', ''], /--state/],
    [['dance'], /"dance"/],
    [[], /command is missing/],
  ]
  const ended = await Promise.all(cases.map(([args]) => runCli(args)))
  for (const [at, [, message]] of cases.entries()) {
    assert.equal(ended[at]?.code, 2)
    assert.match(ended[at]?.stderr ?? '', message)
  }
})

test('version prints the version alone; help names every command and flag', async () => {
  const { version } = JSON.parse(
    readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
  )
  assert.equal((await runCli(['version'])).stdout, `${version}\n`)
  const { code, stdout } = await runCli(['help'])
  assert.equal(code, 0)
  for (const word of [
    'enroll',
    'run',
    'status',
    'version',
    '--url',
    '--secret',
    '--site',
    '--state',
  ]) {
    assert.ok(stdout.includes(word), word)
  }
  for (const word of ['--insecure', '--supervised', '--json'])
    assert.ok(stdout.includes(word), word)
})

test('a folder that holds something else is refused and left as it is', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const state = join(folder.path, 'documents')
  mkdirSync(state, { mode: 0o755 })
  writeFileSync(join(state, 'letter.txt'), 'dear reader')
  const args = ['enroll', '--url', hub.url, '--secret', secret, '--state', state]
  const { code, stderr } = await runCli(args)
  assert.equal(code, 1)
  assert.match(stderr, /^muster-agent: cannot use the state folder .*letter\.txt.*\n$/)
  assert.deepEqual(readdirSync(state), ['letter.txt'])
  assert.equal(statSync(state).mode & 0o777, 0o755)
  assert.equal(hub.enrolls.length, 0)
})

test('a refused enrollment takes away every folder that it made', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const state = join(folder.path, 'a', 'b', 'state')
  const args = ['enroll', '--url', hub.url, '--secret', 'wrong', '--state', state]
  assert.equal((await runCli(args)).code, 1)
  assert.deepEqual(readdirSync(folder.path), [])
})

test('a folder of an agent that died while it enrolled can be used', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  writeFileSync(join(folder.path, 'lock'), '{"pid":0}')
  writeFileSync(join(folder.path, 'token.new'), '')
  await enrollAt(hub.url, folder.path)
  assert.equal(hub.enrolls.length, 1)
})
