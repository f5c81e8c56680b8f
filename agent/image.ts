// The agent in another system's root folder, as of an image that is being made. Touches nothing outside of that
// folder, and needs no program of this machine: what makes an image often runs where there is no systemd.

import {
  chmodSync,
  copyFileSync,
  lstatSync,
  mkdirSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, relative, resolve, sep } from 'node:path'
import { AgentError, exitCodes } from './errors.ts'
import { installedProgram, isCompiled } from './programs.ts'
import { serviceName, unitPath, unitText, wantedPath } from './service.ts'
import type { State } from './state.ts'
import { placesOf } from './upgrade/places.ts'

/** Where program and state folder lie in the eyes of the image itself. */
export const imageProgram = '/usr/local/bin/muster-agent'
export const imageStateDir = '/var/lib/muster-agent'

/** A root folder as it was given, whole. Throws where there is none, and for this machine's own. */
export function requireRoot(given: string): string {
  const root = resolve(given)
  if (!statSync(root, { throwIfNoEntry: false })?.isDirectory()) {
    throw new AgentError(`--root ${root} is no folder`)
  }
  if (realpathSync(root) !== '/') return realpathSync(root)
  throw new AgentError('--root / is this machine: leave --root out', exitCodes.usage)
}

/** The unit of an agent in an image. */
export function imageUnit(state: State): string {
  return unitText([imageProgram, 'run', '--supervised', '--state', state.dir])
}

/** Puts this program and its enabled service into an image, which enrolls when it first runs as a device. */
export function installBelow(root: string, state: State): string {
  requireOneFile()
  const [program, unit, wanted] = [imageProgram, unitPath, wantedPath].map((path) =>
    below(root, path),
  ) as [string, string, string] // as many as went in
  replace(program, (draft) => {
    copyFileSync(installedProgram(), draft)
    chmodSync(draft, 0o755)
  })
  replace(unit, (draft) => {
    writeFileSync(draft, imageUnit(state))
    chmodSync(draft, 0o644)
  })
  replace(wanted, (draft) => symlinkSync(`../${serviceName}`, draft))
  return `${program} and ${unit} are written, and the service is enabled.`
}

/** Takes the service out of an image; with `purge` what the image has of identity and program too. */
export function uninstallBelow(root: string, state: State, purge: boolean): string {
  const unit = below(root, unitPath)
  const service = [below(root, wantedPath), unit]
  const { program, next, old } = placesOf(below(root, imageProgram))
  const folder = below(root, state.dir)
  // A link counts, wherever it leads.
  if (!lstatSync(unit, { throwIfNoEntry: false })) {
    throw new AgentError(`${unit} is not there: nothing is installed`)
  }
  for (const path of service) rmSync(path, { force: true })
  if (!purge) return `${unit} is removed.`
  for (const path of [program, next, old]) rmSync(path, { force: true })
  rmSync(folder, { recursive: true, force: true })
  return `${unit}, ${folder} and ${program} are removed.`
}

function requireOneFile(): void {
  if (process.platform !== 'linux') {
    throw new AgentError('only the agent for Linux can be put into an image: it copies itself')
  }
  if (isCompiled()) return
  throw new AgentError(
    'a checkout can’t be put into an image: take the agent in one file, from a release or "npm run release -- build"',
  )
}

/** Makes a file beside its place and moves it there: a link that has the name is replaced, not followed. */
function replace(path: string, make: (draft: string) => void): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o755 })
  const draft = `${path}.new`
  rmSync(draft, { force: true })
  make(draft)
  renameSync(draft, path)
}

/** A path of the image as this machine names it. Throws where a link of the image leads out of it. */
function below(root: string, path: string): string {
  const whole = join(root, path)
  const folder = dirname(whole)
  const way = relative(root, realpathSync(nearest(folder)))
  if (way !== '..' && !way.startsWith(`..${sep}`)) return whole
  throw new AgentError(`${folder} leads out of ${root} by a link; nothing was changed`)
}

function nearest(folder: string): string {
  return statSync(folder, { throwIfNoEntry: false }) ? folder : nearest(dirname(folder))
}
