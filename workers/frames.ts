// Reads agents' frames: from text to a checked value whose strings PostgreSQL can store. Agents are not
// trusted: whatever they send, the answer is a frame or a reason, never an exception.
import { isUuid } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { upgradePhases, type AgentFrame, type AgentMetrics } from '../src/protocol.ts'

/** Why a frame was dropped; a closed set, so that it can be a metric's label. */
export type FrameFault = 'json' | 'unknown' | 'invalid' | 'large'

export type ReadFrame = { frame: AgentFrame } | { fault: FrameFault; message: string }

type Members = Record<string, unknown>

/** Parses and checks one text frame. Unknown members are ignored; an unknown type is a fault. */
export function readFrame(text: string): ReadFrame {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return { fault: 'json', message: 'the frame is not JSON' }
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return { fault: 'invalid', message: 'the frame is not an object' }
  }
  const members = value as Members
  // Before anything is cut off it: an inventory is kept whole or refused.
  const message = members['type'] === 'inventory' ? tooMuch(members, text.length) : undefined
  if (message !== undefined) return { fault: 'large', message }
  // Only an escape can bring U+0000 or half a surrogate pair; bytes were checked as UTF-8 before.
  return check(text.includes('\\u') ? (clean(members) as Members) : members)
}

function check(members: Members): ReadFrame {
  switch (members['type']) {
    case 'heartbeat':
      return { frame: heartbeat(members) }
    case 'delivered':
    case 'started': {
      const id = idOf(members)
      return id === undefined ? noId : { frame: { type: members['type'], id } }
    }
    case 'result':
      return result(members)
    case 'progress':
      return progress(members)
    case 'inventory':
      return { frame: inventory(members) }
    case 'alert':
      return alert(members)
    default:
      return { fault: 'unknown', message: 'the frame has no type that this hub knows' }
  }
}

const noId: ReadFrame = {
  fault: 'invalid',
  message: 'id must be a string of at most 64 characters',
}

/** As the hub writes ids: a UUID in capitals is the same one. */
function idOf({ id }: Members): string | undefined {
  if (typeof id !== 'string' || id === '' || id.length > 64) return undefined
  return /[A-F]/.test(id) && isUuid(id) ? id.toLowerCase() : id
}

function heartbeat(members: Members): AgentFrame {
  const frame: AgentFrame = { type: 'heartbeat' }
  const { seq, agentVersion, uptimeSeconds, metrics } = members
  if (Number.isSafeInteger(seq)) frame.seq = seq as number
  if (typeof agentVersion === 'string')
    frame.agentVersion = agentVersion.slice(0, 64).toWellFormed()
  if (Number.isFinite(uptimeSeconds)) frame.uptimeSeconds = uptimeSeconds as number
  if (typeof metrics === 'object' && metrics !== null && !Array.isArray(metrics)) {
    frame.metrics = numbersOf(metrics as Members)
  }
  return frame
}

/** Keeps finite numbers under reasonable names; percentages are held to 0–100. */
function numbersOf(metrics: Members): AgentMetrics {
  const numbers: AgentMetrics = {}
  let count = 0
  for (const name in metrics) {
    const value = metrics[name]
    if (typeof value !== 'number' || !Number.isFinite(value)) continue
    if (name.length > limits.metricNameCharsMax || ++count > limits.metricsMax) continue
    numbers[name] = name.endsWith('Percent') ? Math.min(100, Math.max(0, value)) : value
  }
  return numbers
}

/** Of live output nothing is kept; of an upgrade its phase. */
function progress(members: Members): ReadFrame {
  const id = idOf(members)
  if (id === undefined) return noId
  const { stream, data } = members
  const phase = stream === 'phase' ? upgradePhases.find((name) => name === data) : undefined
  return phase === undefined
    ? { frame: { type: 'progress', id, seq: 0, stream: 'stdout', data: '' } }
    : { frame: { type: 'progress', id, seq: 0, stream: 'phase', data: phase } }
}

const resultStatuses = ['completed', 'failed', 'timeout', 'cancelled'] as const

function result(members: Members): ReadFrame {
  const { status, exitCode, stdout, stderr, truncated, error, durationMs, data } = members
  const id = idOf(members)
  if (id === undefined) return noId
  const known = resultStatuses.find((name) => name === status)
  if (known === undefined) {
    return { fault: 'invalid', message: `status must be one of ${resultStatuses.join(', ')}` }
  }
  const out = cut(stdout, limits.outputBytesMax)
  const err = cut(stderr, limits.outputBytesMax)
  const why = cut(error, limits.errorBytesMax)
  return {
    frame: {
      type: 'result',
      id,
      status: known,
      exitCode: isExitCode(exitCode) ? exitCode : null,
      stdout: out.text,
      stderr: err.text,
      truncated: truncated === true || out.cut || err.cut || why.cut,
      error: typeof error === 'string' ? why.text : null,
      ...(isDuration(durationMs) ? { durationMs } : {}),
      ...(data === undefined ? {} : { data: clean(data, 1) }),
    },
  }
}

/** 32 bits, signed as on Unix or unsigned as on Windows. */
function isExitCode(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= -(2 ** 31) && (value as number) < 2 ** 32
}

function isDuration(value: unknown): value is number {
  return typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER
}

/** The longest head of a text whose JSON encoding fits; what an honest agent has done already. */
function cut(value: unknown, bytesMax: number): { text: string; cut: boolean } {
  if (typeof value !== 'string') return { text: '', cut: false }
  // No character takes more than six bytes encoded, so short texts need no measuring.
  if (value.length * 6 <= bytesMax || encodedBytes(value) <= bytesMax) {
    return { text: value, cut: false }
  }
  let low = 0
  let high = value.length
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (encodedBytes(value.slice(0, middle)) <= bytesMax) low = middle
    else high = middle - 1
  }
  return { text: value.slice(0, low).toWellFormed(), cut: true }
}

function encodedBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text)) - 2
}

function tooMuch(members: Members, chars: number): string | undefined {
  if (chars > limits.inventoryBytesMax) {
    return `an inventory may hold at most ${limits.inventoryBytesMax} bytes`
  }
  // Whoever reads it later need not be able to read any depth.
  return nestsBeyond(inventory(members), limits.jsonDepthMax)
    ? `the inventory is nested too deeply: at most ${limits.jsonDepthMax} levels, its own among them`
    : undefined
}

/** Whether objects and arrays lie in each other on more than so many levels; looks no deeper than that. */
function nestsBeyond(value: unknown, levels: number): boolean {
  if (typeof value !== 'object' || value === null) return false
  return levels === 0 || Object.values(value).some((member) => nestsBeyond(member, levels - 1))
}

function inventory({ os, hardware, network, software }: Members): AgentFrame {
  return { type: 'inventory', os, hardware, network, software }
}

const severities = ['critical', 'high', 'medium', 'low', 'info'] as const
const alertNeeds = `an alert has a title, a dedupeKey, and a severity: ${severities.join(', ')}`

function alert(members: Members): ReadFrame {
  const { severity, title, message, dedupeKey } = members
  const known = severities.find((name) => name === severity)
  if (known === undefined || typeof title !== 'string' || typeof dedupeKey !== 'string') {
    return { fault: 'invalid', message: alertNeeds }
  }
  return {
    frame: {
      type: 'alert',
      severity: known,
      title: title.slice(0, limits.alertTitleCharsMax),
      message: typeof message === 'string' ? message.slice(0, limits.alertMessageCharsMax) : '',
      dedupeKey: dedupeKey.slice(0, limits.dedupeKeyCharsMax),
    },
  }
}

/**
 * Replaces U+0000 and lone surrogates by U+FFFD in every string and key of a parsed value, and what nests too deeply
 * by null.
 */
export function clean(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return cleanText(value)
  if (typeof value !== 'object' || value === null) return value
  if (depth >= limits.jsonDepthMax) return null
  if (Array.isArray(value)) return value.map((member) => clean(member, depth + 1))
  return Object.fromEntries(
    Object.entries(value).map(([key, member]) => [cleanText(key), clean(member, depth + 1)]),
  )
}

function cleanText(text: string): string {
  return text.replaceAll('\u0000', '\ufffd').toWellFormed()
}
