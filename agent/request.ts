// One plain HTTP request to the hub, bounded in time and size, and what its error body says.

import { requestMsMax, responseBytesMax } from './limits.ts'

export interface Answer {
  status: number
  body: unknown
  /** From Retry-After, in seconds. */
  retryAfterSeconds: number | null
}

/** Asks the hub, for an answer of at most so many bytes. Never follows a redirect: that could carry a credential to another host. */
export async function ask(
  url: string,
  init: RequestInit,
  bytesMax = responseBytesMax,
): Promise<Answer> {
  const timeout = AbortSignal.timeout(requestMsMax)
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout
  const response = await fetch(url, { ...init, redirect: 'manual', signal })
  return {
    status: response.status,
    body: parseJson(await readBounded(response, bytesMax)),
    retryAfterSeconds: parseRetryAfter(response.headers.get('retry-after')),
  }
}

/** The code and message of an error body; empty where the body is no such thing. */
export function errorOf(body: unknown): { code: string; message: string } {
  const error = (body as { error?: { code?: unknown; message?: unknown } } | null)?.error
  return {
    code: typeof error?.code === 'string' ? error.code : '',
    message: typeof error?.message === 'string' ? error.message : '',
  }
}

/** Retry-After in seconds; the hub never sends a date, and a date is answered with null. */
export function parseRetryAfter(value: string | null): number | null {
  if (value === null || !/^\d+$/.test(value.trim())) return null
  return Number(value)
}

async function readBounded(response: Response, bytesMax: number): Promise<string> {
  const chunks: Uint8Array[] = []
  const body = (response.body ?? []) as AsyncIterable<Uint8Array> // bytes, by the fetch standard
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > bytesMax) throw new Error('the answer is longer than any answer of a hub')
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return null
  }
}
