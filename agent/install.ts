// `install` and `uninstall`: the agent as a service that starts with the device. systemd only; docs/agents.md
// says how it is done on macOS and Windows.

import { execFile } from 'node:child_process'
import { chmodSync, existsSync, rmSync, writeFileSync } from 'node:fs'
import { isAbsolute } from 'node:path'
import { promisify } from 'node:util'
import { AgentError, describe } from './errors.ts'
import { readIfThere, replaceDurably } from './files.ts'
import { findProgram, installedProgram, isCompiled, selfCommand } from './programs.ts'
import { serviceName, unitPath, unitText } from './service.ts'
import { requireIdentity } from './state.ts'
import type { State } from './state.ts'
import { placesOf } from './upgrade/places.ts'

const run = promisify(execFile)

/** The unit of an agent with this state folder. */
export function unitOf(state: State): string {
  const { file, args } = selfCommand(['run', '--supervised', '--state', state.dir])
  return unitText([file, ...args])
}

/**
 * Writes the unit, enrolls where the device is not yet enrolled, and starts the service. Whatever can refuse
 * does so before the hub hears of the device: nobody takes back a device that never comes.
 */
export async function install(state: State, enroll?: () => Promise<unknown>): Promise<string> {
  requireLasting(selfCommand([]))
  const systemctl = requireSystemd()
  if (enroll === undefined) requireIdentity(state)
  const before = readIfThere(unitPath)
  try {
    replaceDurably(unitPath, unitOf(state))
    chmodSync(unitPath, 0o644)
    await call(systemctl, ['daemon-reload'])
    await enroll?.()
  } catch (error) {
    restore(before)
    throw error
  }
  await call(systemctl, ['enable', serviceName])
  await call(systemctl, ['restart', serviceName])
  return `${unitPath} is written, enabled and started.`
}

/** Stops and removes the service; with `purge` the identity and the program too. */
export async function uninstall(state: State, purge: boolean): Promise<string> {
  const systemctl = requireSystemd()
  if (!existsSync(unitPath)) throw new AgentError(`${unitPath} is not there: nothing is installed`)
  await call(systemctl, ['disable', '--now', serviceName])
  rmSync(unitPath)
  await call(systemctl, ['daemon-reload'])
  if (!purge) return `${unitPath} is removed. The identity is still in ${state.dir}.`
  rmSync(state.dir, { recursive: true, force: true })
  for (const program of ownPrograms()) rmSync(program, { force: true })
  return `${unitPath}, ${state.dir} and the program are removed.`
}

/** Every file of this program: itself, and what an upgrade keeps beside it. */
export function ownPrograms(): string[] {
  if (!isCompiled()) return []
  const { program, next, old } = placesOf(installedProgram())
  return [program, next, old]
}

// These are emptied, at the latest by a restart.
const fleeting = ['/tmp', '/var/tmp', '/dev/shm', '/run', '/var/run']

/** Throws where the command of a service lies in a folder that does not keep it. */
export function requireLasting({ file, args }: { file: string; args: string[] }): void {
  const paths = [file, ...args].filter((path) => isAbsolute(path))
  const lost = paths.find((path) => fleeting.some((folder) => path.startsWith(`${folder}/`)))
  if (lost === undefined) return
  throw new AgentError(
    `${lost} would be gone after a restart: move it to /usr/local/bin, for example, and install it from there`,
  )
}

function requireSystemd(): string {
  const systemctl = process.platform === 'linux' ? findProgram('systemctl') : null
  // As sd_booted(3) has it; a container often has the program and something else that runs.
  if (!systemctl || !existsSync('/run/systemd/system')) {
    throw new AgentError(
      'this system has no systemd: docs/agents.md says how the agent becomes a service here',
    )
  }
  if (process.getuid?.() === 0) return systemctl
  throw new AgentError('only root may change the services of this device')
}

function restore(before: string | null): void {
  if (before === null) rmSync(unitPath, { force: true })
  else writeFileSync(unitPath, before)
}

async function call(systemctl: string, args: string[]): Promise<void> {
  try {
    await run(systemctl, args)
  } catch (error) {
    const { stderr } = error as { stderr?: string }
    const why = stderr?.trim() || describe(error)
    throw new AgentError(`systemctl ${args.join(' ')}: ${why}`)
  }
}
