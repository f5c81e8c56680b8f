// Two ways to load an HTTP server: closed loop for throughput, open loop for latency.
import { createHistogram, type RecordableHistogram } from 'node:perf_hooks'
import { tally } from './fleet_counts.ts'
import { HttpConnection, type Answer } from './http_connection.ts'
import { tick, ticksNowMs } from './ticker.ts'

export interface Load {
  origin: string
  connections: number
  seconds: number
  /** The bytes of the next request. */
  next: () => Buffer
  /** Whether an answer is the one that was asked for; others count as refused. */
  good: (answer: Answer) => boolean
}

export interface LoadResult {
  good: number
  /** Answers that were not good, by status; failed connections under `lost`. */
  bad: Record<string, number>
  seconds: number
}

/** Every connection asks again as soon as it is answered. */
export async function closedLoop(load: Load): Promise<LoadResult> {
  const result: LoadResult = { good: 0, bad: {}, seconds: 0 }
  const connections = await openAll(load)
  const startedMs = performance.now()
  const endMs = startedMs + load.seconds * 1000
  await Promise.all(
    connections.map(async (connection) => {
      while (performance.now() < endMs) {
        if (!(await ask(connection, load, result))) return
      }
    }),
  )
  result.seconds = (performance.now() - startedMs) / 1000
  for (const connection of connections) connection.close()
  return result
}

export interface TimedResult extends LoadResult {
  /** Microseconds from the moment a request was due to its answer. */
  histogram: RecordableHistogram
}

/**
 * Sends on schedule, whether or not earlier requests were answered, and measures from the schedule: a
 * stall of the server counts for every request that was due in it. With every connection busy a
 * request waits for one, and that wait counts too.
 */
export async function openLoop(load: Load & { perSecond: number }): Promise<TimedResult> {
  const result: TimedResult = { good: 0, bad: {}, seconds: load.seconds, histogram: timer() }
  const free = await openAll(load)
  const all = [...free]
  const due: number[] = []
  const running = new Set<Promise<void>>()

  const serve = async (connection: HttpConnection) => {
    for (let dueMs = due.shift(); dueMs !== undefined; dueMs = due.shift()) {
      if (!(await ask(connection, load, result))) return
      result.histogram.record(Math.max(1, Math.round((ticksNowMs() - dueMs) * 1000)))
    }
    free.push(connection)
  }
  await tick(load.perSecond, Math.round(load.perSecond * load.seconds), (dueMs) => {
    due.push(dueMs)
    const connection = free.shift()
    if (!connection) return
    const work: Promise<void> = serve(connection).finally(() => running.delete(work))
    running.add(work)
  })
  await Promise.all(running)
  for (const connection of all) connection.close()
  return result
}

/** One request on one connection; false when the connection was lost. */
async function ask(connection: HttpConnection, load: Load, result: LoadResult): Promise<boolean> {
  try {
    const answer = await connection.send(load.next())
    if (load.good(answer)) result.good++
    else tally(result.bad, String(answer.status))
    return true
  } catch {
    tally(result.bad, 'lost')
    return false
  }
}

function openAll(load: Load): Promise<HttpConnection[]> {
  return Promise.all(
    Array.from({ length: load.connections }, () => HttpConnection.open(load.origin)),
  )
}

/** Microseconds up to a minute, three digits. */
function timer(): RecordableHistogram {
  return createHistogram({ lowest: 1, highest: 60_000_000, figures: 3 })
}
