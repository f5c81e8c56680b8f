// The command line of the bench, checked as a whole: every mistake names its flag.
import { parseArgs } from 'node:util'
import type { Credentials } from './operator.ts'
import { besideNames, type BesideName } from './sides.ts'

export interface BenchOptions {
  /** Names of scenarios in the order given; `goals` is all that have goals, `peers` all with several programs. */
  scenarios: string[]
  /** Which programs stand beside the hub; absent: those that a scenario's goals are about. */
  beside: BesideName[] | undefined
  /** A hub that runs already, reached by `--url`; absent: the bench starts its own. */
  foreign: { origin: string; credentials: Credentials } | undefined
  /** A PEM file of authorities to trust beside the machine's. */
  ca: string | undefined
  agents: number | undefined
  seconds: number | undefined
  /** Per second, of what the scenario says; several where it measures at several. */
  rates: number[] | undefined
  /** Seconds from one injected fault to the next; absent: none is. */
  faults: number | undefined
  rounds: number
  /** Processes per fleet. */
  generators: number
  json: string | undefined
  html: string | undefined
  markdown: boolean
  /** A missed goal makes the exit code 2; always so where faults are injected. */
  check: boolean
}

/** The bench can't start with these arguments; the message says which flag and why. */
export class UsageError extends Error {}

const flags = {
  url: { type: 'string' },
  email: { type: 'string' },
  password: { type: 'string' },
  'enrollment-secret': { type: 'string' },
  ca: { type: 'string' },
  agents: { type: 'string' },
  seconds: { type: 'string' },
  minutes: { type: 'string' },
  faults: { type: 'string' },
  rate: { type: 'string' },
  rounds: { type: 'string' },
  beside: { type: 'string' },
  generators: { type: 'string' },
  json: { type: 'string' },
  html: { type: 'string' },
  markdown: { type: 'boolean' },
  check: { type: 'boolean' },
} as const

/** A soak of a day. */
const secondsMax = 86_400
/** Less is over before everybody who was hit is back; more is no soak. */
const faultSecondsMin = 10
const faultSecondsMax = 3600
const rateMax = 100_000
/** Rates of one run; each is measured for all of `--seconds`. */
const ratesMax = 12

/** What `goals` and `peers` stand for, and what of the environment is read. */
export interface ArgsContext {
  goals?: readonly string[]
  peers?: readonly string[]
  env?: Record<string, string | undefined>
}

/** Reads the arguments; throws UsageError. */
export function readArgs(
  args: readonly string[],
  known: readonly string[],
  { goals = known, peers = known, env = {} }: ArgsContext = {},
): BenchOptions {
  const { values, positionals } = parse(args)
  const sets: Record<string, readonly string[]> = { goals, peers }
  const scenarios = positionals.flatMap((name) => sets[name] ?? [name])
  const unknown = scenarios.find((name) => !known.includes(name))
  if (unknown !== undefined) {
    throw new UsageError(`no scenario "${unknown}"; there are ${known.join(', ')}, goals and peers`)
  }
  if (scenarios.length === 0) throw new UsageError('name a scenario, goals or peers')
  const optional = (flag: 'agents' | 'seconds' | 'minutes' | 'faults', max: number, min = 1) =>
    values[flag] === undefined ? undefined : count(flag, values[flag], min, max)
  if (values.seconds !== undefined && values.minutes !== undefined) {
    throw new UsageError('--seconds and --minutes say the same: give one')
  }
  const minutes = optional('minutes', secondsMax / 60)
  const faults = optional('faults', faultSecondsMax, faultSecondsMin)
  if (faults !== undefined && scenarios.some((name) => name !== 'soak')) {
    throw new UsageError('--faults goes with soak alone')
  }
  // A soak is long, its verdict is no median, and what it counts began with its hub.
  if (faults !== undefined && Number(values.rounds ?? 1) !== 1) {
    throw new UsageError('a soak with --faults has one round: drop --rounds')
  }
  return {
    scenarios: [...new Set(scenarios)],
    beside: readBeside(values, positionals.includes('peers')),
    foreign: readForeign(values, env),
    ca: readAuthority(values),
    agents: optional('agents', 60_000),
    seconds: minutes === undefined ? optional('seconds', secondsMax) : minutes * 60,
    rates: values.rate === undefined ? undefined : readRates(values.rate),
    faults,
    rounds: count('rounds', values.rounds ?? (faults === undefined ? '3' : '1'), 1, 99),
    generators: count('generators', values.generators ?? '2', 1, 16),
    json: values.json,
    html: values.html,
    markdown: values.markdown ?? false,
    check: values.check ?? faults !== undefined,
  }
}

type Values = ReturnType<typeof parse>['values']

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: flags, allowPositionals: true })
  } catch (error) {
    // parseArgs names the flag in its first sentence; the rest is advice on positionals.
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : '')
  }
}

/**
 * The hub of `--url`. Its secrets may come from the environment, where no list of processes shows them; its
 * address may not: a variable left over from yesterday must not send a load to somebody's hub.
 */
function readForeign(
  values: Values,
  env: NonNullable<ArgsContext['env']>,
): BenchOptions['foreign'] {
  const { url } = values
  if (url === undefined) {
    const stray = (['email', 'password', 'enrollment-secret'] as const).find(
      (flag) => values[flag] !== undefined,
    )
    if (stray)
      throw new UsageError(`--${stray} goes with --url; without it the bench makes its own`)
    return undefined
  }
  const secret = (flag: 'email' | 'password' | 'enrollment-secret') => {
    const variable = `BENCH_${flag.toUpperCase().replace('-', '_')}`
    const value = values[flag] ?? env[variable]
    if (!value) throw new UsageError(`--url needs --${flag}, or ${variable} in the environment`)
    return value
  }
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new UsageError(`--url is no http:// or https:// origin: "${url}"`)
  }
  const { origin, pathname, search } = new URL(url)
  if (pathname !== '/' || search !== '') {
    throw new UsageError(`--url is an origin, without a path: "${url}"`)
  }
  const credentials = {
    email: secret('email'),
    password: secret('password'),
    enrollmentSecret: secret('enrollment-secret'),
  }
  return { origin, credentials }
}

/** `peers` asks for every program there is, unless some are named. */
function readBeside({ beside, url }: Values, peers: boolean): BesideName[] | undefined {
  if (beside === undefined && !peers) return undefined
  if (url !== undefined) {
    throw new UsageError('nothing can stand beside a hub of --url, which may be on another machine')
  }
  if (beside === undefined) return [...besideNames]
  return beside.split(',').map((name) => {
    const known = besideNames.find((one) => one === name)
    if (known) return known
    throw new UsageError(`--beside takes ${besideNames.join(', ')}: "${name}"`)
  })
}

function readAuthority({ ca, url }: Values): string | undefined {
  if (ca !== undefined && !url?.startsWith('https:')) {
    throw new UsageError('--ca goes with --url https://…')
  }
  return ca
}

function readRates(text: string): number[] {
  const parts = text.split(',')
  if (parts.length > ratesMax) throw new UsageError(`--rate takes ${ratesMax} rates at most`)
  return parts.map((part) => count('rate', part, 1, rateMax)).toSorted((a, b) => a - b)
}

function count(flag: string, text: string, min: number, max: number): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= min && value <= max) return value
  throw new UsageError(`--${flag} is no whole number from ${min} to ${max}: "${text}"`)
}
