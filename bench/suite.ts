// Runs a scenario: every side enters, warms up, and is measured in turn (A B A B A B), so that whatever
// else the machine does falls on all of them alike. Judging is left to rows.ts.
import { UsageError, type BenchOptions } from './args.ts'
import { findBroker } from './brokers.ts'
import { Findings, type Chart, type FaultFinding, type LatencyFinding } from './findings.ts'
import { Lab } from './lab.ts'
import { cpuTimes } from './proc.ts'
import type { Progress } from './progress.ts'
import {
  alone,
  judge,
  type Row,
  type RowSpec,
  type Sample,
  type Samples,
  type Side,
} from './rows.ts'
import {
  describeMissing,
  sideBySide,
  type FigureSpec,
  type Missing,
  type SideBySide,
} from './side_by_side.ts'
import { besideName } from './sides.ts'
import { stolenShare, stolenShareMax, takeTurns, type Stolen, type Turn } from './turns.ts'
import { isBroker } from './wires.ts'

/** One measurement of about `seconds`. */
export type Measure = (seconds: number) => Promise<Sample>

export interface Scenario {
  name: string
  about: string
  rivals: readonly Side[]
  /** What else can do the same work, on demand: `--beside` names it. */
  guests?: readonly Side[]
  /** In which figures all programs are shown beside each other. */
  figures?: readonly FigureSpec[]
  /** Some scenarios have a row for each of the rates they are given. */
  rows: readonly RowSpec[] | ((options: BenchOptions) => RowSpec[])
  /** Used unless `--agents` and `--seconds` say otherwise. */
  agents: number
  seconds: number
  /** Discarded first measurement; 0 where each measurement starts its own program. */
  warmUpSeconds: number
  /** The longest it can measure at once. */
  secondsMax?: number
  /**
   * Each round in so many turns, a part of the seconds each: a bad second of the machine then falls on one turn of
   * many instead of a whole side. 1 unless given.
   */
  turns?: number
  /** Why `--url` can't serve it: what the scenario has to do that only a hub of its own allows. */
  ownHub?: string
  /** What `--rate` sets, per second, and how many rates it takes; absent: it takes none. */
  rate?: { of: string; most: number }
  /** One round whatever `--rounds` says: it leaves behind what a second one would measure. */
  once?: true
  /** Brings a side to where it can be measured again and again. */
  enter(side: Side, lab: Lab, agents: number): Promise<Measure>
}

/** What a scenario leaves to the report. */
export interface Outcome {
  rows: Row[]
  sideBySide: SideBySide[]
  latencies: LatencyFinding[]
  charts: Chart[]
  faults: FaultFinding[]
  postgres: string | null
  /** Null where it came to no end. */
  stolen: Stolen | null
}

/** Whether a scenario can do what was asked; throws UsageError, which names the flag. */
export function checkOptions(scenario: Scenario, options: BenchOptions): void {
  const { name, ownHub, rate } = scenario
  if (options.beside && askedSides(scenario, options).length === 1) {
    throw new UsageError(`"${name}" has none of --beside ${options.beside.join(',')} beside it`)
  }
  if (options.foreign && ownHub) throw new UsageError(`"${name}" ${ownHub}: drop --url`)
  if (scenario.secondsMax && (options.seconds ?? 0) > scenario.secondsMax) {
    throw new UsageError(`"${name}" takes --seconds up to ${scenario.secondsMax}`)
  }
  if (options.foreign && options.faults !== undefined) {
    throw new UsageError('faults are injected into a hub of the bench alone: drop --url')
  }
  const rates = options.rates?.length ?? 0
  if (rates > (rate?.most ?? 0)) {
    throw new UsageError(
      rate ? `"${name}" takes one --rate: ${rate.of}` : `"${name}" has no rate: drop --rate`,
    )
  }
}

export async function runScenario(
  scenario: Scenario,
  options: BenchOptions,
  progress: Progress,
): Promise<Outcome> {
  const findings = new Findings(scenario.name)
  const lab = new Lab(options, progress, findings)
  const signals = closeOnSignal(lab)
  const agents = options.agents ?? scenario.agents
  const seconds = options.seconds ?? scenario.seconds
  const { sides, versions, missing } = installedSides(askedSides(scenario, options))
  const note = describeMissing(missing)
  if (note) progress.note(`${scenario.name}: ${note}`)
  try {
    const entered: Entered[] = []
    for (const side of sides) {
      entered.push({ side, measure: await scenario.enter(side, lab, agents) })
    }
    if (scenario.warmUpSeconds > 0) {
      for (const { side, measure } of entered) {
        progress.step(`${scenario.name}: ${side} warms up`)
        await measure(Math.min(options.seconds ?? Infinity, scenario.warmUpSeconds))
      }
    }
    findings.take()
    const { turns = 1, once = false } = scenario
    const wanted = once ? 1 : options.rounds * turns
    const take = (number: number) =>
      takeTurn({
        title: `${scenario.name}: turn ${number} of ${Math.max(number, wanted)}`,
        name: scenario.name,
        entered,
        seconds: Math.max(1, Math.round(seconds / turns)),
        findings,
        progress,
      })
    // Ratios need what is comparable. What stands alone may last for hours, or change what it measures.
    const most = entered.length > 1 && !once ? 2 * wanted : wanted
    const { counted, repeated } = await takeTurns(wanted, most, take)
    const samples: Samples = {}
    for (const turn of counted) {
      findings.add(turn.found)
      for (const { side } of entered) (samples[side] ??= []).push(turn.samples[side] ?? {})
    }
    const mostPercent = percent(Math.max(...counted.map((turn) => turn.stolenShare)))
    const rows = rowsOf(scenario, options).map((spec) => judge(spec, samples))
    return {
      rows: options.foreign ? rows.filter((row) => row.value !== null) : rows,
      sideBySide:
        scenario.figures && (sides.length > 1 || missing.length > 0)
          ? [sideBySide(scenario.name, scenario.figures, samples, versions, missing)]
          : [],
      latencies: findings.summaries,
      charts: findings.charts,
      faults: findings.faults,
      postgres: findings.postgres,
      stolen: { scenario: scenario.name, mostPercent, repeated },
    }
  } finally {
    await signals.release()
    await lab.close()
  }
}

/** A side that can be measured. */
interface Entered {
  side: Side
  measure: Measure
}

interface TurnOptions {
  title: string
  /** The scenario's. */
  name: string
  entered: readonly Entered[]
  /** Of each measurement. */
  seconds: number
  findings: Findings
  progress: Progress
}

/** Measures every side once. */
async function takeTurn(options: TurnOptions): Promise<Turn> {
  const { title, name, entered, seconds, findings, progress } = options
  const samples: Turn['samples'] = {}
  let stolen = 0
  for (const { side, measure } of entered) {
    progress.step(`${title}, ${side}`)
    const before = cpuTimes()
    const sample = await measure(seconds)
    stolen = Math.max(stolen, stolenShare(before, cpuTimes()))
    samples[side] = sample
    progress.note(`${name}: ${side} ${describeSample(sample)}`)
  }
  if (stolen > stolenShareMax) {
    progress.note(`${name}: ${percent(stolen)} % of the CPU was stolen in this turn`)
  }
  return { samples, found: findings.take(), stolenShare: stolen }
}

/** Of a scenario that failed: nothing measured, every goal missed. */
export function failedOutcome(scenario: Scenario, options: BenchOptions): Outcome {
  const rows = rowsOf(scenario, options).map((spec) => judge(spec, {}))
  const nothing = { sideBySide: [], latencies: [], charts: [], faults: [] }
  return { rows, ...nothing, postgres: null, stolen: null }
}

/** Beside a foreign hub nothing of ours can be compared: it may run on another machine. */
function askedSides({ rivals, guests = [] }: Scenario, { foreign, beside }: BenchOptions): Side[] {
  if (foreign) return ['hub']
  if (!beside) return ['hub', ...rivals]
  const isAsked = (side: Side) => beside.some((name) => name === besideName(side))
  return ['hub', ...[...rivals, ...guests].filter(isAsked)]
}

interface InstalledSides {
  sides: Side[]
  versions: Map<Side, string>
  missing: Missing[]
}

/** A program that is not there is left out and told, never guessed. */
function installedSides(asked: readonly Side[]): InstalledSides {
  const installed: InstalledSides = { sides: [], versions: new Map(), missing: [] }
  for (const side of asked) {
    const found = isBroker(side) ? findBroker(side) : undefined
    if (found && 'missing' in found) installed.missing.push({ side, debian: found.missing })
    else {
      installed.sides.push(side)
      if (found) installed.versions.set(side, found.version)
    }
  }
  return installed
}

function rowsOf({ rows }: Scenario, options: BenchOptions): readonly RowSpec[] {
  const specs = typeof rows === 'function' ? rows(options) : rows
  return options.foreign ? alone(specs) : specs
}

/** With one decimal. */
function percent(share: number): number {
  return Math.round(share * 1000) / 10
}

function describeSample(sample: Sample): string {
  return Object.entries(sample)
    .map(([metric, value]) => `${metric} ${Number(value.toPrecision(4))}`)
    .join(', ')
}

/**
 * An interrupted bench leaves no program behind. `release` ends the watch; once a signal came it never
 * returns, since what then fails fails for being closed, and the process is about to end.
 */
function closeOnSignal(lab: Lab): { release(): Promise<void> } {
  let interrupted = false
  const close = (signal: NodeJS.Signals) => {
    interrupted = true
    void lab.close().finally(() => process.exit(signal === 'SIGINT' ? 130 : 143))
  }
  process.once('SIGINT', close)
  process.once('SIGTERM', close)
  return {
    release() {
      process.off('SIGINT', close)
      process.off('SIGTERM', close)
      return interrupted ? new Promise(() => {}) : Promise.resolve()
    },
  }
}
