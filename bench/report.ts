// The rows as people and programs read them: a table, a markdown table, one JSON object.
import type { Chart, FaultFinding, LatencyFinding } from './findings.ts'
import type { Machine } from './machine.ts'
import { figure } from './markup.ts'
import type { Row } from './rows.ts'
import type { SideBySide } from './side_by_side.ts'
import type { Stolen } from './turns.ts'

/** Moves with every change that a reader of an older report would stumble over. */
export const reportFormat = 2

export interface Report {
  format: typeof reportFormat
  /** ISO 8601. */
  startedAt: string
  seconds: number
  scenarios: string[]
  /** The hub of `--url`; null for one that the bench started. */
  hub: string | null
  machine: Machine
  /** Its version; null where the bench can't see it. */
  postgres: string | null
  /** Load average of the last minute, before the first program started and after the last ended. */
  load: { before: number; after: number }
  /** CPU that other machines took of this one; absent in reports from before it was looked at. */
  stolen?: Stolen[]
  rows: Row[]
  sideBySide: SideBySide[]
  latencies: LatencyFinding[]
  charts: Chart[]
  /** Absent in reports from before there were any. */
  faults?: FaultFinding[]
  /** Scenarios that came to no end, and why: their goals are not missed, but not measured. */
  failures?: { scenario: string; reason: string }[]
}

/** A table with aligned columns for a terminal. */
export function renderTable(rows: readonly Row[]): string {
  return alignColumns([headings, ...rows.map(cells)], numeric)
}

/** Lines whose first names the columns; those named in `right` are numbers. */
export function alignColumns(lines: readonly string[][], right: readonly string[]): string {
  const names = lines[0] ?? []
  const widths = names.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)))
  const pad = (cell: string, column: number) =>
    right.includes(names[column]!) ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!)
  return lines.map((line) => line.map(pad).join('  ').trimEnd()).join('\n')
}

/** The table of bench/README.md, with the machine and its load above it. */
export function renderMarkdown({
  machine,
  load,
  stolen,
  rows,
}: Pick<Report, 'machine' | 'load' | 'stolen' | 'rows'>): string {
  const { cores, memoryGiB, cpu } = machine
  const lines = [headings, headings.map((name) => (numeric.includes(name) ? '---:' : '---'))]
  lines.push(...rows.map(cells))
  return (
    `${cores} cores, ${memoryGiB} GiB, ${cpu}; load average ${load.before} before, ${load.after} after; ` +
    `${describeStolen(stolen)}.\n\n` +
    lines.map((line) => `| ${line.join(' | ')} |`).join('\n')
  )
}

/** How much of the machine's CPU was not there, in one phrase. */
export function describeStolen(stolen: readonly Stolen[] = []): string {
  if (stolen.length === 0) return 'stolen CPU unknown'
  const most = stolen.reduce((a, b) => (b.mostPercent > a.mostPercent ? b : a))
  const repeated = stolen.reduce((sum, one) => sum + one.repeated, 0)
  return (
    `at most ${most.mostPercent} % of the CPU stolen in a turn (${most.scenario}), ` +
    `${repeated} ${repeated === 1 ? 'turn' : 'turns'} repeated for it`
  )
}

const numeric = ['hub', 'limit', 'ratio']
const headings = ['row', 'what', 'hub', 'limit', 'unit', 'ratio', 'goal', 'met']

function cells(row: Row): string[] {
  return [
    row.id,
    row.name,
    figure(row.value),
    figure(row.limit),
    row.unit,
    figure(row.ratio),
    row.goal ?? '',
    met(row),
  ]
}

function met({ ok, value }: Row): string {
  if (value === null) return 'not measured'
  if (ok === null) return ''
  return ok ? 'yes' : 'NO'
}
