// `run --supervised`: a parent that does nothing but keep the agent running, and the child's view of it.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fullJitterMs } from './backoff.ts'
import { exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { stableConnectionMs } from './limits.ts'
import { takeLock } from './lock.ts'
import { openLog } from './log.ts'
import { selfCommand } from './programs.ts'
import { prepareState, requireIdentity } from './state.ts'
import type { State } from './state.ts'

const variable = 'MUSTER_AGENT_SUPERVISED'

/** Whether this process is the child of a supervisor. */
export function isSupervised(): boolean {
  return process.env[variable] !== undefined
}

/** Calls back when the supervisor is gone: a child without one would block the next supervisor. */
export function onSupervisorGone(callback: () => void): void {
  if (!isSupervised()) return
  process.stdin.on('end', callback).on('error', callback).resume()
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
  for (let attempt = 0; ; attempt++) {
    const startedAt = Date.now()
    const code = await runChild(state, stopping.signal)
    if (stopping.signal.aborted) return exitCodes.ok
    if (code === exitCodes.ok || code === exitCodes.decommissioned) return code
    const healthy = Date.now() - startedAt >= stableConnectionMs
    if (healthy || code === exitCodes.restart) attempt = 0
    const delayMs =
      code === exitCodes.restart ? 0 : Math.round(fullJitterMs(attempt, Math.random()))
    log.warn('agent ended, starting it again', { code, delayMs })
    if (!(await waited(delayMs, stopping.signal))) return exitCodes.ok
  }
}

/** Runs one agent to its end; answers its exit code, or null when a signal ended it. */
async function runChild(state: State, stopping: AbortSignal): Promise<number | null> {
  const { file, args } = selfCommand(['run', '--state', state.dir])
  // The child reads end of file on its stdin when this process is gone, however it went.
  const child = spawn(file, args, {
    stdio: ['pipe', 'inherit', 'inherit'],
    env: { ...process.env, [variable]: '1' },
  })
  child.stdin?.on('error', () => {}) // a child that ended closed its end
  const forward = () => stop(child)
  stopping.addEventListener('abort', forward, { once: true })
  try {
    const [code] = (await once(child, 'exit')) as [number | null]
    return code
  } finally {
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
