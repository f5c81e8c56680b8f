// Programs under test as child processes: started with a clean environment, awaited until ready,
// stopped for good. Their output goes to a file that is shown only when something fails.
import { spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

export interface Program {
  pid: number
  origin: string
  stop(): Promise<void>
  /** Without a chance to say anything. */
  kill(): Promise<void>
}

export interface ProgramOptions {
  /** The command with its arguments, run from the checkout. */
  command: readonly [string, ...string[]]
  env: Record<string, string>
  logFile: string
  readyMsMax?: number
  /** Instead of a free one. */
  port?: number
  /** Instead of this checkout. */
  folder?: string
  /** Whether it serves; instead of asking for /health/ready. */
  isReady?: (origin: string) => Promise<boolean>
}

/** Of the bench itself. */
export const checkout = fileURLToPath(new URL('..', import.meta.url))
/** A hub that drains takes its time. */
const stopMsMax = 90_000

/** Starts a program on a free port, given as PORT, and waits until it is ready. */
export async function startProgram(options: ProgramOptions): Promise<Program> {
  const port = options.port ?? (await freePort())
  const log = openSync(options.logFile, 'a')
  const [command, ...args] = options.command
  const child = spawn(command, args, {
    cwd: options.folder ?? checkout,
    env: { ...cleanEnvironment(), ...options.env, HOST: '127.0.0.1', PORT: String(port) },
    stdio: ['ignore', log, log],
  })
  closeSync(log)
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => resolve())
    child.once('error', () => resolve())
  })
  const running = () =>
    child.pid !== undefined && child.exitCode === null && child.signalCode === null

  const origin = `http://127.0.0.1:${port}`
  const stop = async () => {
    if (running()) child.kill('SIGTERM')
    const late = setTimeout(() => child.kill('SIGKILL'), stopMsMax)
    await ended
    clearTimeout(late)
  }
  const isReady = options.isReady ?? answersReady
  if (!(await becomesReady(() => isReady(origin), running, options.readyMsMax ?? 60_000))) {
    await stop()
    throw new Error(`${options.command.join(' ')} did not get ready:\n${tail(options.logFile)}`)
  }
  // Ready means it was spawned.
  const kill = async () => {
    if (running()) child.kill('SIGKILL')
    await ended
  }
  return { pid: child.pid!, origin, stop, kill }
}

/** Nothing of the caller's configuration may leak into a program under test. */
function cleanEnvironment(): Record<string, string> {
  const kept = ['PATH', 'HOME', 'TMPDIR', 'LANG']
  const env: Record<string, string> = {
    PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
  }
  for (const name of kept) env[name] ??= process.env[name] ?? ''
  return Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))
}

async function becomesReady(
  isReady: () => Promise<boolean>,
  running: () => boolean,
  msMax: number,
): Promise<boolean> {
  const endMs = performance.now() + msMax
  while (running() && performance.now() < endMs) {
    if (await isReady()) return true
    await sleep(20)
  }
  return false
}

async function answersReady(origin: string): Promise<boolean> {
  const answer = await fetch(`${origin}/health/ready`).catch(() => undefined)
  await answer?.body?.cancel()
  return answer?.status === 200
}

function tail(file: string): string {
  return readFileSync(file, 'utf8').slice(-4000)
}

/** A free port below the ephemeral range, which the fleet's own sockets use up. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 10_000)
    if (await isFree(port)) return port
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
  })
}
