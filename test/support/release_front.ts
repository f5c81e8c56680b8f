// A way to the hub that a test can bend: passes every request on, and answers those about releases itself where
// it is told to. The sockets of agents go to the hub directly.
import { createReadStream } from 'node:fs'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface Bent {
  /** Answers instead of the hub. */
  answer: (asked: URL, request: IncomingMessage, response: ServerResponse) => boolean
}

export async function startReleaseFront(origin: string, bent: Bent) {
  const server = createServer((incoming, response) => {
    const asked = new URL(incoming.url ?? '/', origin)
    if (!bent.answer(asked, incoming, response)) pass(asked, incoming, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function pass(asked: URL, incoming: IncomingMessage, response: ServerResponse): void {
  // The hub tells an agent the address that it was asked at: for the socket that is to be the hub's own.
  const { method } = incoming
  const headers = { ...incoming.headers, host: asked.host }
  const outgoing = request(asked, { method, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers)
    answer.pipe(response)
  })
  outgoing.on('error', () => response.destroy())
  incoming.pipe(outgoing)
}

/** A file as the hub sends it, whole or from where a Range begins; `bytesMax` breaks the connection there. */
export function sendFile(
  path: string,
  size: number,
  incoming: IncomingMessage,
  response: ServerResponse,
  bytesMax = Infinity,
): void {
  const start = Number(/^bytes=(\d+)-$/.exec(incoming.headers.range ?? '')?.[1] ?? 0)
  const range = start > 0 ? { 'content-range': `bytes ${start}-${size - 1}/${size}` } : {}
  response.writeHead(start > 0 ? 206 : 200, { 'content-length': size - start, ...range })
  const end = Math.min(size, start + bytesMax) - 1
  createReadStream(path, { start, end })
    .on('end', () => end < size - 1 && response.destroy())
    .pipe(response, { end: end === size - 1 })
}
