// Shares the turns of the event loop: a herd does a little in each of them, so that whoever asks in between waits
// for a part of it and not for all. Knows nothing of the work.

/**
 * Admits so many pieces of work into each turn; the others follow in order, turn by turn, so many or an eighth of
 * all that wait: turns that other work makes long must not keep a herd for ever.
 */
export class Turns {
  private readonly perTurn: number
  private admitted = 0
  private counting = false
  private waiting: (() => void)[] = []

  constructor(perTurn: number) {
    this.perTurn = perTurn
  }

  /** Undefined where this turn has room, so that who is alone never waits; else resolves in the turn that has. */
  take(): Promise<void> | undefined {
    if (!this.counting) this.count(0)
    if (this.waiting.length === 0 && this.admitted < this.perTurn) {
      this.admitted++
      return undefined
    }
    return new Promise((resolve) => this.waiting.push(resolve))
  }

  private count(admitted: number): void {
    this.admitted = admitted
    this.counting = true
    setImmediate(() => this.next())
  }

  private next(): void {
    this.counting = false
    const now = this.waiting.splice(0, Math.max(this.perTurn, this.waiting.length >> 3))
    if (now.length > 0) this.count(now.length)
    for (const proceed of now) proceed()
  }
}
