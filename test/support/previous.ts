// The version before this one, on the schema of this one: what a rollback leaves running. Its code is unpacked beside
// this checkout, and its own tests run on databases that these migrations made.
import { execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { promisify } from 'node:util'
import { removeFolder } from './folders.ts'
import { startServer, type SharedServer } from './postgres.ts'

export interface Previous {
  commit: string
  /** How it was found, for people. */
  why: string
  /** Whether it has every migration that is here. */
  sameSchema: boolean
}

/**
 * The newest tag behind `HEAD`. Before there is one: the newest commit with fewer migrations, all of which are as they
 * are here, for they may be edited as long as nobody has them. Null where the history holds neither.
 */
export function findPrevious(root: string): Previous | null {
  const git = (...args: string[]) =>
    String(execFileSync('git', ['-C', root, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })).trim()
  const lines = (text: string) => text.split('\n').filter(Boolean)
  const here = new Map(
    readdirSync(join(root, 'migrations')).map((name) => [
      name,
      git('hash-object', '--', join('migrations', name)),
    ]),
  )
  const migrationsOf = (commit: string) =>
    lines(git('ls-tree', commit, '--', 'migrations/')).map((line) => {
      const [, , blob = '', path = ''] = line.split(/\s+/)
      return { name: basename(path), isSame: here.get(basename(path)) === blob }
    })
  const head = git('rev-parse', 'HEAD')
  const tags = lines(git('tag', '--merged', 'HEAD', '--sort=-version:refname', '--list', 'v*'))
  for (const tag of tags) {
    const commit = git('rev-parse', `${tag}^{commit}`)
    if (commit === head) continue
    const sameSchema = migrationsOf(commit).filter(({ isSame }) => isSame).length === here.size
    return { commit, why: `the newest tag, ${tag}`, sameSchema }
  }
  for (const commit of lines(git('rev-list', '--first-parent', 'HEAD'))) {
    const migrations = migrationsOf(commit)
    if (migrations.length === 0) return null
    if (migrations.length >= here.size || !migrations.every(({ isSame }) => isSame)) continue
    const why = `there is no tag yet; the newest commit with fewer migrations, ${commit.slice(0, 12)}`
    return { commit, why, sameSchema: false }
  }
  return null
}

/**
 * Not of a hub on its database: programs, browsers, loads, Redis, what is only read or sent, plans (which a newer index
 * may change), and the schema itself.
 */
const others =
  /^(agent|bench|browser|chaos|embedded|executable|fuzz|gate|links|mail|migrate|openapi|pages|pressure|rate|redis|release|requests|rollout_fleet|start|terminal_browser|upgrade)|^downloads|_crash|_plans/

/** The tests that speak with a hub through its routes, or with its database; long ones first, so that none is left alone at the end. */
export function testsOfRoutes(checkout: string): string[] {
  const read = (name: string) => readFileSync(join(checkout, 'test', name), 'utf8')
  return readdirSync(join(checkout, 'test'))
    .filter((name) => name.endsWith('.test.ts') && !others.test(name))
    .map((name) => ({ file: join('test', name), text: read(name) }))
    .filter(({ text }) => /from '\.\/support\/(hub|postgres)\.ts'/.test(text))
    .toSorted((a, b) => b.text.length - a.text.length)
    .map(({ file }) => file)
}

export interface Check {
  root: string
  commit: string
  /** The migrations that make the schema. */
  migrations: string
  /** Test files of that commit; all of its routes' unless told. */
  files?: string[]
  /** What each file has to say. */
  onOutput: (text: string) => void
}

/** Runs tests of `commit` on databases with the schema of `migrations`. Returns whether all passed. */
export async function passesOnSchema(check: Check): Promise<boolean> {
  const { root, commit, migrations, onOutput } = check
  const checkout = mkdtempSync(join(tmpdir(), 'muster-previous-'))
  try {
    await unpack(root, commit, checkout)
    const files = check.files ?? testsOfRoutes(checkout)
    const server = await startServer(migrations)
    try {
      const { url, prefix } = server
      return await runTests(checkout, files, { url, prefix }, onOutput)
    } finally {
      await server.stop()
    }
  } finally {
    removeFolder(checkout)
  }
}

async function unpack(root: string, commit: string, checkout: string): Promise<void> {
  const archive = join(checkout, 'code.tar')
  execFileSync('git', ['-C', root, 'archive', '--output', archive, commit])
  execFileSync('tar', ['-xf', archive, '-C', checkout])
  const lock = (folder: string) => readFileSync(join(folder, 'package-lock.json'), 'utf8')
  if (lock(root) === lock(checkout) && existsSync(join(root, 'node_modules'))) {
    symlinkSync(join(root, 'node_modules'), join(checkout, 'node_modules'))
  } else {
    await promisify(execFile)('npm', ['ci', '--no-audit', '--no-fund'], { cwd: checkout })
  }
  // Tests that look at the working tree find one.
  writeFileSync(join(checkout, '.gitignore'), 'node_modules\n')
}

/** Each file by itself, in this order: `node --test` would sort them, and wait for a long one at the end. */
async function runTests(
  checkout: string,
  files: string[],
  server: SharedServer,
  onOutput: (text: string) => void,
): Promise<boolean> {
  const passes = async (file: string) => {
    const { code, said } = await runTest(checkout, file, server)
    onOutput(code === 0 ? `${file}: ${summaryOf(said)}\n` : `${file}:\n${said}\n`)
    return code === 0
  }
  const waiting = [...files]
  const doubtful: string[] = []
  const work = async () => {
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
      if (!(await passes(file))) doubtful.push(file)
    }
  }
  await Promise.all(Array.from({ length: filesAtOnce }, work))
  // Tests of old cannot be mended, and some watched the clock: what a schema breaks, it breaks alone and again.
  const failed: string[] = []
  for (const file of doubtful) if (!(await passes(file))) failed.push(file)
  if (failed.length > 0) onOutput(`failed: ${failed.join(' ')}\n`)
  return failed.length === 0
}

/**
 * Tests of a version that is not tagged yet which fail now and then on its own schema too, for what was mended since: an
 * end under way while its device went to another hub, and a sweep that was counted as a hint.
 */
const unsteady = 'a fleet that hops from hub to hub|a Redis that is emptied under load'

/** They wait more than they work. */
const filesAtOnce = 4

async function runTest(
  checkout: string,
  file: string,
  server: SharedServer,
): Promise<{ code: number | null; said: string }> {
  const { TEST_DATABASE_URL: _elsewhere, NODE_TEST_CONTEXT: _outer, ...env } = process.env
  // A test of old that fails may leave its hub running: the file ends with its last test all the same.
  const flags = ['--test-force-exit', '--test-reporter=spec', `--test-skip-pattern=${unsteady}`]
  const child = spawn(process.execPath, [...flags, file], {
    cwd: checkout,
    // Its databases are copies of this server's template, so its own migrations find newer ones applied.
    env: { ...env, MUSTER_TEST_SERVER: JSON.stringify(server) },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A bound on what hangs; the longest take one.
    timeout: 300_000,
  })
  let said = ''
  child.stdout.on('data', (chunk) => (said += String(chunk)))
  child.stderr.on('data', (chunk) => (said += String(chunk)))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, said }
}

/** The counts of a run, which must be there: a file that ran nothing proves nothing. */
function summaryOf(said: string): string {
  const passed = /pass (\d+)/.exec(said)?.[1] ?? '0'
  if (passed === '0') throw new Error(`no test ran: ${said}`)
  return `${passed} tests pass`
}
