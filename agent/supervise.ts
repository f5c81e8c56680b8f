// `run --supervised`: a parent that keeps the agent running and judges its upgrades, and the child's view of it.
// It stays what it was started as: an upgrade changes the child, and the supervisor with its next own start.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fullJitterMs } from './backoff.ts'
import { describe, exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { stableConnectionMs, stopMsMax, superviseKillMs, trialWordsMax } from './limits.ts'
import { takeLock } from './lock.ts'
import { openLog } from './log.ts'
import type { Log } from './log.ts'
import { startTimeOf } from './processes.ts'
import { installedProgram, selfCommand } from './programs.ts'
import { prepareState, requireIdentity } from './state.ts'
import type { State } from './state.ts'
import { killPoint } from './test_build.ts'
import { placesOf } from './upgrade/places.ts'
import { isOnTrial, readRecord, writeRecord } from './upgrade/record.ts'
import { recover, rollBack } from './upgrade/recover.ts'
import { watchTrial } from './upgrade/watch.ts'
import type { ChildEnd } from './upgrade/watch.ts'

// What a supervisor tells its child. Other versions read them: their meaning stays.
const supervised = 'MUSTER_AGENT_SUPERVISED'
const trial = 'MUSTER_AGENT_TRIAL'
const program = 'MUSTER_AGENT_PROGRAM'

/** Whether this process is the child of a supervisor. */
export function isSupervised(): boolean {
  return process.env[supervised] !== undefined
}

/** Whether this process is on trial. */
export function isTrial(): boolean {
  return isSupervised() && process.env[trial] !== undefined
}

/** Calls back when the supervisor is gone: a child without one would block the next supervisor. */
export function onSupervisorGone(callback: () => void): void {
  if (!isSupervised()) return
  process.stdin.on('end', callback).on('error', callback).resume()
}

/**
 * Waits for the line with which the supervisor begins a trial, once it has noted the process; false when it is
 * gone instead. A trial that nobody knows of must never commit.
 */
export function trialMayBegin(): Promise<boolean> {
  return new Promise((resolve) => {
    process.stdin.once('data', () => resolve(true)).once('end', () => resolve(false))
  })
}

/** Keeps an agent running until it is stopped, decommissioned or not usable at all. */
export async function supervise(state: State): Promise<ExitCode> {
  requireIdentity(state)
  prepareState(state)
  const lock = await takeLock(state.supervisorLock)
  try {
    return await keepRunning(state)
  } finally {
    lock.release()
  }
}

async function keepRunning(state: State): Promise<ExitCode> {
  const stopping = new AbortController()
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => stopping.abort())
  const log = openLog(state.log)
  let trying = false
  for (let attempt = 0; ; attempt++) {
    const startedAt = Date.now()
    const code: number | null = trying
      ? await runTrial(state, log, stopping.signal)
      : await runChild(state, log, await recover(state, log), stopping.signal)
    if (stopping.signal.aborted) return exitCodes.ok
    if (code === exitCodes.ok || code === exitCodes.decommissioned) return code
    trying = code === exitCodes.upgrade
    const healthy = Date.now() - startedAt >= stableConnectionMs
    const asked = code === exitCodes.restart || trying
    if (healthy || asked) attempt = 0
    const delayMs = asked ? 0 : Math.round(fullJitterMs(attempt, Math.random()))
    log.warn('agent ended, starting it again', { code, delayMs })
    if (!(await waited(delayMs, stopping.signal))) return exitCodes.ok
  }
}

/** Runs one agent to its end; answers its exit code, or null when a signal ended it. */
async function runChild(
  state: State,
  log: Log,
  file: string,
  stopping: AbortSignal,
): Promise<number | null> {
  const child = startChild(state, file, {})
  const { code } = await endOf(child, log, stopping)
  return code
}

/** Lets the new version prove itself, and brings the old one back where it does not. */
async function runTrial(state: State, log: Log, stopping: AbortSignal): Promise<number | null> {
  const record = readRecord(state)
  if (record?.phase !== 'trial') return exitCodes.restart
  killPoint('trial.chosen')
  const child = startChild(state, placesOf(installedProgram()).next, { [trial]: '1' })
  const words = lastWords(child)
  let end: ChildEnd | null = null
  const ended = endOf(child, log, stopping).then((how) => (end = how))
  killPoint('trial.spawned')
  if (child.pid !== undefined) {
    const started = { pid: child.pid, startTime: await startTimeOf(child.pid) }
    writeRecord(state, { ...record, process: started })
    killPoint('trial.noted')
    child.stdin?.write('begin\n')
  }
  const verdict = await watchTrial(state, () => end, record, stopping)
  if (verdict === 'committed') {
    killPoint('trial.passed')
    return (await ended).code
  }
  child.kill('SIGKILL')
  await ended
  // It may have passed in its last moment; stopped on the way, the next start decides.
  if (verdict === null || !isOnTrial(state, record.commandId)) return exitCodes.restart
  killPoint('rollback.begun')
  const failure = { ...verdict, error: verdict.error + words() }
  log.warn('upgrade failed, the old version comes back', { version: record.to, ...failure })
  rollBack(state, failure)
  return exitCodes.restart
}

function startChild(state: State, file: string, more: NodeJS.ProcessEnv): ChildProcess {
  const self = selfCommand(['run', '--state', state.dir])
  const compiled = self.file === installedProgram()
  const { [trial]: _, BUN_BE_BUN: __, BUN_OPTIONS: ___, ...env } = process.env
  // The child reads end of file on its stdin when this process is gone, however it went.
  const child = spawn(compiled ? file : self.file, self.args, {
    stdio: ['pipe', 'inherit', more[trial] === undefined ? 'inherit' : 'pipe'],
    env: { ...env, [supervised]: '1', [program]: installedProgram(), ...more },
  })
  child.stdin?.on('error', () => {}) // a child that ended closed its end
  return child
}

/** Passes on what a trial prints as errors, and keeps the end of it: why it crashed. */
function lastWords(child: ChildProcess): () => string {
  let text = ''
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    process.stderr.write(chunk)
    text = (text + chunk).slice(-trialWordsMax)
  })
  return () => (text.trim() === '' ? '' : `: ${text.trim()}`)
}

/** How a child ends; stops it when this process is to stop, and kills one that does not listen. */
async function endOf(child: ChildProcess, log: Log, stopping: AbortSignal): Promise<ChildEnd> {
  let killing: NodeJS.Timeout | undefined
  const forward = () => {
    stop(child)
    killing = setTimeout(() => child.kill('SIGKILL'), stopMsMax + superviseKillMs)
  }
  if (stopping.aborted) forward()
  stopping.addEventListener('abort', forward, { once: true })
  try {
    const [code, signal] = (await once(child, 'exit')) as [number | null, string | null]
    return { code, signal }
  } catch (error) {
    log.error('agent cannot be started', { error: describe(error) })
    return { code: exitCodes.failure, signal: null }
  } finally {
    clearTimeout(killing)
    stopping.removeEventListener('abort', forward)
  }
}

function stop(child: ChildProcess): void {
  // Windows has no SIGTERM that could be handled; the end of its stdin says the same.
  if (process.platform === 'win32') child.stdin?.end()
  else child.kill('SIGTERM')
}

function waited(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(true), ms)
    signal.addEventListener('abort', () => {
      clearTimeout(timer)
      resolve(false)
    })
  })
}
