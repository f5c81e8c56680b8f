// One WebSocket to the hub, from dialling to its end. Decides nothing: it says what happened, once.

import { agentSubprotocol } from '../src/protocol.ts'
import type { HubFrame } from '../src/protocol.ts'
import { parseHubFrame } from './frames.ts'
import { welcomeWaitMs } from './limits.ts'

type Welcome = Extract<HubFrame, { type: 'welcome' }>

/** How a socket ended: `unopened` needs a question why, the built-in client hides refusals. */
export type SocketEnd = { type: 'unopened' } | { type: 'closed'; code: number } | { type: 'silent' }

export interface SocketEvents {
  welcome(frame: Welcome): void
  frame(frame: HubFrame): void
  /** A binary frame, which is a terminal's; false when it is none. */
  binary(bytes: Uint8Array): boolean
  /** A frame that is no frame of ours: counted and dropped. */
  unknown(): void
  end(end: SocketEnd): void
}

export class HubSocket {
  readonly token: string
  readonly #socket: WebSocket
  readonly #events: SocketEvents
  readonly #welcomeTimer: NodeJS.Timeout
  #opened = false
  #ended = false

  constructor(url: string, token: string, events: SocketEvents) {
    this.token = token
    this.#events = events
    const headers = { authorization: `Bearer ${token}` }
    this.#socket = new WebSocket(url, { protocols: [agentSubprotocol], headers })
    this.#socket.binaryType = 'arraybuffer'
    this.#socket.addEventListener('open', () => (this.#opened = true))
    this.#socket.addEventListener('message', (event) => this.#take(event.data))
    this.#socket.addEventListener('error', () => {}) // 'close' follows and says more
    this.#socket.addEventListener('close', ({ code }) => this.#end(this.#endOf(code)))
    this.#welcomeTimer = setTimeout(() => this.drop(), welcomeWaitMs)
  }

  /** Bytes that wait in this process because the hub, or the way to it, is slow. */
  get backlogBytes(): number {
    return this.#socket.bufferedAmount
  }

  /** Sends a text or a binary frame; false when the socket is not open. */
  send(frame: string | Uint8Array<ArrayBuffer>): boolean {
    if (this.#ended || this.#socket.readyState !== WebSocket.OPEN) return false
    this.#socket.send(frame)
    return true
  }

  /** Closes politely; nothing is told any more. */
  close(): void {
    this.#ended = true
    clearTimeout(this.#welcomeTimer)
    this.#socket.close(1000)
  }

  /** Gives up a socket whose other end is silent. */
  drop(): void {
    this.#end({ type: 'silent' })
    this.#socket.close()
  }

  #take(data: unknown): void {
    if (data instanceof ArrayBuffer && this.#events.binary(new Uint8Array(data))) return
    const frame = typeof data === 'string' ? parseHubFrame(data) : null
    if (!frame) return this.#events.unknown()
    // A socket that was closed politely may still bring commands; they count like any other.
    if (frame.type !== 'welcome') return this.#events.frame(frame)
    if (this.#ended) return
    clearTimeout(this.#welcomeTimer)
    this.#events.welcome(frame)
  }

  #endOf(code: number): SocketEnd {
    return this.#opened ? { type: 'closed', code } : { type: 'unopened' }
  }

  #end(end: SocketEnd): void {
    if (this.#ended) return
    this.#ended = true
    clearTimeout(this.#welcomeTimer)
    this.#events.end(end)
  }
}
