// run_command: one line for a shell, in its own process group.

import { requireText, PayloadError } from '../action.ts'
import type { Action } from '../action.ts'
import { runProgram } from '../child.ts'
import type { Program } from '../child.ts'

const shells: Record<string, (command: string) => Program> = {
  sh: (command) => ({ file: 'sh', args: ['-c', command] }),
  bash: (command) => ({ file: 'bash', args: ['-c', command] }),
  zsh: (command) => ({ file: 'zsh', args: ['-c', command] }),
  powershell: (command) => ({ file: 'powershell', args: powerShellArgs(command) }),
  pwsh: (command) => ({ file: 'pwsh', args: powerShellArgs(command) }),
  cmd: (command) => ({ file: 'cmd.exe', args: ['/d', '/s', '/c', `"${command}"`], verbatim: true }),
}

const defaultShell = process.platform === 'win32' ? 'cmd' : 'sh'

export const runCommand: Action = {
  concurrent: false,
  repeatable: false,
  async run(payload, context) {
    const command = requireText(payload, 'command')
    const name = payload['shell'] ?? defaultShell
    const shell = typeof name === 'string' && Object.hasOwn(shells, name) ? shells[name] : undefined
    if (!shell) {
      throw new PayloadError(`payload: shell must be one of ${Object.keys(shells).join(', ')}`)
    }
    return runProgram(shell(command), context)
  },
}

function powerShellArgs(command: string): string[] {
  return ['-NoProfile', '-NonInteractive', '-Command', command]
}
