// How hubs that share a terminal session talk over the bus: messages, questions with their answers, frames, and
// when a hub was last heard of. What is said stands in `terminal_messages.ts`.
import type { Bus } from './bus.ts'
import { AppError, fromMessage, toMessage } from './errors.ts'
import { limits } from './limits.ts'
import type { Question, RelayMessage, Way } from './terminal_messages.ts'

type Answer = Extract<RelayMessage, { op: 'answer' }>
/** What is no question and no answer. */
export type Notice = Exclude<RelayMessage, { op: 'ask' | 'answer' }>

/** Whoever hears what another hub says. */
export interface LinkEvents {
  answer(from: string, question: Question): Promise<unknown>
  notice(from: string, notice: Notice): void
  /** `key`: 32 hex digits, the line or the device. */
  frame(from: string, way: Way, key: string, bytes: Uint8Array): void
}

export class TerminalLink {
  private asks = 0
  private readonly asked = new Map<number, { node: string; answer: (message: Answer) => void }>()
  /** When a hub was last heard of, in ms of `performance.now()`. */
  private readonly heardMs = new Map<string, number>()
  private readonly bus: Bus

  constructor(bus: Bus) {
    this.bus = bus
  }

  listen(events: LinkEvents): void {
    this.bus.on('terminal', (from, body) => {
      this.heardMs.set(from, performance.now())
      this.receive(from, JSON.parse(body.toString('utf8')) as RelayMessage, events)
    })
    this.bus.on('frame', (from, body) => {
      const key = body.subarray(1, 17).toString('hex')
      events.frame(from, body[0] as Way, key, body.subarray(17))
    })
  }

  /** Whether hubs can be reached at all. */
  works(): boolean {
    return this.bus.state() === 'ok'
  }

  /** False when it can't be sent; true is no promise. */
  tell(node: string, message: RelayMessage): boolean {
    return this.bus.send(node, 'terminal', JSON.stringify(message))
  }

  frame(node: string, way: Way, key: string, bytes: Uint8Array): boolean {
    const head = Buffer.alloc(17)
    head.writeUInt8(way)
    head.write(key, 1, 'hex')
    return this.bus.send(node, 'frame', Buffer.concat([head, bytes]))
  }

  /** Throws what the other hub throws, and UNAVAILABLE when it does not answer. */
  ask(node: string, question: Question, answerMs: number = limits.relayAnswerMs): Promise<unknown> {
    const ask = ++this.asks
    return new Promise((resolve, reject) => {
      const end = (message: Answer) => {
        clearTimeout(timer)
        this.asked.delete(ask)
        if (message.error) reject(fromMessage(message.error))
        else resolve(message.value)
      }
      const fail = () => end({ op: 'answer', ask, error: toMessage(this.unreachable()) })
      const timer = setTimeout(fail, answerMs)
      this.asked.set(ask, { node, answer: end })
      if (!this.tell(node, { op: 'ask', ask, question })) fail()
    })
  }

  /** Those of the hubs that nothing was heard of for too long, counted from the first look at them. */
  silent(peers: ReadonlySet<string>): string[] {
    const nowMs = performance.now()
    for (const peer of this.heardMs.keys()) if (!peers.has(peer)) this.heardMs.delete(peer)
    return Array.from(peers).filter((peer) => {
      const heardMs = this.heardMs.get(peer) ?? nowMs
      this.heardMs.set(peer, heardMs)
      return nowMs - heardMs > limits.relayLostMs
    })
  }

  /** These hubs are out of reach: what was asked there gets no answer. */
  lose(isLost: (node: string) => boolean): void {
    for (const { node, answer } of Array.from(this.asked.values())) {
      if (isLost(node)) answer({ op: 'answer', ask: 0, error: toMessage(this.unreachable()) })
    }
    for (const node of this.heardMs.keys()) if (isLost(node)) this.heardMs.delete(node)
  }

  private unreachable(): AppError {
    const message = this.works()
      ? 'the hub that has it does not answer; if it failed, its devices and their terminals are let go of within half a minute'
      : 'the hub that has it can not be reached; hubs reach each other through Redis (REDIS_URL)'
    return new AppError('UNAVAILABLE', message, { retryAfterSeconds: 5 })
  }

  private receive(from: string, message: RelayMessage, events: LinkEvents): void {
    switch (message.op) {
      case 'ask': {
        const { ask } = message
        void events.answer(from, message.question).then(
          (value) => this.tell(from, { op: 'answer', ask, value: value ?? null }),
          (error: unknown) => this.tell(from, { op: 'answer', ask, error: toMessage(error) }),
        )
        return
      }
      case 'answer': {
        const asked = this.asked.get(message.ask)
        if (asked?.node === from) asked.answer(message)
        return
      }
      default:
        events.notice(from, message)
    }
  }
}
