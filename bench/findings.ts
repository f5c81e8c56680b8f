// What a scenario found beside its rows: latencies as histograms, and lines to be plotted. Rows are judged;
// these are there to be looked at.
import { Latencies, type LatencySummary } from './latency.ts'
import type { Side } from './rows.ts'

export interface Axis {
  name: string
  unit: string
  /** A scale of tenfold steps, for what spans several of them. */
  log?: boolean
}

export interface Line {
  name: string
  points: [x: number, y: number][]
}

export interface Chart {
  scenario: string
  title: string
  x: Axis
  y: Axis
  lines: Line[]
  /** What happened when, on a chart over time. */
  marks?: Mark[]
}

export interface Mark {
  atSeconds: number
  name: string
}

/** A fault that was injected, and what of it was seen from outside. */
export interface FaultFinding extends Mark {
  scenario: string
  /** From the blow to the last moment at which the hub said it was not ready; 0 where it never did. */
  unreadySeconds: number
  /** What requests heard until the next one, by status; `lost` where there was no answer. */
  heard: Record<string, number>
}

export interface LatencyFinding extends LatencySummary {
  scenario: string
  side: Side
  name: string
}

/** Points of a line over time: a page shows no more of them than this apart. */
const stretchesMax = 240

/** What one turn found. */
export interface Found {
  charts: Map<string, Chart>
  latencies: Map<string, { side: Side; name: string; all: Latencies }>
  faults: FaultFinding[]
}

export class Findings {
  readonly #scenario: string
  #found: Found = nothing()

  /** The version that ran beside the hub; null while none of ours did. */
  postgres: string | null = null

  constructor(scenario: string) {
    this.#scenario = scenario
  }

  /** Keeps a fault; it is marked on every chart over time. */
  fault(fault: Omit<FaultFinding, 'scenario'>): void {
    this.#found.faults.push({ scenario: this.#scenario, ...fault })
  }

  /** Keeps a chart; one of a later round takes the place of the same of an earlier one. */
  chart(chart: Omit<Chart, 'scenario'>): void {
    this.#found.charts.set(chart.title, { scenario: this.#scenario, ...chart })
  }

  /** Adds a round's latencies; those of the hub are also plotted over the time of its last round. */
  latencies(side: Side, name: string, latencies: Latencies): void {
    const key = `${side} ${name}`
    const known = this.#found.latencies.get(key) ?? { side, name, all: new Latencies() }
    this.#found.latencies.set(key, known)
    known.all.add(latencies)
    if (side === 'hub') this.#plotOverTime(name, latencies)
  }

  /** What was found since it was taken last; it is gone from here. */
  take(): Found {
    const found = this.#found
    this.#found = nothing()
    return found
  }

  /** Adds what a turn found. */
  add({ charts, latencies, faults }: Found): void {
    for (const [title, chart] of charts) this.#found.charts.set(title, chart)
    for (const [key, { side, name, all }] of latencies) {
      const known = this.#found.latencies.get(key)
      if (known) known.all.add(all)
      else this.#found.latencies.set(key, { side, name, all })
    }
    this.#found.faults.push(...faults)
  }

  get charts(): Chart[] {
    const marks = this.#found.faults.map(({ atSeconds, name }) => ({ atSeconds, name }))
    return [...this.#found.charts.values()].map((chart) =>
      chart.x.name === 'time' && marks.length > 0 ? { ...chart, marks } : chart,
    )
  }

  get faults(): FaultFinding[] {
    return this.#found.faults
  }

  get summaries(): LatencyFinding[] {
    return [...this.#found.latencies.values()]
      .filter(({ all }) => all.count > 0)
      .map(({ side, name, all }) => ({ scenario: this.#scenario, side, name, ...all.summary() }))
  }

  #plotOverTime(name: string, latencies: Latencies): void {
    const stretches = latencies.timeline(stretchesMax)
    // One stretch is no course of anything.
    if (stretches.length < 2) return
    const line = (title: string, of: 'p50Ms' | 'p90Ms' | 'p99Ms' | 'maxMs'): Line => ({
      name: title,
      points: stretches.map((stretch) => [stretch.atSeconds, stretch[of]]),
    })
    this.chart({
      title: `${name}: latency over time`,
      x: { name: 'time', unit: 's' },
      y: { name: 'latency', unit: 'ms', log: true },
      lines: [
        line('p50', 'p50Ms'),
        line('p90', 'p90Ms'),
        line('p99', 'p99Ms'),
        line('max', 'maxMs'),
      ],
    })
  }
}

function nothing(): Found {
  return { charts: new Map(), latencies: new Map(), faults: [] }
}
