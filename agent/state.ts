// The state folder: who this device is and its token. The enrollment secret never comes here.

import { existsSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
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
