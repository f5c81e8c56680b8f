// The uWebSockets.js adapter of agents' sockets: authenticates before the upgrade, keeps the socket,
// passes frames on unparsed, writes frames out. Every rule about devices is the actor's.
import type { HttpRequest, HttpResponse, TemplatedApp, WebSocket } from 'uWebSockets.js'
import { allowance, SpentAllowances } from './allowance.ts'
import { AgentTokens, type AgentIdentity } from './agent_tokens.ts'
import { AppError } from './errors.ts'
import { errorReply, sendReply } from './http_reply.ts'
import { callerAddress, requestIdOf } from './http_request.ts'
import { bearer } from './http_headers.ts'
import { limits } from './limits.ts'
import { agentSubprotocol, closeCodes, type TokenState } from './protocol.ts'
import type { Context } from './route.ts'
import type { SocketOf, Sockets } from './shards.ts'

/** What the front keeps of a socket: a few numbers and three strings, since there may be many. */
interface Agent {
  /** Its own for as long as the hub runs: what a shard still says to a socket that is gone must find nobody. */
  conn: number
  deviceId: string
  orgId: string
  ip: string
  shard: number
  token: TokenState
  /** Counts welcomes: of two sockets of one device the newer one has the larger number. 0 before it. */
  order: number
  /** Milliseconds of this process at which the frame allowance is full again. */
  fullMs: number
}

export interface Front {
  connected(): number
  /** Asks every agent to connect anew, each at a moment of its own from `afterMs` on, `spreadMs` long. */
  moveAll(afterMs: number, spreadMs: number): Promise<void>
  /** Closes every socket with 1012: the hub restarts. */
  closeAll(): void
}

const path = '/api/v1/agents/:deviceId/ws'
/** Serves agents' sockets on the app and becomes the shards' way to them. */
export function serveAgents(app: TemplatedApp, ctx: Context): Front {
  const sockets = new Map<number, WebSocket<Agent>>()
  const tokens = new AgentTokens(ctx.connectDb, (rows) =>
    ctx.metrics.batch.observe({ statement: 'agent_tokens' }, rows),
  )
  const gate = new Gate(ctx, tokens)
  const frames = allowance(ctx.config.rates.FRAMES, ctx.config.rates.FRAMES_BURST)
  const spent = new SpentAllowances(limits.spentAllowancesMax)
  let conns = 0
  let welcomed = 0
  let opened: WebSocket<Agent> | undefined

  app.ws<Agent>(path, {
    // One more frame size than allowed: a frame between the two is closed with a reason.
    maxPayloadLength: limits.frameBytesMax * 2,
    maxBackpressure: limits.backpressureBytesMax,
    closeOnBackpressureLimit: true,
    // The actor's heartbeat deadline finds dead sockets; pings would cost every idle agent.
    idleTimeout: 0,
    sendPingsAutomatically: false,
    upgrade(res, req, context) {
      const key = req.getHeader('sec-websocket-key')
      const extensions = req.getHeader('sec-websocket-extensions')
      const protocols = req.getHeader('sec-websocket-protocol')
      const request = gate.read(res, req)
      void gate.admit(request, protocols).then(
        ({ deviceId, orgId, token }) => {
          ctx.metrics.connects.inc({ outcome: 'accepted' })
          if (request.aborted) return
          const shard = ctx.shards.of(deviceId)
          const { ip } = request
          const place = { conn: -1, deviceId, orgId, ip, shard, token }
          const agent = { ...place, order: 0, fullMs: spent.of(deviceId) }
          // Nothing but the upgrade happens while corked: on its way out, cork() reads memory that the
          // upgrade has just given back (uNetworking/uWebSockets#1928), and closes the socket when an
          // allocation made inside has reused it. So `open` only notes the socket.
          res.cork(() => res.upgrade(agent, key, agentSubprotocol, extensions, context))
          if (opened !== undefined) register(opened)
          opened = undefined
        },
        (error: unknown) => gate.refuse(res, request, error),
      )
    },
    open(ws) {
      opened = ws
    },
    message(ws, message, isBinary) {
      const agent = ws.getUserData()
      ctx.metrics.framesIn.inc()
      if (message.byteLength > limits.frameBytesMax) {
        ws.end(closeCodes.tooBig, `a frame may hold at most ${limits.frameBytesMax} bytes`)
        return
      }
      // Binary frames are terminals', which have an allowance of their own; strays take from the agent's.
      if (isBinary && ctx.terminals.fromAgent(agent, agent.conn, new Uint8Array(message))) return
      if (!frames(agent)) {
        ws.end(closeCodes.rateLimited, 'too many frames')
        return
      }
      if (isBinary) ctx.metrics.framesDropped.inc({ reason: 'binary' })
      else take(ws, agent, Buffer.from(message).toString('utf8'))
    },
    dropped(ws) {
      ctx.metrics.framesDropped.inc({ reason: 'slow_reader' })
      ctx.log.warn({ deviceId: ws.getUserData().deviceId }, 'an agent reads too slowly; closed')
    },
    close(ws, code) {
      const { conn, deviceId, fullMs } = ws.getUserData()
      spent.keep(deviceId, fullMs)
      if (conn === -1) {
        opened = undefined
        return
      }
      sockets.delete(conn)
      ctx.metrics.agents.set(sockets.size)
      ctx.metrics.closes.inc({ code: String(code) })
      ctx.shards.tell(deviceId, { type: 'closed', conn })
      ctx.terminals.agentDown(deviceId, conn, code)
    },
  })
  // The same address without an upgrade tells an agent why its upgrade was refused.
  app.get(path, (res, req) => {
    const request = gate.read(res, req)
    void gate.admit(request, agentSubprotocol, false).then(
      () => gate.refuse(res, request, upgradeRequired()),
      (error: unknown) => gate.refuse(res, request, error),
    )
  })

  app.any(path, (res, req) => {
    const request = gate.read(res, req)
    gate.refuse(
      res,
      request,
      new AppError('METHOD_NOT_ALLOWED', 'this path takes GET', { headers: { Allow: 'GET' } }),
    )
  })

  function register(ws: WebSocket<Agent>): void {
    const agent = ws.getUserData()
    agent.conn = conns++
    sockets.set(agent.conn, ws)
    ctx.metrics.agents.set(sockets.size)
    const { conn, deviceId, orgId, ip, token } = agent
    const socket = { conn, deviceId, orgId, ip, token, resumed: false }
    ctx.shards.tell(deviceId, { type: 'connect', ...socket })
  }

  function take(ws: WebSocket<Agent>, agent: Agent, text: string): void {
    const pressure = ctx.shards.pressure(agent.shard)
    const isBeat = isHeartbeat(text)
    if (pressure === 'none') {
      ctx.shards.frame(agent.shard, agent.conn, text, isBeat)
    } else if (isBeat) {
      // It says nothing that the next one will not say.
      ctx.shards.dropHeartbeat(agent.shard)
      ctx.metrics.framesDropped.inc({ reason: 'overloaded' })
    } else if (pressure === 'busy') {
      ctx.shards.frame(agent.shard, agent.conn, text, false)
    } else {
      // Unacknowledged frames come again after the reconnect: refused, not lost.
      ws.end(closeCodes.overloaded, 'the hub is behind')
    }
  }

  const out: Sockets = {
    send(conn, text) {
      const ws = sockets.get(conn)
      // Asked before: sending may close a socket whose reader is too slow.
      const agent = ws?.getUserData()
      if (ws?.send(text) === undefined) return
      ctx.metrics.framesOut.inc()
      if (agent === undefined || agent.order > 0 || !sockets.has(conn)) return
      // The first frame is the welcome: from here on the agent uses this socket.
      agent.order = ++welcomed
      ctx.terminals.agentUp(agent.deviceId, conn)
    },
    sendCommand(conn, text) {
      const sent = sockets.get(conn)?.send(text)
      if (sent === undefined || sent === 2) return false
      ctx.metrics.framesOut.inc()
      return true
    },
    close: (conn, code, reason) => sockets.get(conn)?.end(code, reason),
    *openOf(shard): Iterable<SocketOf> {
      for (const ws of sockets.values()) {
        const { conn, deviceId, orgId, ip, order, shard: own } = ws.getUserData()
        if (own === shard) yield { conn, deviceId, orgId, ip, resumed: order > 0 }
      }
    },
  }
  ctx.shards.attach(out)
  ctx.terminals.attach({
    find(deviceId) {
      let newest: Agent | undefined
      // A walk of all sockets, a millisecond for tens of thousands, when a terminal is opened: a map would
      // cost every agent memory for what few of them ever have.
      for (const ws of sockets.values()) {
        const agent = ws.getUserData()
        if (agent.deviceId === deviceId && agent.order > (newest?.order ?? 0)) newest = agent
      }
      return newest?.conn
    },
    stageOf(deviceId, conn) {
      const agent = sockets.get(conn)?.getUserData()
      if (agent?.deviceId !== deviceId) return 'gone'
      return agent.order > 0 ? 'welcomed' : 'open'
    },
    send(conn, frame) {
      if (sockets.get(conn)?.send(frame, true) !== undefined) ctx.metrics.framesOut.inc()
    },
  })
  return {
    connected: () => sockets.size,
    async moveAll(afterMs, spreadMs) {
      let asked = 0
      for (const conn of Array.from(sockets.keys())) {
        if (asked++ % limits.fleetFramesMax === 0) await new Promise(setImmediate)
        const ws = sockets.get(conn)
        if (ws === undefined) continue
        const slotMs = Math.round(afterMs + Math.random() * spreadMs)
        ws.send(JSON.stringify({ type: 'reconnect', afterMs: slotMs, reason: 'drain' }))
        ctx.metrics.framesOut.inc()
      }
    },
    closeAll() {
      for (const ws of sockets.values()) ws.end(closeCodes.restart, 'the hub restarts')
    },
  }
}

interface AgentRequest {
  deviceId: string
  token: string | undefined
  ip: string
  requestId: string
  aborted: boolean
}

/** The checks before a socket: draining, budget, token, rate, subprotocol; in that order. */
class Gate {
  private allowance = 0
  private refilledMs = performance.now()
  private readonly ctx: Context
  private readonly tokens: AgentTokens

  constructor(ctx: Context, tokens: AgentTokens) {
    this.ctx = ctx
    this.tokens = tokens
  }

  /** Copies what is needed of a request that is dead after this turn. */
  read(res: HttpResponse, req: HttpRequest): AgentRequest {
    const remote = Buffer.from(res.getRemoteAddressAsText()).toString('latin1')
    const request: AgentRequest = {
      deviceId: (req.getParameter(0) ?? '').toLowerCase(),
      token: bearer(req.getHeader('authorization')),
      ip: callerAddress(req, remote, this.ctx.config.trustedProxies),
      requestId: requestIdOf(req.getHeader('x-request-id')),
      aborted: false,
    }
    res.onAborted(() => {
      request.aborted = true
    })
    return request
  }

  /** Throws what an agent must be told; `counts` is false for a request that only asks, and takes nothing. */
  async admit(request: AgentRequest, protocols: string, counts = true): Promise<AgentIdentity> {
    if (this.ctx.draining()) throw overloaded('the hub is going down; another one will answer')
    if (!this.hasRoom(counts)) throw overloaded('too many agents connect at once')
    if (request.token === undefined) {
      throw new AppError('UNAUTHENTICATED', 'send the agent’s token: `Authorization: Bearer mst_…`')
    }
    const identity = await this.tokens.check(request.deviceId, request.token)
    if (counts) this.ctx.rates.connect(identity.deviceId)
    else this.ctx.rates.mayConnect(identity.deviceId)
    if (!protocols.split(',').some((name) => name.trim() === agentSubprotocol)) {
      throw new AppError('VALIDATION_ERROR', `offer the WebSocket subprotocol ${agentSubprotocol}`)
    }
    return identity
  }

  refuse(res: HttpResponse, request: AgentRequest, error: unknown): void {
    let refusal = error
    if (!(refusal instanceof AppError)) {
      this.ctx.log.error({ requestId: request.requestId, err: error }, 'bug')
      refusal = new AppError('INTERNAL_ERROR', 'the hub failed; the request id finds it in its log')
    }
    const { code } = refusal as AppError
    this.ctx.metrics.connects.inc({ outcome: code.toLowerCase() })
    if (!request.aborted)
      sendReply(res, errorReply(refusal as AppError, request.requestId), request.requestId)
  }

  /** The accept budget: a second's worth of sockets at most at once. Asking takes nothing of it. */
  private hasRoom(takes: boolean): boolean {
    const rate = this.ctx.config.rates.ACCEPT
    if (rate === 0) return true
    const nowMs = performance.now()
    this.allowance = Math.min(rate, this.allowance + ((nowMs - this.refilledMs) / 1000) * rate)
    this.refilledMs = nowMs
    if (this.allowance < 1) return false
    if (takes) this.allowance--
    return true
  }
}

function overloaded(message: string): AppError {
  // Jitter, or all that were refused together come back together.
  const retryAfterSeconds = 1 + Math.floor(Math.random() * limits.acceptRetrySecondsMax)
  return new AppError('OVERLOADED', message, { retryAfterSeconds })
}

function upgradeRequired(): AppError {
  return new AppError('UPGRADE_REQUIRED', 'this is a WebSocket; the token is good, so upgrade', {
    headers: { Upgrade: 'websocket' },
  })
}

function isHeartbeat(text: string): boolean {
  return text.length < 4096 && /"type"\s*:\s*"heartbeat"/.test(text)
}
