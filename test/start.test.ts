// `npm start` as people meet it, in processes of its own: what it says when it can't, and that the embedded
// default carries a device from its enrollment to a command's output and over a restart.
import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { hubVersion } from '../src/config.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { createDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const folders = mkdtempSync(join(tmpdir(), 'muster-start-'))
/** Undone after each test in reverse: processes end before their database goes. */
const undo: (() => unknown)[] = []
let made = 0

afterEach(async () => {
  for (const step of undo.splice(0).toReversed()) await step()
})
after(() => removeFolder(folders))

test('everything that production misses is named in one message, and the exit is 78', async () => {
  const { code, stdout, stderr } = await ended(start({ NODE_ENV: 'production' }))
  assert.equal(code, 78, stderr)
  assert.equal(stdout, '')
  assertNamed(stderr, [
    'JWT_SECRET',
    'AGENT_ENROLLMENT_SECRET',
    'METRICS_SCRAPE_TOKEN',
    'PUBLIC_API_URL',
    'DATABASE_URL',
  ])
})

test('everything that is malformed is named in one message, which tells no secret', async () => {
  const dataDir = folder()
  const { code, stdout, stderr } = await ended(
    start({
      DATA_DIR: dataDir,
      PORT: '80a',
      LOG_LEVEL: 'loud',
      TRUSTED_PROXIES: '10.0.0.0/8 10.0.0.0/33',
      JWT_SECRET: 'word-one',
      ADMIN_PASSWORD: 'word-two',
      DATABASE_URL: 'mysql://hub:word-three@localhost/muster',
      AGENT_ENROLLMENT_SECRET: 'word-four',
    }),
  )
  assert.equal(code, 78, stderr)
  assert.equal(stdout, '')
  const names = ['DATABASE_URL', 'JWT_SECRET', 'ADMIN_PASSWORD', 'TRUSTED_PROXIES', 'PORT']
  assertNamed(stderr, [...names, 'LOG_LEVEL'])
  for (const value of ['"80a"', '"loud"', '"10.0.0.0/33"'])
    assert.ok(stderr.includes(value), stderr)
  assert.doesNotMatch(stderr, /word-/)
  assert.equal(existsSync(dataDir), false, 'a refused start made the data folder')
})

test('a misspelt environment or limit starts no hub that was not meant', async () => {
  const { code, stderr } = await ended(
    start({ NODE_ENV: 'prod', LIMIT_LOGINS: '5', LIMIT_API: '-1', LIMIT_CONNECT: 'no' }),
  )
  assert.equal(code, 78, stderr)
  assertNamed(stderr, ['NODE_ENV', 'LIMIT_LOGINS', 'LIMIT_API', 'LIMIT_CONNECT'])
  assert.match(stderr, /NODE_ENV is none of production, development, test: "prod"/)
  assert.match(stderr, /LIMIT_LOGINS is no limit of this hub, which knows LIMIT_LOGIN, /)
})

test('a taken port is named, the exit is 1, and the PostgreSQL that was started is gone', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  undo.push(() => taken.close())
  const address = taken.address()
  assert.ok(address !== null && typeof address === 'object')
  const dataDir = folder()
  const hub = start({ DATA_DIR: dataDir, PORT: String(address.port) })
  await until('its PostgreSQL to run', () => postgresOf(dataDir).length > 0, 60_000)
  const { code, stdout, stderr } = await ended(hub)
  assert.equal(code, 1, stdout + stderr)
  assert.match(stderr, new RegExp(`^port ${address.port} on 127\\.0\\.0\\.1 is taken.*\\n$`))
  assert.deepEqual(postgresOf(dataDir), [])
})

test('a data folder that another hub holds is told in one line', async () => {
  const dataDir = folder()
  const first = start({ DATA_DIR: dataDir, PORT: String(await freePort()) })
  await until('its PostgreSQL to run', () => postgresOf(dataDir).length > 0, 60_000)
  const { code, stderr } = await ended(start({ DATA_DIR: dataDir }))
  assert.equal(code, 1, stderr)
  const line = /^\S+ is in use by another hub, process (\d+)\n$/.exec(stderr)
  assert.equal(Number(line?.[1]), first.child.pid, stderr)
})

test('a data folder that cannot be made is told in one message', async () => {
  const DATA_DIR = fileURLToPath(import.meta.url)
  const { code, stderr } = await ended(start({ DATA_DIR }))
  assert.equal(code, 78, stderr)
  assert.match(stderr, /^Muster can't start, one variable .*:\n {2}DATA_DIR .*ENOTDIR.*\n$/)

  const secrets = { JWT_SECRET: 'x'.repeat(32), AGENT_ENROLLMENT_SECRET: 'x' }
  const own = await ended(start({ DATA_DIR, ...secrets }))
  assert.equal(own.code, 1, own.stderr)
  assert.match(own.stderr, /^ENOTDIR.*\n$/)
})

test('while PostgreSQL does not answer, the start tells where, why and how long it tries', async () => {
  const port = await freePort()
  const hub = start({
    DATA_DIR: folder(),
    DATABASE_URL: `postgres://hub:word-one@127.0.0.1:${port}/muster`,
  })
  const lines = await until('a second line', () => {
    const complete = hub.stdout.split('\n').slice(0, -1)
    if (hub.child.exitCode !== null) throw new Error(`the hub ended: ${hub.stderr}`)
    return complete.length >= 2 && complete
  })
  const left = lines.map((line) => {
    const seconds =
      /^PostgreSQL at 127\.0\.0\.1:(\d+)\/muster does not answer \(.*ECONNREFUSED.*\); trying for another (\d+) s$/.exec(
        line,
      )
    assert.equal(Number(seconds?.[1]), port, line)
    return Number(seconds?.[2])
  })
  assert.ok((left[1] ?? 0) < (left[0] ?? 0), lines.join('\n'))
  assert.doesNotMatch(hub.stdout + hub.stderr, /word-/)
})

test('a database that needs a newer hub is refused with both versions, a merely newer one is used', async () => {
  const database = await createDatabase()
  undo.push(() => database.drop())
  await query(
    database.url,
    `insert into migration.files (name, sha256, min_hub) values ('9998_later', repeat('0', 64), '99.8.7')`,
  )
  await query(
    database.url,
    `insert into migration.runs (name, run_on) values ('9998_later', now())`,
  )
  const env = { DATA_DIR: folder(), DATABASE_URL: database.url }
  const { code, stderr } = await ended(start({ ...env, PORT: String(await freePort()) }))
  assert.equal(code, 78, stderr)
  assert.equal(
    stderr,
    `this hub is ${hubVersion}, and the database needs hub 99.8.7 or newer since migration 9998_later\n`,
  )

  await query(
    database.url,
    `update migration.files set min_hub = '0.0.1' where name = '9998_later'`,
  )
  const hub = new HubProcess(await freePort(), env)
  undo.push(() => hub.kill('SIGKILL'))
  await hub.start()
  assert.equal(await hub.kill('SIGTERM'), 0, hub.output)
})

test('the embedded default: from the printed words to a command on a device, and over a restart', async () => {
  const dataDir = folder()
  const state = folder()
  const hub = new HubProcess(await freePort(), { DATA_DIR: dataDir })
  undo.push(() => hub.kill('SIGKILL'))
  await hub.start()
  assert.ok(postgresOf(dataDir).length > 0, 'no PostgreSQL runs in the data folder')

  await told(hub, /^\(kept in .+\)$/m)
  assertAsInReadme(hub, dataDir)
  const [, email, password] = await told(hub, /^Sign in as (\S+) with the password (\S+)$/m)
  const [, secretFile] = await told(hub, /^AGENT_ENROLLMENT_SECRET is kept in (.+)$/m)
  assert.ok(email && password && secretFile)
  const secret = readFileSync(secretFile, 'utf8').trim()
  let token = await signIn(hub, email, password)

  const enrolling = ['enroll', '--url', hub.origin, '--secret', secret, '--state', state]
  const enrolled = await ended(startProcess('agent/main.ts', enrolling))
  assert.equal(enrolled.code, 0, enrolled.stderr)
  const id = /device (\S+) of site/.exec(enrolled.stdout)?.[1]
  assert.ok(id, enrolled.stdout)
  const device = async () => (await ask(hub, token, 'GET', `/devices/${id}`)).status as string
  assert.equal(await device(), 'offline')

  const agent = startProcess('agent/main.ts', ['run', '--state', state])
  await until('the device to be online', async () => (await device()) === 'online')
  const command = await ask(hub, token, 'POST', `/devices/${id}/commands?wait=20`, {
    action: 'run_command',
    payload: { command: 'echo hello' },
  })
  assert.equal(command.status, 'completed', JSON.stringify(command))
  assert.equal(command.result.stdout, 'hello\n')

  agent.child.kill('SIGKILL')
  // At once: by the closed socket, not by 75 s without a heartbeat.
  await until('the device to be offline', async () => (await device()) === 'offline', 5_000)

  assert.equal(await hub.kill('SIGTERM'), 0, hub.output)
  assert.deepEqual(postgresOf(dataDir), [])
  assert.doesNotMatch(hub.output, /"level":(40|50|60)/, 'it warns of nothing that it does itself')

  hub.output = ''
  await hub.start()
  token = await signIn(hub, email, password)
  assert.equal(await device(), 'offline')
  assert.equal((await ask(hub, token, 'GET', `/commands/${command.id}`)).status, 'completed')
  assert.doesNotMatch(hub.output, /with the password/, 'the password is told once')
  assert.equal(await hub.kill('SIGTERM'), 0, hub.output)
  assert.deepEqual(postgresOf(dataDir), [])
})

interface Started {
  child: ChildProcess
  stdout: string
  stderr: string
  /** It has ended, and all that it said has arrived. */
  closed: boolean
}

/** A hub that is not waited for, with nothing in its environment but `env`. */
function start(env: Record<string, string>): Started {
  return startProcess('src/start.js', [], env)
}

function startProcess(file: string, args: string[], env: Record<string, string> = {}): Started {
  const child = spawn(process.execPath, [file, ...args], {
    cwd: root,
    env: { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const started: Started = { child, stdout: '', stderr: '', closed: false }
  child.stdout.on('data', (chunk: Buffer) => (started.stdout += String(chunk)))
  child.stderr.on('data', (chunk: Buffer) => (started.stderr += String(chunk)))
  child.on('close', () => (started.closed = true))
  undo.push(async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    child.kill('SIGKILL')
    await gone
  })
  return started
}

async function ended(started: Started): Promise<Started & { code: number | null }> {
  await until('the process to end', () => started.closed, 60_000)
  return { ...started, code: started.child.exitCode }
}

/** One message: how many are wrong, then a line for each that begins with its name; no stack. */
function assertNamed(stderr: string, names: string[]): void {
  const [head, ...lines] = stderr.trimEnd().split('\n')
  assert.equal(
    head,
    `Muster can't start, ${names.length} variables are missing or malformed:`,
    stderr,
  )
  const named = lines.map((line) => /^ {2}([A-Z_]+) \S/.exec(line)?.[1] ?? line)
  assert.deepEqual(named.toSorted(), names.toSorted())
}

/** The sample of README.md names each line that a first start prints, in order; `…` stands for anything. */
function assertAsInReadme(hub: HubProcess, dataDir: string): void {
  const readme = readFileSync(join(root, 'README.md'), 'utf8')
  const [, sample = ''] = /^\$ npm start\n([^`]+)```$/m.exec(readme) ?? []
  const expected = sample
    .trimEnd()
    .split('\n')
    .map((line) => {
      const text = line
        .replaceAll('./data', dataDir)
        .replaceAll(':8080', `:${hub.port}`)
        .replace('Muster 0.1.0', `Muster ${hubVersion}`)
        .replace('created in 0.5 s', 'created in … s')
      const parts = text.split('…').map((part) => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'))
      return new RegExp(`^${parts.join('.+')}$`)
    })
  const printed = hub.output.split('\n').filter((line) => line !== '' && !line.startsWith('{'))
  // Whose user it runs as depends on the machine.
  const lines = printed.map((line) => line.replace(/^(creating the embedded .*), run .*$/, '$1'))
  for (const [n, line] of lines.entries()) assert.match(line, expected[n] ?? /^nothing more$/)
  assert.equal(lines.length, expected.length)
}

/** What the hub printed; its last lines come after it is ready. */
function told(hub: HubProcess, line: RegExp): Promise<RegExpExecArray> {
  return until(`the hub to print ${line.source}`, () => line.exec(hub.output))
}

async function signIn(hub: HubProcess, email: string, password: string): Promise<string> {
  const answer = await ask(hub, undefined, 'POST', '/auth/login', { email, password })
  return answer.accessToken as string
}

async function ask(
  hub: HubProcess,
  token: string | undefined,
  method: string,
  path: string,
  body?: unknown,
  // oxlint-disable-next-line typescript/no-explicit-any -- an answer, whose fields the test asserts
): Promise<any> {
  const response = await fetch(`${hub.origin}/api/v1${path}`, {
    method,
    headers: {
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    body: body === undefined ? null : JSON.stringify(body),
  })
  const text = await response.text()
  assert.ok(response.ok, `${path}: ${response.status} ${text}`)
  return JSON.parse(text)
}

/** The processes that work in this data folder's cluster, hubs excepted; elsewhere its lock file. */
function postgresOf(dataDir: string): string[] {
  const cluster = join(dataDir, 'postgres', 'cluster')
  if (process.platform !== 'linux') return existsSync(join(cluster, 'postmaster.pid')) ? ['?'] : []
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readlinkSync(`/proc/${pid}/cwd`) === cluster
    } catch {
      // It ended meanwhile, or is somebody else's.
      return false
    }
  })
}

async function query(url: string, statement: string): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}

/** The path of a folder that does not exist yet; a PostgreSQL in it ends with its hub, before the folder. */
function folder(): string {
  const path = join(folders, String(++made))
  undo.push(() => until('its PostgreSQL to end', () => postgresOf(path).length === 0))
  return path
}
