// What the bench tells while it runs: one live line on a terminal, plain lines anywhere else.
// Goes to stderr, so that tables and JSON on stdout stay clean.

/** Where progress goes: stderr, or anything a test hands in. */
export interface ProgressSink {
  isTTY?: boolean | undefined
  write(text: string): unknown
}

export class Progress {
  readonly #out: ProgressSink
  #live = ''

  constructor(out: ProgressSink = process.stderr) {
    this.#out = out
  }

  /** The step under way; on a terminal it replaces the one before. */
  step(text: string): void {
    if (!this.#out.isTTY) {
      this.#out.write(`${text}\n`)
      return
    }
    this.#live = text
    this.#out.write(`\r\u001b[2K${text}`)
  }

  /** A count that moves inside a step: shown on a terminal only, a log has no use for it. */
  count(done: number, all: number): void {
    if (this.#out.isTTY) this.#out.write(`\r\u001b[2K${this.#live} ${done}/${all}`)
  }

  /** A line that stays. */
  note(text: string): void {
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${text}\n` : `${text}\n`)
  }

  /** Removes the live line. */
  clear(): void {
    if (this.#out.isTTY) this.#out.write('\r\u001b[2K')
  }
}
