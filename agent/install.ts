// `install` and `uninstall`: the agent as a service that starts with the device. systemd only; docs/agents.md
// says how it is done on macOS and Windows.

import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { AgentError, describe } from './errors.ts'
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

/** Writes the unit and starts the service; below `root` it is only enabled, for an image. */
export async function install(state: State, root?: string): Promise<string> {
  const systemctl = requireSystemd(root)
  if (root === undefined) requireIdentity(state)
  const path = join(root ?? '/', unitPath)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, unitOf(state), { mode: 0o644 })
  if (root !== undefined) {
    await call(systemctl, [`--root=${root}`, 'enable', serviceName])
    return `${path} is written and enabled.`
  }
  await call(systemctl, ['daemon-reload'])
  await call(systemctl, ['enable', serviceName])
  await call(systemctl, ['restart', serviceName])
  return `${path} is written, enabled and started.`
}

/** Stops and removes the service; with `purge` the identity and the program too. */
export async function uninstall(state: State, purge: boolean): Promise<string> {
  const systemctl = requireSystemd(undefined)
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

function requireSystemd(root: string | undefined): string {
  const systemctl = process.platform === 'linux' ? findProgram('systemctl') : null
  if (!systemctl) {
    throw new AgentError(
      'this system has no systemd: docs/agents.md says how the agent becomes a service here',
    )
  }
  if (root === undefined && process.getuid?.() !== 0) {
    throw new AgentError('only root may change the services of this device')
  }
  return systemctl
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
