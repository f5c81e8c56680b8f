// The image as its Dockerfile builds it, on a Debian 13 of this machine's making where no base image can be fetched:
// built by buildah, then run as the compose file says, without an engine.
import assert from 'node:assert/strict'
import { execFile, spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import {
  chownSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  realpathSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { connect, createServer, type AddressInfo, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import pg from 'pg'
import { removeFolder } from '../support/folders.ts'
import { freePort } from '../support/hub_process.ts'
import { createDatabase, type TestDatabase } from '../support/postgres.ts'
import { without } from '../support/tools.ts'
import { until } from '../support/until.ts'

const run = promisify(execFile)
const root = join(import.meta.dirname, '..', '..')
/** The account of the image, as Dockerfile and compose file name it. */
const account = 10_001
const { version, scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  version: string
  scripts: { start: string }
}

interface ImageConfig {
  Env: string[]
  Cmd: string[]
  User: string
  WorkingDir: string
  StopSignal: string
  Volumes: Record<string, object>
  ExposedPorts: Record<string, object>
  Healthcheck: { Test: string[] }
}

let folder: string
let image: string
let config: ImageConfig
let database: TestDatabase
let bridge: Server

const skip =
  without('buildah') ||
  without('mmdebstrap') ||
  (process.getuid?.() !== 0 && 'needs root: it makes a root file system and enters it') ||
  refusal()

/** Why this machine lets nobody mount and enter file systems, as a container with few rights does. */
function refusal(): string | false {
  const tries = [
    ['unshare', '--mount', '--pid', '--fork', 'sh', '-ec', 'mount -t tmpfs tmpfs /mnt'],
    ['unshare', '--mount', 'chroot', '/', 'true'],
  ]
  for (const [program = '', ...args] of tries) {
    const { status, stderr } = spawnSync(program, args, { encoding: 'utf8' })
    if (status !== 0) return `this machine does not let it: ${args.join(' ')}: ${stderr.trim()}`
  }
  return false
}

describe('the image', { skip }, () => {
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'muster-image-'))
    await makeBase()
    const base = ['--build-arg', 'BASE=localhost/base', '--format', 'docker', '--network', 'host']
    await buildah('bud', '--pull-never', ...base, '--tag', 'localhost/muster', root)
    const container = await buildah('from', '--pull-never', 'localhost/muster')
    image = await buildah('mount', container)
    const inspected = await buildah('inspect', '--type', 'image', 'localhost/muster')
    config = (JSON.parse(inspected) as { Docker: { config: ImageConfig } }).Docker.config
    mkdirSync(join(folder, 'data'), { mode: 0o700 })
    chownSync(join(folder, 'data'), account, account)
    database = await createDatabase()
    bridge = await bridgeTo(database.url)
  })
  after(async () => {
    bridge?.close()
    await database?.drop()
    await buildah('rm', '--all').catch(() => {})
    await buildah('rmi', '--all', '--force').catch(() => {})
    removeFolder(folder)
  })

  test('it holds the hub and what the hub runs on, nothing of tests, agents or other platforms', () => {
    assert.deepEqual(readdirSync(join(image, 'app')).toSorted(), [
      'LICENSE',
      'migrations',
      'node_modules',
      'package.json',
      'pages',
      'scripts',
      'src',
      'workers',
    ])
    const { dependencies, devDependencies, optionalDependencies } = JSON.parse(
      readFileSync(join(root, 'package.json'), 'utf8'),
    ) as Record<string, Record<string, string>>
    const installed = (name: string) => existsSync(join(image, 'app', 'node_modules', name))
    for (const name of Object.keys(dependencies ?? {})) assert.ok(installed(name), name)
    for (const name of Object.keys({ ...devDependencies, ...optionalDependencies })) {
      assert.ok(!installed(name), `${name} is not for production`)
    }
    const addons = readdirSync(join(image, 'app', 'node_modules', 'uWebSockets.js')).filter(
      (file) => file.endsWith('.node'),
    )
    assert.deepEqual(addons, [
      `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`,
    ])
  })

  test('its account owns its data and may write nothing of the program', () => {
    const { uid, mode } = statSync(join(image, 'data'))
    assert.deepEqual([uid, mode & 0o777], [account, 0o700])
    for (const name of readdirSync(join(image, 'app'))) {
      const { uid: owner, mode: rights } = statSync(join(image, 'app', name))
      assert.deepEqual([owner, rights & 0o022], [0, 0], name)
    }
  })

  test('it says how it is run', () => {
    assert.deepEqual(
      [config.User, config.WorkingDir, config.StopSignal, Object.keys(config.Volumes)],
      ['10001:10001', '/app', 'SIGTERM', ['/data']],
    )
    assert.deepEqual(Object.keys(config.ExposedPorts), ['8080/tcp'])
    assert.deepEqual(config.Cmd, scripts.start.split(' '))
  })

  test('as that account, on a root file system that is read-only, it serves until it is stopped', async () => {
    const { port: databasePort } = bridge.address() as AddressInfo
    const port = await freePort()
    const { username, pathname } = new URL(database.url)
    const env = {
      PORT: String(port),
      DATABASE_URL: `postgres://${username}@127.0.0.1:${databasePort}${pathname}`,
      PUBLIC_API_URL: 'https://hub.example.com',
      JWT_SECRET: 'a test secret of more than 32 bytes',
      AGENT_ENROLLMENT_SECRET: 'enrollment-secret',
      METRICS_SCRAPE_TOKEN: 'scrape-token',
      ACME_EMAIL: 'ops@example.com',
      DRAIN_SECONDS: '0',
      LOG_LEVEL: 'warn',
    }
    const [kind, ...healthcheck] = config.Healthcheck.Test
    assert.equal(kind, 'CMD')
    assert.equal((await ended(inside(healthcheck, env))).code, 1, 'healthy before there is a hub')
    const hub = inside(config.Cmd, env)
    const stopped = ended(hub)
    try {
      await until('the image to say that it is healthy', async () => {
        if (hub.exitCode !== null) throw new Error(`the hub ended: ${(await stopped).said}`)
        return (await ended(inside(healthcheck, env))).code === 0
      })
      const answer = await fetch(`http://127.0.0.1:${port}/health`)
      assert.equal(((await answer.json()) as { version: string }).version, version)
      const pid = await pidOf(hub)
      const status = readFileSync(`/proc/${pid}/status`, 'utf8')
      assert.match(status, new RegExp(`^Uid:\\s+${account}\\s+${account}`, 'm'))
      assert.match(status, /^CapEff:\s+0+$/m)
      process.kill(pid, 'SIGTERM')
      const { code, said } = await stopped
      assert.equal(code, 0, said)
      assert.doesNotMatch(said, /EROFS|read-only/i)
    } finally {
      hub.kill('SIGKILL')
      await stopped
    }
  })

  test('what a deployment runs in it works there: migrations, and the invitation of an admin', async () => {
    const { port: databasePort } = bridge.address() as AddressInfo
    const { username, pathname } = new URL(database.url)
    const env = {
      DATABASE_URL: `postgres://${username}@127.0.0.1:${databasePort}${pathname}`,
      PUBLIC_API_URL: 'https://hub.example.com',
      JWT_SECRET: 'a test secret of more than 32 bytes',
      AGENT_ENROLLMENT_SECRET: 'enrollment-secret',
      METRICS_SCRAPE_TOKEN: 'scrape-token',
    }
    const migrated = await ended(inside(['node', 'scripts/migrate.ts'], env))
    assert.equal(migrated.code, 0, migrated.said)
    const invite = ['node', 'scripts/admin.ts', 'invite', 'ops@example.com']
    const invited = await ended(inside(invite, env))
    assert.equal(invited.code, 0, invited.said)
    assert.match(invited.said, /https:\/\/hub\.example\.com\/\S*#token=\S+/)
  })
})

/** Nothing of it is left on the machine: images and containers of these tests have a place of their own. */
async function buildah(...args: string[]): Promise<string> {
  const store = ['--root', join(folder, 'images'), '--runroot', join(folder, 'run')]
  const { stdout } = await run('buildah', [...store, '--storage-driver', 'vfs', ...args], {
    env: { ...process.env, BUILDAH_ISOLATION: 'chroot' },
    maxBuffer: 1 << 26,
  })
  return stdout.trim()
}

/** Debian 13 with Node and npm in /usr/local, as the official image of Node has them. */
async function makeBase(): Promise<void> {
  const context = join(folder, 'base')
  mkdirSync(context)
  await run('mmdebstrap', ['--quiet', '--variant=minbase', 'trixie', join(context, 'debian.tar')])
  copyFileSync(process.execPath, join(context, 'node'))
  cpSync(folderOfNpm(), join(context, 'npm'), { recursive: true, dereference: true })
  // Where certificates are checked against an authority of the site, npm must know it too.
  const authorities = '/etc/ssl/certs/ca-certificates.crt'
  if (existsSync(authorities)) copyFileSync(authorities, join(context, 'authorities.crt'))
  else writeFileSync(join(context, 'authorities.crt'), '')
  const lines = [
    'FROM scratch',
    'ADD debian.tar /',
    'COPY node /usr/local/bin/node',
    'COPY npm /usr/local/lib/node_modules/npm',
    'COPY authorities.crt /usr/local/share/authorities.crt',
    'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    'ENV NODE_EXTRA_CA_CERTS=/usr/local/share/authorities.crt',
    'RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm',
  ]
  writeFileSync(join(context, 'Dockerfile'), `${lines.join('\n')}\n`)
  await buildah('bud', '--format', 'docker', '--tag', 'localhost/base', context)
}

/** Not by `npm root`, which asks the Node in the path, and that may be the one in node_modules. */
function folderOfNpm(): string {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const program = folders.map((one) => join(one, 'npm')).find((file) => existsSync(file))
  assert.ok(program !== undefined, 'there is no npm in the path')
  return join(dirname(realpathSync(program)), '..')
}

/** Runs in the image what an engine would, with the compose file's user, root, /tmp and rights. */
function inside(command: string[], env: Record<string, string>): ChildProcess {
  const settings = [...config.Env, ...Object.entries(env).map((pair) => pair.join('='))]
  const mounts = [
    'mount --make-rprivate /',
    'mount --bind "$0" "$0"',
    'mount -o remount,bind,ro "$0"',
    'mount -t tmpfs tmpfs "$0/tmp"',
    'mount --bind "$1" "$0/data"',
    'mount -t proc proc "$0/proc"',
    'mount --bind /dev "$0/dev"',
    'root=$0; data=$1; shift',
    `exec setpriv --no-new-privs --bounding-set -all,+sys_chroot,+setuid,+setgid chroot --userspec=${account}:${account} "$root" /usr/bin/env --chdir=/app -i "$@"`,
  ]
  const args = ['--mount', '--pid', '--fork', '--kill-child', 'sh', '-ec', mounts.join('\n')]
  return spawn('unshare', [...args, image, join(folder, 'data'), ...settings, ...command], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
}

async function ended(child: ChildProcess): Promise<{ code: number | null; said: string }> {
  let said = ''
  child.stdout?.on('data', (chunk) => (said += String(chunk)))
  child.stderr?.on('data', (chunk) => (said += String(chunk)))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, said }
}

/** The program itself, below the one that made its namespaces. */
async function pidOf(child: ChildProcess): Promise<number> {
  const children = `/proc/${child.pid}/task/${child.pid}/children`
  return Number(readFileSync(children, 'utf8').trim())
}

/** Another account can't enter the folder of the tests' PostgreSQL: a port of this machine leads there. */
async function bridgeTo(url: string): Promise<Server> {
  const { host, port } = new pg.Client(url)
  const to = () =>
    host.startsWith('/') ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, host)
  const server = createServer((socket) => {
    const there = to()
    socket.on('error', () => there.destroy())
    there.on('error', () => socket.destroy())
    socket.pipe(there).pipe(socket)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server
}
