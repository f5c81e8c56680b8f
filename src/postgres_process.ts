// One process of the embedded PostgreSQL: how it starts, is told to end, and what its last words were.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Runner } from './postgres_programs.ts'

/** A running kernel answers `true` in a millisecond. */
const probeMsMax = 10_000
/** Enough for a FATAL with its detail, hint and context. */
const keptLines = 12
/** What was written before the end is in the pipe already. */
const lastWordsMsMax = 500

/**
 * Starts a program in a session of its own, so that the terminal's Ctrl-C reaches the hub alone. Where
 * the system can, the kernel sends `deathSignal` when the hub ends without a word.
 */
export function spawnProgram(
  runner: Runner,
  program: 'initdb' | 'postgres',
  args: string[],
  deathSignal: 'INT' | 'KILL',
): ChildProcess {
  const command = [...runner.prefix]
  // Innermost: changing the account or the namespace would clear it.
  if (canBindToParent()) command.push('setpriv', `--pdeathsig=${deathSignal}`, '--')
  command.push(join(runner.native, 'bin', program), ...args)
  const [file = '', ...rest] = command
  const child = spawn(file, rest, {
    ...runner.identity,
    env: runner.env,
    cwd: '/',
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
    windowsHide: true,
  })
  // An `exit` of its own follows where it started; `ended` tells where it didn't.
  child.on('error', () => {})
  return child
}

/** INT: sessions end, all is written. QUIT: it ends at once and recovers at the next start. */
export function signalPostgres(
  runner: Runner,
  child: ChildProcess,
  signal: 'INT' | 'QUIT' | 'KILL',
): void {
  if (process.platform === 'win32' && signal !== 'KILL') {
    // Windows has no signals; PostgreSQL's own tool knows the pipe that stands for them.
    const pgCtl = join(runner.native, 'bin', 'pg_ctl')
    spawnSync(pgCtl, ['kill', signal, String(child.pid)], { env: runner.env })
    return
  }
  child.kill(`SIG${signal}`)
}

function canBindToParent(): boolean {
  if (process.platform !== 'linux') return false
  const args = ['--pdeathsig=INT', '--', 'true']
  return spawnSync('setpriv', args, { timeout: probeMsMax }).status === 0
}

/** Resolves when the process has ended, to a few words about how. */
export async function ended(child: ChildProcess): Promise<string> {
  if (child.pid === undefined) return 'it could not be started'
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  return child.signalCode ?? `exit code ${child.exitCode}`
}

/** Why a program ended, in its own words, when it had any. */
export async function lastWords(child: ChildProcess, lines: string[]): Promise<string> {
  const why = await ended(child)
  // Its end may overtake what it wrote; a process it left behind may keep the pipe open for ever.
  const drained = child.stderr?.closed === false ? once(child.stderr, 'close') : undefined
  await Promise.race([drained, sleep(lastWordsMsMax, undefined, { ref: false })])
  return [why, ...lines].join('; ')
}

/** The last lines a program wrote to stderr, kept up to date: they say why it ended. */
export function keepLines(child: ChildProcess, onLine?: (line: string) => void): string[] {
  const lines: string[] = []
  if (child.stderr === null) return lines
  createInterface(child.stderr).on('line', (line) => {
    lines.push(line)
    if (lines.length > keptLines) lines.shift()
    onLine?.(line)
  })
  return lines
}
