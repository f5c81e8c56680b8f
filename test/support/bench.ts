// The bench's command line as a child process, so that a hub in the test's own process can answer it meanwhile.
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface BenchRun {
  status: number | null
  stdout: string
  stderr: string
}

/** Runs `bench/main.ts` with these arguments to its end. */
export function bench(
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<BenchRun> {
  return benching(args, env).ended
}

/** Starts it, for who wants to end it before its time. */
export function benching(
  args: readonly string[],
  env: Record<string, string> = {},
): { child: ChildProcess; ended: Promise<BenchRun> } {
  const child = spawn(process.execPath, ['bench/main.ts', ...args], {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const run: BenchRun = { status: null, stdout: '', stderr: '' }
  child.stdout.on('data', (chunk: Buffer) => (run.stdout += String(chunk)))
  child.stderr.on('data', (chunk: Buffer) => (run.stderr += String(chunk)))
  // Closed, not only ended: by then the last of its output was read.
  const ended = once(child, 'close').then(() => ({ ...run, status: child.exitCode }))
  return { child, ended }
}
