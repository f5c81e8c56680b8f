// The command line of the bench, checked as a whole: every mistake names its flag.
import { parseArgs } from 'node:util'
import type { Credentials } from './operator.ts'

export interface BenchOptions {
  /** Names of scenarios in the order given; `goals` is all of them. */
  scenarios: string[]
  /** A hub that runs already, reached by `--url`; absent: the bench starts its own. */
  foreign: { origin: string; credentials: Credentials } | undefined
  agents: number | undefined
  seconds: number | undefined
  rounds: number
  /** Processes per fleet. */
  generators: number
  json: string | undefined
  markdown: boolean
  help: boolean
}

/** The bench can't start with these arguments; the message says which flag and why. */
export class UsageError extends Error {}

const flags = {
  url: { type: 'string' },
  email: { type: 'string' },
  password: { type: 'string' },
  'enrollment-secret': { type: 'string' },
  agents: { type: 'string' },
  seconds: { type: 'string' },
  rounds: { type: 'string' },
  generators: { type: 'string' },
  json: { type: 'string' },
  markdown: { type: 'boolean' },
  help: { type: 'boolean' },
} as const

/** Reads the arguments; throws UsageError. `known` are the names a scenario may have. */
export function readArgs(args: readonly string[], known: readonly string[]): BenchOptions {
  const { values, positionals } = parse(args)
  const scenarios = positionals.flatMap((name) => (name === 'goals' ? known : [name]))
  const unknown = scenarios.find((name) => !known.includes(name))
  if (unknown !== undefined) {
    throw new UsageError(`no scenario "${unknown}"; there are ${known.join(', ')} and goals`)
  }
  if (scenarios.length === 0 && !values.help) throw new UsageError('name a scenario, or goals')
  return {
    scenarios: [...new Set(scenarios)],
    foreign: readForeign(values),
    agents: values.agents === undefined ? undefined : count('agents', values.agents, 1, 60_000),
    seconds: values.seconds === undefined ? undefined : count('seconds', values.seconds, 1, 600),
    rounds: count('rounds', values.rounds ?? '3', 1, 99),
    generators: count('generators', values.generators ?? '2', 1, 16),
    json: values.json,
    markdown: values.markdown ?? false,
    help: values.help ?? false,
  }
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: flags, allowPositionals: true })
  } catch (error) {
    // parseArgs names the flag in its first sentence; the rest is advice on positionals.
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : '')
  }
}

function readForeign(values: ReturnType<typeof parse>['values']): BenchOptions['foreign'] {
  const { url, email, password } = values
  const enrollmentSecret = values['enrollment-secret']
  const given = { email, password, 'enrollment-secret': enrollmentSecret }
  if (url === undefined) {
    const stray = Object.entries(given).find(([, value]) => value !== undefined)?.[0]
    if (stray)
      throw new UsageError(`--${stray} goes with --url; without it the bench makes its own`)
    return undefined
  }
  if (!email || !password || !enrollmentSecret) {
    const missing = Object.entries(given).find(([, value]) => !value)?.[0] ?? ''
    throw new UsageError(`--url needs --${missing}`)
  }
  if (!URL.canParse(url) || new URL(url).protocol !== 'http:') {
    throw new UsageError(`--url is no http:// origin: "${url}" (raw sockets, no TLS)`)
  }
  return { origin: new URL(url).origin, credentials: { email, password, enrollmentSecret } }
}

function count(flag: string, text: string, min: number, max: number): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= min && value <= max) return value
  throw new UsageError(`--${flag} is no whole number from ${min} to ${max}: "${text}"`)
}
