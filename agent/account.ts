// Whoever the agent runs as, from the system's own list: a service has neither $SHELL nor $USER, and not every
// runtime looks further than these.

import { accessSync, constants, readFileSync } from 'node:fs'

export interface Account {
  name: string
  home: string
  shell: string
}

/**
 * The account of this process; what the list does not say comes from the environment, then from what there is.
 * MUSTER_AGENT_HOME names another home.
 */
export function ownAccount(): Account {
  const uid = process.geteuid?.() ?? 0
  const { USER: name, HOME: home, SHELL: shell, MUSTER_AGENT_HOME: chosen } = process.env
  const listed = accountOf(passwd(), uid) ?? { name: '', home: '', shell: '' }
  const shells = [listed.shell || shell, '/bin/bash', '/bin/sh']
  return {
    name: listed.name || name || String(uid),
    home: chosen || listed.home || home || '/',
    shell: shells.find((file) => file !== undefined && isExecutable(file)) ?? '/bin/sh',
  }
}

/** The first account of a user id in the text of /etc/passwd. */
export function accountOf(text: string, uid: number): Account | undefined {
  for (const line of text.split('\n')) {
    const [name, , id, , , home, shell] = line.split(':')
    if (!name || name.startsWith('#') || shell === undefined) continue
    if (id === String(uid)) return { name, home: home ?? '', shell: shell.trim() }
  }
  return undefined
}

function passwd(): string {
  try {
    return readFileSync('/etc/passwd', 'utf8')
  } catch {
    return ''
  }
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}
