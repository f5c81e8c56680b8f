// Enrollment: a secret for an identity. The secret is sent once per try and kept nowhere.

import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { socketUrl } from './address.ts'
import { fullJitterMs } from './backoff.ts'
import { AgentError, describe } from './errors.ts'
import { backoffCapMs, enrollAttemptsMax } from './limits.ts'
import { takeLock } from './lock.ts'
import { describePlatform, machineId } from './platform.ts'
import { ask, errorOf } from './request.ts'
import type { Answer } from './request.ts'
import { claimState, prepareState, readIdentity, readTokens, writeIdentity } from './state.ts'
import type { Identity, State } from './state.ts'
import { agentVersion } from './version.ts'

export interface EnrollOptions {
  hubUrl: string
  secret: string
  siteId?: string | undefined
  state: State
}

/** Enrolls this device and writes the state folder. Throws one sentence when it can't. */
export async function enroll(options: EnrollOptions): Promise<Identity> {
  const { state } = options
  const undo = claimState(state)
  try {
    const lock = await takeLock(state.lock)
    try {
      const { identity, token } = await requestIdentity(options, knownToken(state, options.hubUrl))
      prepareState(state)
      writeIdentity(state, identity, token)
      return identity
    } finally {
      lock.release()
    }
  } catch (error) {
    undo()
    throw error
  }
}

async function requestIdentity(options: EnrollOptions, known: string | null) {
  const answer = await requestWithRetries(options, known)
  // Only a person runs this command, so a decommissioned device may come back: as a new device.
  if (known && errorOf(answer.body).code === 'DEVICE_DECOMMISSIONED') {
    return parseEnrollment(await requestWithRetries(options, null), options.hubUrl)
  }
  return parseEnrollment(answer, options.hubUrl)
}

// The old token proves that this is the same device, and goes only to the hub that gave it.
function knownToken(state: State, hubUrl: string): string | null {
  if (readIdentity(state)?.hubUrl !== hubUrl) return null
  try {
    return readTokens(state).current
  } catch {
    return null
  }
}

// Every try carries the same key, so an answer that got lost does not become a second device.
async function requestWithRetries(options: EnrollOptions, known: string | null): Promise<Answer> {
  const init = await enrollRequest(options, known)
  const url = `${options.hubUrl}/api/v1/agents/enroll`
  for (let attempt = 0; ; attempt++) {
    const last = attempt + 1 >= enrollAttemptsMax
    try {
      const answer = await ask(url, init)
      const busy = answer.status === 429 || answer.status >= 500
      if (!busy || last) return answer
      const askedMs = Math.min((answer.retryAfterSeconds ?? 0) * 1000, backoffCapMs)
      await delay(askedMs + fullJitterMs(attempt, Math.random()))
    } catch (error) {
      if (last) throw new AgentError(`cannot reach ${options.hubUrl}: ${describe(error)}`)
      await delay(fullJitterMs(attempt, Math.random()))
    }
  }
}

async function enrollRequest(options: EnrollOptions, known: string | null): Promise<RequestInit> {
  const body = {
    enrollmentSecret: options.secret,
    ...(await describePlatform()),
    agentVersion,
    siteId: options.siteId,
    machineId: await machineId(),
  }
  const headers: Record<string, string> = {
    'content-type': 'application/json',
    'idempotency-key': randomUUID(),
  }
  if (known) headers['authorization'] = `Bearer ${known}`
  return { method: 'POST', headers, body: JSON.stringify(body) }
}

function parseEnrollment(answer: Answer, hubUrl: string): { identity: Identity; token: string } {
  if (answer.status !== 201) throw refusal(answer, hubUrl)
  const body = (answer.body ?? {}) as Record<string, unknown>
  const deviceId = text(body, 'deviceId')
  const identity = {
    deviceId,
    orgId: text(body, 'orgId'),
    siteId: text(body, 'siteId'),
    hubUrl,
    websocketUrl: socketUrl(text(body, 'websocketUrl'), deviceId, hubUrl),
    heartbeatIntervalSeconds: Number(body['heartbeatIntervalSeconds']) || 30,
    releaseKeys: Array.isArray(body['releaseKeys']) ? body['releaseKeys'] : [],
    enrolledAt: new Date().toISOString(),
  }
  return { identity, token: text(body, 'agentToken') }
}

function text(body: Record<string, unknown>, name: string): string {
  const value = body[name]
  if (typeof value === 'string' && value !== '') return value
  throw new AgentError(`the hub's answer has no ${name}: is this address a hub?`)
}

function refusal(answer: Answer, hubUrl: string): AgentError {
  const { code, message } = errorOf(answer.body)
  if (code === 'INVALID_ENROLLMENT_SECRET') {
    return new AgentError(`${hubUrl} refused the enrollment secret (INVALID_ENROLLMENT_SECRET)`)
  }
  if (code) return new AgentError(`${hubUrl} refused: ${message} (${code})`)
  return new AgentError(`${hubUrl} answered ${answer.status}: is this address a hub?`)
}
