// The operator's end of a terminal: goes on where it was, whichever socket was lost on the way. Knows neither a
// socket nor a screen; the page and the tests give it theirs. Loads no Node, because browsers run it.
import {
  decodeBase,
  decodeExit,
  decodeFrame,
  decodeText,
  encodeFrame,
  encodeSize,
  type FrameKind,
  type TerminalFrame,
  type TerminalSize,
} from './terminal_frames.ts'
import { Incoming, Outgoing } from './terminal_streams.ts'

export interface TerminalEvents {
  /** Output, in order and once. `done` when it was taken: until then the device sends no more than a window. */
  output(bytes: Uint8Array, done: () => void): void
  /** The device answers, for the first time or again. */
  opened(): void
  /** The shell ended, and all of its output came before this. */
  exit(exitCode: number, signal: string): void
  /** The session is over; nothing comes any more. */
  closed(why: string): void
}

export class TerminalClient {
  private readonly id: string
  private readonly events: TerminalEvents
  private readonly input = new Outgoing()
  private readonly output = new Incoming()
  private size: TerminalSize
  private send: ((frame: Uint8Array) => void) | undefined
  /** The device answered on this socket: only then is it known where output goes on. */
  private opened = false
  /** It answered once: from then on this end knows its own place in the output. */
  private placed = false
  private taken = 0
  private ending: { seq: number; exitCode: number; signal: string } | undefined
  private over = false

  constructor(id: string, size: TerminalSize, events: TerminalEvents) {
    this.id = id
    this.size = size
    this.events = events
  }

  /** Bytes typed that the device has not confirmed. */
  get unconfirmed(): number {
    return this.input.kept
  }

  /** A socket is open. */
  connected(send: (frame: Uint8Array) => void): void {
    this.send = send
    this.opened = false
    send(encodeFrame('open', this.id, this.output.at, encodeSize(this.size)))
  }

  disconnected(): void {
    this.send = undefined
    this.opened = false
  }

  /** Takes a message of the socket; what is no frame of this session is left alone. */
  receive(message: Uint8Array): void {
    const frame = decodeFrame(message)
    if (frame === undefined || frame.id !== this.id || this.over) return
    switch (frame.kind) {
      case 'opened':
        return this.goOn(frame)
      case 'data':
        return this.take(frame)
      case 'ack':
        this.input.ack(frame.seq)
        return this.pump()
      case 'exit':
        this.ending = {
          seq: frame.seq,
          ...(decodeExit(frame.body) ?? { exitCode: -1, signal: '' }),
        }
        return this.settle()
      case 'close':
        this.over = true
        return this.events.closed(decodeText(frame.body))
      case 'open':
      case 'resize': // an operator's own
    }
  }

  /** Sends input now, or when there is a socket and room. */
  type(bytes: Uint8Array): void {
    this.input.push(bytes)
    this.pump()
  }

  resize(size: TerminalSize): void {
    this.size = size
    this.say('resize', 0, encodeSize(size))
  }

  /** Ends the session. */
  end(): void {
    this.say('close', 0)
  }

  private goOn({ seq, body }: TerminalFrame): void {
    const base = decodeBase(body)
    if (base === undefined) return
    // A page that was opened anew has missed what others saw, and what they typed is not its own.
    if (!this.placed || base > this.output.at) this.output.at = this.taken = base
    // Somebody else typed meanwhile: what was not sent yet gets the numbers behind that.
    if (seq > this.input.end || seq < this.input.acked) this.input.renumber(seq)
    this.input.resume(seq)
    this.opened = this.placed = true
    this.events.opened()
    this.pump()
    this.settle()
  }

  private take({ seq, body }: TerminalFrame): void {
    if (!this.opened) return
    const fresh = this.output.take(seq, body)
    if (fresh === undefined) return
    const { at } = this.output
    this.events.output(fresh, () => {
      this.taken = Math.max(this.taken, at)
      this.say('ack', this.taken)
    })
    this.settle()
  }

  /** An exit counts when all that was written before it is here; then the session may go. */
  private settle(): void {
    if (this.ending === undefined || this.ending.seq !== this.output.at || !this.opened) return
    const { exitCode, signal } = this.ending
    this.ending = undefined
    this.events.exit(exitCode, signal)
    this.say('close', 0)
  }

  private pump(): void {
    if (!this.opened) return
    for (let next = this.input.next(); next; next = this.input.next()) {
      this.say('data', next.seq, next.body)
    }
  }

  private say(kind: FrameKind, seq: number, body?: Uint8Array): void {
    this.send?.(encodeFrame(kind, this.id, seq, body))
  }
}
