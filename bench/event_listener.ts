// Somebody who listens to the ends of commands all the time, and resumes where the stream broke: every end is to be
// heard, and none twice.
import { setTimeout as sleep } from 'node:timers/promises'
import type { PatientClient } from './patient_client.ts'

const types = ['completed', 'failed', 'timeout', 'expired', 'cancelled'].map(
  (end) => `command.${end}`,
)
const pauseMs = 500

export class EventListener {
  /** How often the end of each command was heard. */
  readonly heard = new Map<string, number>()
  /** Times the stream broke. */
  breaks = 0
  readonly #origin: string
  readonly #client: PatientClient
  readonly #over = new AbortController()
  #stream = new AbortController()
  #lastId = ''
  readonly #began = Promise.withResolvers<void>()
  #listening: Promise<void> | undefined

  constructor(origin: string, client: PatientClient) {
    this.#origin = origin
    this.#client = client
  }

  /** Resolves once the first stream has begun: what ends from then on is heard. */
  async start(): Promise<void> {
    this.#listening = this.#listen()
    await this.#began.promise
  }

  /** Loses the stream; it is resumed. */
  breakOff(): void {
    this.#stream.abort()
  }

  async stop(): Promise<void> {
    this.#over.abort()
    await this.#listening
  }

  async #listen(): Promise<void> {
    while (!this.#over.signal.aborted) {
      try {
        await this.#readStream()
      } catch {
        // Broken off, refused, or stopped: the next one goes on where this one was.
      }
      if (this.#over.signal.aborted) return
      this.breaks++
      await sleep(pauseMs)
    }
  }

  async #readStream(): Promise<void> {
    this.#stream = new AbortController()
    const answer = await fetch(`${this.#origin}/api/v1/events?types=${types.join(',')}`, {
      headers: {
        ...(await this.#client.signedIn()),
        ...(this.#lastId ? { 'Last-Event-ID': this.#lastId } : {}),
      },
      signal: AbortSignal.any([this.#over.signal, this.#stream.signal]),
    })
    if (!answer.ok || !answer.body) {
      await answer.body?.cancel()
      return
    }
    let text = ''
    for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
      text += chunk
      const blocks = text.split('\n\n')
      text = blocks.pop() ?? ''
      for (const block of blocks) this.#take(block)
    }
  }

  #take(block: string): void {
    // Also without data: the place where the stream is.
    this.#lastId = /^id: ?(.*)$/m.exec(block)?.[1] ?? this.#lastId
    if (this.#lastId) this.#began.resolve()
    const id = /"commandId": ?"([0-9a-f-]{36})"/.exec(block)?.[1]
    if (id) this.heard.set(id, (this.heard.get(id) ?? 0) + 1)
  }
}
