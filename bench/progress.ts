// What the bench tells while it runs: one live line on a terminal, plain lines anywhere else.
// Goes to stderr, so that tables and JSON on stdout stay clean.

/** Where progress goes: stderr, or anything a test hands in. */
export interface ProgressSink {
  isTTY?: boolean | undefined
  columns?: number | undefined
  write(text: string): unknown
}

/** A log wants to know that a long run lives, not each second of it. */
const plainFigureMs = 15_000

export class Progress {
  readonly #out: ProgressSink
  #step = ''
  #steppedMs = 0
  #toldMs = 0

  constructor(out: ProgressSink = process.stderr) {
    this.#out = out
  }

  /** The step under way; on a terminal it replaces the one before. */
  step(text: string): void {
    this.#step = text
    this.#steppedMs = performance.now()
    this.#toldMs = this.#steppedMs
    if (this.#out.isTTY) this.#live(text)
    else this.#out.write(`${text}\n`)
  }

  /** How far a step is, with the time it took so far; told now and then where lines stay. */
  figure(text: string): void {
    const nowMs = performance.now()
    const line = `${this.#step}, ${Math.round((nowMs - this.#steppedMs) / 1000)} s: ${text}`
    if (this.#out.isTTY) return this.#live(line)
    if (nowMs - this.#toldMs < plainFigureMs) return
    this.#toldMs = nowMs
    this.#out.write(`${line}\n`)
  }

  /** A count that moves inside a step: shown on a terminal only, a log has no use for it. */
  count(done: number, all: number): void {
    if (this.#out.isTTY) this.#live(`${this.#step} ${done}/${all}`)
  }

  /** A line that stays. */
  note(text: string): void {
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${text}\n` : `${text}\n`)
  }

  /** Removes the live line. */
  clear(): void {
    if (this.#out.isTTY) this.#out.write('\r\u001b[2K')
  }

  /** A line that wrapped could not be taken back. */
  #live(text: string): void {
    const width = (this.#out.columns ?? 80) - 1
    this.#out.write(`\r\u001b[2K${text.length > width ? `${text.slice(0, width - 1)}…` : text}`)
  }
}
