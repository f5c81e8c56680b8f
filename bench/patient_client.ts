// An operator's program as it should be written: what was refused with 503 or got no answer is asked again, with the
// same Idempotency-Key, until there is an answer. Counts what it had to repeat, and what it never should have heard.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { tally } from './fleet_counts.ts'
import { HttpConnection, requestBytes, type Answer } from './http_connection.ts'
import type { Target } from './lab.ts'
import { signIn } from './operator.ts'

/** An access token lives 15 minutes. */
const signInMs = 10 * 60_000
/** Whoever is not answered by then stops asking; no fault of a soak lasts so long. */
const patienceMs = 180_000
/** Connections kept for the next request; a flood opens many for a moment. */
const freeMax = 32
const pauseMsMin = 100
const pauseMsMax = 1_500

export interface PatientRequest {
  method: 'GET' | 'POST' | 'DELETE'
  path: string
  body?: unknown
  /** Makes a repeat the same request. */
  key?: string
  headers?: Record<string, string>
  /** Statuses that are an answer; any other but 503 is held against the hub. */
  good: readonly number[]
  /** What may not be asked twice, for want of a key: 503 and silence are answers, too. */
  once?: boolean
}

/** What one had to hear in a stretch of time, by status; `lost` where there was no answer. */
export type Heard = Record<string, number>

export class Refused extends Error {}

export class PatientClient {
  /** What was repeated, since it was last asked for. */
  #heard: Heard = {}
  /** Answers that no program can do anything about. */
  readonly refused: string[] = []
  refusals = 0
  repeats = 0
  /** Connections that are open. */
  connections = 0
  readonly #target: Target
  readonly #free: HttpConnection[] = []
  #headers: { Authorization: string } | undefined
  #signedInMs = 0
  #signingIn: Promise<void> | undefined

  constructor(target: Target) {
    this.#target = target
  }

  static key(): string {
    return randomUUID()
  }

  /** What was refused or lost since the last call. */
  takeHeard(): Heard {
    const heard = this.#heard
    this.#heard = {}
    return heard
  }

  /** Resolves with an answer that was asked for, and how often it had to be asked; throws Refused else. */
  async ask(request: PatientRequest): Promise<Answer & { asked: number }> {
    const endMs = performance.now() + patienceMs
    for (let asked = 1; ; asked++) {
      const answer = await this.#once(request)
      if (answer && request.good.includes(answer.status)) return { ...answer, asked }
      const status = answer ? String(answer.status) : 'lost'
      tally(this.#heard, status)
      if (request.once && (!answer || answer.status === 503)) {
        return { ...(answer ?? { status: 0, body: '' }), asked }
      }
      if (answer && answer.status !== 503) this.#refuse(request, `${status} ${answer.body}`)
      if (performance.now() > endMs) this.#refuse(request, `nothing but ${status} for too long`)
      this.repeats++
      await sleep(pauseMsMin + Math.random() * Math.min(pauseMsMax, pauseMsMin * 2 ** asked))
    }
  }

  /** The header of who signed in, renewed in time. */
  async signedIn(): Promise<{ Authorization: string }> {
    if (!this.#headers || performance.now() - this.#signedInMs > signInMs) {
      this.#signingIn ??= this.#signIn().finally(() => (this.#signingIn = undefined))
      await this.#signingIn
    }
    return this.#headers!
  }

  close(): void {
    for (const connection of this.#free.splice(0)) this.#end(connection)
  }

  #end(connection: HttpConnection): void {
    this.connections--
    connection.close()
  }

  async #signIn(): Promise<void> {
    const { origin, credentials } = this.#target
    for (;;) {
      try {
        this.#headers = await signIn(origin, credentials)
        this.#signedInMs = performance.now()
        return
      } catch {
        // The old token serves for five minutes more.
        if (this.#headers) return
        await sleep(pauseMsMax)
      }
    }
  }

  async #once(request: PatientRequest): Promise<Answer | undefined> {
    const { method, path, body, key } = request
    const headers = {
      ...(await this.signedIn()),
      ...(key ? { 'Idempotency-Key': key } : {}),
      ...request.headers,
    }
    const { origin } = this.#target
    let connection: HttpConnection | undefined
    try {
      connection = this.#free.pop()
      if (connection?.closed) {
        this.#end(connection)
        connection = undefined
      }
      if (!connection) {
        connection = await HttpConnection.open(origin)
        this.connections++
      }
      const answer = await connection.send(requestBytes(origin, { method, path, headers, body }))
      if (this.#free.length < freeMax) this.#free.push(connection)
      else this.#end(connection)
      return answer
    } catch {
      if (connection) this.#end(connection)
      return undefined
    }
  }

  #refuse({ method, path }: PatientRequest, why: string): never {
    this.refusals++
    const text = `${method} ${path}: ${why.slice(0, 300)}`
    if (this.refused.length < 20) this.refused.push(text)
    throw new Refused(text)
  }
}
