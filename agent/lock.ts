// One agent per state folder: a lock file with the owner's pid and start time, recovered when stale.

import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { AgentError, errorCode, isFull } from './errors.ts'
import { readIfThere } from './files.ts'
import { isSameProcess, startTimeOf } from './processes.ts'

export interface Owner {
  pid: number
  /** Opaque; a recycled pid has another one. */
  startTime: string | null
}

export interface Lock {
  release(): void
}

/** Takes the lock or throws, naming the pid that holds it. Taken again at once from a dead owner. */
export async function takeLock(path: string): Promise<Lock> {
  const owner: Owner = { pid: process.pid, startTime: await startTimeOf(process.pid) }
  const draft = `${path}.${process.pid}`
  try {
    writeFileSync(draft, JSON.stringify(owner), { mode: 0o600 })
  } catch (error) {
    // A full disk takes the name and no text: a lock that does not say whose it is keeps nobody out, and the agent
    // runs, which is what somebody needs who wants to make space.
    if (!isFull(error)) throw error
  }
  try {
    await linkOrRecover(draft, path)
  } finally {
    rmSync(draft, { force: true })
  }
  return { release: () => releaseLock(path) }
}

/** Who holds the lock now, or null. */
export async function lockOwner(path: string): Promise<Owner | null> {
  const owner = parseOwner(readIfThere(path))
  return owner && (await isSameProcess(owner.pid, owner.startTime)) ? owner : null
}

// A link fails when the name exists, so of two agents that start together one gets it.
async function linkOrRecover(draft: string, path: string): Promise<void> {
  for (let attempt = 0; attempt < 3; attempt++) {
    if (tryLink(draft, path)) return
    const holder = await lockOwner(path)
    if (holder) throw new AgentError(`another agent (pid ${holder.pid}) already uses ${path}`)
    removeStale(path)
  }
  throw new AgentError(`cannot take the lock ${path}: others keep taking it`)
}

function tryLink(draft: string, path: string): boolean {
  try {
    linkSync(draft, path)
    return true
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return false
    throw error
  }
}

// Renamed before it is removed: of two agents that find the same stale lock only one moves it, and
// one that moved a fresh lock by mistake puts it back.
function removeStale(path: string): void {
  const seen = readIfThere(path)
  const aside = `${path}.stale.${process.pid}`
  try {
    renameSync(path, aside)
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return
    throw error
  }
  if (readFileSync(aside, 'utf8') !== seen) tryLink(aside, path)
  rmSync(aside, { force: true })
}

function releaseLock(path: string): void {
  if (parseOwner(readIfThere(path))?.pid === process.pid) rmSync(path, { force: true })
}

function parseOwner(text: string | null): Owner | null {
  if (text === null) return null
  try {
    const owner = JSON.parse(text) as Partial<Owner>
    if (!Number.isInteger(owner.pid)) return null
    return { pid: owner.pid as number, startTime: owner.startTime ?? null }
  } catch {
    return null // half written by an agent that died: nobody's lock
  }
}
