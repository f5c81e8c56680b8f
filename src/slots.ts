// Work that takes long: how much of it may run at once, and how much of it for one who asks.
import { AppError } from './errors.ts'

export class Slots {
  private readonly held = new Map<string, number>()
  private taken = 0
  private readonly what: string
  private readonly max: number
  private readonly perUserMax: number

  /** `what` names one piece of the work to people. */
  constructor(what: string, max: number, perUserMax: number) {
    this.what = what
    this.max = max
    this.perUserMax = perUserMax
  }

  /** Takes a slot and returns what gives it back, once. Throws RATE_LIMITED for the user, OVERLOADED for all. */
  take(userId: string): () => void {
    const mine = this.held.get(userId) ?? 0
    const retry = { retryAfterSeconds: 10 }
    if (mine >= this.perUserMax) {
      const message =
        this.perUserMax === 1
          ? `your ${this.what} before this one still runs`
          : `${this.perUserMax} ${this.what}s of yours are running, which is the most; try again shortly`
      const headers = {
        'RateLimit-Limit': String(this.perUserMax),
        'RateLimit-Remaining': '0',
        'RateLimit-Reset': String(retry.retryAfterSeconds),
      }
      throw new AppError('RATE_LIMITED', message, { ...retry, headers })
    }
    if (this.taken >= this.max) {
      const message = `as many ${this.what}s as may run at once are running; try again shortly`
      throw new AppError('OVERLOADED', message, retry)
    }
    this.held.set(userId, mine + 1)
    this.taken++
    let given = false
    return () => {
      if (given) return
      given = true
      this.taken--
      const left = (this.held.get(userId) ?? 0) - 1
      if (left > 0) this.held.set(userId, left)
      else this.held.delete(userId)
    }
  }

  /** How many are taken now. */
  inUse(): number {
    return this.taken
  }
}
