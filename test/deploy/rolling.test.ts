// deploy.sh as an operator runs it, with real hubs behind real Caddy on a real database: the first deployment, an
// upgrade with a migration, a secret that is rotated, and a version that does not work. Somebody asks all the while.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import pg from 'pg'
import { SimulatedAgent } from '../support/fleet.ts'
import { removeFolder } from '../support/folders.ts'
import type { Device } from '../support/hub.ts'
import { HubEngine } from '../support/hub_engine.ts'
import { createDatabase, type TestDatabase } from '../support/postgres.ts'
import { without } from '../support/tools.ts'
import { until } from '../support/until.ts'

const root = join(import.meta.dirname, '..', '..')
const password = 'correct horse battery'
const settings = {
  SERVICE_DOMAIN: 'hub.example.com',
  ACME_EMAIL: 'ops@example.com',
  POSTGRES_PASSWORD: 'postgres-password',
  JWT_SECRET: 'the first secret, longer than thirty-two bytes',
  AGENT_ENROLLMENT_SECRET: 'enrollment-secret',
  METRICS_SCRAPE_TOKEN: 'scrape-token-of-some-length',
  PUBLIC_API_URL: 'https://hub.example.com',
  GRAFANA_ADMIN_PASSWORD: 'grafana-password',
  // Where Caddy asks the hubs from.
  EDGE_SUBNET: '127.0.0.0/8',
  HUB_REPLICAS: '2',
}
const nextSecret = 'the second secret, longer than thirty-two bytes'

let folder: string
let database: TestDatabase
let engine: HubEngine
let token: string
let orgId: string
let agents: SimulatedAgent[]

describe('deployments', { skip: without('caddy') || without('curl') }, () => {
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'muster-rolling-'))
    database = await createDatabase({ migrated: false })
    engine = await HubEngine.start(folder, settings.SERVICE_DOMAIN)
    program('docker', `exec "${process.execPath}" "${forward}" "$@"`)
    program('getent', 'echo "203.0.113.1 STREAM $2"')
    program(
      'curl',
      `exec /usr/bin/env PATH="${process.env['PATH']}" curl --cacert "$CA_FILE" ` +
        `--connect-to "hub.example.com:443:${engine.edge}" "$@"`,
    )
  })
  after(async () => {
    for (const agent of agents ?? []) agent.stop()
    await engine?.close()
    await database?.drop()
    removeFolder(folder)
  })

  test('the first one makes the schema and serves at the public name, to whom it invites', async () => {
    const { code, out, err } = await deploy(checkout('1.0.0'))
    assert.equal(code, 0, err)
    assert.match(out, /Muster 1\.0\.0 serves at https:\/\/hub\.example\.com/)
    assert.deepEqual(versions(), ['1.0.0', '1.0.0'])
    const [, link = ''] = /accept-invite#token=(\S+)/.exec(out) ?? []
    const body = { token: link, password }
    const accepted = await edge().ask('POST', '/api/v1/auth/accept-invite', { body })
    assert.equal(accepted.status, 200)
    await signIn()
    const organizations = await edge().ask('GET', '/api/v1/organizations', asUser())
    orgId = organizations.body.data[0].id as string
    const devices = await Promise.all(Array.from({ length: 10 }, enroll))
    agents = devices.map((device) => new SimulatedAgent(device, edge().origin, edge().ca))
    await until('all agents to be online', () => agents.every(({ online }) => online))
  })

  test('an upgrade with a migration: no request fails, no agent is lost', async () => {
    const next = checkout('1.1.0', (copy) => {
      const migration = '-- minHub: 1.0.0\nalter table sites add column note text;\n'
      writeFileSync(join(copy, 'migrations', '9000_note.sql'), migration)
    })
    // The next secret is known from here on, and not used yet: step 1 of its rotation.
    const env = { ...settings, JWT_SECRET_PREVIOUS: nextSecret }
    const { code, out, err } = await whileAsked(() => deploy(next, env))
    assert.equal(code, 0, err)
    assert.match(out, /migrations +9000_note/)
    assert.deepEqual(versions(), ['1.1.0', '1.1.0'])
    const [column] = await rowsOf(
      `select 1 as found from information_schema.columns where table_name = 'sites' and column_name = 'note'`,
    )
    assert.deepEqual(column, { found: 1 })
    assert.ok(
      agents.some(({ moves }) => moves > 1),
      'nobody was asked to move',
    )
  })

  test('a rotated JWT_SECRET, as the guide says it: tokens from before are good at every hub', async () => {
    const tokenBefore = token
    const swapped = { JWT_SECRET: nextSecret, JWT_SECRET_PREVIOUS: settings.JWT_SECRET }
    const { code, err } = await whileAsked(() =>
      deploy(join(folder, '1.1.0'), { ...settings, ...swapped }),
    )
    assert.equal(code, 0, err)
    assert.deepEqual(replaced(), ['muster-hub-1', 'muster-hub-2'])
    await signIn()
    for (const one of [tokenBefore, token]) {
      const headers = { authorization: `Bearer ${one}` }
      const answers = engine.origins().map((hub) => fetch(`${hub}/api/v1/devices`, { headers }))
      const statuses = (await Promise.all(answers)).map(({ status }) => status)
      assert.deepEqual(statuses, [200, 200])
    }
  })

  test('a version that does not get healthy: the old one is put back and serves on, nobody notices', async () => {
    const broken = checkout('1.2.0', (copy) => {
      const file = join(copy, 'src', 'resources', 'health.ts')
      const code = readFileSync(file, 'utf8')
      writeFileSync(file, code.replace('ctx.draining() ||', 'true ||'))
      assert.notEqual(readFileSync(file, 'utf8'), code)
    })
    const env = { ...settings, JWT_SECRET: nextSecret, DEPLOY_WAIT_SECONDS: '15' }
    const { code, out, err } = await whileAsked(() => deploy(broken, env))
    assert.equal(code, 1)
    assert.match(err, /muster-hub-1 is starting; its last lines:/)
    assert.match(err, /putting 1\.1\.0-\w+ back in the place of hub 1/)
    assert.match(err, /deploy: failed while replacing hub 1 of 2/)
    assert.match(err, /hubs of 1\.1\.0-\w+ that were not replaced yet serve on/)
    assert.match(err, /put right what failed and run this again, or check out the previous tag/)
    assert.doesNotMatch(out, /replacing hub 2/)
    assert.deepEqual(versions(), ['1.1.0', '1.1.0'])
  })

  test('through all of that no device was shown offline', async () => {
    assert.deepEqual(
      agents.flatMap(({ losses }) => losses),
      [],
    )
    const rows = await rowsOf(`select type from events where type = 'device.offline'`)
    assert.deepEqual(rows, [])
  })
})

const forward = join(import.meta.dirname, 'programs', 'forward.ts')

/** Programs in the place of those that need an engine, or a public name. */
function program(name: string, body: string): void {
  mkdirSync(join(folder, 'bin'), { recursive: true })
  const file = join(folder, 'bin', name)
  writeFileSync(file, `#!/bin/sh\n${body}\n`)
  chmodSync(file, 0o755)
}

/** This code as another version, in a repository of its own. */
function checkout(version: string, change: (copy: string) => void = () => {}): string {
  const copy = join(folder, version)
  mkdirSync(copy)
  const code = [
    'deploy.sh',
    'deploy',
    'docker-compose.yml',
    'migrations',
    'pages',
    'scripts',
    'src',
    'workers',
  ]
  for (const name of code) cpSync(join(root, name), join(copy, name), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  const manifest = readFileSync(join(root, 'package.json'), 'utf8')
  const named = manifest.replace(/"version": "[^"]+"/, `"version": "${version}"`)
  writeFileSync(join(copy, 'package.json'), named)
  writeFileSync(join(copy, '.gitignore'), 'node_modules\nreleases\nrelease-keys\n')
  change(copy)
  const git = (...args: string[]) => execFileSync('git', ['-C', copy, ...args])
  git('init', '--quiet')
  git('add', '--all')
  const author = ['-c', 'user.name=Operator', '-c', 'user.email=ops@example.com']
  git(...author, 'commit', '--quiet', '--no-verify', '--message', version)
  return copy
}

function deploy(
  copy: string,
  env: Record<string, string> = settings,
): Promise<{ code: number; out: string; err: string }> {
  engine.calls.length = 0
  const all = {
    PATH: `${join(folder, 'bin')}:${process.env['PATH']}`,
    HOME: folder,
    ENGINE_URL: engine.url,
    CA_FILE: join(folder, 'data', 'caddy', 'pki', 'authorities', 'local', 'root.crt'),
    NODE_COMPILE_CACHE: join(folder, 'compiled'),
    DATABASE_URL: addressForPeople(),
    ...env,
  }
  return new Promise((resolve) => {
    execFile(join(copy, 'deploy.sh'), { env: all }, (error, out, err) =>
      resolve({ code: typeof error?.code === 'number' ? error.code : error ? -1 : 0, out, err }),
    )
  })
}

/** As deploy.sh wants it: no slash but those around the host. */
function addressForPeople(): string {
  const url = new URL(database.url)
  const query = [...url.searchParams].map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
  url.search = query.join('&')
  return url.href
}

/** Reads and writes through Caddy until `work` has ended; every single answer must be the right one. */
async function whileAsked<T>(work: () => Promise<T>): Promise<T> {
  const answers = new Map<string, number>()
  const enough = new AbortController()
  const count = (what: string) => answers.set(what, (answers.get(what) ?? 0) + 1)
  const ask = async (index: number) => {
    while (!enough.signal.aborted) {
      const body = { name: `Site ${index} ${Math.random()}`, orgId }
      const [method, path] = index % 2 ? ['GET', '/devices'] : ['POST', '/sites']
      const options = { ...asUser(), ...(index % 2 ? {} : { body }) }
      await edge()
        .ask(method ?? '', `/api/v1${path}`, options)
        .then(
          (answer) => {
            const why = answer.status < 300 ? '' : ` ${JSON.stringify(answer.body ?? null)}`
            count(`${method} ${answer.status}${why}`)
          },
          (error: unknown) => count(`${method} ${String(error)}`),
        )
    }
  }
  const asking = [0, 1, 2, 3].map(ask)
  try {
    return await work()
  } finally {
    enough.abort()
    await Promise.all(asking)
    assert.deepEqual([...answers.keys()].toSorted(), ['GET 200', 'POST 201'])
  }
}

function edge() {
  const { caddy } = engine
  assert.ok(caddy, 'Caddy was not started')
  return caddy
}

async function signIn(): Promise<void> {
  const body = { email: settings.ACME_EMAIL, password }
  const answer = await edge().ask('POST', '/api/v1/auth/login', { body })
  assert.equal(answer.status, 200)
  token = answer.body.accessToken as string
}

const asUser = () => ({ headers: { authorization: `Bearer ${token}` } })

async function enroll(): Promise<Device> {
  const enrollmentSecret = settings.AGENT_ENROLLMENT_SECRET
  const body = { enrollmentSecret, hostname: 'behind', os: 'linux', arch: 'amd64' }
  const enrolled = await edge().ask('POST', '/api/v1/agents/enroll', { body })
  assert.equal(enrolled.status, 201)
  return enrolled.body as Device
}

const versions = () =>
  Object.entries(engine.running())
    .toSorted(([a], [b]) => a.localeCompare(b))
    .map(([, tag]) => tag.split('-')[0])

const replaced = () =>
  engine.calls.filter((call) => call.startsWith('stop')).map((call) => call.split(' ').at(-1))

async function rowsOf(text: string): Promise<unknown[]> {
  const client = new pg.Client(database.url)
  await client.connect()
  try {
    return (await client.query(text)).rows as unknown[]
  } finally {
    await client.end()
  }
}
