// The real agent as a real process, with a state folder of its own that goes away with the test.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { secret } from './fake_hub.ts'
import { until } from './until.ts'
import { removeFolder } from '../../support/folders.ts'

const main = fileURLToPath(new URL('../../../agent/main.ts', import.meta.url))
/** MUSTER_TEST_AGENT names a compiled agent, to prove the same of it. */
export const compiled = process.env['MUSTER_TEST_AGENT']
const [program, programArgs] = compiled ? [compiled, []] : [process.execPath, [main]]

export interface LogLine {
  time: string
  level: string
  msg: string
  [field: string]: unknown
}

interface Finished {
  code: number | null
  stdout: string
  stderr: string
}

/** A folder for one test; `using` removes it. */
export function makeFolder() {
  const path = mkdtempSync(join(tmpdir(), 'muster-agent-test-'))
  return { path, [Symbol.dispose]: () => removeFolder(path) }
}

/** Runs the command line to its end. */
export async function runCli(args: string[], input = ''): Promise<Finished> {
  const child = spawn(program, [...programArgs, ...args], { stdio: 'pipe' })
  // Who ends without reading it breaks the pipe.
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  const output = collect(child)
  const code = await exitOf(child)
  return { code, ...output() }
}

/** Enrolls a state folder with a hub. */
export async function enrollAt(hubUrl: string, state: string): Promise<void> {
  const { code, stderr } = await runCli([
    'enroll',
    '--url',
    hubUrl,
    '--secret',
    secret,
    '--state',
    state,
  ])
  assert.equal(code, 0, stderr)
}

/**
 * Starts `run` on an enrolled state folder; `await using` stops it, and its supervised child. What is undefined in
 * `env` is not in its environment.
 */
export function startAgent(
  state: string,
  args: string[] = [],
  env: Record<string, string | undefined> = {},
) {
  const child = spawn(program, [...programArgs, 'run', '--state', state, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    // Shells read no profile of whoever runs the tests, and leave nothing in that home.
    env: { ...process.env, MUSTER_AGENT_HOME: state, ...env },
  })
  const output = collect(child)
  const exited = exitOf(child)
  const lines = () =>
    output()
      .stdout.split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as LogLine)
  return {
    pid: child.pid as number,
    exited,
    lines,
    stderr: () => output().stderr,
    logged: (msg: string, from = 0) =>
      until(
        () =>
          lines()
            .slice(from)
            .find((line) => line.msg === msg),
        `log line "${msg}"`,
      ),
    kill(name: NodeJS.Signals) {
      child.kill(name)
      return exited
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGTERM')
      const timer = setTimeout(() => child.kill('SIGKILL'), 12_000)
      await exited
      clearTimeout(timer)
    },
  }
}

function collect(child: ChildProcess): () => { stdout: string; stderr: string } {
  const text = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]?.setEncoding('utf8').on('data', (chunk: string) => (text[name] += chunk))
  }
  return () => ({ ...text })
}

function exitOf(child: ChildProcess): Promise<number | null> {
  return new Promise((resolve) => child.once('close', resolve))
}
