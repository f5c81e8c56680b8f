// The thread in which autocannon runs; see saturation.ts.
import { parentPort, workerData } from 'node:worker_threads'
import autocannon, { type Request as Shot } from 'autocannon'
import { tally } from './fleet_counts.ts'
import type { LoadResult } from './http_load.ts'
import { Latencies, type PortableLatencies } from './latency.ts'
import type { Saturation } from './saturation.ts'

export type SaturationJob = Saturation
export type SaturationReport = Omit<LoadResult, 'latencies'> & { latencies: PortableLatencies }

/** As long as our own connections wait for an answer. */
const answerSecondsMax = 90
/** Enough to have run all of its code often. */
const warmUpConnectionsMax = 100
/** It ends at the first look after the time is over. */
const lookMs = 50

const { saturation } = workerData as { saturation: SaturationJob }
if (saturation.warmUpSeconds !== undefined) {
  await run({
    ...saturation,
    seconds: saturation.warmUpSeconds,
    connections: Math.min(saturation.connections, warmUpConnectionsMax),
  })
}
parentPort?.postMessage(await run(saturation))

function run({
  origin,
  connections,
  seconds,
  requests,
  good,
}: SaturationJob): Promise<SaturationReport> {
  const shots = requests.map(({ method, path, headers = {}, body }): Shot => {
    const type = body === undefined ? {} : { 'Content-Type': 'application/json' }
    return {
      method,
      path,
      headers: { ...type, ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    }
  })
  const latencies = new Latencies()
  let clients = 0
  return new Promise((resolve, reject) => {
    const { holds } = good
    const running = autocannon(
      {
        url: origin,
        connections,
        duration: seconds,
        sampleInt: lookMs,
        timeout: answerSecondsMax,
        setupClient: (client) => client.setRequests(hand(shots, clients++, connections)),
        ...(holds === undefined ? {} : { verifyBody: (body: string) => body.includes(holds) }),
      },
      (error, result) => {
        if (error) return reject(error)
        const { statusCodeStats, mismatches, duration } = result
        const bad: Record<string, number> = {}
        for (const [status, { count }] of Object.entries(statusCodeStats)) {
          if (status !== String(good.status)) tally(bad, status, count)
        }
        const answered = statusCodeStats[good.status]?.count ?? 0
        const refused = Object.values(bad).reduce((sum, count) => sum + count, 0)
        // An answer of another status is no second failure for what it holds.
        const wrong = Math.max(0, mismatches - refused)
        if (wrong > 0) tally(bad, `${good.status} without its end`, wrong)
        // Each connection has one request under way at the end; whatever else was sent got no answer. autocannon
        // itself says nothing of a connection that the server closed.
        const lost = result.totalRequests - result.totalCompletedRequests - connections
        if (lost > 0) tally(bad, 'lost', lost)
        resolve({
          good: answered - wrong,
          bad,
          seconds: duration,
          latencies: latencies.portable(),
        })
      },
    )
    // autocannon takes the time of each connection's first request while it makes all connections, in one go: for a
    // thousand that lasts longer than any answer. Nothing is sent before it is through.
    const madeMs = performance.now()
    running.on('response', (_client, _status, _bytes, responseMs) => {
      const nowMs = performance.now()
      latencies.record(Math.max(nowMs - responseMs, madeMs), nowMs)
    })
  })
}

/** What one connection sends: every n-th of all, or one of them where there are more connections. */
function hand(shots: readonly Shot[], index: number, connections: number): Shot[] {
  const own = shots.filter((_, shot) => shot % connections === index % connections)
  return own.length > 0 ? own : [shots[index % shots.length]!]
}
