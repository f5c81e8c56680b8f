// Throughput against a number of callers, driven by autocannon: each asks again once answered. It runs in a thread of
// its own, so that what else this process measures keeps its clock. Latencies that count are not measured here, since
// a closed loop asks less of a slow server; autocannon's fixed rates are no cure, corrected by 1 ms whatever the rate.
import { Worker } from 'node:worker_threads'
import { requestBytes, type Request } from './http_connection.ts'
import { closedLoop, type LoadResult } from './http_load.ts'
import { Latencies } from './latency.ts'
import type { SaturationJob, SaturationReport } from './saturation_thread.ts'

export interface Saturation {
  origin: string
  connections: number
  seconds: number
  /** Dealt to the connections like cards; each sends its own in turn. */
  requests: readonly Request[]
  /** The status of a good answer, and what its body must hold. */
  good: { status: number; holds?: string }
  /** Asks so long before anything counts: for who looks at the slowest, since autocannon begins in a cold thread. */
  warmUpSeconds?: number
}

/** One access token has to last; it lives 15 minutes. */
export const saturationSecondsMax = 600

/**
 * Loads the server for `seconds`. What is under way at the end is given up and counts neither way. Over TLS the
 * closed loop of our own takes autocannon's place, which never checks a certificate.
 */
export async function saturate(job: Saturation): Promise<LoadResult> {
  if (!job.origin.startsWith('http:')) return ownLoop(job)
  const worker = new Worker(new URL('./saturation_thread.ts', import.meta.url), {
    workerData: { saturation: job satisfies SaturationJob },
  })
  const report = await new Promise<SaturationReport>((resolve, reject) => {
    worker.once('message', resolve)
    worker.once('error', reject)
    worker.once('exit', () => reject(new Error('the thread of the load ended')))
  })
  return { ...report, latencies: Latencies.of(report.latencies) }
}

function ownLoop({ requests, good, ...load }: Saturation): Promise<LoadResult> {
  const bytes = requests.map((request) => requestBytes(load.origin, request))
  let next = 0
  return closedLoop({
    ...load,
    next: () => bytes[next++ % bytes.length]!,
    good: ({ status, body }) => status === good.status && body.includes(good.holds ?? ''),
  })
}
