// One keep-alive HTTP/1.1 connection, one request at a time, as little work per request as can be:
// the load runs on the cores of what it measures, the same for the hub and for its rivals.
import type { Socket } from 'node:net'
import { connected, openSocket, placeOf } from './sockets.ts'

export interface Answer {
  status: number
  body: string
}

export interface Request {
  method: string
  path: string
  headers?: Record<string, string>
  body?: unknown
}

/** A request that got no answer for so long is lost: a bench that hangs is worse than one that fails. */
const answerMsMax = 90_000

export class HttpConnection {
  readonly #socket: Socket
  #rest = ''
  #waiting: { resolve: (answer: Answer) => void; reject: (error: Error) => void } | undefined

  private constructor(socket: Socket) {
    this.#socket = socket
    // Bodies are read as latin1, where a character is a byte, so that lengths agree.
    socket.setEncoding('latin1')
    socket.on('data', (text: string) => this.#read(text))
    socket.on('error', (error) => this.#fail(error))
    // Fires on silence in both directions; a connection that nobody asked anything may be silent.
    socket.setTimeout(answerMsMax, () => {
      if (this.#waiting) this.#fail(new Error('no answer in time'))
    })
    socket.once('close', () => this.#fail(new Error('the server closed the connection')))
  }

  static async open(origin: string): Promise<HttpConnection> {
    const place = placeOf(origin)
    return new HttpConnection(await connected(place, openSocket(place)))
  }

  /** Whether the server ended it: an idle one may be, at any time, and nobody lost anything by it. */
  get closed(): boolean {
    return !this.#socket.writable
  }

  /** Sends the bytes of one whole request; rejects when the connection ends first. */
  send(bytes: Buffer): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.closed) return reject(new Error('the server closed the connection'))
      this.#waiting = { resolve, reject }
      this.#socket.write(bytes)
    })
  }

  close(): void {
    this.#socket.removeAllListeners('close')
    this.#socket.destroy()
  }

  #read(text: string): void {
    this.#rest += text
    const end = this.#rest.indexOf('\r\n\r\n')
    if (end < 0) return
    const length = /\r\ncontent-length: *(\d+)/i.exec(this.#rest.slice(0, end + 2))?.[1]
    if (length === undefined) return this.#fail(new Error('an answer without Content-Length'))
    const last = end + 4 + Number(length)
    if (this.#rest.length < last) return
    const answer = {
      status: Number(this.#rest.slice(9, 12)),
      body: this.#rest.slice(end + 4, last),
    }
    this.#rest = this.#rest.slice(last)
    const waiting = this.#waiting
    this.#waiting = undefined
    waiting?.resolve(answer)
  }

  #fail(error: Error): void {
    this.#waiting?.reject(error)
    this.#waiting = undefined
    this.#socket.destroy()
  }
}

/** The bytes of a request, made once and sent often. */
export function requestBytes(origin: string, request: Request): Buffer {
  const body = request.body === undefined ? '' : JSON.stringify(request.body)
  const headers = {
    Host: new URL(origin).host,
    ...(body === '' ? {} : { 'Content-Type': 'application/json' }),
    'Content-Length': String(Buffer.byteLength(body)),
    ...request.headers,
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  return Buffer.from(`${request.method} ${request.path} HTTP/1.1\r\n${lines.join('')}\r\n${body}`)
}
