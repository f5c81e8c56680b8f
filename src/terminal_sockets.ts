// The uWebSockets.js adapter of operators' terminals: the ticket is checked before the upgrade, then messages go
// to `terminals.ts`. Everything that is asked lies in memory, so the upgrade happens in the same turn.
import type { HttpRequest, HttpResponse, TemplatedApp, WebSocket } from 'uWebSockets.js'
import { clientAddress } from './address.ts'
import type { AuditSource } from './audit.ts'
import type { Actor } from './auth.ts'
import { cleanText } from './clean.ts'
import { AppError } from './errors.ts'
import { errorReply, sendReply } from './http_reply.ts'
import { requestIdOf } from './http_request.ts'
import { limits } from './limits.ts'
import type { Context } from './route.ts'
import {
  dataBytesMax,
  frameHeaderBytes,
  terminalSubprotocol,
  ticketSubprotocol,
} from './terminal_frames.ts'
import type { OperatorLine, TerminalSession } from './terminal_session.ts'

interface Operator {
  session: TerminalSession
  actor: Actor
  source: AuditSource
  line: OperatorLine | undefined
}

const path = '/api/v1/terminals/:id/ws'

/** Serves operators' sockets on the app. */
export function serveTerminals(app: TemplatedApp, ctx: Context): void {
  app.ws<Operator>(path, {
    maxPayloadLength: frameHeaderBytes + dataBytesMax,
    maxBackpressure: limits.terminalUnsentBytesMax,
    closeOnBackpressureLimit: true,
    idleTimeout: limits.terminalIdleSeconds,
    sendPingsAutomatically: true,
    upgrade(res, req, context) {
      const source = sourceOf(ctx, res, req)
      try {
        const { session, actor } = admit(ctx, req)
        const operator: Operator = { session, actor, source: { ...source, actor }, line: undefined }
        res.upgrade(
          operator,
          req.getHeader('sec-websocket-key'),
          terminalSubprotocol,
          req.getHeader('sec-websocket-extensions'),
          context,
        )
      } catch (error) {
        refuse(ctx, res, source.requestId, error)
      }
    },
    open(ws) {
      const operator = ws.getUserData()
      operator.line = lineOf(ws, operator)
      ctx.terminals.operatorUp(operator.session, operator.line)
    },
    message(ws, message, isBinary) {
      const { session, line, source } = ws.getUserData()
      // A text is no frame of a terminal.
      const bytes = isBinary ? new Uint8Array(message) : new Uint8Array(0)
      if (line) ctx.terminals.fromOperator(session, line, source, bytes)
    },
    close(ws) {
      const operator = ws.getUserData()
      const { session, line } = operator
      operator.line = undefined
      if (line) ctx.terminals.operatorDown(session, line)
    },
  })

  // The same address without an upgrade tells why an upgrade was refused; it takes no ticket.
  app.get(path, (res, req) => {
    const { requestId } = sourceOf(ctx, res, req)
    const message = 'this is a WebSocket: upgrade, with a fresh ticket as its second subprotocol'
    const headers = { Upgrade: 'websocket' }
    refuse(ctx, res, requestId, new AppError('UPGRADE_REQUIRED', message, { headers }))
  })
  app.any(path, (res, req) => {
    const { requestId } = sourceOf(ctx, res, req)
    const headers = { Allow: 'GET' }
    refuse(
      ctx,
      res,
      requestId,
      new AppError('METHOD_NOT_ALLOWED', 'this path takes GET', { headers }),
    )
  })
}

/** Redeems the ticket. One refusal for every ticket and session that is not good: there is nothing to guess. */
function admit(ctx: Context, req: HttpRequest): { session: TerminalSession; actor: Actor } {
  if (ctx.draining()) {
    throw new AppError('UNAVAILABLE', 'the hub is going down', { retryAfterSeconds: 2 })
  }
  const offered = req
    .getHeader('sec-websocket-protocol')
    .split(',')
    .map((name) => name.trim())
  if (!offered.includes(terminalSubprotocol)) {
    throw new AppError('VALIDATION_ERROR', `offer the WebSocket subprotocol ${terminalSubprotocol}`)
  }
  const ticket = offered.find((name) => name.startsWith(ticketSubprotocol))
  if (ticket === undefined) {
    const message = `offer a second subprotocol, \`${ticketSubprotocol}\` and the ticket`
    throw new AppError('UNAUTHENTICATED', message)
  }
  const session = ctx.terminals.find((req.getParameter(0) ?? '').toLowerCase())
  const actor = session?.redeem(ticket.slice(ticketSubprotocol.length), Date.now())
  if (session && actor) return { session, actor }
  const message = 'the ticket was used, is too old, or not of this session; get a new one'
  throw new AppError('INVALID_TOKEN', message)
}

/** A socket that is gone takes nothing more; uWebSockets.js would throw when it is even asked for its data. */
function lineOf(ws: WebSocket<Operator>, operator: Operator): OperatorLine {
  return {
    actor: operator.actor,
    send(frame) {
      if (operator.line) ws.send(frame, true)
    },
    close(code, reason) {
      if (operator.line) ws.end(code, reason)
    },
  }
}

function sourceOf(ctx: Context, res: HttpResponse, req: HttpRequest): AuditSource {
  const remote = Buffer.from(res.getRemoteAddressAsText()).toString('latin1')
  return {
    ip: clientAddress(remote, req.getHeader('x-forwarded-for'), ctx.config.trustedProxies),
    userAgent: cleanText(req.getHeader('user-agent'), limits.userAgentCharsMax) || null,
    requestId: requestIdOf(req.getHeader('x-request-id')),
  }
}

function refuse(ctx: Context, res: HttpResponse, requestId: string, error: unknown): void {
  let refusal = error
  if (!(refusal instanceof AppError)) {
    ctx.log.error({ requestId, err: error }, 'bug')
    refusal = new AppError('INTERNAL_ERROR', 'the hub failed; the request id finds it in its log')
  }
  sendReply(res, errorReply(refusal as AppError, requestId), requestId)
}
