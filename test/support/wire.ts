// Requests as they go over the wire, for tests that send what no well-behaved client would: the path is not
// normalized, any header may be set, and every answer has a deadline. Of an event stream the begin is read.
import { Agent, request, type IncomingHttpHeaders } from 'node:http'

export interface WireAnswer {
  status: number
  headers: IncomingHttpHeaders
  text: string
  // oxlint-disable-next-line typescript/no-explicit-any -- tests reach into bodies of every shape
  body: any
}

export interface WireRequest {
  method: string
  /** As it stands in the request line. */
  path: string
  headers?: Record<string, string>
  body?: string | undefined
}

export class Wire {
  private readonly agent = new Agent({ keepAlive: true, maxSockets: 8 })
  private readonly origin: string
  private readonly deadlineMs: number

  constructor(origin: string, deadlineMs = 10_000) {
    this.origin = origin
    this.deadlineMs = deadlineMs
  }

  /** Rejects when the answer has not come by the deadline. */
  async send({ method, path, headers = {}, body }: WireRequest): Promise<WireAnswer> {
    const { hostname, port } = new URL(this.origin)
    const content = body === undefined ? undefined : Buffer.from(body)
    return new Promise((resolve, reject) => {
      const asked = request({
        agent: this.agent,
        hostname,
        port,
        method,
        path,
        headers: { ...headers, ...(content ? { 'content-length': content.length } : {}) },
        signal: AbortSignal.timeout(this.deadlineMs),
      })
      asked.once('error', (error) =>
        reject(new Error(`${method} ${path}: no answer`, { cause: error })),
      )
      asked.once('response', (response) => {
        const status = response.statusCode ?? 0
        let text = ''
        const done = () => resolve({ status, headers: response.headers, text, body: json(text) })
        const isStream = response.headers['content-type']?.startsWith('text/event-stream')
        response.setEncoding('utf8')
        response.on('error', reject)
        response.on('end', done)
        response.on('data', (chunk: string) => {
          text += chunk
          if (!isStream) return
          // It never ends by itself: what it begins with is the answer.
          done()
          response.destroy()
        })
      })
      asked.end(content)
    })
  }

  close(): void {
    this.agent.destroy()
  }
}

function json(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
