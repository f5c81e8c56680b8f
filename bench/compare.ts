// Two reports side by side: which figures became better, which worse, and which only moved as far as the rounds
// of one run do among themselves. Pure values.
import type { Report } from './report.ts'
import { median, type Better, type Row } from './rows.ts'

export type Verdict = 'better' | 'worse' | 'same' | 'only in A' | 'only in B'

export interface Comparison {
  id: string
  name: string
  unit: string
  better: Better
  a: number | null
  b: number | null
  /** B over A; of the ratios to the rival where both reports have one, since these move less with the machine. */
  change: number | null
  besideRival: boolean
  /** How far rounds of one report lie apart, as a part of their middle; null with a single round. */
  spread: number | null
  verdict: Verdict
}

/** Compares rows by id, in the order of B. `tolerance` is a part: 0.1 lets a figure be a tenth worse. */
export function compareReports(a: Report, b: Report, tolerance: number): Comparison[] {
  const before = new Map(a.rows.map((row) => [row.id, row]))
  const after = new Set(b.rows.map(({ id }) => id))
  return [
    ...b.rows.map((row) => compareRows(before.get(row.id), row, tolerance)),
    ...a.rows
      .filter(({ id }) => !after.has(id))
      .map((row) => compareRows(row, undefined, tolerance)),
  ]
}

/** What makes two reports hard to compare: another machine, another PostgreSQL, another kind of hub. */
export function differences(a: Report, b: Report): string[] {
  const facts = ({ machine, postgres, hub }: Report) => ({
    cores: String(machine.cores),
    CPU: machine.cpu,
    memory: `${machine.memoryGiB} GiB`,
    Node: machine.node,
    PostgreSQL: postgres ?? 'unknown',
    hub: hub ?? 'started by the bench',
  })
  const [of, to] = [facts(a), facts(b)]
  return (Object.keys(of) as (keyof typeof of)[])
    .filter((name) => of[name] !== to[name])
    .map((name) => `${name}: ${of[name]} in A, ${to[name]} in B`)
}

function compareRows(a: Row | undefined, b: Row | undefined, tolerance: number): Comparison {
  // One of them is there: the caller walks over rows.
  const known = (b ?? a)!
  const { id, name, unit, better } = known
  const shared = { id, name, unit, better, a: a?.value ?? null, b: b?.value ?? null }
  const besideRival = isThere(a?.ratio) && isThere(b?.ratio)
  const [from, to] = besideRival ? [a?.ratio, b?.ratio] : [a?.value, b?.value]
  const alone = { ...shared, change: null, besideRival: false, spread: null }
  if (!a) return { ...alone, verdict: 'only in B' }
  if (!b) return { ...alone, verdict: 'only in A' }
  // What A measured and B could not is a failure of B; what neither could is nothing new.
  if (!isThere(to)) return { ...alone, verdict: isThere(from) ? 'worse' : 'same' }
  if (!isThere(from)) return { ...alone, verdict: 'only in B' }
  const spreads = besideRival ? [a.ratios, b.ratios] : [a.rounds, b.rounds]
  const change = from === to ? 1 : to / from
  return {
    ...shared,
    change,
    besideRival,
    spread: widest(spreads.map(spreadOf)),
    verdict: judgeChange(better === 'lower' ? change : 1 / change, tolerance),
  }
}

/** `factor` above 1 is worse; from nothing to something is infinitely so. */
function judgeChange(factor: number, tolerance: number): Verdict {
  if (factor > 1 + tolerance) return 'worse'
  return factor < 1 / (1 + tolerance) ? 'better' : 'same'
}

/** Whether a change is no larger than what rounds of one run differ by. */
export function isNoise({ change, spread }: Comparison): boolean {
  if (change === null || spread === null) return false
  return Math.max(change, 1 / change) - 1 <= spread
}

/** The verdict, with the hint that more rounds might tell otherwise. */
export function describeVerdict(one: Comparison): string {
  const moved = one.verdict === 'worse' || one.verdict === 'better'
  return moved && isNoise(one) ? `${one.verdict} (within the spread)` : one.verdict
}

function spreadOf(rounds: readonly number[]): number | null {
  const middle = median(rounds)
  if (rounds.length < 2 || !middle) return null
  return (Math.max(...rounds) - Math.min(...rounds)) / middle
}

function widest(spreads: readonly (number | null)[]): number | null {
  const there = spreads.filter(isThere)
  return there.length > 0 ? Math.max(...there) : null
}

function isThere(value: number | null | undefined): value is number {
  return value !== null && value !== undefined
}
