// A row of the report: what it measures, beside what, and whether the goal was met. Pure values.

/** What takes part in a run; `sides.ts` says what each is. */
export type Side =
  | 'hub'
  | 'bare'
  | 'bare_echo'
  | 'passing'
  | 'least'
  | 'online'
  | 'rows'
  | 'page'
  | 'echo'
  | 'relay'
  | 'baseline'
  | 'nats'
  | 'mosquitto'

/** What one measurement of one side gave, by metric name. */
export type Sample = Record<string, number>

/** Samples of each side in the order they were taken: index i of all sides is one round. */
export type Samples = Partial<Record<Side, Sample[]>>

export type Goal =
  /** The hub's value over the rival's, round by round, the median of it. */
  { ratioMost: number } | { ratioLeast: number } | { valueMost: number } | { valueLeast: number }

export interface RowSpec {
  id: string
  name: string
  metric: string
  unit: string
  /** Whose value is the limit; none for an absolute goal without a rival. */
  rival?: Side
  /** None: the row is there to be read. */
  goal?: Goal
  /** Where neither the goal nor the unit tells: a rate is better higher, all else lower. */
  better?: Better
}

export type Better = 'lower' | 'higher'

export interface Row {
  id: string
  name: string
  value: number | null
  unit: string
  limit: number | null
  ratio: number | null
  goal: string | null
  /** Null where nothing is held against the row. */
  ok: boolean | null
  better: Better
  /** The hub's value of each round, and what it was times the rival's: how far they spread is the noise. */
  rounds: number[]
  ratios: number[]
}

/** Judges one row. A scenario that failed has no samples: its value is null and its goal missed. */
export function judge(spec: RowSpec, samples: Samples): Row {
  const hub = samples.hub?.map((sample) => sample[spec.metric])
  const rival = spec.rival && samples[spec.rival]?.map((sample) => sample[spec.metric])
  const value = median(hub)
  const limit = median(rival)
  const ratios =
    hub?.map((mine, round) => mine !== undefined && quotient(mine, rival?.[round])) ?? []
  const ratio = median(ratios)
  return {
    id: spec.id,
    name: spec.name,
    value,
    unit: spec.unit,
    limit,
    ratio,
    goal: describeGoal(spec),
    ok: spec.goal ? isMet(spec.goal, value, ratio, rival !== undefined) : null,
    better: betterOf(spec),
    rounds: (hub ?? []).filter(isNumber),
    ratios: ratios.filter(isNumber),
  }
}

/** Rows of a hub that nothing runs beside: each metric once, held against nothing but what stands in its own unit. */
export function alone(specs: readonly RowSpec[]): RowSpec[] {
  const metrics = new Set<string>()
  return specs.flatMap(({ rival, goal, ...spec }) => {
    const own = goal && ('valueMost' in goal || 'valueLeast' in goal) ? { goal } : {}
    if (rival !== undefined && metrics.has(spec.metric)) return []
    metrics.add(spec.metric)
    return { ...spec, ...own, name: spec.name.replace(/, beside .*$/, '') }
  })
}

/** The middle value; of an even count the mean of the two in the middle; null of none. */
export function median(values: readonly (number | undefined | false)[] | undefined): number | null {
  const sorted = (values ?? []).filter(isNumber).toSorted((a, b) => a - b)
  const upper = sorted[sorted.length >> 1]
  const lower = sorted[(sorted.length - 1) >> 1]
  return upper === undefined || lower === undefined ? null : (upper + lower) / 2
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number'
}

function betterOf({ better, goal, unit }: RowSpec): Better {
  if (better) return better
  if (goal) return 'ratioLeast' in goal || 'valueLeast' in goal ? 'higher' : 'lower'
  return unit.endsWith('/s') ? 'higher' : 'lower'
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
  if ('valueLeast' in goal) return value >= goal.valueLeast
  if (ratio === null) return beside ? false : null
  return 'ratioMost' in goal ? ratio <= goal.ratioMost : ratio >= goal.ratioLeast
}

function describeGoal({ goal, rival, unit }: RowSpec): string | null {
  if (!goal) return null
  if ('valueMost' in goal) return `≤ ${goal.valueMost} ${unit}`
  if ('valueLeast' in goal) return `≥ ${goal.valueLeast} ${unit}`
  const [sign, bound] =
    'ratioMost' in goal ? ['≤', goal.ratioMost] : (['≥', goal.ratioLeast] as const)
  return `${sign} ${bound} × ${rival ?? ''}`
}
