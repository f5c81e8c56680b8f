// The uWebSockets.js HTTP adapter: body cap, abort safety, cork, access log. The only catch and the only
// place where an error becomes a status. Knows no resource.
import type { HttpRequest, HttpResponse, TemplatedApp } from 'uWebSockets.js'
import { auditOf } from './audit.ts'
import { can, operations, type Actor } from './auth.ts'
import { cleanText } from './clean.ts'
import { AppError } from './errors.ts'
import { bodyOf } from './http_body.ts'
import { bearer } from './http_headers.ts'
import { beginReply, errorReply, jsonText, sendReply } from './http_reply.ts'
import {
  badIdempotencyKey,
  callerAddress,
  isBadKey,
  parseQuery,
  readBody,
  requestIdOf,
} from './http_request.ts'
import { writeBytes, writeChunks, type ByteSource, type Reader } from './http_stream.ts'
import { limits } from './limits.ts'
import type { Context, Reply, ReplyStream, Route } from './route.ts'
import { openStream } from './sse.ts'
import { Turns } from './turns.ts'

export interface HttpServer {
  /** Requests being answered right now. */
  inFlight(): number
}

export interface HttpOptions {
  /** Tests check every answer against the route's schema here. */
  onAnswer?: ((route: Route, status: number, body: string) => void) | undefined
}

/** Registers every route on the app, 405 for their other methods, and 404 for the rest. */
export function serveHttp(
  app: TemplatedApp,
  ctx: Context,
  routes: readonly Route[],
  options: HttpOptions = {},
): HttpServer {
  const server: Server = { active: 0, probed: new Map(), turns: new Turns(limits.turnWritesMax) }
  const byPath = Map.groupBy(routes, pathOf)
  for (const [path, siblings] of byPath) {
    for (const route of siblings) {
      const handle = (res: HttpResponse, req: HttpRequest) =>
        new Exchange(ctx, server, options, route, res, req).start()
      if (route.method === 'GET') {
        app.get(path, handle)
        app.head(path, handle)
      } else if (route.method === 'POST') app.post(path, handle)
      else if (route.method === 'PATCH') app.patch(path, handle)
      else app.del(path, handle)
    }
    const allow = siblings
      .flatMap(({ method }) => (method === 'GET' ? [method, 'HEAD'] : method))
      .join(', ')
    app.any(path, (res, req) =>
      new Exchange(ctx, server, options, methodNotAllowed(allow), res, req).start(),
    )
  }
  app.any('/*', (res, req) => new Exchange(ctx, server, options, notFound, res, req).start())
  return { inFlight: () => server.active }
}

/** What the exchanges of a server share. */
interface Server {
  active: number
  /** How each probe was answered last. */
  readonly probed: Map<Route, number>
  /** Of requests that write, so that who only reads does not wait for a herd of them. */
  readonly turns: Turns
}

function pathOf(route: Route): string {
  return route.at === 'base' ? `/api/v1${route.path}` : route.path
}

/** One request and its answer. */
class Exchange {
  private aborted = false
  private readonly startedMs = performance.now()
  private readonly method: string
  private readonly requestId: string
  private readonly ip: string
  private readonly userAgent: string
  private readonly authorization: string
  private readonly contentType: string
  private readonly contentLength: string
  private readonly contentEncoding: string
  private readonly queryText: string
  private readonly params: Record<string, string> = {}
  private readonly headers: Record<string, string> | undefined
  private readonly badKey: boolean = false
  private readonly abortListeners: (() => void)[] = []
  private replyHeaders: Record<string, string> | undefined
  private actor: Actor | undefined
  private readonly ctx: Context
  private readonly server: Server
  private readonly options: HttpOptions
  private readonly route: Route
  private readonly res: HttpResponse

  /** Copies what is needed: `req` is dead once the synchronous callback returns. */
  constructor(
    ctx: Context,
    server: Server,
    options: HttpOptions,
    route: Route,
    res: HttpResponse,
    req: HttpRequest,
  ) {
    this.ctx = ctx
    this.server = server
    this.options = options
    this.route = route
    this.res = res
    this.method = req.getCaseSensitiveMethod()
    this.requestId = requestIdOf(req.getHeader('x-request-id'))
    const remote = Buffer.from(res.getRemoteAddressAsText()).toString('latin1')
    this.ip = callerAddress(req, remote, ctx.config.trustedProxies)
    this.userAgent = cleanText(req.getHeader('user-agent'), limits.userAgentCharsMax)
    this.authorization = route.may === 'public' ? '' : req.getHeader('authorization')
    this.contentType = req.getHeader('content-type')
    this.contentLength = req.getHeader('content-length')
    this.contentEncoding = route.body ? req.getHeader('content-encoding') : ''
    this.queryText = req.getQuery() ?? ''
    for (const [index, name] of route.parameters.entries()) {
      this.params[name] = req.getParameter(index) ?? ''
    }
    if (route.headers.length > 0) {
      this.headers = Object.fromEntries(route.headers.map((name) => [name, req.getHeader(name)]))
      // Ranges are of GET alone (RFC 9110, 14.2).
      if (this.method === 'HEAD') delete this.headers['range']
      const key = this.headers['idempotency-key']
      this.badKey = key !== undefined && isBadKey(req, key)
    }
  }

  start(): void {
    this.server.active++
    this.res.onAborted(() => {
      this.aborted = true
      for (const listener of this.abortListeners) listener()
    })
    void this.respond()
  }

  private async respond(): Promise<void> {
    const writes = this.method === 'POST' || this.method === 'PATCH' || this.method === 'DELETE'
    // Read first, judged later: answering in the middle of a body would break the connection.
    const onGone = (gone: () => void) => void this.abortListeners.push(gone)
    const body = writes ? await readBody(this.res, this.contentLength, onGone) : ''
    let reply: Reply
    try {
      if (writes) await this.server.turns.take()
      reply = await this.answer(body)
    } catch (error) {
      reply = await this.refuse(error)
    }
    if (writes) await this.server.turns.take()
    if (reply.stream) reply = await this.stream(reply, reply.stream)
    else if (reply.bytes) reply = await this.bytes(reply, reply.bytes)
    else this.send(reply)
    this.server.active--
    this.account(reply.status)
  }

  /** Returns what was answered: the reply, or the refusal that came before its first chunk. */
  private async stream(reply: Reply, { chunks }: ReplyStream): Promise<Reply> {
    if (this.method === 'HEAD') {
      this.send(reply)
      return reply
    }
    const iterator = chunks[Symbol.asyncIterator]()
    let first: IteratorResult<string | Uint8Array>
    try {
      first = await iterator.next()
    } catch (error) {
      const refusal = await this.refuse(error)
      this.send(refusal)
      return refusal
    }
    this.send(reply)
    try {
      await writeChunks(this.res, this.reader(), first, iterator)
    } catch (error) {
      this.breakOff(error)
    }
    return reply
  }

  /** As `stream`: the refusal is that of `open`. */
  private async bytes(reply: Reply, { open }: NonNullable<Reply['bytes']>): Promise<Reply> {
    if (this.method === 'HEAD') {
      this.send(reply)
      return reply
    }
    let source: ByteSource
    try {
      source = await open()
    } catch (error) {
      const refusal = await this.refuse(error)
      this.send(refusal)
      return refusal
    }
    this.send(reply)
    try {
      await writeBytes(this.res, this.reader(), source)
    } catch (error) {
      this.breakOff(error)
    }
    return reply
  }

  /** Too late for a refusal: what was cut short must not look whole. */
  private breakOff(error: unknown): void {
    const { requestId, route } = this
    this.ctx.log.error({ requestId, route: route.name, err: error }, 'an answer is broken off')
    if (!this.aborted) this.res.close()
  }

  private reader(): Reader {
    return {
      left: () => this.aborted,
      onLeft: (listener) => this.abortListeners.push(listener),
    }
  }

  private async answer(body: string | AppError): Promise<Reply> {
    const { route, ctx } = this
    if (route.may !== 'public') await this.admit()
    if (this.badKey) throw badIdempotencyKey()
    const params = route.params?.check(this.params)
    const query = route.query?.check(parseQuery(this.queryText))
    if (!route.query && this.queryText !== '') parseQuery(this.queryText)
    const { contentType, contentEncoding } = this
    const header = (name: string) => this.headers?.[name] ?? ''
    let checkedBody: unknown
    try {
      checkedBody = bodyOf(route, body, { contentType, contentEncoding })
    } catch (error) {
      const sent = typeof body === 'string' ? body : ''
      await route.beforeRefusal?.(ctx, { sent, ip: this.ip, header })
      throw error
    }
    return route.handle(ctx, {
      params,
      query,
      body: checkedBody,
      // Public routes never read it; every other has one by now.
      actor: this.actor as Actor,
      ip: this.ip,
      userAgent: this.userAgent || null,
      requestId: this.requestId,
      header,
      onAbort: (listener) => {
        if (this.aborted) listener()
        else this.abortListeners.push(listener)
      },
    })
  }

  /** 401, then 429, then 403 by role: the order of refusals that the contract promises. */
  private async admit(): Promise<void> {
    const { ctx, route } = this
    const token = bearer(this.authorization)
    if (token === undefined) {
      throw new AppError('UNAUTHENTICATED', 'sign in and send `Authorization: Bearer <token>`')
    }
    const actor = await ctx.identities.of(await ctx.tokens.verify(token))
    this.actor = actor
    this.replyHeaders = ctx.rates.api(actor.userId)
    if (route.may !== 'public' && route.may !== 'signed-in' && !can(actor.role, route.may)) {
      throw new AppError(
        'FORBIDDEN',
        `your role ${actor.role} may not do this; it takes ${operations[route.may].join(' or ')}`,
      )
    }
    if (route.organizationWide && actor.siteIds !== null) {
      throw new AppError('FORBIDDEN', 'this concerns the whole organization; you see some sites')
    }
  }

  /** Every error becomes an answer here; what is not expected never leaks what it was. */
  private async refuse(error: unknown): Promise<Reply> {
    let refusal = error
    if (refusal instanceof AppError && refusal.code === 'FORBIDDEN' && this.actor) {
      refusal = await this.auditDenied(this.actor, refusal)
    }
    if (!(refusal instanceof AppError)) {
      this.ctx.log.error({ requestId: this.requestId, route: this.route.name, err: refusal }, 'bug')
      refusal = new AppError('INTERNAL_ERROR', 'the hub failed; the request id finds it in its log')
    }
    return errorReply(refusal as AppError, this.requestId)
  }

  private async auditDenied(actor: Actor, refusal: AppError): Promise<unknown> {
    const { ip, requestId } = this
    const call = { actor, ip, userAgent: this.userAgent || null, requestId }
    const details = { method: this.route.method, route: this.route.path, reason: refusal.message }
    try {
      await this.ctx.audit.denied(
        auditOf(call, {
          action: 'request.denied',
          // As in the entries of what was done: a tag names many.
          resourceType: this.route.tag.replace(/s$/, ''),
          resourceId: this.params['id']?.toLowerCase() ?? null,
          orgId: actor.orgId,
          result: 'denied',
          details,
        }),
      )
      return refusal
    } catch (error) {
      return error
    }
  }

  private send(reply: Reply): void {
    const { res, route } = this
    // The next request is for another hub: a connection kept here would end under it. Nor may one follow a stream,
    // whose end can't say any more that the connection closes.
    if (this.ctx.draining() || reply.sink)
      this.replyHeaders = { ...this.replyHeaders, Connection: 'close' }
    if (!this.aborted && reply.sink && this.method !== 'HEAD') {
      beginReply(res, reply, this.requestId, this.replyHeaders)
      reply.sink(openStream(res, (listener) => this.abortListeners.push(listener)))
    } else if (!this.aborted) {
      if (!reply.text && !reply.stream && !reply.bytes && !reply.sink)
        this.options.onAnswer?.(route, reply.status, jsonText(reply))
      sendReply(res, reply, this.requestId, this.method === 'HEAD', this.replyHeaders)
    }
  }

  private account(status: number): void {
    const { ctx, route } = this
    const ms = performance.now() - this.startedMs
    ctx.metrics.http.observe(
      { method: route.method, route: pathOf(route), status: String(status) },
      ms / 1000,
    )
    const level = this.isRoutine(status) ? 'debug' : 'info'
    if (!ctx.log.isLevelEnabled(level)) return
    ctx.log[level](
      {
        requestId: this.requestId,
        method: this.method,
        route: pathOf(route),
        status,
        ms: Math.round(ms * 100) / 100,
        ip: this.ip,
        ...(this.actor ? { userId: this.actor.userId } : {}),
        ...(this.aborted ? { aborted: true } : {}),
      },
      'request',
    )
  }

  /** A probe that is answered as before: with several probes a second they would be most of a log. */
  private isRoutine(status: number): boolean {
    const { route, server } = this
    if (!route.probe) return false
    const before = server.probed.get(route)
    server.probed.set(route, status)
    return status === before && status < 400
  }
}

const nothing = { params: undefined, query: undefined, body: undefined, headers: [], responses: {} }

const notFound: Route = {
  ...nothing,
  method: 'GET',
  path: '/*',
  parameters: [],
  at: 'origin',
  name: 'notFound',
  tag: 'none',
  summary: '',
  may: 'public',
  organizationWide: false,
  bodyOptional: true,
  probe: false,
  handle() {
    throw new AppError('NOT_FOUND', 'there is nothing at this path; see /api/v1/openapi.json')
  },
}

function methodNotAllowed(allow: string): Route {
  return {
    ...notFound,
    path: '(other methods)',
    name: 'methodNotAllowed',
    handle() {
      throw new AppError('METHOD_NOT_ALLOWED', `this path takes ${allow}`, {
        headers: { Allow: allow },
      })
    },
  }
}
