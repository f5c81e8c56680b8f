// One attempt to deliver a webhook: a POST to an address that was judged, within its time, reading no more
// of the answer than is kept. Follows no redirect. Knows no row.
import type { LookupAddress } from 'node:dns'
import { Resolver } from 'node:dns/promises'
import type { IncomingMessage } from 'node:http'
import { isIP, type LookupFunction } from 'node:net'
import { cleanText } from '../src/clean.ts'
import { hostOf, type Destinations } from '../src/destinations.ts'
import { limits } from '../src/limits.ts'

export interface Message {
  url: string
  headers: Readonly<Record<string, string>>
  body: string
}

export interface Outcome {
  /** True for an answer with 2xx. */
  ok: boolean
  status: number | null
  /** The begin of the answer. */
  response: string | null
  /** Why it failed, for people. */
  error: string | null
  durationMs: number
}

/** All addresses of a name. */
export type Resolve = (host: string) => Promise<string[]>

export interface SenderOptions {
  destinations: Destinations
  resolve?: Resolve
}

export type Send = (message: Message, stop: AbortSignal) => Promise<Outcome>

/** Makes the sender. An attempt never rejects, unless `stop` cut it: then nothing is known of it. */
export function sender({ destinations, resolve = resolver() }: SenderOptions): Send {
  return async (message, stop) => {
    const beganMs = performance.now()
    const durationMs = () => Math.round(performance.now() - beganMs)
    try {
      const refusal = destinations.refusal(message.url)
      if (refusal !== undefined) throw new Error(`the URL ${refusal}`)
      const addresses = await reachable(new URL(message.url), destinations, resolve)
      const { status, response } = await post(message, lookupOf(addresses), stop)
      const ok = status >= 200 && status < 300
      return { ok, status, response, error: ok ? null : reasonOf(status), durationMs: durationMs() }
    } catch (error) {
      stop.throwIfAborted()
      const failed = { ok: false, status: null, response: null, durationMs: durationMs() }
      return { ...failed, error: cleanText(messageOf(error), limits.auditTextCharsMax) }
    }
  }
}

/** Asks DNS itself: the system's look-up waits in a pool of four threads that one dead name could fill. */
function resolver(): Resolve {
  const dns = new Resolver({ timeout: limits.webhookConnectMsMax / 2, tries: 2 })
  return async (host) => {
    const [four, six] = await Promise.allSettled([dns.resolve4(host), dns.resolve6(host)])
    const found = [four, six].flatMap((one) => (one.status === 'fulfilled' ? one.value : []))
    if (found.length === 0) throw new Error(`${host} has no address`)
    return found
  }
}

/**
 * The addresses of a URL's host that may be reached. The socket is given these and asks nobody else, so
 * that an answer of DNS which changes between the check and the connection changes nothing.
 */
async function reachable(
  url: URL,
  destinations: Destinations,
  resolve: Resolve,
): Promise<LookupAddress[]> {
  const host = hostOf(url)
  const addresses = isIP(host) === 0 ? await inTime(resolve(host)) : [host]
  const permitted = addresses.filter((address) => destinations.permits(address))
  if (permitted.length > 0) return permitted.map((address) => ({ address, family: isIP(address) }))
  throw new Error(`${host} points to addresses that webhooks may not reach`)
}

async function inTime<T>(promise: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>()
  const timer = setTimeout(
    () => late.reject(new Error('the name was not resolved in time')),
    limits.webhookConnectMsMax,
  )
  try {
    return await Promise.race([promise, late.promise])
  } finally {
    clearTimeout(timer)
  }
}

function lookupOf(addresses: readonly LookupAddress[]): LookupFunction {
  return (_host, options, callback) => {
    const [first] = addresses
    if (options.all) process.nextTick(callback, null, addresses)
    else process.nextTick(callback, null, first?.address, first?.family)
  }
}

interface Answer {
  status: number
  response: string
}

async function post(message: Message, lookup: LookupFunction, stop: AbortSignal): Promise<Answer> {
  const url = new URL(message.url)
  // With the first delivery: it is 9 MB, and many a hub has no webhook.
  const isTls = url.protocol === 'https:'
  const { request } = await (isTls ? import('node:https') : import('node:http'))
  const connected = isTls ? 'secureConnect' : 'connect'
  return new Promise((resolve, reject) => {
    const outgoing = request({
      method: 'POST',
      protocol: url.protocol,
      host: hostOf(url),
      port: url.port,
      path: `${url.pathname}${url.search}`,
      headers: {
        ...message.headers,
        'content-length': Buffer.byteLength(message.body),
        connection: 'close',
      },
      lookup,
      // A connection of its own: one that is kept could be to an address judged long ago.
      agent: false,
      signal: stop,
      maxHeaderSize: 16 * 1024,
    })
    const fail = (reason: string) => outgoing.destroy(new Error(reason))
    const whole = setTimeout(
      () => fail(`no answer within ${limits.webhookAttemptMsMax / 1000} s`),
      limits.webhookAttemptMsMax,
    )
    const connecting = setTimeout(
      () => fail(`no connection within ${limits.webhookConnectMsMax / 1000} s`),
      limits.webhookConnectMsMax,
    )
    const settle = () => {
      clearTimeout(whole)
      clearTimeout(connecting)
    }
    outgoing.on('socket', (socket) => socket.once(connected, () => clearTimeout(connecting)))
    outgoing.on('error', (error) => {
      settle()
      reject(error)
    })
    // Without a listener Node ends such a request and tells nobody.
    outgoing.on('upgrade', (incoming, socket) => {
      socket.destroy()
      settle()
      resolve({ status: incoming.statusCode ?? 101, response: '' })
    })
    outgoing.on('response', (incoming) => {
      readAnswer(incoming, (response) => {
        settle()
        resolve({ status: incoming.statusCode ?? 0, response })
        // The rest of a long answer is nobody's.
        outgoing.destroy()
      })
    })
    outgoing.end(message.body)
  })
}

/** Reads up to the bound; an answer that breaks off or dawdles past the deadline counts by its status. */
function readAnswer(incoming: IncomingMessage, done: (text: string) => void): void {
  const chunks: Buffer[] = []
  let bytes = 0
  const end = () => {
    const text = Buffer.concat(chunks).subarray(0, limits.webhookAnswerBytesMax).toString('utf8')
    done(cleanText(text, limits.webhookAnswerBytesMax))
  }
  incoming.on('data', (chunk: Buffer) => {
    chunks.push(chunk)
    bytes += chunk.length
    if (bytes >= limits.webhookAnswerBytesMax) end()
  })
  incoming.on('end', end)
  incoming.on('error', end)
}

function reasonOf(status: number): string {
  if (status >= 300 && status < 400) return `answered ${status}; redirects are not followed`
  return `answered ${status}`
}

/** A connection tried at several addresses fails with an error whose own message is empty. */
function messageOf(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(messageOf).join('; ')
  return error instanceof Error ? error.message || error.name : String(error)
}
