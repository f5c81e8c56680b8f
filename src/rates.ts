// How often a caller may ask. Every rate is a token bucket in the GCRA form: one number per caller, the
// time at which its bucket is full again. Each hub decides from its own memory and never waits; where hubs
// share their rates, the tally notes what was taken and the numbers are corrected afterwards.
//
// Why not rate-limiter-flexible: it makes a promise per call and a timer per key, and a rate with a
// burst takes two limiters; here a check is a map look-up and no await on the way of every request.
import { networkOf } from './address.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import type { Rates } from './limits.ts'
import type { RateTally, SharedBucket } from './rate_tally.ts'

/**
 * `RateLimit-Limit`, `-Remaining` and `-Reset` of the rate that is nearest to its end; {} when off. Limit is
 * what may be spent at once, Reset the seconds until all of that is there again; Retry-After, until one call
 * is, is never longer.
 */
export type RateHeaders = Record<string, string>

/** Each check counts one call, unless it says otherwise; past the rate it throws RATE_LIMITED. */
export interface RateLimits {
  api(userId: string): RateHeaders
  refresh(userId: string): RateHeaders
  /** A device opens a socket. */
  connect(deviceId: string): RateHeaders
  /** Refused when `connect` would be; counts nothing. */
  mayConnect(deviceId: string): RateHeaders
  /** An enrollment, right or wrong; also refused while too many from here were wrong. */
  enroll(ip: string): RateHeaders
  /** Counts nothing: of guesses sent in parallel, only as many as the rate allows learn whether they were right. */
  mayEnroll(ip: string): RateHeaders
  enrollFailed(ip: string): RateHeaders
  /**
   * Counts nothing: refused while too many logins failed. Ask it before hashing and again after: of
   * guesses sent in parallel, only as many as the rate allows learn whether they were right.
   */
  login(ip: string, email: string): RateHeaders
  loginFailed(ip: string, email: string): RateHeaders
  /** The right password clears the failures for this ip and email, not those of the ip. */
  loginSucceeded(ip: string, email: string): void
}

const minute = 60_000

/**
 * Rates in this process's memory; a rate of 0 is off. `now` is in milliseconds and never runs back; the
 * tally, where there is one, has the same.
 */
export function rateLimits(
  rates: Rates,
  now: () => number = () => performance.now(),
  tally?: RateTally,
): RateLimits {
  const bucket = (name: keyof Rates, periodMs: number, burst = rates[name]) =>
    new Bucket({ name, rate: rates[name], periodMs, burst, now, tally })
  const api = bucket('API', minute, rates.API_BURST)
  const refresh = bucket('REFRESH', minute)
  const connect = bucket('CONNECT', minute)
  const enroll = bucket('ENROLL', minute)
  const enrollFailures = bucket('ENROLL_FAILURES', minute)
  const login = bucket('LOGIN', 5 * minute)
  const loginIp = bucket('LOGIN_IP', 5 * minute)
  const person = (ip: string, email: string) => `${networkOf(ip)} ${email.toLowerCase()}`
  return {
    api: (userId) => admitted([api.take(userId)]),
    refresh: (userId) => admitted([refresh.take(userId)]),
    connect: (deviceId) => admitted([connect.take(deviceId)]),
    mayConnect: (deviceId) => admitted([connect.peek(deviceId)]),
    enroll(ip) {
      const network = networkOf(ip)
      return admitted([enrollFailures.peek(network), enroll.take(network)])
    },
    mayEnroll: (ip) => admitted([enrollFailures.peek(networkOf(ip))]),
    enrollFailed: (ip) => admitted([enrollFailures.take(networkOf(ip))]),
    login: (ip, email) => admitted([loginIp.peek(networkOf(ip)), login.peek(person(ip, email))]),
    loginFailed: (ip, email) => told([loginIp.take(networkOf(ip)), login.take(person(ip, email))]),
    loginSucceeded: (ip, email) => login.clear(person(ip, email)),
  }
}

/** What a rate says of one caller. */
interface Standing {
  allowed: boolean
  limit: number
  remaining: number
  /** Until all of it is there again, in ms. */
  resetMs: number
  /** Until one more call is allowed, in ms. */
  retryMs: number
}

interface BucketOptions {
  name: string
  rate: number
  periodMs: number
  burst: number
  now: () => number
  tally: RateTally | undefined
}

/** One rate: `rate` calls per `periodMs` sustained, `burst` of them at once. */
class Bucket implements SharedBucket {
  readonly name: string
  readonly windowMs: number
  private readonly off: boolean
  private readonly intervalMs: number
  private readonly burst: number
  private readonly now: () => number
  private readonly tally: RateTally | undefined
  /** Key → when its bucket is full again; who was silent for longest comes first. */
  private readonly fullAt = new Map<string, number>()

  constructor({ name, rate, periodMs, burst, now, tally }: BucketOptions) {
    this.name = name
    this.off = rate === 0
    this.intervalMs = periodMs / rate
    this.burst = Math.max(1, burst)
    this.windowMs = this.intervalMs * this.burst
    this.now = now
    this.tally = tally
  }

  /** Counts one call when it is allowed. Undefined when the rate is off. */
  take(key: string): Standing | undefined {
    if (this.off) return undefined
    const now = this.now()
    const fullAt = this.fullAtOf(key)
    const taken = takeOne(fullAt, now, this.intervalMs, this.burst)
    if (taken !== undefined) this.setFullAt(key, taken)
    this.tally?.touch(this, key, taken === undefined ? 0 : this.intervalMs)
    return this.standing(taken !== undefined, taken ?? fullAt, now)
  }

  /** As `take`, without counting. */
  peek(key: string): Standing | undefined {
    if (this.off) return undefined
    const now = this.now()
    const fullAt = this.fullAtOf(key)
    const allowed = takeOne(fullAt, now, this.intervalMs, this.burst) !== undefined
    this.tally?.touch(this, key, 0)
    return this.standing(allowed, fullAt, now)
  }

  clear(key: string): void {
    if (this.off) return
    this.fullAt.delete(key)
    this.tally?.clear(this, key)
  }

  fullAtOf(key: string): number {
    return this.fullAt.get(key) ?? 0
  }

  setFullAt(key: string, fullAt: number): void {
    this.fullAt.delete(key)
    if (fullAt === 0) return
    this.fullAt.set(key, fullAt)
    if (this.fullAt.size <= limits.rateKeysMax) return
    const [silent] = this.fullAt.keys()
    if (silent !== undefined) this.fullAt.delete(silent)
  }

  private standing(allowed: boolean, fullAt: number, now: number): Standing {
    const resetMs = Math.max(0, fullAt - now)
    const left = this.burst - resetMs / this.intervalMs + roundingForgiven
    const remaining = Math.max(0, Math.floor(left))
    const retryMs = Math.max(0, resetMs - (this.burst - 1) * this.intervalMs)
    return { allowed, limit: this.burst, remaining, resetMs, retryMs }
  }
}

/** Intervals: forgives the rounding of sums of fractions. */
const roundingForgiven = 0.001

/**
 * One call from a bucket that is full again at `fullAt`: its new such time, or undefined when nothing
 * is left. A bucket holds `burst` calls and gets one back each `intervalMs`.
 */
export function takeOne(
  fullAt: number,
  now: number,
  intervalMs: number,
  burst: number,
): number | undefined {
  const next = Math.max(fullAt, now) + intervalMs
  return next - now <= (burst + roundingForgiven) * intervalMs ? next : undefined
}

/** The headers of the tightest rate; throws when one refuses. */
function admitted(all: readonly (Standing | undefined)[]): RateHeaders {
  // Of several that refuse, the last to allow it again.
  const [refused] = all
    .filter((standing) => standing?.allowed === false)
    .toSorted((a, b) => (b?.retryMs ?? 0) - (a?.retryMs ?? 0))
  if (!refused) return told(all)
  throw new AppError('RATE_LIMITED', 'too many requests; try again later', {
    retryAfterSeconds: Math.max(1, Math.ceil(refused.retryMs / 1000)),
    headers: headersOf(refused),
  })
}

function told(all: readonly (Standing | undefined)[]): RateHeaders {
  let tightest: Standing | undefined
  for (const standing of all) {
    if (standing && standing.remaining < (tightest?.remaining ?? Infinity)) tightest = standing
  }
  return tightest ? headersOf(tightest) : {}
}

function headersOf({ limit, remaining, resetMs }: Standing): RateHeaders {
  return {
    'RateLimit-Limit': String(limit),
    'RateLimit-Remaining': String(remaining),
    'RateLimit-Reset': String(Math.ceil(resetMs / 1000)),
  }
}
