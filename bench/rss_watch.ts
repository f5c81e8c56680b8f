// The resident memory of a program, looked at each second: for its growth over a long run, and for a plot.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Findings } from './findings.ts'
import { rssBytes } from './proc.ts'
import { median } from './rows.ts'

const lookMs = 1000
/** Caches fill, pools open and code is compiled in the first part; growth is judged after it. */
const warmUpPart = 0.2
/** The parts compared, right after the warm-up and at the end. */
const comparedPart = 0.2
const pointsMax = 240

/** Seconds since the start, and MB. */
export type Look = [seconds: number, megabytes: number]

export interface RssWatch {
  /** What was seen so far. */
  readonly looks: readonly Look[]
  /** Ends the watch; none where the program is not ours to look at. */
  stop(): Look[]
}

export function watchRss(pid: number | undefined): RssWatch {
  if (pid === undefined) return { looks: [], stop: () => [] }
  const startedMs = performance.now()
  const looks: Look[] = []
  const look = () => looks.push([(performance.now() - startedMs) / 1000, rssBytes(pid) / 2 ** 20])
  look()
  const timer = setInterval(look, lookMs)
  return {
    looks,
    stop() {
      clearInterval(timer)
      look()
      return looks
    },
  }
}

/** Asks the program to collect in every thread, twice: what the first pass frees may hold more. Bytes. */
export async function collectedRss(pid: number): Promise<number> {
  for (let pass = 0; pass < 2; pass++) {
    process.kill(pid, 'SIGUSR2')
    await sleep(2000)
  }
  return rssBytes(pid)
}

const peakLookMs = 100

/** Watches how much a program grows; `stop` returns the most it had more than at the beginning, in MB. */
export function watchGrowth(pid: number | undefined): { stop(): number } {
  if (pid === undefined) return { stop: () => 0 }
  const before = rssBytes(pid)
  let most = before
  const look = () => void (most = Math.max(most, rssBytes(pid)))
  const timer = setInterval(look, peakLookMs)
  return {
    stop() {
      clearInterval(timer)
      look()
      return (most - before) / 2 ** 20
    },
  }
}

/** Keeps the looks as a chart, thinned to what a page can show. */
export function plotRss(findings: Findings, looks: readonly Look[]): void {
  if (looks.length === 0) return
  const stride = Math.ceil(looks.length / pointsMax)
  findings.chart({
    title: 'Memory of the hub over time',
    x: { name: 'time', unit: 's' },
    y: { name: 'RSS', unit: 'MB' },
    lines: [{ name: 'hub', points: looks.filter((_, index) => index % stride === 0) }],
  })
}

/** Growth after the warm-up, in percent: the middle of the last part over that of the first after it. */
export function growthPercent(looks: readonly Look[]): number {
  const values = looks.map(([, megabytes]) => megabytes)
  const from = Math.floor(values.length * warmUpPart)
  const span = Math.max(1, Math.floor(values.length * comparedPart))
  const [first, last] = [median(values.slice(from, from + span)), median(values.slice(-span))]
  if (first === null || last === null) throw new Error('nobody looked at the memory')
  return (last / first - 1) * 100
}
