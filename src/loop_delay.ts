// How late this thread's event loop is.
import { monitorEventLoopDelay } from 'node:perf_hooks'

const resolutionMs = 20

export class LoopDelay {
  private readonly histogram = monitorEventLoopDelay({ resolution: resolutionMs })

  constructor() {
    this.histogram.enable()
  }

  /** Seconds of delay since the last call. */
  take(): { p50: number; p99: number } {
    const delay = { p50: this.seconds(50), p99: this.seconds(99) }
    this.histogram.reset()
    return delay
  }

  /** The histogram counts from timer to timer, so an idle loop shows the timer's own interval. */
  private seconds(percentile: number): number {
    return Math.max(0, this.histogram.percentile(percentile) / 1e9 - resolutionMs / 1000)
  }
}
