// The state folder: who this device is and its token. The enrollment secret never comes here.

import { existsSync, mkdirSync, readdirSync, renameSync, rmdirSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { AgentError, describe, exitCodes } from './errors.ts'
import { makePrivateFolder, readIfThere, replaceDurably, syncFolder } from './files.ts'

/** What enrollment told about this device; the token lies apart, in its own file. */
export interface Identity {
  deviceId: string
  orgId: string
  siteId: string
  hubUrl: string
  websocketUrl: string
  heartbeatIntervalSeconds: number
  releaseKeys: unknown[]
  enrolledAt: string
}

/** Where everything lies that the agent keeps. */
export interface State {
  dir: string
  identity: string
  token: string
  /** A token the hub sent and that has not worked yet. */
  nextToken: string
  lock: string
  supervisorLock: string
  journal: string
  scripts: string
  log: string
  status: string
  /** The upgrade under way. */
  upgrade: string
  /** The sign of life of an upgrade's trial. */
  trial: string
  /** Which release keys and versions count. */
  releases: string
}

/** The tokens to try, in this order. */
export interface Tokens {
  current: string
  next: string | null
}

/** The state folder where none is named: the system's for root, else the user's own. */
export function defaultStateDir(env: NodeJS.ProcessEnv = process.env): string {
  if (process.platform === 'win32') {
    return join(env['ProgramData'] ?? join(homedir(), 'AppData', 'Local'), 'muster-agent')
  }
  if (process.getuid?.() === 0) return '/var/lib/muster-agent'
  return join(env['XDG_STATE_HOME'] || join(homedir(), '.local', 'state'), 'muster-agent')
}

/** Names the files of a state folder; touches nothing. */
export function stateAt(folder: string): State {
  const dir = resolve(folder)
  return {
    dir,
    identity: join(dir, 'identity.json'),
    token: join(dir, 'token'),
    nextToken: join(dir, 'token.next'),
    lock: join(dir, 'lock'),
    supervisorLock: join(dir, 'supervisor.lock'),
    journal: join(dir, 'journal.jsonl'),
    scripts: join(dir, 'scripts'),
    log: join(dir, 'agent.log'),
    status: join(dir, 'status.json'),
    upgrade: join(dir, 'upgrade.json'),
    trial: join(dir, 'trial.json'),
    releases: join(dir, 'releases.json'),
  }
}

/** Makes the state folder private and present. */
export function prepareState(state: State): void {
  try {
    makePrivateFolder(state.dir)
  } catch (error) {
    throw new AgentError(`cannot use the state folder ${state.dir}: ${describe(error)}`)
  }
}

/**
 * Makes the state folder where there is none, and refuses one that holds what is not an agent's: it would be
 * closed to others and, with the agent, removed. Returns what takes away the folders that were made.
 */
export function claimState(state: State): () => void {
  let made: string | undefined
  try {
    made = mkdirSync(state.dir, { recursive: true, mode: 0o700 })
    const foreign = readdirSync(state.dir).find((name) => !isOurs(state, name))
    if (foreign !== undefined && readIfThere(state.identity) === null) {
      throw new AgentError(`it holds ${foreign}, which is no agent's; name an empty one`)
    }
  } catch (error) {
    throw new AgentError(`cannot use the state folder ${state.dir}: ${describe(error)}`)
  }
  return () => removeEmpty(state.dir, made)
}

function isOurs(state: State, name: string): boolean {
  const { dir: _dir, ...files } = state
  const names = Object.values(files).map((path) => basename(path))
  return names.some((own) => name === own || name.startsWith(`${own}.`))
}

/** Removes the folder and those around it, up to the first that was made. */
function removeEmpty(folder: string, made: string | undefined): void {
  if (made === undefined) return
  try {
    rmdirSync(folder)
    if (folder !== resolve(made)) removeEmpty(dirname(folder), made)
  } catch {
    // Somebody put something in it meanwhile.
  }
}

/** Who this device is, or null when it was never enrolled. */
export function readIdentity(state: State): Identity | null {
  const text = readIfThere(state.identity)
  if (text === null) return null
  try {
    return JSON.parse(text) as Identity // written by writeIdentity alone, replaced whole
  } catch (error) {
    throw new AgentError(`${state.identity} is damaged; enroll again`, exitCodes.failure, {
      cause: error,
    })
  }
}

/** The identity that `run` needs; a sentence about enrolling where there is none. */
export function requireIdentity(state: State): Identity {
  const identity = readIdentity(state)
  if (identity && existsSync(state.token)) return identity
  throw new AgentError(`not enrolled: ${state.dir} holds no identity; run "enroll" first`)
}

/** Keeps a fresh enrollment. The token goes first: an identity without one could not be used. */
export function writeIdentity(state: State, identity: Identity, token: string): void {
  replaceDurably(state.token, `${token}\n`)
  rmSync(state.nextToken, { force: true })
  replaceDurably(state.identity, `${JSON.stringify(identity, null, 2)}\n`)
}

/** The tokens as they lie on disk. */
export function readTokens(state: State): Tokens {
  const current = readIfThere(state.token)?.trim()
  if (!current) throw new AgentError(`not enrolled: ${state.token} is missing or empty`)
  return { current, next: readIfThere(state.nextToken)?.trim() || null }
}

/** Keeps a token the hub sent beside the present one, durably, until it has worked. */
export function storeNextToken(state: State, token: string): void {
  replaceDurably(state.nextToken, `${token}\n`)
}

/** The next token worked: it takes the place of the old one. */
export function promoteNextToken(state: State): void {
  renameSync(state.nextToken, state.token)
  syncFolder(state.dir)
}
