// One session with a message broker, as an operator or as whoever takes the heartbeats holds it.
import type { Socket } from 'node:net'
import { openSocket, placeOf } from './sockets.ts'
import type { Wire } from './wires.ts'

export interface PeerClientOptions {
  name: string
  /** At least one. */
  topics: readonly string[]
  onMessage: (topic: string, payload: Buffer) => void
  /** The session ended, and not by `close`. */
  onEnd?: (reason: Error) => void
}

/** Half of what either broker allows for silence. */
const pingMs = 30_000
const readyMsMax = 10_000

export class PeerClient {
  readonly #socket: Socket
  readonly #wire: Wire
  readonly #pinger: NodeJS.Timeout
  #rest: Buffer = Buffer.alloc(0)
  #pongs: (() => void)[] = []
  #ended = false

  private constructor(origin: string, wire: Wire) {
    this.#wire = wire
    this.#socket = openSocket(placeOf(origin))
    this.#pinger = setInterval(() => void this.flushed().catch(() => undefined), pingMs)
  }

  /** Resolves once the broker has confirmed the subscriptions. */
  static async open(origin: string, wire: Wire, options: PeerClientOptions): Promise<PeerClient> {
    const client = new PeerClient(origin, wire)
    await client.#open(options)
    return client
  }

  get closed(): boolean {
    return this.#ended
  }

  write(bytes: Buffer): void {
    this.#socket.write(bytes)
  }

  /** Resolves once the broker took all that was written; rejects when the session ends first. */
  flushed(): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#ended) return reject(new Error('the broker ended the session'))
      const failed = () => reject(new Error('the broker ended the session'))
      this.#socket.once('close', failed)
      this.#pongs.push(() => {
        this.#socket.off('close', failed)
        resolve()
      })
      this.#socket.write(this.#wire.ping)
    })
  }

  close(): void {
    this.#ended = true
    clearInterval(this.#pinger)
    this.#socket.destroy()
  }

  #open({ name, topics, onMessage, onEnd }: PeerClientOptions): Promise<void> {
    return new Promise((resolve, reject) => {
      let failure = new Error('the broker ended the session')
      let ready = false
      const late = setTimeout(() => {
        failure = new Error('the broker did not confirm a session in time')
        this.#socket.destroy()
      }, readyMsMax)
      this.#socket.on('error', (error) => (failure = error))
      this.#socket.once('close', () => {
        clearTimeout(late)
        const byOurselves = this.#ended
        this.close()
        reject(failure)
        if (ready && !byOurselves) onEnd?.(failure)
      })
      const listener = {
        ready: () => {
          if (ready) return
          ready = true
          // What `open` sent may have asked for a pong; those of pings come after it.
          clearTimeout(late)
          resolve()
        },
        message: onMessage,
        asked: (answer: Buffer) => this.write(answer),
        pong: () => this.#pongs.shift()?.(),
        refused: (reason: string) => {
          failure = new Error(`the broker refused: ${reason}`)
          this.#socket.destroy()
        },
      }
      this.#socket.on('data', (chunk: Buffer) => {
        const bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
        this.#rest = Buffer.from(this.#wire.read(bytes, listener))
      })
      this.write(this.#wire.open(name, topics))
    })
  }
}
