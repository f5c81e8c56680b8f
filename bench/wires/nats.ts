// The client side of the NATS protocol: CONNECT, SUB, PUB, MSG, PING, PONG. No headers, no queues, no replies.
import type { Wire, WireListener } from '../wires.ts'

const crlf = '\r\n'

export const nats: Wire = {
  separator: '.',
  any: '*',
  open(name, topics) {
    const options = { verbose: false, pedantic: false, lang: 'bench', version: '1', name }
    const subscriptions = topics.map((topic, index) => `SUB ${topic} ${index + 1}${crlf}`).join('')
    // Without `verbose` only the answer to a ping tells that all before it was taken.
    return Buffer.from(`CONNECT ${JSON.stringify(options)}${crlf}${subscriptions}PING${crlf}`)
  },
  publish(topic, payload) {
    const head = Buffer.from(`PUB ${topic} ${payload.length}${crlf}`)
    return Buffer.concat([head, payload, Buffer.from(crlf)])
  },
  ping: Buffer.from(`PING${crlf}`),
  read(bytes, listener) {
    let at = 0
    for (;;) {
      const end = bytes.indexOf(crlf, at, 'latin1')
      if (end < 0) break
      const line = bytes.toString('latin1', at, end)
      if (!line.startsWith('MSG ')) {
        control(line, listener)
        at = end + 2
        continue
      }
      // MSG topic subscription [reply] length
      const words = line.split(' ')
      const length = Number(words.at(-1))
      if (words[1] === undefined || !Number.isInteger(length)) {
        throw new Error(`no message: "${line}"`)
      }
      const start = end + 2
      if (bytes.length < start + length + 2) break
      listener.message(words[1], bytes.subarray(start, start + length))
      at = start + length + 2
    }
    return bytes.subarray(at)
  },
}

const pong = Buffer.from(`PONG${crlf}`)

function control(line: string, listener: WireListener): void {
  if (line === 'PING') listener.asked(pong)
  // The first one answers the ping of `open`: a session is ready as often as it is asked.
  else if (line === 'PONG') {
    listener.ready()
    listener.pong()
  } else if (line.startsWith('-ERR')) listener.refused(line.slice(5))
  else if (!line.startsWith('INFO ') && line !== '+OK') {
    throw new Error(`the server sent "${line}"`)
  }
}
