import assert from 'node:assert/strict'
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import {
  chmod,
  chown,
  cp,
  mkdir,
  mkdtemp,
  readFile,
  readlink,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, afterEach, before, test } from 'node:test'
import { Worker } from 'node:worker_threads'
import pg from 'pg'
import { startEmbedded, type EmbeddedOptions, type EmbeddedPostgres } from '../src/embedded.ts'
import { chooseRunner } from '../src/postgres_programs.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

const isRoot = process.geteuid?.() === 0
const onlyRoot = { skip: isRoot ? false : 'about being root' }
const onlyLinux = { skip: process.platform === 'linux' ? false : 'reads /proc' }

let root: string
let template: string
/** Undone after each test in reverse: a server stops before its folder goes. */
const undo: (() => unknown)[] = []

before(async () => {
  root = await mkdtemp(join(tmpdir(), 'muster-embedded-'))
  template = join(root, 'template')
  const server = await startEmbedded({ dataDir: template, log: () => {} })
  await query(server.url, 'create table kept (n int)')
  await server.stop()
})
afterEach(async () => {
  for (const step of undo.splice(0).toReversed()) await step()
})
after(() => removeFolder(root))

test('the first start says what it makes, and rows outlive stop and start', async () => {
  const dataDir = join(await folder(), 'new', 'deep')
  const said: string[] = []
  const first = await startEmbedded({ dataDir, log: (line) => said.push(line) })
  await query(first.url, 'create table t (n int)')
  await query(first.url, 'insert into t values (1)')
  await first.stop()
  await first.stop()
  assert.match(
    said.join('\n'),
    /creating the embedded PostgreSQL 18 in .*deep.*\ncreated in [\d.]+ s/,
  )

  const second = await started({ dataDir })
  assert.deepEqual(await query(second.url, 'select n from t'), [{ n: 1 }])
  assert.ok(new URL(second.url), 'a URL for every parser')
})

test('a half-made data folder is made again', async () => {
  const dataDir = await folder()
  await mkdir(join(dataDir, 'cluster.new', 'base'), { recursive: true })
  await writeFile(join(dataDir, 'cluster.new', 'PG_VERSION'), '18\n')
  const server = await started({ dataDir })
  assert.deepEqual(await query(server.url, 'select 1 as n'), [{ n: 1 }])
  assert.equal(existsSync(join(dataDir, 'cluster.new')), false)
})

test('it is durable, and nothing listens on the network', async () => {
  const server = await started({ dataDir: await data() })
  for (const [name, value] of [
    ['fsync', 'on'],
    ['synchronous_commit', 'on'],
    ['full_page_writes', 'on'],
    ['listen_addresses', ''],
    ['server_encoding', 'UTF8'],
  ]) {
    assert.deepEqual(await query(server.url, `show ${name}`), [{ [name ?? '']: value }])
  }
})

test('a killed hub leaves nothing that blocks the next one', onlyLinux, async () => {
  const dataDir = await data()
  const child = await childHub(dataDir)
  await query(child.url, 'insert into kept values (7)')
  child.process.kill('SIGKILL')
  await once(child.process, 'exit')
  const server = await started({ dataDir })
  assert.deepEqual(await query(server.url, 'select n from kept'), [{ n: 7 }])
  assert.equal(isAlive(child.pid), false, 'the old postmaster has ended')
})

test('a hub that exits without a word takes its server with it', async () => {
  const child = await childHub(await data(), 'exit')
  await until('the postmaster ended', () => !isAlive(child.pid))
})

test('a postmaster that nobody owns any more is stopped before the start', onlyLinux, async () => {
  const dataDir = await data()
  const orphan = await orphanPostmaster(dataDir)
  const said: string[] = []
  const server = await started({ dataDir, log: (line) => said.push(line) })
  assert.notEqual(server.pid, orphan)
  assert.match(said.join('\n'), new RegExp(`stopping PostgreSQL process ${orphan}`))
})

test('a killed postmaster is started again, and says so', async () => {
  const dataDir = await data()
  const said: string[] = []
  const server = await started({ dataDir, log: (line) => said.push(line) })
  await query(server.url, 'insert into kept values (1)')
  for (const round of [1, 2]) {
    const { pid } = server
    process.kill(pid, 'SIGKILL')
    await until(`it is back (${round})`, async () => {
      if (server.pid === pid) return false
      return (await query(server.url, 'select n from kept').catch(() => [])).length === 1
    })
  }
  assert.match(said.join('\n'), /PostgreSQL ended \(SIGKILL\); starting it again in 100 ms/)
})

test('stop() during a restart ends it', async () => {
  const server = await started({ dataDir: await data() })
  const { pid } = server
  process.kill(pid, 'SIGKILL')
  await until('it is being restarted', () => !isAlive(pid) || server.pid !== pid)
  await server.stop()
  await until('no postmaster is left', () => !isAlive(server.pid))
})

test('a stale lock file is removed where its pid is another program by now', async () => {
  const dataDir = await data()
  const bystander = spawn('sleep', ['60'])
  undo.push(() => bystander.kill())
  await writeFile(join(dataDir, 'cluster', 'postmaster.pid'), lockFile(bystander.pid ?? 0, dataDir))
  const server = await started({ dataDir })
  assert.deepEqual(await query(server.url, 'select 1 as n'), [{ n: 1 }])
  assert.equal(bystander.exitCode, null, 'it was left alone')
})

test('a stale lock file is removed where its postmaster is a zombie', onlyLinux, async () => {
  const dataDir = await data()
  // The shell starts a child and becomes a program that never asks how the child ended.
  const parent = spawn('sh', ['-c', 'true & exec sleep 60'])
  undo.push(() => parent.kill())
  const zombie = await until('a zombie', async () => {
    const children = await readFile(`/proc/${parent.pid}/task/${parent.pid}/children`, 'utf8')
    const pid = Number(children)
    const state = pid > 0 ? await readFile(`/proc/${pid}/stat`, 'utf8') : ''
    return /\) Z /.test(state) && pid
  })
  await writeFile(join(dataDir, 'cluster', 'postmaster.pid'), lockFile(zombie, dataDir))
  const server = await started({ dataDir })
  assert.deepEqual(await query(server.url, 'select 1 as n'), [{ n: 1 }])
})

test('a second start on the same folder is refused and names the holder', async () => {
  const dataDir = await data()
  const child = await childHub(dataDir)
  await assert.rejects(startEmbedded({ dataDir, log: () => {} }), {
    message: `${dataDir} is in use by another hub, process ${child.process.pid}`,
  })
  assert.ok(isAlive(child.pid), 'its server was left alone')
})

test('a failed start says why, and holds nothing', async () => {
  const dataDir = await data()
  await rm(join(dataDir, 'cluster', 'global', 'pg_control'))
  const start = () => startEmbedded({ dataDir, log: () => {} })
  await assert.rejects(start(), /PostgreSQL did not start: exit code \d; .*control/)
  await assert.rejects(start(), /PostgreSQL did not start/)
  await writeFile(join(dataDir, 'cluster', 'PG_VERSION'), '17\n')
  await assert.rejects(start(), /holds data of PostgreSQL 17 and the embedded one is 18: dump it/)
})

test('a deep folder gets a short one for its socket', async () => {
  const dataDir = join(await folder(), 'd'.repeat(60), 'e'.repeat(60))
  await cp(template, dataDir, { recursive: true, verbatimSymlinks: true })
  const server = await startEmbedded({ dataDir, log: () => {} })
  assert.deepEqual(await query(server.url, 'select 1 as n'), [{ n: 1 }])
  assert.equal((await stat(server.socketDir)).mode & 0o777, 0o700)
  await server.stop()
  assert.equal(existsSync(server.socketDir), false)
})

test('as root it runs without any privilege, and no other user gets in', onlyRoot, async () => {
  const server = await started({ dataDir: await data() })
  const status = await readFile(`/proc/${server.pid}/status`, 'utf8')
  assert.match(status, /^CapEff:\t0+$/m)
  const ls = spawnSync('ls', [server.socketDir], { uid: 65_534, gid: 65_534, encoding: 'utf8' })
  assert.match(ls.stderr, /Permission denied/)
})

test('as root it runs where only root may enter', onlyRoot, async () => {
  const closed = await folder()
  await chmod(closed, 0o700)
  const native = join(closed, 'package', 'native')
  await cp(installedNative(), native, { recursive: true, verbatimSymlinks: true })
  for (const namespaces of [true, false]) {
    const dataDir = join(closed, `data-${namespaces}`)
    const server = await started({ dataDir, native, namespaces })
    const [row] = await query(server.url, `select count(*)::int as n from pg_class`)
    assert.ok(row, `namespaces: ${namespaces}`)
    const programs = dirname(dirname(await readlink(`/proc/${server.pid}/exe`)))
    assert.equal(programs === native, namespaces, 'another account runs a copy')
    if (!namespaces) undo.push(() => removeFolder(programs))
  }
})

test('as root without namespaces it runs as another user in open folders', onlyRoot, async () => {
  const dataDir = await folder()
  await chmod(root, 0o711)
  await chmod(dataDir, 0o711)
  const server = await started({ dataDir, namespaces: false })
  const status = await readFile(`/proc/${server.pid}/status`, 'utf8')
  assert.doesNotMatch(status, /^Uid:\t0/m)
  assert.match(status, /^CapEff:\t0+$/m)
  const ls = spawnSync('ls', [server.socketDir], { uid: 65_534, gid: 65_534, encoding: 'utf8' })
  assert.match(ls.stderr, /Permission denied/)
})

test('an ordinary user runs it as that user', onlyRoot, async () => {
  const dataDir = await folder()
  await chmod(root, 0o711)
  await chown(dataDir, 65_534, 65_534)
  const child = await childHub(dataDir, 'wait', { uid: 65_534, gid: 65_534 })
  const status = await readFile(`/proc/${child.pid}/status`, 'utf8')
  assert.match(status, /^Uid:\t65534\t65534/m)
})

test('on TCP only the password lets in', async () => {
  const server = await started({ dataDir: await folder(), tcp: true })
  assert.deepEqual(await query(server.url, 'select 1 as n'), [{ n: 1 }])
  const guess = new URL(server.url)
  guess.password = 'guess'
  await assert.rejects(query(guess.href, 'select 1'), /password authentication failed/)
})

test('it has a session of its own and none of our environment', onlyLinux, async () => {
  process.env['JWT_SECRET'] = 'not-for-postgres'
  undo.push(() => delete process.env['JWT_SECRET'])
  const server = await started({ dataDir: await data() })
  const fields = (await readFile(`/proc/${server.pid}/stat`, 'utf8')).split(' ')
  assert.equal(Number(fields[5]), server.pid, "the terminal's Ctrl-C does not reach it")
  const environment = await readFile(`/proc/${server.pid}/environ`, 'utf8')
  assert.doesNotMatch(environment, /not-for-postgres/)
})

test('a worker thread is refused', async () => {
  const source = `import { startEmbedded } from ${JSON.stringify(import.meta.resolve('../src/embedded.ts'))}
    await startEmbedded({ dataDir: '/nowhere', log: () => {} })`
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`))
  const [error] = await once(worker, 'error')
  assert.match(String(error), /must be started on the main thread/)
})

async function folder(): Promise<string> {
  const made = await mkdtemp(join(root, 'd-'))
  undo.push(() => removeFolder(made))
  return made
}

/** A data folder with a server's data in it: faster than making it anew. */
async function data(): Promise<string> {
  const dataDir = join(await folder(), 'data')
  await cp(template, dataDir, { recursive: true, verbatimSymlinks: true })
  return dataDir
}

async function started(
  options: Omit<EmbeddedOptions, 'log'> & Partial<EmbeddedOptions>,
): Promise<EmbeddedPostgres> {
  const server = await startEmbedded({ log: () => {}, ...options })
  undo.push(server.stop)
  return server
}

interface ChildHub {
  process: ChildProcess
  url: string
  pid: number
}

async function childHub(
  dataDir: string,
  then = 'wait',
  identity: { uid?: number; gid?: number } = {},
): Promise<ChildHub> {
  const script = join(import.meta.dirname, 'support', 'embedded_child.ts')
  const child = spawn(process.execPath, [script, dataDir, then], {
    ...identity,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  undo.push(async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
    await until('its server ends with it', () => !isAlive(hub.pid))
  })
  const [line] = await once(createInterface(child.stdout), 'line')
  const hub: ChildHub = { process: child, ...JSON.parse(line) }
  return hub
}

/** What a hub leaves on a system where nothing ends its server with it. */
async function orphanPostmaster(dataDir: string): Promise<number> {
  const cluster = join(dataDir, 'cluster')
  const { prefix, env, native } = chooseRunner({ dataDir, cluster })
  const args = [
    '-D',
    cluster,
    '-c',
    'listen_addresses=',
    '-c',
    `unix_socket_directories=${dataDir}`,
  ]
  const [file = '', ...rest] = [...prefix, join(native, 'bin', 'postgres'), ...args]
  const child = spawn(file, rest, { env, detached: true, stdio: 'ignore' })
  undo.push(() => child.kill('SIGKILL'))
  await until('the orphan is ready', async () => {
    const text = await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '')
    return text.includes('ready')
  })
  return child.pid ?? 0
}

function lockFile(pid: number, dataDir: string): string {
  return [pid, join(dataDir, 'cluster'), 1_700_000_000, 5432, dataDir, '', '1 2', 'ready', ''].join(
    '\n',
  )
}

function installedNative(): string {
  const { native } = chooseRunner({ dataDir: template, cluster: join(template, 'cluster') })
  return native
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url)
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return !existsSync(`/proc/${pid}`) || !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'latin1'))
  } catch {
    return false
  }
}
