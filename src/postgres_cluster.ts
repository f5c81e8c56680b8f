// The data of the embedded PostgreSQL and how it is reached: made once, in one step that either happened
// or didn't, and closed to every other local user. Starts no server.

import assert from 'node:assert/strict'
import { randomBytes, randomInt } from 'node:crypto'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ended, keepLines, lastWords, spawnProgram } from './postgres_process.ts'
import { giveTo, type Runner } from './postgres_programs.ts'

/** The major version the programs have; another version's data needs a dump and a restore. */
const majorVersion = '18'
const user = 'muster'
/** A part of the socket's name; no network port. */
const socketPort = 5432
/** `sun_path` is 108 bytes with its final NUL on Linux and 104 on macOS. */
const socketPathBytesMax = 103
/** Below every system's range of ephemeral ports, where a free one may be taken a moment later. */
const tcpPorts = { from: 20_000, to: 32_000 }

/** How to reach a server: arguments for it, and a URL for its clients. */
export interface Address {
  listen: string[]
  url: string
  /** Empty on TCP. */
  socketDir: string
}

/**
 * The data directory in `dataDir`, made when there is none. Throws when initdb fails or when the data is
 * of another major version.
 */
export async function prepareCluster(
  runner: Runner,
  dataDir: string,
  log: (message: string) => void,
): Promise<string> {
  const cluster = join(dataDir, 'cluster')
  if (!existsSync(cluster)) await createCluster(runner, dataDir, cluster, log)
  const found = readFileSync(join(cluster, 'PG_VERSION'), 'utf8').trim()
  if (found !== majorVersion) {
    throw new Error(
      `${cluster} holds data of PostgreSQL ${found} and the embedded one is ${majorVersion}: ` +
        'dump it with the Muster it comes from and restore it with this one',
    )
  }
  giveTo(runner, cluster)
  return cluster
}

/** Made in a draft folder and renamed, so that a half-made one is never taken for data. */
async function createCluster(
  runner: Runner,
  dataDir: string,
  cluster: string,
  log: (message: string) => void,
): Promise<void> {
  const draft = `${cluster}.new`
  const startedMs = performance.now()
  log(`creating the embedded PostgreSQL ${majorVersion} in ${dataDir}, run ${runner.description}`)
  rmSync(draft, { recursive: true, force: true })
  mkdirSync(draft, { mode: 0o700 })
  giveTo(runner, draft)
  // Only TCP asks for it. On the socket the closed folder is the lock.
  const password = passwordFile(dataDir)
  writeFileSync(password, randomBytes(24).toString('hex'), { mode: 0o600 })
  giveTo(runner, password)
  const args = ['-D', draft, '-U', user, '--pwfile', password, '--no-instructions']
  args.push('--auth-local=trust', '--auth-host=scram-sha-256')
  // Code points: an order of strings that no update of the system's locales changes under an index.
  args.push(
    '--encoding=UTF8',
    '--locale=C',
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
  )
  const child = spawnProgram(runner, 'initdb', args, 'KILL')
  const lines = keepLines(child)
  await ended(child)
  if (child.exitCode !== 0) {
    throw new Error(`initdb could not make ${draft}: ${await lastWords(child, lines)}`)
  }
  renameSync(draft, cluster)
  log(`created in ${((performance.now() - startedMs) / 1000).toFixed(1)} s`)
}

/** A socket in a folder that only its owner may enter; or, where there are none, loopback and a password. */
export function addressOf(runner: Runner, dataDir: string, tcp: boolean): Address {
  if (tcp) {
    const port = randomInt(tcpPorts.from, tcpPorts.to)
    const password = readFileSync(passwordFile(dataDir), 'utf8')
    return {
      listen: [
        '-p',
        `${port}`,
        '-c',
        'listen_addresses=127.0.0.1',
        '-c',
        'unix_socket_directories=',
      ],
      url: `postgres://${user}:${password}@127.0.0.1:${port}/postgres`,
      socketDir: '',
    }
  }
  const socketDir = makeSocketDir(dataDir, runner)
  const listen = ['-p', `${socketPort}`, '-c', 'listen_addresses=']
  listen.push('-c', `unix_socket_directories=${socketDir}`, '-c', 'unix_socket_permissions=0700')
  // Every parser of URLs wants a host; clients of PostgreSQL take the parameter instead.
  const host = encodeURIComponent(socketDir)
  return {
    listen,
    url: `postgres://${user}@localhost:${socketPort}/postgres?host=${host}`,
    socketDir,
  }
}

/** In the data folder, or a short folder of its own where that is too deep; `removeSocketDir` ends it. */
function makeSocketDir(dataDir: string, runner: Runner): string {
  const inside = join(dataDir, 'socket')
  const bytes = Buffer.byteLength(join(inside, `.s.PGSQL.${socketPort}`))
  const socketDir = bytes <= socketPathBytesMax ? inside : mkdtempSync(join(tmpdir(), 'muster-pg-'))
  mkdirSync(socketDir, { recursive: true, mode: 0o700 })
  giveTo(runner, socketDir)
  const { mode, uid } = lstatSync(socketDir)
  assert.equal(uid, runner.account?.uid ?? process.geteuid?.(), `${socketDir} is another user's`)
  assert.equal(mode & 0o077, 0, `${socketDir} can be entered by other users`)
  return socketDir
}

export function removeSocketDir(address: Address): void {
  if (address.socketDir) rmSync(address.socketDir, { recursive: true, force: true })
}

function passwordFile(dataDir: string): string {
  return join(dataDir, 'password')
}
