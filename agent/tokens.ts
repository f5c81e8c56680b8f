// Which token the next connection uses. A rotated token replaces the old one only after it worked.

import type { State, Tokens } from './state.ts'
import { promoteNextToken, readTokens, storeNextToken } from './state.ts'

export class TokenStore {
  readonly #state: State
  #tokens: Tokens
  /** The hub may have lost a rotation it never committed: then the old token is the good one. */
  #nextRefused = false

  constructor(state: State) {
    this.#state = state
    this.#tokens = readTokens(state)
  }

  /** The token to try now. */
  pick(): string {
    const { current, next } = this.#tokens
    return next !== null && !this.#nextRefused ? next : current
  }

  /** Keeps what a `token` frame brought, durably, before anything uses it. */
  rotate(token: string): void {
    storeNextToken(this.#state, token)
    this.#tokens = { current: this.#tokens.current, next: token }
    this.#nextRefused = false
  }

  /** A connection with this token was welcomed. True when it was the new one. */
  worked(token: string): boolean {
    if (token !== this.#tokens.next) return false
    promoteNextToken(this.#state)
    this.#tokens = { current: token, next: null }
    return true
  }

  /**
   * The hub did not know this token: the other one, if there is one, is tried next. True when that
   * is the proven one, which is worth an early try.
   */
  refused(token: string): boolean {
    if (this.#tokens.next === null) return false
    this.#nextRefused = token === this.#tokens.next
    return this.#nextRefused
  }
}
