// Sockets to PostgreSQL that read into one buffer of their own, again and again. Node makes a new buffer for each read,
// which lives until a young collection and counts towards a full one (docs/adr/0023). Knows of PostgreSQL's protocol
// only where a message ends.
import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { limits } from './limits.ts'

/** The `stream` of pg's configuration. Under TLS it is Node's own: what is read there is deciphered elsewhere. */
export function databaseSocket(config?: { ssl?: unknown }): Duplex {
  if (config?.ssl) return new Socket()
  const follow = messageEnds()
  const socket: Socket = new Socket({
    onread: {
      buffer: Buffer.allocUnsafeSlow(limits.databaseReadBytes),
      callback(count, buffer) {
        const read = Buffer.from(buffer.buffer, buffer.byteOffset, count)
        // What pg has read of a message that has not ended it keeps by reference, and the next read would overwrite it.
        socket.emit('data', follow(read) ? read : Buffer.from(read))
        return true
      },
    },
  })
  return socket
}

const headBytes = 5

/** Follows a stream of messages: of each read, whether a message ends with it. A message is a byte, its length, a body. */
export function messageEnds(): (read: Buffer) => boolean {
  /** Of the head that has begun: its bytes so far, and the length as far as it was read. */
  let head = 0
  let length = 0
  let bodyLeft = 0
  return (read) => {
    let at = 0
    while (at < read.length) {
      if (bodyLeft > 0) {
        const step = Math.min(bodyLeft, read.length - at)
        at += step
        bodyLeft -= step
        continue
      }
      if (head > 0) length = length * 256 + read[at]!
      at++
      if (++head < headBytes) continue
      // The length counts itself.
      bodyLeft = length - (headBytes - 1)
      head = 0
      length = 0
    }
    return bodyLeft === 0 && head === 0
  }
}
