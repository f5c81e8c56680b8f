// WebSocket frames as a client writes and reads them. Knows no extensions and no fragments: what the
// hub sends is whole, and a generator has to be cheaper than what it measures.

export const opcodes = { text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

/** Any mask serves: it guards proxies, not secrets. A fixed one lets frames be built beforehand. */
const mask = Buffer.from([0x5a, 0x13, 0xc7, 0x6e])

/** A whole masked client frame; build it once and write it often. */
export function clientFrame(opcode: number, payload: Buffer): Buffer {
  const head = header(opcode, payload.length)
  const frame = Buffer.allocUnsafe(head.length + 4 + payload.length)
  head.copy(frame)
  mask.copy(frame, head.length)
  const start = head.length + 4
  for (let i = 0; i < payload.length; i++) {
    // Indexes are in range: the loop ends at the payload, and the mask has four bytes.
    frame[start + i] = payload[i]! ^ mask[i & 3]!
  }
  return frame
}

/** A masked text frame of one JSON message. */
export function jsonFrame(message: object): Buffer {
  return clientFrame(opcodes.text, Buffer.from(JSON.stringify(message)))
}

function header(opcode: number, length: number): Buffer {
  if (length < 126) return Buffer.from([0x80 | opcode, 0x80 | length])
  if (length < 65_536) return Buffer.from([0x80 | opcode, 0x80 | 126, length >> 8, length & 255])
  const head = Buffer.alloc(10)
  head[0] = 0x80 | opcode
  head[1] = 0x80 | 127
  head.writeBigUInt64BE(BigInt(length), 2)
  return head
}

/**
 * Hands every whole server frame in `bytes` to `onFrame` and returns what is left of the last one.
 * A payload is a view into `bytes`: copy it to keep it. Throws on fragments, which the hub never sends.
 */
export function readFrames(
  bytes: Buffer,
  onFrame: (opcode: number, payload: Buffer) => void,
): Buffer {
  let at = 0
  while (bytes.length - at >= 2) {
    const first = bytes[at]!
    let length = bytes[at + 1]! & 127
    let start = at + 2
    if (length === 126) {
      if (bytes.length - at < 4) break
      length = bytes.readUInt16BE(at + 2)
      start = at + 4
    } else if (length === 127) {
      if (bytes.length - at < 10) break
      length = Number(bytes.readBigUInt64BE(at + 2))
      start = at + 10
    }
    if (bytes.length - start < length) break
    if ((first & 0x80) === 0) throw new Error('the server sent a fragmented frame')
    onFrame(first & 15, bytes.subarray(start, start + length))
    at = start + length
  }
  return bytes.subarray(at)
}
