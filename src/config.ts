// The environment, read once into one frozen, checked object. Names everything that is wrong in one
// message; makes and keeps the secrets of the embedded default. Nothing else reads process.env.
import { randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { limits, rateDefaults, type Rates } from './limits.ts'
import packageJson from '../package.json' with { type: 'json' }

export const hubVersion: string = packageJson.version

export interface Config {
  readonly production: boolean
  readonly version: string
  readonly host: string
  readonly port: number
  readonly dataDir: string
  /** Releases of agents, a folder per version. */
  readonly agentReleasesDir: string
  /** The `.pub` files of the keys that prove them. */
  readonly agentReleaseKeys: string
  /** What all downloads of releases together may take. */
  readonly downloadBytesPerSecond: number
  /** Absent: the hub starts its own PostgreSQL in `dataDir`. */
  readonly databaseUrl: string | undefined
  readonly redisUrl: string | undefined
  /** Where invitations are mailed through; absent: they are not mailed. */
  readonly smtpUrl: string | undefined
  readonly shards: number
  readonly logLevel: string
  /** What agents are told to beat at; 2.5 times this without a beat is offline. */
  readonly heartbeatSeconds: number
  /** Readiness says 503 for so long before connections are refused; 0 where nothing stands in front. */
  readonly drainSeconds: number
  /** How long a terminal waits for its operator or its agent. */
  readonly terminalAbsenceSeconds: number
  /** Scheme, host and port under which the world reaches this hub, without a path. */
  readonly publicOrigin: string | undefined
  readonly jwtSecret: string
  readonly jwtSecretPrevious: string | undefined
  readonly enrollmentSecret: string
  readonly enrollmentSecretPrevious: string | undefined
  readonly metricsToken: string | undefined
  readonly adminEmail: string | undefined
  /** In production, who is invited as the first admin when ADMIN_EMAIL is unset. */
  readonly acmeEmail: string | undefined
  readonly adminPassword: string | undefined
  readonly trustedProxies: readonly string[]
  /** Where webhooks may go although it is not the public internet. */
  readonly webhookAllowedCidrs: readonly string[]
  readonly rates: Rates
  /** Secrets that were made or found in `dataDir`, by name: told at start, never their values. */
  readonly generated: readonly string[]
}

/** A configuration that can't be started with; `program.ts` prints the message and exits 78. */
export class ConfigError extends Error {
  constructor(problems: string[]) {
    super(
      `Muster can't start, ${problems.length === 1 ? 'one variable is' : `${problems.length} variables are`} missing or malformed:\n` +
        problems.map((problem) => `  ${problem}`).join('\n'),
    )
    this.name = 'ConfigError'
  }
}

/** A misspelt `production` would start a hub with secrets of its own making. */
const environments = ['production', 'development', 'test']
const levels = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']

/** Checks an environment and returns the configuration; throws one ConfigError that names every problem. */
export function readConfig(env: Record<string, string | undefined>): Config {
  const problems: string[] = []
  const get = (name: string) => env[name]?.trim() || undefined
  const dataDir = resolve(get('DATA_DIR') ?? './data')

  const required = (name: string, purpose: string) => {
    const value = get(name)
    if (!value) problems.push(`${name} is missing: ${purpose}`)
    return value ?? ''
  }
  const integer = (name: string, fallback: number, min: number, max: number) => {
    const text = get(name)
    if (text === undefined) return fallback
    const value = Number(text)
    if (Number.isInteger(value) && value >= min && value <= max) return value
    problems.push(`${name} is not a whole number from ${min} to ${max}: "${text}"`)
    return fallback
  }
  const url = (name: string, protocols: string[], secret: boolean) => {
    const text = get(name)
    if (text === undefined) return undefined
    if (URL.canParse(text) && protocols.includes(new URL(text).protocol)) return text
    problems.push(
      `${name} is not a ${protocols.map((p) => `${p}//`).join(' or ')} address${secret ? '' : `: "${text}"`}`,
    )
    return undefined
  }
  const oneOf = (name: string, allowed: string[], fallback: string) => {
    const text = get(name)
    if (text === undefined || allowed.includes(text)) return text ?? fallback
    problems.push(`${name} is none of ${allowed.join(', ')}: "${text}"`)
    return fallback
  }

  const production = oneOf('NODE_ENV', environments, 'development') === 'production'
  const databaseUrl = url('DATABASE_URL', ['postgres:', 'postgresql:'], true)
  const redisUrl = url('REDIS_URL', ['redis:', 'rediss:'], true)
  if (redisUrl !== undefined) problems.push(...problemsOfRedis(new URL(redisUrl)))
  const smtpUrl = url('SMTP_URL', ['smtp:', 'smtps:'], true)
  if (smtpUrl !== undefined) problems.push(...problemsOfSmtp(new URL(smtpUrl)))
  const publicUrl = url('PUBLIC_API_URL', ['http:', 'https:'], false)
  if (production) {
    if (!get('DATABASE_URL')) required('DATABASE_URL', 'the connection string of PostgreSQL')
    if (!get('PUBLIC_API_URL')) required('PUBLIC_API_URL', 'the public address of the API')
    required('JWT_SECRET', 'signs access tokens, at least 32 bytes')
    required('AGENT_ENROLLMENT_SECRET', 'agents present it to enroll')
    required('METRICS_SCRAPE_TOKEN', 'reads /metrics')
  }

  for (const name of ['JWT_SECRET', 'JWT_SECRET_PREVIOUS']) {
    const value = get(name)
    if (value !== undefined && Buffer.byteLength(value) < 32) {
      problems.push(`${name} is ${Buffer.byteLength(value)} bytes long, at least 32 are needed`)
    }
  }
  const adminEmail = get('ADMIN_EMAIL')
  if (adminEmail !== undefined && !/^[^\s@]+@[^\s@]+$/.test(adminEmail)) {
    problems.push(`ADMIN_EMAIL is no e-mail address: "${adminEmail}"`)
  }
  const adminPassword = env['ADMIN_PASSWORD'] || undefined
  if (adminPassword !== undefined && (adminPassword.length < 12 || adminPassword.length > 256)) {
    problems.push('ADMIN_PASSWORD needs 12 to 256 characters')
  }
  const cidrs = (name: string) => {
    const list = (get(name) ?? '').split(/[\s,]+/).filter(Boolean)
    for (const cidr of list) {
      if (!isCidr(cidr)) problems.push(`${name} holds "${cidr}", which is no CIDR or address`)
    }
    return list
  }
  const host = get('HOST') ?? '127.0.0.1'
  if (isIP(host) === 0 && host !== 'localhost') {
    problems.push(`HOST is no IP address: "${host}"`)
  }
  const rates = { ...rateDefaults }
  for (const name of Object.keys(rates) as (keyof Rates)[]) {
    rates[name] = integer(`LIMIT_${name}`, rates[name], 0, 1_000_000_000)
  }
  for (const name of Object.keys(env)) {
    if (!name.startsWith('LIMIT_') || Object.hasOwn(rates, name.slice(6)) || !get(name)) continue
    const known = Object.keys(rates).map((rate) => `LIMIT_${rate}`)
    problems.push(`${name} is no limit of this hub, which knows ${known.join(', ')}`)
  }
  const config = {
    production,
    version: hubVersion,
    host,
    port: integer('PORT', 8080, 0, 65_535),
    dataDir,
    agentReleasesDir: resolve(get('AGENT_RELEASES_DIR') ?? join(dataDir, 'releases')),
    agentReleaseKeys: resolve(get('AGENT_RELEASE_KEYS') ?? join(dataDir, 'release-keys')),
    downloadBytesPerSecond: integer(
      'DOWNLOAD_BYTES_PER_SECOND',
      limits.downloadBytesPerSecond,
      1_000_000,
      100_000_000_000,
    ),
    databaseUrl,
    redisUrl,
    smtpUrl,
    shards: integer('SHARDS', Math.max(1, availableParallelism() - 1), 1, 64),
    terminalAbsenceSeconds: integer(
      'TERMINAL_ABSENCE_SECONDS',
      limits.terminalAbsenceSeconds,
      1,
      3600,
    ),
    heartbeatSeconds: integer('HEARTBEAT_SECONDS', limits.heartbeatSeconds, 1, 300),
    drainSeconds: integer(
      'DRAIN_SECONDS',
      production ? limits.drainSecondsDefault : 0,
      0,
      limits.drainSecondsMax,
    ),
    logLevel: oneOf('LOG_LEVEL', levels, 'info'),
    publicOrigin: publicUrl && new URL(publicUrl).origin,
    jwtSecretPrevious: get('JWT_SECRET_PREVIOUS'),
    enrollmentSecretPrevious: get('AGENT_ENROLLMENT_SECRET_PREVIOUS'),
    metricsToken: get('METRICS_SCRAPE_TOKEN'),
    adminEmail,
    acmeEmail: get('ACME_EMAIL'),
    adminPassword,
    trustedProxies: cidrs('TRUSTED_PROXIES'),
    webhookAllowedCidrs: cidrs('WEBHOOK_ALLOWED_CIDRS'),
    rates,
  }
  if (problems.length > 0) throw new ConfigError(problems)

  const generated: string[] = []
  const secret = (name: string) => {
    const value = get(name)
    if (value !== undefined) return value
    generated.push(name)
    try {
      return keptSecret(dataDir, name)
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error)
      throw new ConfigError([`DATA_DIR can't keep ${name}, which is not set: ${reason}`])
    }
  }
  return Object.freeze({
    ...config,
    jwtSecret: secret('JWT_SECRET'),
    enrollmentSecret: secret('AGENT_ENROLLMENT_SECRET'),
    generated,
  })
}

/** The file of a generated secret inside the data folder. */
export function secretFile(dataDir: string, name: string): string {
  return join(dataDir, 'secrets', name.toLowerCase())
}

/** Reads a secret kept in the data folder, or makes it: 256 bits, mode 0600. */
export function keptSecret(dataDir: string, name: string, make = randomSecret): string {
  const file = secretFile(dataDir, name)
  mkdirSync(join(dataDir, 'secrets'), { recursive: true, mode: 0o700 })
  try {
    writeFileSync(file, `${make()}\n`, { mode: 0o600, flag: 'wx' })
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error
  }
  return readFileSync(file, 'utf8').trim()
}

function randomSecret(): string {
  return randomBytes(32).toString('base64url')
}

/** Only what is known may stand in it: a misspelt `requireTLS` would quietly send in the clear. */
function problemsOfSmtp({ hostname, searchParams }: URL): string[] {
  const problems = hostname === '' ? ['SMTP_URL names no host'] : []
  for (const [name, value] of searchParams) {
    if (name === 'requireTLS') {
      if (value !== 'true' && value !== 'false') {
        problems.push('SMTP_URL: requireTLS is neither true nor false')
      }
    } else if (name !== 'from')
      problems.push(`SMTP_URL holds "${name}", only from and requireTLS are known`)
    else if (!/^[^\s@<>]+@[^\s@<>]+$/.test(value))
      problems.push('SMTP_URL: from is no e-mail address')
  }
  return problems
}

/** The client of Redis reads host, port, user, password and the number of a database, nothing else. */
function problemsOfRedis({ hostname, username, password, pathname, search }: URL): string[] {
  const problems = hostname === '' ? ['REDIS_URL names no host'] : []
  if (!/^(\/\d{0,4})?$/.test(pathname)) {
    problems.push('REDIS_URL: what follows the host is no number of a database')
  }
  if (search !== '') problems.push('REDIS_URL holds a query, which means nothing here')
  try {
    decodeURIComponent(username + password)
  } catch {
    problems.push('REDIS_URL: a % in user or password is to be written %25')
  }
  return problems
}

function isCidr(text: string): boolean {
  const [address = '', bits, rest] = text.split('/')
  const family = isIP(address)
  if (family === 0 || rest !== undefined) return false
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128))
}
