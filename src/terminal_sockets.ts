// The uWebSockets.js adapter of operators' terminals: the ticket is checked before the upgrade, then messages go
// to `terminals.ts`. Of a session that lives here, everything that is asked lies in memory, so the upgrade happens in
// the same turn; of another hub's it is asked first, and its messages go through `terminal_relay.ts`.
import type { HttpRequest, HttpResponse, TemplatedApp, WebSocket } from 'uWebSockets.js'
import type { AuditSource } from './audit.ts'
import type { Actor } from './auth.ts'
import { cleanText } from './clean.ts'
import { AppError } from './errors.ts'
import { errorReply, sendReply } from './http_reply.ts'
import { callerAddress, requestIdOf } from './http_request.ts'
import { limits } from './limits.ts'
import type { Context } from './route.ts'
import type { RemoteTicket } from './terminal_relay.ts'
import { homeOf } from './terminal_rows.ts'
import {
  dataBytesMax,
  frameHeaderBytes,
  terminalSubprotocol,
  ticketSubprotocol,
} from './terminal_frames.ts'
import type { OperatorLine, TerminalSession } from './terminal_session.ts'

interface Operator {
  /** Of a session that lives here. */
  session?: TerminalSession
  /** Of one that lives on another hub. */
  remote?: RemoteTicket
  actor: Actor
  source: AuditSource
  line: OperatorLine | undefined
}

const path = '/api/v1/terminals/:id/ws'

/** Serves operators' sockets on the app. */
export function serveTerminals(app: TemplatedApp, ctx: Context): void {
  /** Upgraded in this turn, of a session elsewhere. */
  let opened: WebSocket<Operator> | undefined
  app.ws<Operator>(path, {
    maxPayloadLength: frameHeaderBytes + dataBytesMax,
    maxBackpressure: limits.terminalUnsentBytesMax,
    closeOnBackpressureLimit: true,
    idleTimeout: limits.terminalIdleSeconds,
    sendPingsAutomatically: true,
    upgrade(res, req, context) {
      const source = sourceOf(ctx, res, req)
      const key = req.getHeader('sec-websocket-key')
      const extensions = req.getHeader('sec-websocket-extensions')
      const upgrade = (operator: Omit<Operator, 'source' | 'line'>) => {
        const data = { ...operator, source: { ...source, actor: operator.actor }, line: undefined }
        res.upgrade(data, key, terminalSubprotocol, extensions, context)
      }
      try {
        const ticket = ticketOf(ctx, req)
        const session = ctx.terminals.find(ticket.id)
        if (session) return upgrade({ session, actor: redeem(session, ticket) })
        let aborted = false
        res.onAborted(() => {
          aborted = true
        })
        void redeemElsewhere(ctx, ticket).then(
          (remote) => {
            if (aborted) return
            // Nothing but the upgrade happens while corked: see docs/adr/0005.
            res.cork(() => upgrade({ remote, actor: remote.actor }))
            if (opened) join(opened, remote)
            opened = undefined
          },
          (error: unknown) => {
            if (!aborted) refuse(ctx, res, source.requestId, error)
          },
        )
      } catch (error) {
        refuse(ctx, res, source.requestId, error)
      }
    },
    open(ws) {
      const operator = ws.getUserData()
      const { session } = operator
      if (session === undefined) {
        opened = ws
        return
      }
      operator.line = lineOf(ws, operator)
      ctx.terminals.operatorUp(session, operator.line)
    },
    message(ws, message, isBinary) {
      const { session, remote, line, source } = ws.getUserData()
      if (!line) return
      // A text is no frame of a terminal.
      const bytes = isBinary ? new Uint8Array(message) : new Uint8Array(0)
      if (session) ctx.terminals.fromOperator(session, line, source, bytes)
      else if (remote) ctx.relay.fromSocket(remote.line, bytes)
    },
    close(ws) {
      const operator = ws.getUserData()
      const { session, remote, line } = operator
      operator.line = undefined
      if (opened === ws) opened = undefined
      if (!line) return
      if (session) ctx.terminals.operatorDown(session, line)
      else if (remote) ctx.relay.socketClosed(remote.line)
    },
  })

  function join(ws: WebSocket<Operator>, remote: RemoteTicket): void {
    const operator = ws.getUserData()
    operator.line = lineOf(ws, operator)
    ctx.relay.join(remote, operator.source, operator.line)
  }

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

interface OfferedTicket {
  /** Of the session. */
  id: string
  ticket: string
}

/** The ticket that a request offers. Throws what is wrong with the request itself. */
function ticketOf(ctx: Context, req: HttpRequest): OfferedTicket {
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
  const id = (req.getParameter(0) ?? '').toLowerCase()
  return { id, ticket: ticket.slice(ticketSubprotocol.length) }
}

function redeem(session: TerminalSession, { ticket }: OfferedTicket): Actor {
  const actor = session.redeem(ticket, Date.now())
  if (actor) return actor
  throw notGood()
}

async function redeemElsewhere(ctx: Context, { id, ticket }: OfferedTicket): Promise<RemoteTicket> {
  const home = await homeOf(ctx.db, id)
  if (home === undefined || ctx.terminals.isOwn(home)) throw notGood()
  const remote = await ctx.relay.redeem(home, id, ticket)
  if (remote) return remote
  throw notGood()
}

/** One refusal for every ticket and session that is not good: there is nothing to guess. */
function notGood(): AppError {
  const message = 'the ticket was used, is too old, or not of this session; get a new one'
  return new AppError('INVALID_TOKEN', message)
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
    ip: callerAddress(req, remote, ctx.config.trustedProxies),
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
