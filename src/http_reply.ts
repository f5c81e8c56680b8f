// How a reply becomes an HTTP response: status, headers and body, written in one go. Decides nothing.
import type { HttpResponse } from 'uWebSockets.js'
import { errorBody, type AppError } from './errors.ts'
import type { Reply } from './route.ts'

/** Writes a reply in one go, but for a stream's chunks. Must not be called once the response was aborted. */
export function sendReply(
  res: HttpResponse,
  reply: Reply,
  requestId: string,
  headOnly = false,
  moreHeaders: Record<string, string> = {},
): void {
  const content = reply.text?.content ?? jsonText(reply)
  res.cork(() => {
    res.writeStatus(statusLines[reply.status] ?? String(reply.status))
    res.writeHeader('X-Request-Id', requestId)
    writeHeaders(res, securityHeaders, reply.headers)
    const type = reply.text?.type ?? reply.stream?.type ?? reply.bytes?.type
    if (type !== undefined) res.writeHeader('Content-Type', type)
    else if (content !== '') res.writeHeader('Content-Type', 'application/json; charset=utf-8')
    // Of two rates that speak, the refusing one alone is told.
    writeHeaders(res, moreHeaders, reply.headers)
    if (reply.headers) writeHeaders(res, reply.headers)
    // Its length would be that of the body which is not sent.
    if (reply.status === 304) res.endWithoutBody()
    else if (reply.stream) {
      if (headOnly) res.endWithoutBody()
    } else if (reply.bytes) {
      if (headOnly) res.endWithoutBody(reply.bytes.length)
    } else if (headOnly) res.endWithoutBody(Buffer.byteLength(content))
    else if (typeof content !== 'string') endInParts(res, content)
    // A body past the cap is still on its way: only closing ends it.
    else res.end(content, reply.status === 413)
  })
}

/** Writes what the socket takes, and more when it takes more: a slow reader holds no copy of its own. */
function endInParts(res: HttpResponse, bytes: Buffer): void {
  const begin = res.getWriteOffset()
  const [taken, done] = res.tryEnd(bytes, bytes.byteLength)
  if (taken || done) return
  res.onWritable((offset) => res.tryEnd(bytes.subarray(offset - begin), bytes.byteLength)[0])
}

/** Writes status and headers of a reply whose body follows bit by bit. */
export function beginReply(
  res: HttpResponse,
  reply: Reply,
  requestId: string,
  moreHeaders: Record<string, string> = {},
): void {
  res.cork(() => {
    res.writeStatus(statusLines[reply.status] ?? String(reply.status))
    res.writeHeader('X-Request-Id', requestId)
    writeHeaders(res, securityHeaders, reply.headers)
    writeHeaders(res, moreHeaders, reply.headers)
    if (reply.headers) writeHeaders(res, reply.headers)
  })
}

export function jsonText(reply: Reply): string {
  return reply.json ?? (reply.body === undefined ? '' : JSON.stringify(reply.body))
}

/** The reply of a refusal, with the headers that its status asks for. */
export function errorReply(error: AppError, requestId: string): Reply {
  const headers: Record<string, string> = { ...error.headers }
  if (error.status === 401) headers['WWW-Authenticate'] ??= challenge(error.code)
  if (error.retryAfterSeconds !== undefined) {
    headers['Retry-After'] = String(Math.max(1, Math.ceil(error.retryAfterSeconds)))
  }
  return { status: error.status, body: errorBody(error, requestId), headers }
}

function challenge(code: string): string {
  const invalidToken = code === 'INVALID_TOKEN' || code === 'TOKEN_EXPIRED'
  return invalidToken ? 'Bearer realm="muster", error="invalid_token"' : 'Bearer realm="muster"'
}

/** Writes headers, but for those that `own` has too. */
function writeHeaders(
  res: HttpResponse,
  headers: Record<string, string>,
  own?: Record<string, string>,
): void {
  for (const name in headers) {
    if (own === undefined || !(name in own)) res.writeHeader(name, headers[name] as string)
  }
}

const securityHeaders: Record<string, string> = {
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Content-Security-Policy': "default-src 'none'; frame-ancestors 'none'",
  'Cache-Control': 'no-store',
}

const statusLines: Record<number, string> = {
  200: '200 OK',
  201: '201 Created',
  202: '202 Accepted',
  204: '204 No Content',
  206: '206 Partial Content',
  304: '304 Not Modified',
  400: '400 Bad Request',
  401: '401 Unauthorized',
  403: '403 Forbidden',
  404: '404 Not Found',
  405: '405 Method Not Allowed',
  409: '409 Conflict',
  413: '413 Payload Too Large',
  415: '415 Unsupported Media Type',
  416: '416 Range Not Satisfiable',
  426: '426 Upgrade Required',
  429: '429 Too Many Requests',
  500: '500 Internal Server Error',
  503: '503 Service Unavailable',
}
