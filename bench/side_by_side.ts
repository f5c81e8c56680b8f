// All programs of a scenario beside each other, in the same figures: what a row, which knows one rival, can't show.
// Pure values.
import { alignColumns } from './report.ts'
import { figure } from './markup.ts'
import { median, type Better, type Samples, type Side } from './rows.ts'
import { aboutSide } from './sides.ts'

/** A figure that every program of a scenario may have. */
export interface FigureSpec {
  metric: string
  name: string
  unit: string
  better: Better
}

export interface ProgramFigures {
  side: Side
  about: string
  /** Where it tells one. */
  version: string | null
  /** Medians, in the order of the figures; null where a program has no such figure. */
  values: (number | null)[]
  /** Of each figure, every round's value. */
  rounds: number[][]
}

export interface SideBySide {
  scenario: string
  figures: Omit<FigureSpec, 'metric'>[]
  programs: ProgramFigures[]
  /** What was asked for and is not installed, with the package that brings it. */
  missing: Missing[]
}

export interface Missing {
  side: Side
  debian: string
}

export function sideBySide(
  scenario: string,
  specs: readonly FigureSpec[],
  samples: Samples,
  versions: ReadonlyMap<Side, string>,
  missing: readonly Missing[],
): SideBySide {
  // Object.entries loses the keys' type; Samples has no others.
  const measured = Object.entries(samples) as [Side, NonNullable<Samples[Side]>][]
  return {
    scenario,
    figures: specs.map(({ name, unit, better }) => ({ name, unit, better })),
    programs: measured.map(([side, taken]) => {
      const rounds = specs.map(({ metric }) =>
        taken.map((sample) => sample[metric]).filter((value) => value !== undefined),
      )
      const version = versions.get(side) ?? null
      return { side, about: aboutSide(side), version, values: rounds.map(median), rounds }
    }),
    missing: [...missing],
  }
}

/** How a program is named where its figures stand. */
export function titleOf({ side, version }: Pick<ProgramFigures, 'side' | 'version'>): string {
  return version === null ? side : `${side} ${version}`
}

/** What is not installed, in a sentence; undefined when all is. */
export function describeMissing(missing: readonly Missing[]): string | undefined {
  if (missing.length === 0) return undefined
  const list = missing.map(({ side, debian }) => `${side} (Debian: apt install ${debian})`)
  return `not installed and left out: ${list.join(', ')}`
}

/** For a terminal: a program a line. */
export function renderSideBySide({ scenario, figures, programs, missing }: SideBySide): string {
  const names = figures.map(({ name, unit }) => `${name}, ${unit}`)
  const lines = programs.map((program) => [
    titleOf(program),
    ...program.values.map(figure),
    program.about,
  ])
  const table = alignColumns([[scenario, ...names, 'what it is'], ...lines], names)
  return [table, describeMissing(missing)].filter((part) => part !== undefined).join('\n')
}

export function markdownSideBySide({ scenario, figures, programs, missing }: SideBySide): string {
  const row = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  const lines = [
    row([scenario, ...figures.map(({ name, unit }) => `${name}, ${unit}`), 'what it is']),
    row(['---', ...figures.map(() => '---:'), '---']),
    ...programs.map((program) =>
      row([titleOf(program), ...program.values.map(figure), program.about]),
    ),
  ]
  const note = describeMissing(missing)
  return [lines.join('\n'), ...(note ? [note] : [])].join('\n\n')
}
