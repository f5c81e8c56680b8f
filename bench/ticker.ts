// A clock for open loops. A timer of the event loop is up to a millisecond late, as much as a round
// trip takes; a thread that sleeps by Atomics.wait wakes within about 0.1 ms and burns nothing.
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'

interface Schedule {
  perSecond: number
  count: number
}

/** Milliseconds on a clock that all threads share. */
export function ticksNowMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

/** Calls `onTick` `count` times at a fixed rate with the moment each was due; returns after the last. */
export function tick(
  perSecond: number,
  count: number,
  onTick: (dueMs: number) => void,
): Promise<void> {
  const schedule: Schedule = { perSecond, count }
  const worker = new Worker(new URL(import.meta.url), { workerData: { schedule } })
  return new Promise((resolve, reject) => {
    worker.on('message', onTick)
    worker.once('error', reject)
    worker.once('exit', () => resolve())
  })
}

function runThread({ perSecond, count }: Schedule): void {
  const never = new Int32Array(new SharedArrayBuffer(4))
  const startedMs = ticksNowMs() + 50
  for (let i = 0; i < count; i++) {
    const dueMs = startedMs + (i * 1000) / perSecond
    const waitMs = dueMs - ticksNowMs()
    if (waitMs > 0) Atomics.wait(never, 0, 0, waitMs)
    parentPort?.postMessage(dueMs)
  }
}

// The schedule in workerData tells this module's own thread from any other that imports it.
const own = workerData as { schedule?: Schedule } | null
if (!isMainThread && own?.schedule) runThread(own.schedule)
