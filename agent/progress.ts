// Live output of one command: collected and sent a few times a second, dropped when nobody keeps up.

import type { AgentFrame, UpgradePhase } from '../src/protocol.ts'
import { progressCharsMax, progressIntervalMs } from './limits.ts'

export type Stream = 'stdout' | 'stderr'
type ProgressFrame = Extract<AgentFrame, { type: 'progress' }>

export class Progress {
  readonly #id: string
  readonly #send: (frame: ProgressFrame) => void
  readonly #pending: Record<Stream, string> = { stdout: '', stderr: '' }
  #seq = 0
  #timer: NodeJS.Timeout | null = null
  #flushedAt = -Infinity

  constructor(id: string, send: (frame: ProgressFrame) => void) {
    this.#id = id
    this.#send = send
  }

  /** Adds output; past the bound of one flush it is dropped, the result has it all. */
  push(stream: Stream, text: string): void {
    if (text === '') return
    const room = progressCharsMax - this.#pending[stream].length
    this.#pending[stream] += cleanCut(text, room)
    this.#timer ??= setTimeout(() => this.flush(), this.#dueMs())
  }

  /** Sends at once how far an upgrade is. */
  phase(data: UpgradePhase): void {
    this.#send({ type: 'progress', id: this.#id, seq: this.#seq++, stream: 'phase', data })
  }

  /** Sends what is pending now. */
  flush(): void {
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = null
    this.#flushedAt = performance.now()
    for (const stream of ['stdout', 'stderr'] as const) {
      const data = this.#pending[stream]
      this.#pending[stream] = ''
      if (data !== '')
        this.#send({ type: 'progress', id: this.#id, seq: this.#seq++, stream, data })
    }
  }

  #dueMs(): number {
    return Math.max(0, this.#flushedAt + progressIntervalMs - performance.now())
  }
}

// Never between the halves of a surrogate pair.
function cleanCut(text: string, charsMax: number): string {
  const cut = text.slice(0, Math.max(0, charsMax))
  return cut.isWellFormed() ? cut : cut.slice(0, -1)
}
