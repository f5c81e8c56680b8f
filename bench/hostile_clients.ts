// Clients that a hub meets on the open internet, each kind on purpose: they hold sockets and send nothing, send what
// is no protocol, declare what they never send, ask and never read. None of them gets a good answer.
import type { Socket } from 'node:net'
import { agentSubprotocol } from '../src/protocol.ts'
import { clientFrame, opcodes } from './frames.ts'
import { requestBytes } from './http_connection.ts'
import type { Device } from './sim_agent.ts'
import { openSocket, type Place } from './sockets.ts'

export const hostileKinds = [
  'silent',
  'half a request',
  'garbage',
  'slow head',
  'slow body',
  'wrong token',
  'oversized frame',
  'garbage frames',
  'pipelined',
  'events unread',
] as const

export type HostileKind = (typeof hostileKinds)[number]

export interface HostileGround {
  place: Place
  origin: string
  /** The header of a signed-in operator: what is slow to read must be allowed to ask. */
  authorization: string
  /** A device of its own for each client, so that nobody else's socket is replaced. */
  devices: readonly Device[]
}

/** Beyond the 4 MiB of a text frame; only its header is sent, since a hub must not wait for the rest. */
const oversizedBytes = 64 * 1024 * 1024
const trickleMs = 500
/** Requests written at once without waiting for an answer. */
const pipelinedRequests = 200

/** Opens one client; calls `over` once its socket is gone, whoever ended it. Returns what ends it. */
export function openHostile(
  kind: HostileKind,
  index: number,
  ground: HostileGround,
  over: () => void,
): () => void {
  const socket = openSocket(ground.place)
  const timers = new Set<NodeJS.Timeout>()
  // How a server gets rid of it is the server's business; that it does is counted.
  socket.on('error', () => undefined)
  socket.once('close', () => {
    for (const timer of timers) clearInterval(timer)
    over()
  })
  if (kind !== 'events unread') socket.resume()
  behave(kind, index, ground, socket, (work) => timers.add(setInterval(work, trickleMs)))
  return () => {
    socket.removeAllListeners('close')
    for (const timer of timers) clearInterval(timer)
    socket.destroy()
  }
}

function behave(
  kind: HostileKind,
  index: number,
  { place, origin, authorization, devices }: HostileGround,
  socket: Socket,
  every: (work: () => void) => void,
): void {
  const host = `Host: ${place.host}:${place.port}\r\n`
  const device = devices[index % devices.length]!
  const headers = { Authorization: authorization }
  const get = (path: string) =>
    requestBytes(origin, { method: 'GET', path: `/api/v1${path}`, headers })
  switch (kind) {
    case 'silent':
      break
    case 'half a request':
      socket.write(`GET /api/v1/devices HTTP/1.1\r\n${host}Accept: `)
      break
    case 'garbage':
      socket.write(Buffer.from(Array.from({ length: 4096 }, (_, at) => (at * 37 + index) & 255)))
      break
    case 'slow head':
      socket.write(`GET /api/v1/devices HTTP/1.1\r\n${host}X-Slow: `)
      every(() => socket.write('x'))
      break
    case 'slow body':
      socket.write(
        `POST /api/v1/auth/login HTTP/1.1\r\n${host}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{`,
      )
      every(() => socket.write(' '))
      break
    case 'wrong token':
      every(() => socket.write(upgrade(host, { ...device, token: 'mst_wrong' })))
      break
    case 'oversized frame':
      socket.write(upgrade(host, device))
      socket.once('data', () => socket.write(oversizedHeader()))
      break
    case 'garbage frames':
      socket.write(upgrade(host, device))
      socket.once('data', () => {
        every(() => {
          socket.write(clientFrame(opcodes.text, Buffer.from('{"type":"heartbeat",')))
          socket.write(clientFrame(opcodes.binary, Buffer.alloc(64, index)))
        })
      })
      break
    case 'pipelined':
      socket.write(Buffer.concat(Array.from({ length: pipelinedRequests }, () => get('/devices'))))
      break
    case 'events unread':
      // Every command of the load is told to it, and waits for somebody to read it.
      socket.write(get('/events'))
      break
  }
}

function upgrade(host: string, { id, token }: Device): string {
  return (
    `GET /api/v1/agents/${id}/ws HTTP/1.1\r\n${host}Connection: Upgrade\r\nUpgrade: websocket\r\n` +
    'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bXVzdGVyIGJlbmNoIGtleQ==\r\n' +
    `Sec-WebSocket-Protocol: ${agentSubprotocol}\r\nAuthorization: Bearer ${token}\r\n\r\n`
  )
}

/** A masked text frame that says how long it is, and no more. */
function oversizedHeader(): Buffer {
  const head = Buffer.alloc(14)
  head[0] = 0x80 | opcodes.text
  head[1] = 0x80 | 127
  head.writeBigUInt64BE(BigInt(oversizedBytes), 2)
  return head
}
