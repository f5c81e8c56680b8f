// Runs one program for a command in its own process group: bounded output, a deadline, no survivors.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import type { ActionContext } from './action.ts'
import { killGiveUpMs, killGraceMs, outputBytesMax, pipeDrainMs } from './limits.ts'
import { BoundedText } from './output.ts'
import { endGroup } from './processes.ts'
import type { Stream } from './progress.ts'
import type { Outcome } from './result.ts'

export interface Program {
  file: string
  args: string[]
  env?: Record<string, string>
  cwd?: string
  /** cmd.exe parses its own command line; quoting it as for others would break it. */
  verbatim?: boolean
}

interface Ended {
  exitCode: number | null
  signal: NodeJS.Signals | null
}

const windows = process.platform === 'win32'

// The program waits for one line until its pid is on disk. An agent that dies before that closes the
// pipe, and the program never starts: no process runs that a restarted agent would not know of.
const gate = 'read -r _ <&3 || exit 125; exec 3<&-; exec "$@"'

/** Runs a program to its end; when the context is aborted, its whole process group ends first. */
export async function runProgram(program: Program, context: ActionContext): Promise<Outcome> {
  const child = start(program, context)
  const output = { stdout: collect('stdout'), stderr: collect('stderr') }
  const ended = waitForEnd(child)
  // The first failure to look at is the spawn itself: there is no pid then.
  if (child.pid === undefined) return ended.then(toOutcome)
  await context.spawned(child.pid)
  openGate(child)
  const last = await endOrAbort(child, child.pid, ended, context.signal)
  child.stdout?.destroy()
  child.stderr?.destroy()
  return toOutcome(last)

  function collect(name: Stream): BoundedText {
    const text = new BoundedText(outputBytesMax)
    const stream: Readable | null = child[name]
    stream?.on('data', (chunk: Buffer) => context.progress(name, text.push(chunk)))
    return text
  }

  function toOutcome(end: Ended): Outcome {
    for (const text of Object.values(output)) text.end()
    return {
      ...statusOf(end),
      exitCode: end.exitCode,
      stdout: output.stdout.text,
      stderr: output.stderr.text,
      truncated: output.stdout.truncated || output.stderr.truncated,
    }
  }
}

function start(program: Program, context: ActionContext): ChildProcess {
  const options = {
    env: { ...inheritedEnv(), ...program.env, MUSTER_COMMAND_ID: context.id },
    cwd: program.cwd,
    windowsHide: true,
  }
  if (windows) {
    const stdio: ['ignore', 'pipe', 'pipe'] = ['ignore', 'pipe', 'pipe']
    const windowsVerbatimArguments = program.verbatim === true
    return spawn(program.file, program.args, { ...options, windowsVerbatimArguments, stdio })
  }
  return spawn('/bin/sh', ['-c', gate, 'muster', program.file, ...program.args], {
    ...options,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
  })
}

// The agent's own settings are none of a command's business.
function inheritedEnv(): NodeJS.ProcessEnv {
  const own = Object.entries(process.env).filter(([name]) => !name.startsWith('MUSTER_AGENT_'))
  return Object.fromEntries(own)
}

function openGate(child: ChildProcess): void {
  const pipe = child.stdio[3] as Writable | null | undefined // a pipe, as we asked in start()
  pipe?.on('error', () => {}) // killed before it read: its end is reported anyway
  pipe?.end('\n')
}

// 'close' waits for everyone who holds the pipes; a background child may do so for ever.
function waitForEnd(child: ChildProcess): Promise<Ended> {
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (exitCode, signal) => {
      const finish = () => resolve({ exitCode, signal })
      const timer = setTimeout(finish, pipeDrainMs)
      child.once('close', () => {
        clearTimeout(timer)
        finish()
      })
    })
  })
}

async function endOrAbort(
  child: ChildProcess,
  pid: number,
  ended: Promise<Ended>,
  signal: AbortSignal,
): Promise<Ended> {
  const aborted = aborting(signal)
  const end = await Promise.race([ended, aborted])
  if (end !== 'aborted') return end
  await endGroup(pid, killGraceMs, killGiveUpMs)
  // Stuck in the kernel beyond SIGKILL: the result goes out, the process is nobody's any more.
  const stuck: Ended = { exitCode: null, signal: 'SIGKILL' }
  const last = await Promise.race([ended, delay(killGiveUpMs, stuck, { ref: false })])
  if (last === stuck) child.unref()
  return last
}

function aborting(signal: AbortSignal): Promise<'aborted'> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve('aborted')
    signal.addEventListener('abort', () => resolve('aborted'), { once: true })
  })
}

function statusOf({ exitCode, signal }: Ended): Pick<Outcome, 'status' | 'error'> {
  if (exitCode === 0) return { status: 'completed' }
  if (signal) return { status: 'failed', error: `killed by ${signal}` }
  return { status: 'failed', error: `exit code ${exitCode}` }
}
