// Where programs lie: on the PATH, and this agent itself.

import { accessSync, constants, existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'

// As it was at the start: an upgrade puts another file in its place. Where that happened while this process was
// starting, Linux calls its own file deleted; its place is meant all the same.
const ownProgram = existsSync(process.execPath)
  ? process.execPath
  : process.execPath.replace(/ \(deleted\)$/, '')

/** The full path of an installed program, or null. */
export function findProgram(name: string, path: string = process.env['PATH'] ?? ''): string | null {
  // Under Node itself its own binary is the node there is; it need not be on the PATH.
  if (name === 'node' && !isCompiled()) return process.execPath
  const names = process.platform === 'win32' && !name.includes('.') ? [`${name}.exe`] : [name]
  for (const folder of path.split(delimiter).filter(Boolean)) {
    const found = names.map((file) => join(folder, file)).find(isExecutable)
    if (found) return found
  }
  return null
}

/** Where the agent is installed: a trial runs beside that place until it has proved itself. */
export function installedProgram(): string {
  return process.env['MUSTER_AGENT_PROGRAM'] ?? ownProgram
}

/** The command that starts this agent again with other arguments. */
export function selfCommand(args: string[]): { file: string; args: string[] } {
  if (isCompiled()) return { file: installedProgram(), args }
  const own = [...process.execArgv, process.argv[1] ?? '']
  return { file: process.execPath, args: [...own, ...args] }
}

/** Whether this is the single-file agent; its scripts live in a file system of the runtime's own. */
export function isCompiled(): boolean {
  return /^(\/\$bunfs\/|[A-Z]:[\\/]~BUN)/i.test(process.argv[1] ?? '')
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
