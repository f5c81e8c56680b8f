// A row of the report: what it measures, beside what, and whether the goal was met. Pure values.

/** What takes part in a run: the hub, a limit program, or the plain rival. */
export type Side = 'hub' | 'bare' | 'baseline' | 'echo' | 'relay' | 'rows'

/** What one measurement of one side gave, by metric name. */
export type Sample = Record<string, number>

/** Samples of each side in the order they were taken: index i of all sides is one round. */
export type Samples = Partial<Record<Side, Sample[]>>

export type Goal =
  /** The hub's value over the rival's, round by round, the median of it. */
  { ratioMost: number } | { ratioLeast: number } | { valueMost: number }

export interface RowSpec {
  id: string
  name: string
  metric: string
  unit: string
  /** Whose value is the limit; none for an absolute goal without a rival. */
  rival?: Side
  /** None: the row is there to be read. */
  goal?: Goal
}

export interface Row {
  id: string
  name: string
  value: number | null
  unit: string
  limit: number | null
  ratio: number | null
  goal: string | null
  /** Null where nothing is held against the row: no goal, or no rival beside a foreign hub. */
  ok: boolean | null
}

/** Judges one row. A scenario that failed has no samples: its value is null and its goal missed. */
export function judge(spec: RowSpec, samples: Samples): Row {
  const hub = samples.hub?.map((sample) => sample[spec.metric])
  const rival = spec.rival && samples[spec.rival]?.map((sample) => sample[spec.metric])
  const value = median(hub)
  const limit = median(rival)
  const ratio = median(
    hub?.map((mine, round) => mine !== undefined && quotient(mine, rival?.[round])),
  )
  return {
    id: spec.id,
    name: spec.name,
    value,
    unit: spec.unit,
    limit,
    ratio,
    goal: describeGoal(spec),
    ok: spec.goal ? isMet(spec.goal, value, ratio, rival !== undefined) : null,
  }
}

/** The middle value; of an even count the mean of the two in the middle; null of none. */
export function median(values: readonly (number | undefined | false)[] | undefined): number | null {
  const sorted = (values ?? [])
    .filter((value) => typeof value === 'number')
    .toSorted((a, b) => a - b)
  const upper = sorted[sorted.length >> 1]
  const lower = sorted[(sorted.length - 1) >> 1]
  return upper === undefined || lower === undefined ? null : (upper + lower) / 2
}

function quotient(value: number, by: number | undefined): number | undefined {
  return by === undefined || by === 0 ? undefined : value / by
}

function isMet(
  goal: Goal,
  value: number | null,
  ratio: number | null,
  beside: boolean,
): boolean | null {
  if (value === null) return false
  if ('valueMost' in goal) return value <= goal.valueMost
  if (ratio === null) return beside ? false : null
  return 'ratioMost' in goal ? ratio <= goal.ratioMost : ratio >= goal.ratioLeast
}

function describeGoal({ goal, rival, unit }: RowSpec): string | null {
  if (!goal) return null
  if ('valueMost' in goal) return `≤ ${goal.valueMost} ${unit}`
  const [sign, bound] =
    'ratioMost' in goal ? ['≤', goal.ratioMost] : (['≥', goal.ratioLeast] as const)
  return `${sign} ${bound} × ${rival ?? ''}`
}
