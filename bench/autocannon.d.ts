// What the bench uses of autocannon, which brings no types.
declare module 'autocannon' {
  import type { EventEmitter } from 'node:events'

  export interface Request {
    method: string
    path: string
    headers: Record<string, string>
    body?: string
  }

  export interface Client {
    setRequests(requests: Request[]): void
  }

  export interface Options {
    url: string
    connections: number
    /** Seconds. */
    duration: number
    /** Milliseconds between looks at whether the time is over. */
    sampleInt: number
    /** Seconds without an answer. */
    timeout: number
    setupClient: (client: Client) => void
    /** False makes an answer a mismatch. */
    verifyBody?: (body: string) => boolean
  }

  /** As it comes in a thread, where autocannon adds nothing up. */
  export interface Result {
    /** Seconds. */
    duration: number
    totalRequests: number
    totalCompletedRequests: number
    mismatches: number
    statusCodeStats: Record<string, { count: number }>
  }

  export interface Run extends EventEmitter {
    on(
      event: 'response',
      listener: (client: Client, status: number, bytes: number, responseMs: number) => void,
    ): this
  }

  export default function autocannon(
    options: Options,
    done: (error: Error | null, result: Result) => void,
  ): Run
}
