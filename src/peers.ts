// The other hubs of this database, and whether their settings fit this one's. A hub that differs is told of and
// serves on: which of two is wrong no hub can know, and one that refused to start would let a stranger who came
// first keep all others out.
import { createHmac } from 'node:crypto'
import { hostname } from 'node:os'
import type { Config } from './config.ts'
import type { Queryable } from './db.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import { keyFrom } from './seal.ts'

/** What a hub writes into its row of `nodes`. Another version may write less, or more. */
export interface About {
  host: string
  /** Where links lead; null while it is not known. */
  publicOrigin: string | null
  /** Whether it has a REDIS_URL. */
  redis: boolean
  /** Of JWT_SECRET, then of JWT_SECRET_PREVIOUS. */
  secrets: SecretMarks[]
}

/** Marks are made under keys that only who has this JWT_SECRET can derive, so they tell nobody else anything. */
export interface SecretMarks {
  jwt: string
  /** Of AGENT_ENROLLMENT_SECRET, and its previous one; comparable between hubs with the same JWT secret. */
  enrollment: string[]
}

export interface Peer {
  id: string
  version: string
  startedAt: string
  about: Partial<About>
}

type Secrets = Pick<
  Config,
  'jwtSecret' | 'jwtSecretPrevious' | 'enrollmentSecret' | 'enrollmentSecretPrevious'
>

/** METRICS_SCRAPE_TOKEN has no mark: it is changed hub by hub, and Prometheus tells of a wrong one. */
export function aboutOf(
  config: Secrets & Pick<Config, 'redisUrl'>,
  publicOrigin: string | null,
): About {
  const { jwtSecret, jwtSecretPrevious, enrollmentSecret, enrollmentSecretPrevious } = config
  const given = (secret: string | undefined) => secret !== undefined
  const secrets = [jwtSecret, jwtSecretPrevious].filter(given).map((secret) => {
    const key = keyFrom(secret, 'settings of a hub')
    const mark = (text: string) =>
      createHmac('sha256', key).update(text).digest('base64url').slice(0, 22)
    const enrollment = [enrollmentSecret, enrollmentSecretPrevious].filter(given)
    return { jwt: mark('JWT_SECRET'), enrollment: enrollment.map((one) => mark(`enroll ${one}`)) }
  })
  return { host: hostname(), publicOrigin, redis: config.redisUrl !== undefined, secrets }
}

/** For `npm run admin`, whose links lead here: with PORT=0 it is known only once the hub listens. */
export async function tellOrigin(db: Queryable, nodeId: string, origin: string): Promise<void> {
  await db.query(
    `update nodes set about = about || jsonb_build_object('publicOrigin', $2::text) where id = $1`,
    [nodeId, origin],
  )
}

/** Where the hub is reached that lives, or else lived last; undefined where none ever told. */
export async function originOfHubs(db: Queryable): Promise<string | undefined> {
  const [row] = await db.query<{ origin: string }>(
    `select about->>'publicOrigin' as origin from nodes where about->>'publicOrigin' is not null
     order by about ? 'left', lease_until desc limit 1`,
  )
  return row?.origin
}

/**
 * How a peer's settings differ. `one_way`: of two JWT_SECRETs only one hub understands the other, as while they
 * are changed and a step is left out. `no_redis`: neither has it, which is a choice.
 */
export type Difference = 'jwt' | 'one_way' | 'enrollment' | 'redis' | 'no_redis'

/** What does not fit between this hub and another; nothing where the other one tells nothing of it. */
export function differencesOf(own: About, { secrets, redis }: Partial<About>): Difference[] {
  return [...secretDifferences(own.secrets, secrets ?? []), ...redisDifferences(own.redis, redis)]
}

/** Two hubs agree when each opens and verifies what the other signs: so do all hubs at every step of a change. */
function secretDifferences(
  own: readonly SecretMarks[],
  theirs: readonly SecretMarks[],
): Difference[] {
  if (own[0] === undefined || theirs[0] === undefined) return []
  const holds = (all: readonly SecretMarks[], jwt: string) => all.some((one) => one.jwt === jwt)
  const isUnderstood = holds(theirs, own[0].jwt)
  const understands = holds(own, theirs[0].jwt)
  const differences: Difference[] = []
  if (!isUnderstood && !understands) differences.push('jwt')
  else if (!isUnderstood || !understands) differences.push('one_way')
  for (const mine of own) {
    const same = theirs.find(({ jwt }) => jwt === mine.jwt)
    if (same === undefined) continue
    if (!mine.enrollment.some((mark) => same.enrollment.includes(mark))) {
      differences.push('enrollment')
    }
    break
  }
  return differences
}

function redisDifferences(own: boolean, theirs: boolean | undefined): Difference[] {
  if (theirs === undefined || (own && theirs)) return []
  return own || theirs ? ['redis'] : ['no_redis']
}

export interface PeersOptions {
  own: About
  /** Settings that this hub made up, since they were not set. */
  generated: readonly string[]
  log: Logger
  metrics: Metrics
}

const settings = {
  jwt: 'JWT_SECRET',
  one_way: 'JWT_SECRET',
  enrollment: 'AGENT_ENROLLMENT_SECRET',
  redis: 'REDIS_URL',
} as const

export class Peers {
  private present = new Set<Difference>()
  private readonly options: PeersOptions

  constructor(options: PeersOptions) {
    this.options = options
    this.count()
  }

  /** These hubs are alive; tells once of what begins to differ, and of its end. */
  heard(peers: readonly Peer[]): void {
    const { own, log } = this.options
    const found = new Map<Difference, Peer[]>()
    for (const peer of peers) {
      for (const difference of differencesOf(own, peer.about)) {
        found.set(difference, [...(found.get(difference) ?? []), peer])
      }
    }
    for (const [difference, others] of found) {
      if (this.present.has(difference)) continue
      const hubs = others.map(({ id, version, startedAt, about: { host } }) => {
        return { nodeId: id, host, version, startedAt }
      })
      const level = difference === 'jwt' ? 'error' : 'warn'
      log[level]({ hubs }, this.sentence(difference))
    }
    const ended = [...this.present].filter((one) => one !== 'no_redis' && !found.has(one))
    if (ended.length > 0)
      log.info({ ended }, 'hubs that differed from this one have gone or changed')
    // A choice is told of once, however often others come and go.
    const chosen = this.present.has('no_redis') ? (['no_redis'] as const) : []
    this.present = new Set([...found.keys(), ...chosen])
    this.count()
  }

  /** For readiness: `ok`, or which settings differ. Two hubs without Redis work as somebody chose. */
  state(): string {
    const differ = this.differing()
    return differ.length === 0 ? 'ok' : `another hub has another ${differ.join(' and ')}`
  }

  private differing(): string[] {
    const names = [...this.present].flatMap((one) => (one === 'no_redis' ? [] : [settings[one]]))
    return [...new Set(names)].toSorted()
  }

  private count(): void {
    const differ = this.differing()
    for (const setting of new Set(Object.values(settings))) {
      this.options.metrics.settingsDiffer.set({ setting }, differ.includes(setting) ? 1 : 0)
    }
  }

  private sentence(difference: Difference): string {
    const { own, generated } = this.options
    switch (difference) {
      case 'jwt':
        return `other hubs of this database have another JWT_SECRET: tokens of one are refused by the other, and what one sealed stays closed to the other; ${this.cure('JWT_SECRET', generated)}`
      case 'one_way':
        return 'other hubs have another JWT_SECRET, and only one side understands the other: a step of its change was left out (docs/operations.md, JWT_SECRET); this ends when every hub has the same secrets'
      case 'enrollment':
        return `other hubs of this database have another AGENT_ENROLLMENT_SECRET: agents that one enrolls are refused by the other; ${this.cure('AGENT_ENROLLMENT_SECRET', generated)}`
      case 'redis':
        return `${own.redis ? 'other hubs of this database have no REDIS_URL' : 'this hub has no REDIS_URL, and others of its database have one'}: ${withoutRedis}; set the same REDIS_URL on every hub`
      case 'no_redis':
        return `other hubs run on this database, and none has a REDIS_URL: ${withoutRedis}; set the same REDIS_URL on every hub`
    }
  }

  private cure(setting: string, generated: readonly string[]): string {
    const made = generated.filter((name) => name === setting || setting === 'JWT_SECRET')
    return made.includes(setting)
      ? `this hub made its own, for it is not set: set ${made.join(' and ')} to what the other hubs have`
      : `set the same ${setting} on every hub`
  }
}

const withoutRedis =
  'commands for devices of another hub take up to 2 s more, rate limits count for each hub alone, and terminals work only through the hub that holds the device'
