// Hub frames as they arrive: text in, a checked frame or null out. Unknown fields are ignored.

import type { HubFrame } from '../src/protocol.ts'
import { heartbeatMsMax, heartbeatMsMin, reconnectMsMax, timeoutSecondsMax } from './limits.ts'

export type CommandFrame = Extract<HubFrame, { type: 'command' }>
type Fields = Record<string, unknown>

/** A frame this agent understands, or null for anything else: it is counted and dropped. */
export function parseHubFrame(text: string): HubFrame | null {
  const frame = parseObject(text)
  if (!frame) return null
  switch (frame['type']) {
    case 'welcome':
      return parseWelcome(frame)
    case 'heartbeat_ack':
      return isNumber(frame['seq']) ? { type: 'heartbeat_ack', seq: frame['seq'] } : null
    case 'command':
      return parseCommand(frame)
    case 'cancel':
    case 'ack':
      return isId(frame['id']) ? { type: frame['type'], id: frame['id'] } : null
    case 'reconnect':
      return parseReconnect(frame)
    case 'token':
      return parseToken(frame)
    case 'error':
      return { type: 'error', code: String(frame['code']), message: String(frame['message']) }
    default:
      return null
  }
}

function parseWelcome(frame: Fields): HubFrame | null {
  const seconds = frame['heartbeatIntervalSeconds']
  if (!isNumber(seconds)) return null
  const ms = Math.min(heartbeatMsMax, Math.max(heartbeatMsMin, seconds * 1000))
  return {
    type: 'welcome',
    serverTime: String(frame['serverTime']),
    heartbeatIntervalSeconds: ms / 1000,
  }
}

function parseCommand(frame: Fields): CommandFrame | null {
  const { id, action, payload, attempt, timeoutSeconds } = frame
  if (!isId(id) || typeof action !== 'string') return null
  if (!isNumber(timeoutSeconds) || timeoutSeconds <= 0) return null
  return {
    type: 'command',
    id,
    action,
    payload: isObject(payload) ? payload : {},
    attempt: isNumber(attempt) ? attempt : 1,
    timeoutSeconds: Math.min(timeoutSeconds, timeoutSecondsMax),
  }
}

function parseReconnect(frame: Fields): HubFrame | null {
  const afterMs = frame['afterMs']
  if (!isNumber(afterMs)) return null
  const slotMs = Math.min(reconnectMsMax, Math.max(0, afterMs))
  return { type: 'reconnect', afterMs: slotMs, reason: 'drain' }
}

// A token goes into a header, so it must be printable and in one piece.
function parseToken(frame: Fields): HubFrame | null {
  const token = frame['agentToken']
  if (typeof token !== 'string' || !/^[\x21-\x7e]{16,512}$/.test(token)) return null
  return { type: 'token', agentToken: token }
}

function parseObject(text: string): Fields | null {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : null
  } catch {
    return null
  }
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value)
}

// Ids are UUIDs today; the length alone protects the journal.
function isId(value: unknown): value is string {
  return typeof value === 'string' && /^[\w-]{1,64}$/.test(value)
}
