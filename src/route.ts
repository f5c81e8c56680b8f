// What a route is: method, path, who may call it, schemas and a handler. The list of routes is the one
// source of checking, of the OpenAPI document and of the tests that call every route as every role.
import type { KeyObject } from 'node:crypto'
import { Type, type Static, type TObject, type TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import type { AbuseWatch } from './abuse.ts'
import type { AuditTrail } from './audit.ts'
import type { AccessTokens, Actor, Operation } from './auth.ts'
import type { Commands } from './commands.ts'
import type { Config } from './config.ts'
import type { DataKeys } from './data_keys.ts'
import type { Database } from './db.ts'
import type { Downloads } from './downloads.ts'
import { AppError, type ErrorDetail } from './errors.ts'
import type { EventStreams, StreamSink } from './event_streams.ts'
import type { ByteSource } from './http_stream.ts'
import type { Identities } from './identities.ts'
import type { Handoffs } from './handoffs.ts'
import type { Logger } from './log.ts'
import type { Mailer } from './mail.ts'
import type { Metrics } from './metrics.ts'
import type { Passwords } from './passwords.ts'
import type { RateLimits } from './rates.ts'
import type { Releases } from './releases.ts'
import { detailsOf } from './schema_errors.ts'
import { fromTexts, lowering, repeats, trimming, withoutUnique } from './schema_values.ts'
import type { Shards } from './shards.ts'
import type { Slots } from './slots.ts'
import type { TerminalRelay } from './terminal_relay.ts'
import type { Terminals } from './terminals.ts'
import type { SealKeys } from './webhook_secrets.ts'

/** The parts of a running hub, built and stopped by `main.ts` in one visible order. */
export interface Context {
  /** This hub among the others. */
  readonly nodeId: string
  readonly config: Config
  readonly log: Logger
  readonly metrics: Metrics
  /** The pool of operators' requests. */
  readonly db: Database
  /** The pool of commands accepted, and of rows read by id, with kept plans: apart, so that no search delays them. */
  readonly commandDb: Database
  /** The pool of agents that connect: a storm of them must not keep operators waiting. */
  readonly connectDb: Database
  /** The pool that reads the audit: an export runs for minutes, and each search is planned for its filters. */
  readonly auditDb: Database
  readonly exports: Slots
  readonly verifications: Slots
  readonly tokens: AccessTokens
  readonly passwords: Passwords
  /** Seals secrets at rest. */
  readonly dataKeys: DataKeys
  readonly identities: Identities
  readonly rates: RateLimits
  /** Told of refused logins, which it makes alerts of. */
  readonly abuse: AbuseWatch
  readonly audit: AuditTrail
  /** Absent without SMTP_URL. */
  readonly mailer: Mailer | undefined
  readonly shards: Shards
  readonly commands: Commands
  /** What other hubs, which hold the device, are to look at. */
  readonly handoffs: Handoffs
  readonly streams: EventStreams
  readonly terminals: Terminals
  /** To terminals that live on other hubs. */
  readonly relay: TerminalRelay
  /** Of agents: what is offered to them. */
  readonly releases: Releases
  readonly downloads: Downloads
  /** Signs list cursors. */
  readonly cursorKey: KeyObject
  /** Seal the secrets of webhooks. */
  readonly webhookKeys: SealKeys
  /** Scheme, host and port that links and agents use. */
  readonly publicOrigin: string
  /** What readiness tells, name → `ok` or why not. */
  readonly checks: () => Promise<Readonly<Record<string, string>>>
  /** True from the begin of a shutdown on: ready answers 503. */
  readonly draining: () => boolean
}

export type Method = 'GET' | 'POST' | 'PATCH' | 'DELETE'

/** What a handler gets: checked values and who asks. */
export interface Call<P, Q, B> {
  params: P
  query: Q
  body: B
  /** Only absent on public routes. */
  actor: Actor
  ip: string
  userAgent: string | null
  requestId: string
  /** A header that the route lists in `headers`; '' when absent. An Idempotency-Key is checked already. */
  header: (name: string) => string
  /** Rejects waiting work when the caller has gone. */
  onAbort: (listener: () => void) => void
}

export interface Reply {
  status: number
  /** The body as a value, or … */
  body?: unknown
  /** … as JSON text that PostgreSQL already wrote. */
  json?: string
  /** A body that is not JSON, with its content type. A buffer is shared: it is sent without a copy. */
  text?: { type: string; content: string | Buffer }
  /** A body of any length, written as fast as the caller reads. */
  stream?: ReplyStream
  /** A body of known length that is read as the caller takes it. `open` may refuse; HEAD does not call it. */
  bytes?: { type: string; length: number; open: () => Promise<ByteSource> }
  /** Also instead of the security header of the same name. */
  headers?: Record<string, string>
  /** Takes over the body: it stays open until one of the two ends it. Not called for HEAD. */
  sink?: (sink: StreamSink) => void
}

/**
 * A body made while it is read. The first chunk is awaited before the status is written: what fails until then
 * is an ordinary refusal, what fails later breaks the connection off, so that nothing cut short looks whole.
 * When the caller leaves, the iteration is ended; whoever waits for more than the database listens to
 * `onAbort` too. A HEAD request makes no chunk.
 */
export interface ReplyStream {
  /** The content type. */
  type: string
  /** Each at most about `streamChunkBytesMax`: so much is held for a caller who does not read. */
  chunks: AsyncIterable<string | Uint8Array>
}

/** `{base_url}` routes live under /api/v1, `{origin}` routes (health, metrics) beside it. */
export interface Route {
  method: Method
  path: string
  /** The parameters in the path, as uWebSockets.js numbers them. */
  parameters: readonly string[]
  at: 'base' | 'origin'
  name: string
  tag: string
  summary: string
  /** The operation of the role table, `signed-in` for any user, `public` for anyone. */
  may: Operation | 'signed-in' | 'public'
  /** True where a user narrowed to sites gets 403: what is written belongs to a whole organization. */
  organizationWide: boolean
  params: Checker | undefined
  query: Checker | undefined
  body: Checker | undefined
  /** Status → schema of the body, null where there is none. */
  responses: Record<number, TSchema | null>
  /** True where a request without any body means `{}`. */
  bodyOptional: boolean
  /** Asked by machines every few seconds: the access log shows when the answer changes, and refusals. */
  probe: boolean
  /** Request headers the handler reads, lower case; others are gone once the body arrives. */
  headers: readonly string[]
  /**
   * Where the body itself says who asks: called before it is refused, to throw the 401 or 429 that comes first. `sent`
   * is whatever was sent.
   */
  beforeRefusal?: (ctx: Context, ask: Ask) => Promise<void>
  handle: (ctx: Context, call: Call<unknown, unknown, unknown>) => Promise<Reply> | Reply
}

export interface Ask {
  sent: string
  ip: string
  header: (name: string) => string
}

export interface Checker {
  schema: TObject
  /** Returns the checked value; throws VALIDATION_ERROR with a detail per problem. */
  check(value: unknown): unknown
}

type Value<T> = T extends TSchema ? Static<T> : undefined

interface RouteOptions<
  P extends TObject | undefined,
  Q extends TObject | undefined,
  B extends TObject | undefined,
> {
  method: Method
  path: string
  at?: 'base' | 'origin'
  name: string
  tag: string
  summary: string
  may: Operation | 'signed-in' | 'public'
  organizationWide?: boolean
  params?: P
  query?: Q
  body?: B
  bodyOptional?: boolean
  probe?: boolean
  headers?: readonly string[]
  beforeRefusal?: (ctx: Context, ask: Ask) => Promise<void>
  responses: Record<number, TSchema | null>
  handle: (ctx: Context, call: Call<Value<P>, Value<Q>, Value<B>>) => Promise<Reply> | Reply
}

/** Makes a route; its schemas are compiled once. */
export function route<
  P extends TObject | undefined = undefined,
  Q extends TObject | undefined = undefined,
  B extends TObject | undefined = undefined,
>(options: RouteOptions<P, Q, B>): Route {
  const { params, query, body, handle, ...rest } = options
  return {
    at: 'base',
    organizationWide: false,
    bodyOptional: false,
    probe: false,
    headers: [],
    ...rest,
    parameters: Array.from(rest.path.matchAll(/:(\w+)/g), (match) => match[1] ?? ''),
    params: params && checker(params, ''),
    query: query || rest.at !== 'origin' ? checker(query ?? none, 'query', true) : undefined,
    body: body && checker(body, ''),
    // The checkers make exactly these types out of unknown; the table itself is untyped.
    handle: handle as Route['handle'],
  }
}

const none = Type.Object({})

/** The `:id` of most routes. */
export const idParams = Type.Object({ id: Type.String({ format: 'uuid' }) })

/** The body of a request that carries nothing. */
export const nothingSent = checker(none, '')

/**
 * Checks by a schema. Unknown members are refused by name. `textual` reads numbers and booleans from
 * the texts of a query string, and only where the schema asks for one.
 */
function checker(schema: TObject, prefix: '' | 'query', textual = false): Checker {
  const closed = { ...schema, additionalProperties: false }
  const plain = withoutUnique(closed)
  // With the first call: most routes are never called between two starts, and compiled schemas are megabytes.
  const compile = () => Compile(plain)
  let compiled: ReturnType<typeof compile> | undefined
  const [trim, lower] = [trimming(schema), lowering(schema)]
  const refuse = (details: ErrorDetail[]) => {
    const at = prefix ? `/${prefix}` : ''
    throw refusal(details.map(({ path, message }) => ({ path: `${at}${path}`, message })))
  }
  return {
    schema: closed,
    check(value) {
      const read = textual ? fromTexts(schema, value as Record<string, string>) : value
      const candidate = trim ? trim(read) : read
      compiled ??= compile()
      if (!compiled.Check(candidate)) refuse(detailsOf(compiled.Errors(candidate), closed))
      const same = plain === closed ? [] : repeats(closed, candidate)
      if (same.length > 0) refuse(same)
      return lower ? lower(candidate) : candidate
    },
  }
}

/** VALIDATION_ERROR whose message says the first thing that is wrong. */
export function refusal(details: ErrorDetail[]): AppError {
  const first = details[0]
  const more = details.length > 1 ? ` (and ${details.length - 1} more)` : ''
  return new AppError(
    'VALIDATION_ERROR',
    first ? `${first.path || 'the body'} ${first.message}${more}` : 'the request is not valid',
    { details },
  )
}

/** VALIDATION_ERROR about one member; '' is the whole body. */
export function invalid(path: string, message: string): AppError {
  return refusal([{ path, message }])
}
