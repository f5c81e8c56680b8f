// The frames of terminals, once: operator's page, hub and agent read and write them with this file. A frame is
// a kind (1 byte), the session's id (41 ASCII bytes), a sequence (8 bytes, big-endian) and a body. Loads
// nothing and knows no Node, because browsers run it too.

/** The WebSocket subprotocol of an operator's socket; a second one, `ticket.<value>`, carries the ticket. */
export const terminalSubprotocol = 'muster-terminal.v1'
export const ticketSubprotocol = 'ticket.'

/**
 * What a frame says. Sequences count bytes since the session began, apart for output and input.
 *
 * - `open`, operator → hub → agent: begin, or go on. Sequence: output that is received up to there. Body: size,
 *   and to the agent one byte more: 1 when the session has begun before, so that it must not begin anew.
 * - `opened`, agent → operator: the answer. Sequence: input received up to there. Body: where output goes on,
 *   8 bytes. What was sent behind these two and not acknowledged comes again.
 * - `data`, both ways. Sequence: of the body's first byte.
 * - `ack`, both ways. Sequence: everything before it was taken, so it need not be kept.
 * - `resize`, operator → agent. Body: size.
 * - `exit`, agent → operator. Sequence: where output ends. Body: exit code (4 bytes, signed), and the name of the
 *   signal, if one ended the shell.
 * - `close`, any way: the session is over, or unknown. Body: why, as a sentence.
 */
export const frameKinds = {
  open: 1,
  opened: 2,
  data: 3,
  ack: 4,
  resize: 5,
  exit: 6,
  close: 7,
} as const

export type FrameKind = keyof typeof frameKinds

export const terminalIdChars = 41
export const frameHeaderBytes = 50
/** Body of a data frame: what a terminal reads at once, and small enough for others to get their turn. */
export const dataBytesMax = 32 * 1024
/** A sentence in the body of a `close`, a signal's name in that of an `exit`. */
export const textBytesMax = 512
/** Bytes on their way that are not acknowledged, in each direction: the most that either end keeps. */
export const windowBytes = 256 * 1024
/** Columns and rows: what terminals of large screens have, with room. */
export const sizeMax = 1000

export interface TerminalFrame {
  kind: FrameKind
  id: string
  seq: number
  body: Uint8Array
}

export interface TerminalSize {
  cols: number
  rows: number
}

const kinds = Object.keys(frameKinds) as FrameKind[]
const nothing: Uint8Array = new Uint8Array(0)
const latin1 = new TextDecoder('latin1')
const utf8 = new TextDecoder()
const encoder = new TextEncoder()
const idPattern = /^term-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/

/** Whether a text is the id of a terminal session. */
export function isTerminalId(text: string): boolean {
  return idPattern.test(text)
}

/** The bytes of a frame. */
export function encodeFrame(
  kind: FrameKind,
  id: string,
  seq: number,
  body = nothing,
): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(frameHeaderBytes + body.length)
  bytes[0] = frameKinds[kind]
  encoder.encodeInto(id, bytes.subarray(1))
  viewOf(bytes).setBigUint64(1 + terminalIdChars, BigInt(seq))
  bytes.set(body, frameHeaderBytes)
  return bytes
}

/** The frame of these bytes, its body still in them; undefined for what is none. */
export function decodeFrame(bytes: Uint8Array): TerminalFrame | undefined {
  const kind = kinds[(bytes[0] ?? 0) - 1]
  if (kind === undefined || bytes.length < frameHeaderBytes) return undefined
  if (bytes.length - frameHeaderBytes > dataBytesMax) return undefined
  const id = latin1.decode(bytes.subarray(1, 1 + terminalIdChars))
  const seq = viewOf(bytes).getBigUint64(1 + terminalIdChars)
  if (!isTerminalId(id) || seq > BigInt(Number.MAX_SAFE_INTEGER)) return undefined
  return { kind, id, seq: Number(seq), body: bytes.subarray(frameHeaderBytes) }
}

export function encodeSize({ cols, rows }: TerminalSize, resumed?: boolean): Uint8Array {
  const bytes = new Uint8Array(resumed === undefined ? 4 : 5)
  viewOf(bytes).setUint16(0, cols)
  viewOf(bytes).setUint16(2, rows)
  if (resumed !== undefined) bytes[4] = resumed ? 1 : 0
  return bytes
}

/** Undefined where no terminal can be so large or so small. */
export function decodeSize(body: Uint8Array): TerminalSize | undefined {
  if (body.length < 4) return undefined
  const cols = viewOf(body).getUint16(0)
  const rows = viewOf(body).getUint16(2)
  return isSize(cols) && isSize(rows) ? { cols, rows } : undefined
}

/** Of an `open` to an agent. */
export function isResumed(body: Uint8Array): boolean {
  return body[4] === 1
}

/** Of an `opened`: where output goes on. */
export function encodeBase(seq: number): Uint8Array {
  const bytes = new Uint8Array(8)
  viewOf(bytes).setBigUint64(0, BigInt(seq))
  return bytes
}

export function decodeBase(body: Uint8Array): number | undefined {
  if (body.length !== 8) return undefined
  const seq = viewOf(body).getBigUint64(0)
  return seq > BigInt(Number.MAX_SAFE_INTEGER) ? undefined : Number(seq)
}

export function encodeExit(exitCode: number, signal: string): Uint8Array {
  const text = encodeText(signal)
  const bytes = new Uint8Array(4 + text.length)
  viewOf(bytes).setInt32(0, exitCode)
  bytes.set(text, 4)
  return bytes
}

export function decodeExit(body: Uint8Array): { exitCode: number; signal: string } | undefined {
  if (body.length < 4 || body.length > 4 + textBytesMax) return undefined
  return { exitCode: viewOf(body).getInt32(0), signal: decodeText(body.subarray(4)) }
}

export function encodeText(text: string): Uint8Array {
  return encoder.encode(text).subarray(0, textBytesMax)
}

/** Without control characters: it is shown to people and written to logs. */
export function decodeText(body: Uint8Array): string {
  // oxlint-disable-next-line no-control-regex
  return utf8.decode(body.subarray(0, textBytesMax)).replace(/[\u0000-\u001f\u007f-\u009f]/g, ' ')
}

function isSize(value: number): boolean {
  return value >= 1 && value <= sizeMax
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}
