// What runs in a terminal: the login shell of whoever the agent runs as, with an environment of its own.

import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { ownAccount } from './account.ts'
import { findProgram } from './programs.ts'
import type { TerminalSize } from '../src/terminal_frames.ts'
import type { PtyProgram } from './pty.ts'

/** The shell of a new terminal. */
export function loginShell(size: TerminalSize): PtyProgram {
  const env = shellEnv()
  if (process.platform === 'win32') {
    const file = findProgram('powershell') ?? process.env['COMSPEC'] ?? 'cmd.exe'
    return { file, args: [], cwd: homedir(), env, size }
  }
  const { name, home, shell } = ownAccount()
  const own = { SHELL: shell, USER: name, LOGNAME: name, HOME: home }
  // As `login` does it where there is no home.
  const cwd = existsSync(home) ? home : '/'
  return { file: shell, args: ['-l'], cwd, env: { ...env, ...own }, size }
}

/** The agent's environment without what is the agent's own, or its runtime's. */
export function shellEnv(
  inherited: Record<string, string | undefined> = process.env,
): Record<string, string> {
  const env: Record<string, string> = {}
  for (const [name, value] of Object.entries(inherited)) {
    if (value !== undefined && !/^(MUSTER|BUN|NODE|NPM)_|^npm_/i.test(name)) env[name] = value
  }
  return { ...env, LANG: env['LANG'] ?? 'C.UTF-8', TERM: 'xterm-256color' }
}
