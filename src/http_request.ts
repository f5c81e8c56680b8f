// What is read of an HTTP request before anybody knows what it asks for: its id, its query, its body.
import { isUtf8 } from 'node:buffer'
import type { HttpRequest, HttpResponse } from 'uWebSockets.js'
import { clientAddress } from './address.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import { invalid } from './route.ts'

let requests = 0
const requestPrefix = crypto.randomUUID().slice(0, 8)

/** A caller's well-formed request id is kept; else the hub makes one. */
export function requestIdOf(header: string): string {
  if (/^[\w.:+/=-]{1,128}$/.test(header) && header.length <= limits.requestIdCharsMax) return header
  return `${requestPrefix}-${(++requests).toString(36)}`
}

export function parseQuery(text: string): Record<string, string> {
  if (text === '') return {}
  if (text.includes('%')) requireEscapes(text)
  const query = new Map<string, string>()
  for (const [name, value] of new URLSearchParams(text)) {
    if (query.has(name)) throw invalid(`/query/${name}`, 'is given twice')
    if (value.includes('\u0000')) throw invalid(`/query/${name}`, 'holds the character U+0000')
    query.set(name, value)
  }
  // Not by assignment: that would lose a member called __proto__.
  return Object.fromEntries(query)
}

/** URLSearchParams would make U+FFFD of what is no UTF-8, and leave a stray % as it is. */
function requireEscapes(text: string): void {
  for (const pair of text.split('&')) {
    try {
      decodeURIComponent(pair)
    } catch {
      const [name = ''] = pair.split('=', 1)
      throw invalid(`/query/${name}`, 'holds a % that is not followed by the bytes of a character')
    }
  }
}

const idempotencyKey = new RegExp(`^[\\x21-\\x7e]{1,${limits.idempotencyKeyCharsMax}}$`)

export function badIdempotencyKey(): AppError {
  const max = limits.idempotencyKeyCharsMax
  return invalid('/headers/Idempotency-Key', `must be 1 to ${max} visible ASCII characters`)
}

/** Whether the Idempotency-Key of a request, read as `key`, is none that may be. */
export function isBadKey(req: HttpRequest, key: string): boolean {
  return key === '' ? isThere(req) : !idempotencyKey.test(key)
}

/**
 * Whether an empty Idempotency-Key was sent: `getHeader` answers '' for an absent one as well. What is not
 * ASCII at the end of a value never gets here: uWebSockets.js takes it for space.
 */
function isThere(req: HttpRequest): boolean {
  let found = false
  req.forEach((name) => {
    found ||= name === 'idempotency-key'
  })
  return found
}

/** Collects a body up to the cap. What is wrong with it is returned, not thrown: 401 comes first. */
export function readBody(
  res: HttpResponse,
  contentLength: string,
  onAbort: (listener: () => void) => void,
): Promise<string | AppError> {
  return new Promise((resolve) => {
    onAbort(() => resolve(new AppError('INVALID_JSON', 'the caller left before the body ended')))
    let chunks: Buffer[] = []
    let bytes = 0
    // Who announces too much hears so before sending it.
    const announced = Number(contentLength)
    if (announced > limits.bodyBytesMax) resolve(tooLarge())
    res.onData((chunk, isLast) => {
      bytes += chunk.byteLength
      if (Math.max(announced, bytes) > limits.bodyBytesMax) {
        chunks = []
        resolve(tooLarge())
        return
      }
      // The chunk's memory is uWebSockets.js's own; only the last one may be read in place.
      if (!isLast) chunks.push(Buffer.from(chunk.slice(0)))
      else resolve(decode(Buffer.concat([...chunks, Buffer.from(chunk)])))
    })
  })
}

function tooLarge(): AppError {
  return new AppError('PAYLOAD_TOO_LARGE', `a body may hold at most ${limits.bodyBytesMax} bytes`)
}

function decode(bytes: Buffer): string | AppError {
  if (isUtf8(bytes)) return bytes.toString('utf8')
  return new AppError('INVALID_JSON', 'the body is not UTF-8')
}

/** Where the caller is; `remote` is the socket's address. A proxy may add a line of its own below the caller's. */
export function callerAddress(
  req: HttpRequest,
  remote: string,
  trusted: readonly string[],
): string {
  const lines: string[] = []
  if (trusted.length > 0 && req.getHeader('x-forwarded-for') !== '') {
    req.forEach((name, value) => {
      if (name === 'x-forwarded-for') lines.push(value)
    })
  }
  return clientAddress(remote, lines.join(', '), trusted)
}
