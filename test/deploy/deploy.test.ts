// deploy.sh from the first deployment to the rollback, on a stand-in for the engine: what it does, in which order,
// and what still serves when a step fails.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, beforeEach, describe, test } from 'node:test'
import { removeFolder } from '../support/folders.ts'
import type { State } from './programs/engine.ts'

const root = join(import.meta.dirname, '..', '..')
const folder = mkdtempSync(join(tmpdir(), 'muster-deploy-'))
const stateFile = join(folder, 'state.json')
const callsFile = join(folder, 'calls')
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  version: string
}
const migrations = readdirSync(join(root, 'migrations')).map((file) => basename(file, '.sql'))
const settings = {
  SERVICE_DOMAIN: 'hub.example.com',
  ACME_EMAIL: 'ops@example.com',
  POSTGRES_PASSWORD: 'postgres-password',
  JWT_SECRET: 'a secret of more than thirty-two bytes',
  AGENT_ENROLLMENT_SECRET: 'enrollment-secret',
  METRICS_SCRAPE_TOKEN: 'scrape-token-of-some-length',
  PUBLIC_API_URL: 'https://hub.example.com',
  GRAFANA_ADMIN_PASSWORD: 'grafana-password',
}
const old = '0.0.9-0123456789ab'

/** Programs in the place of those that need an engine, a name or time. */
program(
  'docker',
  `exec "${process.execPath}" "${join(import.meta.dirname, 'programs', 'engine.ts')}" "$@"`,
)
program('getent', '[ -n "$NO_DNS" ] && exit 2; echo "203.0.113.1 STREAM $2"')
program('curl', `echo '{"status":"ok","version":"'"\${OUTSIDE:-${version}}"'"}'`)
program('sleep', ':')

after(() => removeFolder(folder))

function program(name: string, body: string): void {
  const file = join(folder, name)
  writeFileSync(file, `#!/bin/sh\n${body}\n`)
  chmodSync(file, 0o755)
}

function begin(state: Partial<State> = {}): void {
  const none = { containers: {}, migrations: [], backups: [], admins: 0, sick: [], failing: null }
  const empty: State = none
  writeFileSync(stateFile, JSON.stringify({ ...empty, ...state }))
  writeFileSync(callsFile, '')
}

const state = () => JSON.parse(readFileSync(stateFile, 'utf8')) as State
const calls = () => readFileSync(callsFile, 'utf8').trim().split('\n')
const tagOf = (hub: number) => state().containers[`muster-hub-${hub}`]?.image.replace('muster:', '')

/** A deployment of the old version, with its database and two hubs. */
function running(more: Partial<State> = {}): void {
  const hub = { image: `muster:${old}`, health: 'healthy' } as const
  const containers = { 'muster-hub-1': hub, 'muster-hub-2': hub }
  const backups = ['muster-0.dump']
  begin({ containers, migrations: migrations.slice(0, 1), backups, admins: 1, ...more })
}

function deploy(
  args: string[] = [],
  env: Record<string, string> = settings,
): Promise<{ code: number; out: string; err: string }> {
  const all = {
    PATH: `${folder}:${process.env['PATH']}`,
    HOME: folder,
    ENGINE_STATE: stateFile,
    ENGINE_CALLS: callsFile,
    RELEASES_DIR: join(folder, 'releases'),
    RELEASE_KEYS_DIR: join(folder, 'release-keys'),
    HUB_REPLICAS: '2',
    DEPLOY_WAIT_SECONDS: '3',
    NODE_COMPILE_CACHE: join(folder, 'compiled'),
    ...env,
  }
  return new Promise((resolve) => {
    execFile(join(root, 'deploy.sh'), args, { env: all, cwd: folder }, (error, out, err) =>
      resolve({ code: typeof error?.code === 'number' ? error.code : error ? -1 : 0, out, err }),
    )
  })
}

const ourTag = () => {
  const commit = execFileSync('git', ['rev-parse', '--short=12', 'HEAD'], { cwd: root })
  return `${version}-${String(commit).trim()}`
}
const isOurs = (tag: string | undefined) => tag?.startsWith(ourTag()) === true
/** Those that change something, in order, each by its first telling words. */
const changes = () =>
  calls().filter((call) => !/^(info|ps|inspect|exec|compose version|logs)|psql|newest/.test(call))

describe('settings', () => {
  beforeEach(() => begin())

  test('each one that is missing is named at once, before anything is asked or touched', async () => {
    const { code, err } = await deploy([], {})
    assert.equal(code, 78)
    for (const name of Object.keys(settings)) assert.match(err, new RegExp(`${name} is missing`))
    assert.deepEqual(calls(), [''])
  })

  for (const name of Object.keys(settings)) {
    test(`without ${name} it stops and says so`, async () => {
      const { code, err } = await deploy([], { ...settings, [name]: '' })
      assert.deepEqual(
        [code, err.includes(`1 setting(s)`), err.includes(`${name} is missing`)],
        [78, true, true],
      )
      assert.deepEqual(calls(), [''])
    })
  }

  test('what is malformed is named, and no secret is repeated', async () => {
    const wrong = {
      ...settings,
      SERVICE_DOMAIN: 'https://hub.example.com',
      ACME_EMAIL: 'nobody',
      POSTGRES_PASSWORD: 'has/a/slash and more',
      JWT_SECRET: 'short-secret',
      METRICS_SCRAPE_TOKEN: 'two words that are long',
      PUBLIC_API_URL: 'http://hub.example.com',
      REDIS_MAXMEMORY: 'much',
      HUB_REPLICAS: '0',
      DATABASE_URL: 'mysql://x/y',
      REDIS_MAXMEMORY_POLICY: 'forget',
      DEPLOY_WAIT_SECONDS: 'long',
      EDGE_SUBNET: 'here',
      ADMIN_EMAIL: 'root',
      ADMIN_PASSWORD: 'a short one',
      JWT_SECRET_PREVIOUS: 'short-secret',
      SMTP_URL: 'mail.example.com',
      LOG_LEVEL: 'loud',
      SHARDS: '65',
      WEBHOOK_ALLOWED_CIDRS: 'everywhere',
      BACKUP_HOUR: '24',
      BACKUP_KEEP_DAYS: '0',
      HUB_CPUS: '0',
      HUB_MEMORY: 'all',
      POSTGRES_CPUS: 'two',
      POSTGRES_MEMORY: '4 G',
      POSTGRES_SHARED_BUFFERS: '512M',
      PROMETHEUS_RETENTION: 'a month',
      PROMETHEUS_RETENTION_SIZE: '10',
    }
    const { code, err } = await deploy([], wrong)
    assert.equal(code, 78)
    for (const name of Object.keys(wrong)) {
      const expected = !['AGENT_ENROLLMENT_SECRET', 'GRAFANA_ADMIN_PASSWORD'].includes(name)
      assert.equal(new RegExp(`^deploy:   ${name} `, 'm').test(err), expected, name)
    }
    for (const secret of ['slash', 'short-secret', 'two words', 'a short one'])
      assert.ok(!err.includes(secret))
  })

  test('what the guide and the compose file have as examples is not malformed', async () => {
    const right = {
      ...settings,
      REDIS_MAXMEMORY: '256mb',
      REDIS_MAXMEMORY_POLICY: 'allkeys-lru',
      ADMIN_EMAIL: 'root@example.com',
      ADMIN_PASSWORD: 'a long password',
      JWT_SECRET_PREVIOUS: 'another secret of more than thirty-two bytes',
      SMTP_URL: 'smtps://user:password@mail.example.com:465/?from=hub@example.com',
      LOG_LEVEL: 'debug',
      SHARDS: '64',
      WEBHOOK_ALLOWED_CIDRS: '10.0.0.0/8, fd00::/8',
      BACKUP_HOUR: '0',
      BACKUP_KEEP_DAYS: '14',
      HUB_CPUS: '0.5',
      HUB_MEMORY: '2G',
      POSTGRES_CPUS: '2',
      POSTGRES_MEMORY: '4096M',
      POSTGRES_SHARED_BUFFERS: '512MB',
      PROMETHEUS_RETENTION: '30d',
      PROMETHEUS_RETENTION_SIZE: '10GB',
      EDGE_SUBNET: '172.31.250.0/24',
    }
    const { code, err } = await deploy(['--plan'], right)
    assert.equal(code, 0, err)
  })

  test('an address that leads elsewhere is noticed', async () => {
    const { code, err } = await deploy([], {
      ...settings,
      PUBLIC_API_URL: 'https://api.example.com',
    })
    assert.equal(code, 78)
    assert.match(
      err,
      /PUBLIC_API_URL is at api\.example\.com, and SERVICE_DOMAIN is hub\.example\.com/,
    )
  })

  test('a file is read line by line and not run; what the shell holds does not count', async () => {
    const file = join(folder, 'production.env')
    const lines = Object.entries({
      ...settings,
      GRAFANA_ADMIN_PASSWORD: '$(touch ran) and `touch ran`',
    })
    writeFileSync(
      file,
      `# settings\n\n${lines.map(([name, value], n) => `${n % 2 ? 'export ' : ''}${name}="${value}"\r`).join('\n')}`,
    )
    const { code, err } = await deploy(['--env', file, '--plan'], { JWT_SECRET_PREVIOUS: 'short' })
    assert.equal(code, 0, err)
    assert.ok(!existsSync(join(folder, 'ran')) && !existsSync(join(root, 'ran')))
  })

  test('a file with a misspelt name or a broken line is refused by line', async () => {
    const file = join(folder, 'wrong.env')
    writeFileSync(file, 'JWT_SECRT=x\nnonsense\n')
    const { code, err } = await deploy(['--env', file], settings)
    assert.equal(code, 78)
    assert.match(err, /wrong\.env line 1: JWT_SECRT is no setting/)
    assert.match(err, /wrong\.env line 2 is not NAME=value/)
    assert.match(err, /JWT_SECRET is missing/)
  })

  test('unknown arguments print how it is used', async () => {
    const { code, err } = await deploy(['--force'])
    assert.equal(code, 64)
    assert.match(err, /--env FILE/)
  })
})

describe('a first deployment', () => {
  beforeEach(() => begin())

  test('builds, starts the data, migrates, invites, starts hubs and then the edge', async () => {
    const { code, out, err } = await deploy()
    assert.equal(code, 0, err)
    const done = changes()
    const at = (pattern: RegExp) => done.findIndex((call) => pattern.test(call))
    const order = [
      /^compose build hub-1/,
      /^compose up --detach --wait redis postgres/,
      /scripts\/migrate\.ts/,
      /scripts\/admin\.ts invite ops@example\.com/,
      /--no-deps hub-1$/,
      /--no-deps hub-2$/,
      /up --detach --no-deps caddy prometheus grafana backup/,
      /caddy reload/,
    ].map(at)
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
      done.join('\n'),
    )
    assert.ok(order[0] !== -1 && !done.some((call) => call.endsWith('backup once')))
    assert.deepEqual([isOurs(tagOf(1)), isOurs(tagOf(2))], [true, true])
    assert.equal(out.split('accept-invite#token=').length, 2, 'the link is printed once')
  })

  test('a database elsewhere needs none here', async () => {
    const { code } = await deploy([], {
      ...settings,
      DATABASE_URL: 'postgres://u:p@db.example.com/muster',
    })
    assert.equal(code, 0)
    assert.ok(changes().includes('compose up --detach --wait redis'))
  })

  test('a name without an address is told before anything is built', async () => {
    const { code, err } = await deploy([], { ...settings, NO_DNS: '1' })
    assert.equal(code, 1)
    assert.match(err, /hub\.example\.com has no address: make a DNS record/)
    assert.deepEqual(changes(), [])
  })

  test('an admin of the settings is not invited too', async () => {
    const admin = { ADMIN_EMAIL: 'root@example.com', ADMIN_PASSWORD: 'a long password' }
    assert.equal((await deploy([], { ...settings, ...admin })).code, 0)
    assert.ok(!changes().some((call) => call.includes('admin.ts')))
  })
})

test('an invitation that was never shown is made by the next deployment', async () => {
  begin({ failing: 'admin.ts invite' })
  assert.equal((await deploy()).code, 1)
  writeFileSync(stateFile, JSON.stringify({ ...state(), failing: null }))
  const { code, out } = await deploy()
  assert.deepEqual([code, out.includes('accept-invite#token=')], [0, true])
})

describe('an upgrade', () => {
  beforeEach(() => running())

  test('backs up before it migrates, and replaces one hub after the other', async () => {
    const { code, out, err } = await deploy()
    assert.equal(code, 0, err)
    const done = changes()
    const backup = done.findIndex((call) => call.endsWith('backup once'))
    const migrate = done.findIndex((call) => call.endsWith('scripts/migrate.ts'))
    assert.ok(backup !== -1 && backup < migrate)
    assert.deepEqual(
      done.filter((call) => /^(stop|rm)|--no-deps hub/.test(call)),
      [
        'stop --time 90 muster-hub-1',
        'rm muster-hub-1',
        'compose up --detach --no-deps hub-1',
        'stop --time 90 muster-hub-2',
        'rm muster-hub-2',
        'compose up --detach --no-deps hub-2',
      ],
    )
    assert.deepEqual([isOurs(tagOf(1)), isOurs(tagOf(2))], [true, true])
    assert.ok(!out.includes('accept-invite'))
  })

  test('a plan tells all of that and changes nothing', async () => {
    const before = state()
    const { code, out } = await deploy(['--plan'])
    assert.equal(code, 0)
    assert.match(out, new RegExp(`running +${old}`))
    assert.match(out, new RegExp(`migrations +${migrations.slice(1).join(' ')}`))
    assert.match(out, /last backup +muster-0\.dump/)
    assert.match(
      out,
      /rollback +only by restoring the backup: 0\.0\.9 does not run on the new schema/,
    )
    assert.deepEqual(changes(), [])
    assert.deepEqual(state(), before)
  })

  test('where the old version runs on the new schema, going back is possible', async () => {
    running({ migrations })
    assert.match((await deploy(['--plan'])).out, /rollback +possible/)
  })

  test('run twice, the second time replaces nobody', async () => {
    await deploy()
    writeFileSync(callsFile, '')
    const { code } = await deploy()
    assert.equal(code, 0)
    assert.ok(!changes().some((call) => /^(stop|rm)/.test(call)))
  })

  test('a secret that changed reaches every hub, although the version is the same', async () => {
    await deploy()
    writeFileSync(callsFile, '')
    const { code } = await deploy([], { ...settings, METRICS_SCRAPE_TOKEN: 'another-scrape-token' })
    assert.equal(code, 0)
    const stopped = changes().filter((call) => call.startsWith('stop'))
    assert.deepEqual(stopped, ['stop --time 90 muster-hub-1', 'stop --time 90 muster-hub-2'])
    assert.ok(!readFileSync(stateFile, 'utf8').includes('another-scrape-token'))
  })

  test('settings that are wrong cost one hub at most, and are blamed', async () => {
    await deploy()
    writeFileSync(stateFile, JSON.stringify({ ...state(), sick: [tagOf(1)] }))
    const { code, err } = await deploy([], { ...settings, JWT_SECRET: 'x'.repeat(40) })
    assert.equal(code, 1)
    assert.match(err, /hub 1 is left out: its version ran before, so look at the settings/)
    assert.deepEqual([tagOf(1), isOurs(tagOf(2))], [undefined, true])
  })

  test('fewer replicas: what is too much goes last', async () => {
    const { code } = await deploy([], { ...settings, HUB_REPLICAS: '1' })
    assert.equal(code, 0)
    assert.deepEqual([isOurs(tagOf(1)), tagOf(2)], [true, undefined])
  })

  // Whatever fails, the old hubs that were not replaced serve on, and the next run goes on from there.
  const failures: [string, RegExp, string[]][] = [
    ['compose build', /failed while building/, [old, old]],
    ['up --detach --wait', /failed while starting redis postgres/, [old, old]],
    ['to_regclass', /failed while looking at the database/, [old, old]],
    ['backup once', /failed while backing up the database/, [old, old]],
    ['scripts/migrate', /failed while migrating the database/, [old, old]],
    ['stop --time 90 muster-hub-1', /failed while replacing hub 1 of 2/, [old, old]],
    ['stop --time 90 muster-hub-2', /failed while replacing hub 2 of 2/, ['new', old]],
    ['no-deps caddy', /failed while starting Caddy/, ['new', 'new']],
    ['caddy reload', /failed while starting Caddy/, ['new', 'new']],
  ]
  for (const [failing, message, tags] of failures) {
    test(`"${failing}" fails: what serves is told and serves on`, async () => {
      running({ failing })
      const { code, err } = await deploy()
      assert.equal(code, 1)
      assert.match(err, message)
      assert.match(err, new RegExp(`hubs of ${old}`))
      const found = [1, 2].map((hub) => (isOurs(tagOf(hub)) ? 'new' : tagOf(hub)))
      assert.deepEqual(found, tags)

      writeFileSync(stateFile, JSON.stringify({ ...state(), failing: null }))
      assert.equal((await deploy()).code, 0, 'and the next run succeeds')
      assert.deepEqual([isOurs(tagOf(1)), isOurs(tagOf(2))], [true, true])
    })
  }

  test('a new version that does not become healthy is taken out, and the old one put back', async () => {
    const tags = [ourTag(), `${ourTag()}-changed`]
    running({ sick: tags })
    const { code, err } = await deploy()
    assert.equal(code, 1)
    assert.match(err, /muster-hub-1 is unhealthy; its last lines:\na last line/)
    assert.match(err, new RegExp(`putting ${old} back in the place of hub 1`))
    assert.deepEqual([tagOf(1), tagOf(2)], [old, old])
  })

  test('another version at the public address is no success', async () => {
    const { code, err } = await deploy([], { ...settings, OUTSIDE: '0.0.9' })
    assert.equal(code, 1)
    assert.match(err, /https:\/\/hub\.example\.com\/health answers 0\.0\.9 instead of/)
  })
})
