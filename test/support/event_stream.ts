// A reader of server-sent events: a request whose answer is read as it comes.
import assert from 'node:assert/strict'
import { until } from './until.ts'

export interface Received {
  id: string
  type: string
  // oxlint-disable-next-line typescript/no-explicit-any -- tests reach into data of every shape
  data: any
}

export class EventReader {
  readonly events: Received[] = []
  /** The last `id:` that came, with an event or without. */
  lastId = ''
  retryMs = 0
  retries = 0
  comments = 0
  ended = false
  /** Why its end was none that HTTP knows. */
  broken: unknown
  private readonly controller: AbortController

  private constructor(controller: AbortController) {
    this.controller = controller
  }

  /** Opens a stream and waits until it has begun. */
  static async open(
    origin: string,
    token: string,
    { query = '', lastId }: { query?: string; lastId?: string } = {},
  ): Promise<EventReader> {
    const controller = new AbortController()
    const response = await fetch(`${origin}/api/v1/events${query}`, {
      headers: {
        authorization: `Bearer ${token}`,
        ...(lastId === undefined ? {} : { 'last-event-id': lastId }),
      },
      signal: controller.signal,
    })
    assert.equal(response.status, 200, response.status === 200 ? '' : await response.text())
    assert.match(response.headers.get('content-type') ?? '', /^text\/event-stream/)
    const reader = new EventReader(controller)
    void reader.read(response)
    await until('the stream to begin', () => reader.retryMs > 0)
    return reader
  }

  /** Waits for an event; without `match` for any. */
  event(type: string, match: (event: Received) => boolean = () => true): Promise<Received> {
    return until(`the event ${type}`, () =>
      this.events.find((event) => event.type === type && match(event)),
    )
  }

  finished(): Promise<true> {
    return until('the stream to end', () => this.ended)
  }

  close(): void {
    this.controller.abort()
  }

  private async read(response: Response): Promise<void> {
    let text = ''
    const decoder = new TextDecoder()
    try {
      for await (const chunk of response.body ?? []) {
        text += decoder.decode(chunk as Uint8Array, { stream: true })
        const blocks = text.split('\n\n')
        text = blocks.pop() ?? ''
        for (const block of blocks) this.take(block)
      }
    } catch (error) {
      this.broken = error
    }
    this.ended = true
  }

  private take(block: string): void {
    let [type, data] = ['', '']
    for (const line of block.split('\n')) {
      const [, name = '', value = ''] = /^(\w*): ?(.*)$/.exec(line) ?? []
      if (name === '') this.comments++
      else if (name === 'id') this.lastId = value
      else if (name === 'event') type = value
      else if (name === 'data') data = value
      else if (name === 'retry') {
        this.retryMs = Number(value)
        this.retries++
      }
    }
    if (data !== '') this.events.push({ id: this.lastId, type, data: JSON.parse(data) })
  }
}
