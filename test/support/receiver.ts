// A receiver of webhooks: a real HTTP server that remembers what it got and answers as a test says.
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { Webhook } from 'standardwebhooks'
import type { Certificate } from './certificate.ts'
import { until } from './until.ts'

export interface Hit {
  method: string
  path: string
  headers: IncomingHttpHeaders
  body: string
  // oxlint-disable-next-line typescript/no-explicit-any -- tests reach into data of every shape
  event: any
}

export class Receiver {
  readonly hits: Hit[] = []
  /** How to answer; 204 when unset. */
  answer: ((response: ServerResponse, hit: Hit) => void) | undefined
  private readonly server: Server

  private constructor(server: Server) {
    this.server = server
  }

  static async start(host = '127.0.0.1', port = 0, certificate?: Certificate): Promise<Receiver> {
    const server = certificate ? createTlsServer(certificate) : createServer()
    const receiver = new Receiver(server)
    server.on('request', (request, response) => {
      const chunks: Buffer[] = []
      request.on('data', (chunk: Buffer) => chunks.push(chunk))
      request.on('end', () => {
        const body = Buffer.concat(chunks).toString()
        const { method = '', url: path = '', headers } = request
        const hit = { method, path, headers, body, event: JSON.parse(body) }
        receiver.hits.push(hit)
        if (receiver.answer) receiver.answer(response, hit)
        else response.writeHead(204).end()
      })
    })
    server.listen(port, host)
    await once(server, 'listening')
    return receiver
  }

  get port(): number {
    const address = this.server.address()
    if (address === null || typeof address === 'string') throw new Error('not listening')
    return address.port
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/hook`
  }

  hit(what: string, match: (hit: Hit) => boolean = () => true, deadlineMs?: number): Promise<Hit> {
    return until(what, () => this.hits.find(match), deadlineMs)
  }

  async close(): Promise<void> {
    this.server.closeAllConnections()
    this.server.close()
    await once(this.server, 'close')
  }
}

/** Checks a hit with the library that receivers use; throws when the signature is not of this secret. */
export function verify(secret: string, { headers, body }: Hit): unknown {
  return new Webhook(secret).verify(body, headers as Record<string, string>)
}
