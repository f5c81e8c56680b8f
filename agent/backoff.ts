// When to try again after a connection ended or was refused. Pure: randomness is passed in.

import { closeCodes } from '../src/protocol.ts'
import { backoffBaseMs, backoffCapMs, retryAfterSecondsMax, suspendedRetryMs } from './limits.ts'

/** How a connection, or an attempt at one, ended. */
export type Ending =
  | { type: 'closed'; code: number }
  | { type: 'refused'; status: number; code: string; retryAfterSeconds: number | null }
  | { type: 'unreachable' }
  /** The hub stopped answering although the socket looks open. */
  | { type: 'silent' }

export type Decision = { type: 'retry'; delayMs: number } | { type: 'stop' }

/**
 * What an ending means for the next attempt.
 * @param attempt attempts since the last healthy connection, from 0
 * @param random from 0 up to 1
 */
export function decide(ending: Ending, attempt: number, random: number): Decision {
  if (isDecommissioned(ending)) return { type: 'stop' }
  if (isSuspended(ending)) return retry(spread(suspendedRetryMs, random))
  if (isBadIdentity(ending)) return retry(backoffCapMs * (0.8 + 0.2 * random))
  const askedMs = retryAfterMs(ending)
  if (askedMs !== null) return retry(askedMs + fullJitterMs(attempt, random))
  return retry(fullJitterMs(attempt, random))
}

/** An ending in words, for a person who asks why there is no connection. */
export function sentenceOf(ending: Ending): string {
  switch (ending.type) {
    case 'closed':
      return `the hub closed the connection with code ${ending.code}`
    case 'refused':
      return `the hub refused the connection with ${ending.status} ${ending.code}`.trim()
    case 'unreachable':
      return 'the hub could not be reached'
    case 'silent':
      return 'the hub stopped answering'
  }
}

/** Anywhere between nothing and a window that doubles up to the cap: a fleet spreads itself. */
export function fullJitterMs(attempt: number, random: number): number {
  return random * Math.min(backoffCapMs, backoffBaseMs * 2 ** Math.min(attempt, 30))
}

/** The hub's own Retry-After in milliseconds, or null where it named none that makes sense. */
function retryAfterMs(ending: Ending): number | null {
  if (ending.type !== 'refused' || ending.retryAfterSeconds === null) return null
  return Math.min(ending.retryAfterSeconds, retryAfterSecondsMax) * 1000
}

function isDecommissioned(ending: Ending): boolean {
  if (ending.type === 'closed') return ending.code === closeCodes.decommissioned
  return (
    ending.type === 'refused' && ending.status === 403 && ending.code === 'DEVICE_DECOMMISSIONED'
  )
}

function isSuspended(ending: Ending): boolean {
  if (ending.type === 'closed') return ending.code === closeCodes.organizationSuspended
  return ending.type === 'refused' && ending.code === 'ORGANIZATION_SUSPENDED'
}

// The hub may be restored from a backup or be wrong: the identity stays, a person decides.
function isBadIdentity(ending: Ending): boolean {
  if (ending.type === 'closed') return ending.code === closeCodes.badToken
  return ending.type === 'refused' && [401, 403, 404].includes(ending.status)
}

function spread(ms: number, random: number): number {
  return ms * (1 + 0.1 * random)
}

function retry(delayMs: number): Decision {
  return { type: 'retry', delayMs: Math.round(delayMs) }
}
