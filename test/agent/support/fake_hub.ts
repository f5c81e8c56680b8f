// A hub of a few lines: enrolls, upgrades, records every frame, and says what a test tells it to say.

import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { WebSocketServer } from 'ws'
import type { WebSocket } from 'ws'
import type { AgentFrame, HubFrame, ResultFrame } from '../../../src/protocol.ts'
import { until } from './until.ts'

export const secret = 'a-secret-that-enrolls'

export interface Peer {
  socket: WebSocket
  token: string
  subprotocol: string
  frames: AgentFrame[]
  /** What terminals sent. */
  binary: Buffer[]
  /** Whether an older socket was still open when this one came. */
  overlapped: boolean
  /** The close code, once closed. */
  closed: number | null
  send(frame: HubFrame): void
}

interface EnrollRequest {
  headers: IncomingMessage['headers']
  body: Record<string, unknown>
}

type Refusal = { status: number; code?: string; headers?: Record<string, string> }

/** A fake hub on a free port of the loopback; `await using` stops it. */
export async function startFakeHub() {
  const enrolls: EnrollRequest[] = []
  const peers: Peer[] = []
  const plainRequests: string[] = []
  const tokens = new Set<string>()
  const deviceId = '0192f0c1-2345-7abc-8def-0123456789ab'
  const server = createServer((request, response) => void answer(request, response))
  const sockets = new WebSocketServer({ noServer: true, maxPayload: 4 * 1024 * 1024 })

  const hub = {
    deviceId,
    url: '',
    enrolls,
    peers,
    plainRequests,
    tokens,
    heartbeatSeconds: 30,
    /** Whether ended commands are acknowledged, as a healthy hub does. */
    acks: true,
    heartbeatAcks: true,
    welcomes: true,
    /** What the next enrollments answer instead of the truth, in order. */
    enrollRefusals: [] as Refusal[],
    /** While set, upgrades and plain requests are refused like this. */
    refusal: null as Refusal | null,
    peer: (at = 0) => until(() => peers[at], `socket ${at}`),
    welcomed: (at = 0) =>
      until(() => (peers[at]?.frames.length ? peers[at] : undefined), `heartbeat of ${at}`),
    frames: () => peers.flatMap((peer) => peer.frames),
    result: (id: string) =>
      until(
        () => hub.frames().find((frame) => isResult(frame, id)),
        `result of ${id}`,
      ) as Promise<ResultFrame>,
    results: (id: string) => hub.frames().filter((frame) => isResult(frame, id)),
    seen: (type: AgentFrame['type'], id: string) =>
      until(
        () => hub.frames().find((f) => f.type === type && 'id' in f && f.id === id),
        `${type} ${id}`,
      ),
    command(id: string, action: string, payload: object = {}, timeoutSeconds = 30) {
      const peer = peers.findLast(({ closed }) => closed === null)
      if (!peer) throw new Error('no socket is open')
      peer.send({
        type: 'command',
        id,
        action,
        payload: payload as Record<string, unknown>,
        attempt: 1,
        timeoutSeconds,
      })
    },
    async run(id: string, action: string, payload: object = {}, timeoutSeconds = 30) {
      hub.command(id, action, payload, timeoutSeconds)
      return hub.result(id)
    },
    async [Symbol.asyncDispose]() {
      for (const { socket } of peers) socket.terminate()
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }

  server.on('upgrade', (request: IncomingMessage, socket: Socket, head: Buffer) => {
    const refusal = refusalOf(request)
    if (refusal)
      return void socket.end(`HTTP/1.1 ${refusal.status} Refused\r\nContent-Length: 0\r\n\r\n`)
    sockets.handleUpgrade(request, socket, head, (accepted) => join(accepted, request))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  hub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return hub

  function join(socket: WebSocket, request: IncomingMessage): void {
    const peer: Peer = {
      socket,
      token: tokenOf(request),
      subprotocol: socket.protocol,
      frames: [],
      binary: [],
      overlapped: peers.some(({ closed }) => closed === null),
      closed: null,
      send: (frame) => socket.send(JSON.stringify(frame)),
    }
    peers.push(peer)
    socket.on('error', () => {})
    socket.on('close', (code) => (peer.closed = code))
    socket.on('message', (data: Buffer, isBinary) => {
      if (isBinary) peer.binary.push(data)
      else take(peer, JSON.parse(data.toString()) as AgentFrame)
    })
    const serverTime = new Date().toISOString()
    const heartbeatIntervalSeconds = hub.heartbeatSeconds
    if (hub.welcomes) peer.send({ type: 'welcome', serverTime, heartbeatIntervalSeconds })
  }

  function take(peer: Peer, frame: AgentFrame): void {
    peer.frames.push(frame)
    if (frame.type === 'result' && hub.acks) peer.send({ type: 'ack', id: frame.id })
    if (frame.type === 'heartbeat' && frame.seq !== undefined && hub.heartbeatAcks) {
      peer.send({ type: 'heartbeat_ack', seq: frame.seq })
    }
  }

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === 'POST' && request.url === '/api/v1/agents/enroll') {
      return enroll(request, response)
    }
    plainRequests.push(tokenOf(request))
    send(response, refusalOf(request) ?? { status: 426, code: 'UPGRADE_REQUIRED' })
  }

  async function enroll(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString()) as Record<string, unknown>
    enrolls.push({ headers: request.headers, body })
    const refusal = hub.enrollRefusals.shift()
    if (refusal) return send(response, refusal)
    if (body['enrollmentSecret'] !== secret) {
      return send(response, { status: 401, code: 'INVALID_ENROLLMENT_SECRET' })
    }
    const agentToken = `mst_${'t'.repeat(40)}${enrolls.length}`
    tokens.add(agentToken)
    response.writeHead(201, { 'content-type': 'application/json' }).end(
      JSON.stringify({
        deviceId,
        agentToken,
        orgId: 'org-1',
        siteId: body['siteId'] ?? 'site-1',
        websocketUrl: `${hub.url.replace('http', 'ws')}/api/v1/agents/${deviceId}/ws`,
        heartbeatIntervalSeconds: hub.heartbeatSeconds,
        releaseKeys: [],
      }),
    )
  }

  function refusalOf(request: IncomingMessage): Refusal | null {
    if (hub.refusal) return hub.refusal
    if (request.url !== `/api/v1/agents/${deviceId}/ws`) return { status: 404, code: 'NOT_FOUND' }
    return tokens.has(tokenOf(request)) ? null : { status: 401, code: 'UNAUTHENTICATED' }
  }
}

function send(response: ServerResponse, { status, code, headers }: Refusal): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers })
  response.end(JSON.stringify({ error: { code, message: `refused with ${code}`, requestId: 'r' } }))
}

function tokenOf(request: IncomingMessage): string {
  return (request.headers.authorization ?? '').replace('Bearer ', '')
}

function isResult(frame: AgentFrame, id: string): boolean {
  return frame.type === 'result' && frame.id === id
}
