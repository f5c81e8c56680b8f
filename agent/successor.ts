// How an agent without a supervisor restarts: it starts the next one and leaves.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { selfCommand } from './programs.ts'

/** Starts a new process with the same arguments; answers the code this one ends with. */
export async function startSuccessor(): Promise<ExitCode> {
  // A service manager kills what a service leaves behind, and restarts one that failed.
  if (process.env['INVOCATION_ID']) return exitCodes.failure
  const { file, args } = selfCommand(process.argv.slice(2))
  const child = spawn(file, args, { detached: true, stdio: ['ignore', 'inherit', 'inherit'] })
  await once(child, 'spawn')
  child.unref()
  return exitCodes.ok
}
