// Shares what callers took between hubs, through Redis. No request waits for it. Redis holds nothing that can't be lost: where it is down or was emptied, each hub goes on with what
// it knows, and tells it again.
import { hash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { limits } from './limits.ts'
import type { Metrics } from './metrics.ts'
import { RateTally, type Due } from './rate_tally.ts'
import { connectionTo, keepRedis, type Connection, type RedisNews } from './redis.ts'

export interface RateSharing {
  /** Where rates note what is to be shared. */
  readonly tally: RateTally
  state(): 'ok' | 'down'
  close(): Promise<void>
}

export interface RateSharingOptions {
  /** `redis://` or `rediss://`; it may hold a password and is never logged. */
  url: string
  /** Hashes callers, so that Redis holds no e-mail and no address; the same on every hub. */
  key: Buffer
  news: RedisNews
  metrics: Metrics
}

/**
 * For each caller: adds what a hub took to what all took, and answers when it is full again.
 * What is stored is when, by the clock of Redis, and never further away than an empty bucket needs: hubs
 * that each let the last one through must lock nobody out for longer. What lies further away was written
 * before that clock was set back, and counts as forgotten. A caller who was forgiven stays known, as full:
 * else the next hub would tell what it knew from before. All times are in µs.
 */
const script = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {}
for i, key in ipairs(KEYS) do
  local cleared = ARGV[4 * i - 3] == '1'
  local taken = tonumber(ARGV[4 * i - 2])
  local ahead = tonumber(ARGV[4 * i - 1])
  local window = tonumber(ARGV[4 * i])
  local stored = tonumber(redis.call('GET', key) or '')
  if stored and stored > now + window then stored = nil end
  local full
  if cleared then full = now
  elseif stored then full = math.max(stored, now)
  else full = now + ahead end
  full = math.min(full + taken, now + window)
  if cleared or (full > now and (taken > 0 or not stored)) then
    redis.call('SET', key, string.format('%.0f', full), 'PX', math.max(1, math.ceil(window / 1000)))
  end
  answer[i] = full - now
end
return answer
`

/** Starts sharing; resolves never, fails never: while Redis is away it keeps trying. */
export function shareRates(options: RateSharingOptions): RateSharing {
  const { news, metrics } = options
  const tally = new RateTally()
  const key = options.key.toString('base64url')
  const probe = keyOf(key, 'PROBE')
  const stop = new AbortController()
  let inFlight = 0
  const link = keepRedis({
    use: share,
    onLost: (error) => news.lost('rates', error),
    onBack: () => news.back('rates'),
    signal: stop.signal,
  })
  metrics.onScrape(() => {
    metrics.redisUp.set({ use: 'rates' }, link.state() === 'ok' ? 1 : 0)
    metrics.queued.set({ queue: 'rates', thread: 'front' }, tally.size + inFlight)
  })
  return {
    tally,
    state: link.state,
    async close() {
      stop.abort()
      await link.ended
    },
  }

  /** One connection, until it fails. */
  async function share(works: () => void): Promise<void> {
    const redis = await connectionTo(options.url, stop.signal)
    try {
      await redis.open()
      for (;;) {
        await evaluate(redis, [probe], probeArguments)
        works()
        const probeAtMs = performance.now() + limits.redisProbeMs
        while (performance.now() < probeAtMs) {
          if (tally.size > 0) await exchange(redis)
          // After an outage the next batch follows at once.
          if (tally.size < limits.rateExchangeKeysMax) {
            await sleep(limits.rateExchangeMs, undefined, { signal: stop.signal })
          }
        }
      }
    } finally {
      redis.close()
    }
  }

  /** A batch without an answer may have been counted, so it isn't repeated: nobody is charged twice. */
  async function exchange(redis: Connection): Promise<void> {
    const batch = tally.next()
    inFlight = batch.dues.length
    try {
      const keys = batch.dues.map(({ name }) => keyOf(key, name))
      batch.settle(await evaluate(redis, keys, batch.dues.flatMap(argumentsOf)))
      metrics.rateExchanges.inc({ outcome: 'done' })
      metrics.batch.observe({ statement: 'rates_to_redis' }, batch.dues.length)
    } catch (error) {
      metrics.rateExchanges.inc({ outcome: 'lost' })
      throw error
    } finally {
      inFlight = 0
    }
  }
}

/** Where a caller stands in Redis: 128 bits that only hubs with the same secret can make. */
function keyOf(key: string, name: string): string {
  return `muster:rate:${hash('sha256', `${key} ${name}`, 'base64url').slice(0, 22)}`
}

function argumentsOf({ cleared, takenMs, aheadMs, windowMs }: Due): string[] {
  const us = (ms: number) => String(Math.round(ms * 1000))
  return [cleared ? '1' : '0', us(takenMs), us(aheadMs), us(windowMs)]
}

/** Forgives nobody anything: a write, because a full Redis and a replica of one answer reads alone. */
const probeArguments = ['1', '0', '0', '60000000']

async function evaluate(redis: Connection, keys: string[], args: string[]): Promise<number[]> {
  // The script is sent each time, because Redis may forget it at any time.
  const answer: unknown = await redis.answer(redis.client.eval(script, { keys, arguments: args }))
  if (!Array.isArray(answer) || answer.length !== keys.length) {
    throw new Error('Redis answered something else')
  }
  return answer.map((us: unknown) => {
    if (typeof us === 'number' && us >= 0) return us / 1000
    throw new Error('Redis answered something else')
  })
}
