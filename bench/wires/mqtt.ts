// The client side of MQTT 3.1.1 (OASIS, section 3): CONNECT, SUBSCRIBE, PUBLISH with QoS 0, PINGREQ. Nothing is
// retained, no session outlives its socket.
import type { Wire, WireListener } from '../wires.ts'

const packet = {
  connect: 0x10,
  connack: 0x20,
  publish: 0x30,
  subscribe: 0x82,
  suback: 0x90,
  pingreq: 0xc0,
  pingresp: 0xd0,
} as const

/** As long as the hub waits for a heartbeat; the server allows half as much again. */
const keepAliveSeconds = 75
const cleanSession = 2
const refusedTopic = 0x80

export const mqtt: Wire = {
  separator: '/',
  any: '+',
  open(name, topics) {
    const connect = packetOf(packet.connect, [
      text('MQTT'),
      // Protocol level 4 is 3.1.1.
      Buffer.from([4, cleanSession, keepAliveSeconds >> 8, keepAliveSeconds & 255]),
      text(name),
    ])
    // Its answer is what tells that a session is ready, so that there is always one to send; a client may
    // send it without waiting for CONNACK.
    const subscribe = packetOf(packet.subscribe, [
      Buffer.from([0, 1]),
      ...topics.flatMap((topic) => [text(topic), Buffer.from([0])]),
    ])
    return Buffer.concat([connect, subscribe])
  },
  publish(topic, payload) {
    return packetOf(packet.publish, [text(topic), payload])
  },
  ping: Buffer.from([packet.pingreq, 0]),
  read(bytes, listener) {
    let at = 0
    for (;;) {
      const head = headerAt(bytes, at)
      if (!head || bytes.length < head.end) break
      take(head.type, bytes.subarray(head.start, head.end), listener)
      at = head.end
    }
    return bytes.subarray(at)
  },
}

function take(type: number, body: Buffer, listener: WireListener): void {
  switch (type & 0xf0) {
    case packet.publish: {
      // With QoS 0 nothing stands between topic and payload.
      const start = 2 + body.readUInt16BE(0)
      listener.message(body.toString('utf8', 2, start), body.subarray(start))
      break
    }
    case packet.connack:
      if (body[1] !== 0) listener.refused(`CONNACK ${body[1]}`)
      break
    case packet.suback:
      if (body.subarray(2).includes(refusedTopic)) listener.refused('SUBACK 128')
      else listener.ready()
      break
    case packet.pingresp:
      listener.pong()
      break
    default:
      throw new Error(`the server sent a packet of type ${type >> 4}`)
  }
}

/** Reads type and length of the packet at `at`; undefined while they are not all there. */
function headerAt(
  bytes: Buffer,
  at: number,
): { type: number; start: number; end: number } | undefined {
  const type = bytes[at]
  if (type === undefined) return undefined
  let length = 0
  // Seven bits a byte, lowest first, at most four bytes.
  for (let place = 0; place < 4; place++) {
    const byte = bytes[at + 1 + place]
    if (byte === undefined) return undefined
    length += (byte & 127) * 128 ** place
    const start = at + 2 + place
    if (byte < 128) return { type, start, end: start + length }
  }
  throw new Error('a packet of more than 256 MiB')
}

function packetOf(type: number, parts: readonly Buffer[]): Buffer {
  const body = Buffer.concat(parts)
  const head = [type]
  let left = body.length
  do {
    const byte = left % 128
    left = Math.floor(left / 128)
    head.push(left > 0 ? byte | 128 : byte)
  } while (left > 0)
  return Buffer.concat([Buffer.from(head), body])
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([Buffer.from([bytes.length >> 8, bytes.length & 255]), bytes])
}
