// Latencies as HDR histograms: of the whole measurement, and of each second of it. Every one counts from the
// moment it was due, so that a stall shows in all requests that it held up, and in the seconds they were due.
import {
  build,
  decodeFromCompressedBase64,
  encodeIntoCompressedBase64,
  type Histogram,
} from 'hdr-histogram-js'

/** Three digits of a microsecond up to an hour; what took longer counts as an hour. */
const usMax = 3_600_000_000

/** One stretch of a measurement, as plotted. */
export interface Stretch {
  /** Seconds from the first that was due to the middle of the stretch. */
  atSeconds: number
  count: number
  p50Ms: number
  p90Ms: number
  p99Ms: number
  maxMs: number
}

export interface LatencySummary {
  count: number
  meanMs: number
  p50Ms: number
  p90Ms: number
  p99Ms: number
  p999Ms: number
  maxMs: number
  /** All of them in microseconds: HdrHistogram V2, compressed, base64, as its tools for any language read it. */
  hdr: string
}

/** Latencies as they go from one thread to another; histograms as in a summary. */
export interface PortableLatencies {
  whole: string
  seconds: (string | null)[]
}

export class Latencies {
  readonly #whole = newHistogram()
  /** By the second in which they were due; a second in which nothing was due has none. */
  readonly #seconds: (Histogram | undefined)[] = []
  #startMs: number | undefined

  /** Both on one clock, in milliseconds. */
  record(dueMs: number, doneMs: number): void {
    const us = Math.min(usMax, Math.max(1, Math.round((doneMs - dueMs) * 1000)))
    this.#startMs ??= dueMs
    // What was due first need not end first.
    const second = Math.max(0, Math.floor((dueMs - this.#startMs) / 1000))
    this.#whole.recordValue(us)
    const histogram = (this.#seconds[second] ??= newHistogram())
    histogram.recordValue(us)
  }

  get count(): number {
    return this.#whole.totalCount
  }

  /** A percentile in milliseconds; throws when there is none, since 0 would be the best of results. */
  ms(percentile: number): number {
    if (this.count === 0) throw new Error('nothing was answered, so there is no latency')
    return msAt(this.#whole, percentile)
  }

  /** Takes over what another round recorded; its seconds stay its own. */
  add(other: Latencies): void {
    this.#whole.add(other.#whole)
  }

  portable(): PortableLatencies {
    return {
      whole: encodeIntoCompressedBase64(this.#whole),
      // Array.from, since a second in which nothing was due is a hole.
      seconds: Array.from(this.#seconds, (one) => (one ? encodeIntoCompressedBase64(one) : null)),
    }
  }

  /** What another thread recorded. */
  static of({ whole, seconds }: PortableLatencies): Latencies {
    const latencies = new Latencies()
    latencies.#whole.add(decodeFromCompressedBase64(whole))
    for (const [second, one] of seconds.entries()) {
      if (one === null) continue
      const histogram = (latencies.#seconds[second] ??= newHistogram())
      histogram.add(decodeFromCompressedBase64(one))
    }
    return latencies
  }

  summary(): LatencySummary {
    return {
      count: this.count,
      meanMs: this.#whole.mean / 1000,
      p50Ms: this.ms(50),
      p90Ms: this.ms(90),
      p99Ms: this.ms(99),
      p999Ms: this.ms(99.9),
      maxMs: this.#whole.maxValue / 1000,
      hdr: encodeIntoCompressedBase64(this.#whole),
    }
  }

  /** Percentiles over time, in at most `stretchesMax` stretches of whole seconds. */
  timeline(stretchesMax: number): Stretch[] {
    const seconds = Math.ceil(this.#seconds.length / stretchesMax)
    const stretches: Stretch[] = []
    for (let from = 0; from < this.#seconds.length; from += seconds) {
      const sum = newHistogram()
      for (const one of this.#seconds.slice(from, from + seconds)) if (one) sum.add(one)
      if (sum.totalCount === 0) continue
      stretches.push({
        atSeconds: from + seconds / 2,
        count: sum.totalCount,
        p50Ms: msAt(sum, 50),
        p90Ms: msAt(sum, 90),
        p99Ms: msAt(sum, 99),
        maxMs: sum.maxValue / 1000,
      })
    }
    return stretches
  }
}

/** Packed: a few hundred bytes while values are close to each other, so that a day has room for its seconds. */
function newHistogram(): Histogram {
  return build({ bitBucketSize: 'packed', numberOfSignificantValueDigits: 3 })
}

function msAt(histogram: Histogram, percentile: number): number {
  // A percentile is the upper end of its bucket, which may lie past the largest value.
  return Math.min(histogram.getValueAtPercentile(percentile), histogram.maxValue) / 1000
}
