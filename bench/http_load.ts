// Two ways to load an HTTP server: closed loop for throughput, open loop for latency.
import { tally, total } from './fleet_counts.ts'
import { HttpConnection, type Answer } from './http_connection.ts'
import { Latencies } from './latency.ts'
import type { Progress } from './progress.ts'
import { tick, ticksNowMs } from './ticker.ts'

/** What a load asks over: one request at a time. */
export interface Connection {
  /** Whether the server ended it. */
  closed: boolean
  send(request: Buffer): Promise<Answer>
  close(): void
}

export interface Load {
  origin: string
  connections: number
  seconds: number
  /** The bytes of the next request. */
  next: () => Buffer
  /** Whether an answer is the one that was asked for; others count as refused. */
  good: (answer: Answer) => boolean
  /** Opens a connection; HTTP unless something else is asked. */
  open?: (origin: string) => Promise<Connection>
}

export interface LoadResult {
  good: number
  /** Answers that were not good, by status; what got none under `lost`. */
  bad: Record<string, number>
  seconds: number
  /**
   * Of what was answered, whatever the answer. In an open loop from the moment a request was due, in a closed
   * one from its sending: a closed loop asks less of a slow server, so its latencies flatter a stall.
   */
  latencies: Latencies
}

/** Every connection asks again as soon as it is answered; one that is lost stays away. */
export async function closedLoop(load: Load): Promise<LoadResult> {
  const result = emptyResult(load.seconds)
  const lines = await openAll(load)
  const startedMs = performance.now()
  const endMs = startedMs + load.seconds * 1000
  await Promise.all(
    lines.map(async (line) => {
      while (performance.now() < endMs) {
        if (!(await ask(line, load, result, ticksNowMs()))) return
      }
    }),
  )
  result.seconds = (performance.now() - startedMs) / 1000
  closeAll(lines)
  return result
}

export interface OpenLoad extends Load {
  perSecond: number
  /** Told once a second how far the load is. */
  progress?: Progress
}

/**
 * Sends on schedule, whether or not earlier requests were answered, and measures from the schedule: a
 * stall of the server counts for every request that was due in it. With every connection busy a
 * request waits for one, and that wait counts too. A connection that is lost is opened again for the next
 * request, so that an outage costs what was due in it and nothing after.
 */
export async function openLoop(load: OpenLoad): Promise<LoadResult> {
  const result = emptyResult(load.seconds)
  const free = await openAll(load)
  const all = [...free]
  const due = new Waiting()
  const running = new Set<Promise<void>>()

  const serve = async (line: Line) => {
    for (let dueMs = due.take(); dueMs !== undefined; dueMs = due.take()) {
      await ask(line, load, result, dueMs)
    }
    free.push(line)
  }
  let ticks = 0
  await tick(load.perSecond, Math.round(load.perSecond * load.seconds), (dueMs) => {
    due.add(dueMs)
    if (++ticks % Math.ceil(load.perSecond) === 0) tell(load, result)
    const line = free.shift()
    if (!line) return
    const work: Promise<void> = serve(line).finally(() => running.delete(work))
    running.add(work)
  })
  await Promise.all(running)
  closeAll(all)
  return result
}

/** What was not answered well, in one line; undefined when all was. */
export function refusals({ bad }: Pick<LoadResult, 'bad'>): string | undefined {
  return Object.keys(bad).length > 0 ? JSON.stringify(bad) : undefined
}

/** How many were not answered well. */
export function failures({ bad }: Pick<LoadResult, 'bad'>): number {
  return total(bad)
}

/** A place for a connection, which may be lost and opened again. */
interface Line {
  connection: Connection | undefined
}

/** One request on one connection; false when there was no answer. */
async function ask(line: Line, load: Load, result: LoadResult, dueMs: number): Promise<boolean> {
  try {
    if (line.connection?.closed) line.connection = undefined
    line.connection ??= await openConnection(load)
    const answer = await line.connection.send(load.next())
    result.latencies.record(dueMs, ticksNowMs())
    if (load.good(answer)) result.good++
    else tally(result.bad, String(answer.status))
    return true
  } catch {
    line.connection = undefined
    tally(result.bad, 'lost')
    return false
  }
}

function openAll(load: Load): Promise<Line[]> {
  return Promise.all(
    Array.from({ length: load.connections }, async () => ({
      connection: await openConnection(load),
    })),
  )
}

function openConnection({ origin, open }: Load): Promise<Connection> {
  return open ? open(origin) : HttpConnection.open(origin)
}

function closeAll(lines: readonly Line[]): void {
  for (const { connection } of lines) connection?.close()
}

function tell({ progress }: OpenLoad, result: LoadResult): void {
  if (!progress || result.latencies.count === 0) return
  const p99 = result.latencies.ms(99).toPrecision(3)
  progress.figure(`${result.good} answered, ${failures(result)} failed, p99 ${p99} ms`)
}

function emptyResult(seconds: number): LoadResult {
  return { good: 0, bad: {}, seconds, latencies: new Latencies() }
}

/** First in, first out; an array's shift would move a long backlog for each request of it. */
class Waiting {
  #moments: number[] = []
  #next = 0

  add(dueMs: number): void {
    this.#moments.push(dueMs)
  }

  take(): number | undefined {
    const dueMs = this.#moments[this.#next++]
    if (dueMs !== undefined) return dueMs
    this.#moments = []
    this.#next = 0
    return undefined
  }
}
