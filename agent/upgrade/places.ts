// The program on disk: where a new one lies until it has proved itself, and how it takes its place. Whatever
// moment a crash picks, the program's own name holds one that has proved itself.

import { copyFileSync, existsSync, linkSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { basename, dirname, extname, join } from 'node:path'
import { errorCode } from '../errors.ts'
import { syncFolder } from '../files.ts'
import { killPoint } from '../test_build.ts'

export interface Places {
  folder: string
  /** What a service manager starts. */
  program: string
  /** Verified, not yet proved. */
  next: string
  /** The one before, for a person who wants it back. */
  old: string
  /** Where these bytes are downloaded to: named by them, so that no other download goes on with it. */
  part: (sha256: string) => string
}

export function placesOf(program: string): Places {
  const folder = dirname(program)
  const extension = extname(program) === '.exe' ? '.exe' : ''
  const name = basename(program, extension)
  return {
    folder,
    program,
    next: join(folder, `.${name}.new${extension}`),
    old: join(folder, `.${name}.old${extension}`),
    part: (sha256) => join(folder, `.${name}.part-${sha256.slice(0, 16)}`),
  }
}

/** Puts the proved program in its place. Done again after a crash it ends what was begun. */
export function install(places: Places): void {
  if (!existsSync(places.next)) return
  keepOld(places)
  killPoint('install.kept')
  renameSync(places.next, places.program)
  killPoint('install.renamed')
  syncFolder(places.folder)
}

/** Whether no program waits to take its place. */
export function isSettled({ next }: Places): boolean {
  return !existsSync(next)
}

/** Takes away a program that did not prove itself. */
export function discard({ next, folder }: Places): void {
  if (!existsSync(next)) return
  rmSync(next, { force: true })
  syncFolder(folder)
}

/** Takes away what earlier downloads left, but for the one that goes on. */
export function discardParts({ folder, part }: Places, sha256: string): void {
  const prefix = basename(part(''))
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    if (name.startsWith(prefix) && path !== part(sha256)) rmSync(path, { force: true })
  }
}

// A second name for the same file, so that the first is never without one. Windows lets nobody replace a
// program that runs, but it may be renamed: there the name is empty for the moment until the next rename.
function keepOld({ folder, program, old }: Places): void {
  if (!existsSync(program)) return
  rmSync(old, { force: true })
  killPoint('install.unlinked')
  if (process.platform === 'win32') return renameSync(program, old)
  try {
    linkSync(program, old)
  } catch (error) {
    // Where a file system has no hard links; on a name that is taken a copy would write into the program itself.
    if (errorCode(error) === 'EEXIST') throw error
    copyFileSync(program, old)
  }
  syncFolder(folder)
}
