// Hubs that share their rates through Redis: a real one, which is emptied, stopped and killed.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { limits } from '../src/limits.ts'
import { admin, metricsToken, startHub, type TestHub } from './support/hub.ts'
import { startRedis, withoutRedis, type TestRedis } from './support/redis.ts'
import { until } from './support/until.ts'

const burst = 20
// One call a minute comes back: nothing does while a test counts.
const rates = { LIMIT_API: '1', LIMIT_API_BURST: String(burst), LIMIT_LOGIN: '5' }

/** Waits until all that was touched on this hub so far was told, and the answer taken over. */
async function exchanged(hub: TestHub): Promise<void> {
  await until('an exchange', async () => {
    const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
    return text.includes('\nmuster_queue_depth{queue="rates",thread="front"} 0\n')
  })
}

/** One call of the API; what remains afterwards, or undefined when it was refused. */
async function remaining(hub: TestHub): Promise<number | undefined> {
  const { status, headers } = await hub.get('/auth/me')
  assert.ok(status === 200 || status === 429, String(status))
  return status === 429 ? undefined : Number(headers.get('ratelimit-remaining'))
}

/** Calls, and waits until other hubs can know of it. */
async function spend(hub: TestHub, calls: number): Promise<number | undefined> {
  let left: number | undefined
  for (let n = 0; n < calls; n++) left = await remaining(hub)
  await exchanged(hub)
  return left
}

const readiness = (hub: TestHub) => hub.get('{origin}/health/ready', { token: undefined })

async function untilRedis(hub: TestHub, word: 'ok' | 'down'): Promise<void> {
  await until(`Redis to be ${word}`, async () => {
    const { status, body } = await readiness(hub)
    assert.equal(status, 200)
    assert.equal(body.status, body.checks.redis === 'ok' ? 'ok' : 'degraded')
    return body.checks.redis === word
  })
}

describe('two hubs with one Redis', { skip: withoutRedis }, () => {
  let redis: TestRedis
  let one: TestHub
  let two: TestHub

  before(async () => {
    redis = await startRedis()
    one = await startHub({ ...rates, REDIS_URL: redis.url })
    two = await startHub({ ...rates, REDIS_URL: redis.url, DATABASE_URL: one.database.url })
    await untilRedis(one, 'ok')
    await untilRedis(two, 'ok')
  })
  after(async () => {
    await two?.close()
    await one?.close()
    await redis?.close()
  })

  test('count the calls of a user together, to the call', async () => {
    await spend(one, 5)
    await spend(two, 1)
    assert.equal(await remaining(two), burst - 7)
    await exchanged(two)
    await spend(one, 1)
    assert.equal(await remaining(one), burst - 9)
  })

  test('refuse together what both would have allowed', async () => {
    let allowed = 9
    const call = async (hub: TestHub) => {
      if ((await remaining(hub)) !== undefined) allowed++
      await exchanged(hub)
    }
    for (let n = 0; n < burst; n++) await call(n % 2 === 0 ? one : two)
    assert.equal(await remaining(one), undefined)
    assert.equal(await remaining(two), undefined)
    // Each hub decides before it hears: one call of the other may be too many.
    assert.ok(allowed >= burst && allowed <= burst + 1, `${allowed} were allowed`)
  })

  test('leave neither an address nor an e-mail in Redis, and nothing for ever', async () => {
    await login(one, 'wrong')
    await exchanged(one)
    const keys = (await redis.command('KEYS', '*')) as string[]
    assert.ok(keys.length >= 2, keys.join())
    for (const key of keys) {
      assert.match(key, /^muster:rate:[\w-]{22}$/)
      assert.match(String(await redis.command('GET', key)), /^\d{16}$/)
      const leftMs = Number(await redis.command('PTTL', key))
      assert.ok(leftMs > 0 && leftMs <= burst * 60_000, `${key} expires in ${leftMs} ms`)
    }
  })

  const login = async (hub: TestHub, password: string, email = admin.email) => {
    const answer = await hub.post('/auth/login', { email, password }, { token: undefined })
    return { status: answer.status, left: answer.headers.get('ratelimit-remaining') }
  }

  test('stop guesses at one hub that began at the other', async () => {
    const email = 'guessed@example.org'
    for (let n = 0; n < 5; n++) assert.equal((await login(one, 'wrong', email)).status, 401)
    await exchanged(one)
    assert.equal((await login(one, 'wrong', email)).status, 429)
    // What the other hub has never heard of it lets try once, and asks.
    await login(two, 'wrong', email)
    await exchanged(two)
    assert.equal((await login(two, 'wrong', email)).status, 429)
  })

  test('forget the failures of a person together when the password was right', async () => {
    for (let n = 0; n < 2; n++) await login(one, 'wrong')
    await exchanged(one)
    assert.equal((await login(two, admin.password)).status, 200)
    await exchanged(two)
    await login(one, 'wrong')
    await exchanged(one)
    assert.deepEqual(await login(one, 'wrong'), { status: 401, left: '3' })
    await exchanged(one)
  })

  test('go on counting where they were when Redis was emptied', async () => {
    assert.equal(await redis.command('FLUSHALL'), 'OK')
    assert.equal(await remaining(one), undefined)
    await exchanged(one)
    assert.equal(await remaining(two), undefined)
    await exchanged(two)
    assert.equal(await remaining(two), undefined)
    assert.equal((await login(one, 'wrong')).left, '2')
  })

  test('tell of many callers in batches, one after the other', async () => {
    const callers = 3 * limits.rateExchangeKeysMax + 1
    for (let n = 0; n < callers; n++) one.hub.ctx.rates.refresh(`user ${n}`)
    await exchanged(one)
    assert.ok(Number(await redis.command('DBSIZE')) >= callers)
    const last = `user ${callers - 1}`
    two.hub.ctx.rates.refresh(last)
    await exchanged(two)
    assert.equal(two.hub.ctx.rates.refresh(last)['RateLimit-Remaining'], '7')
  })

  test('lock nobody out when the clock of Redis is set back', async () => {
    const keys = (await redis.command('KEYS', '*')) as string[]
    const later = String((Date.now() + 365 * 86_400_000) * 1000)
    for (const key of keys) await redis.command('SET', key, later, 'PX', '60000')
    await login(two, 'wrong')
    await exchanged(two)
    assert.notEqual((await login(two, 'wrong')).status, 429)
  })
})

describe('a Redis that goes away', { skip: withoutRedis }, () => {
  let redis: TestRedis
  let one: TestHub
  let two: TestHub

  before(async () => {
    redis = await startRedis({ password: 'a pass/word:@%' })
    one = await startHub({ ...rates, REDIS_URL: redis.url })
    two = await startHub({ ...rates, REDIS_URL: redis.url, DATABASE_URL: one.database.url })
    await untilRedis(one, 'ok')
    await untilRedis(two, 'ok')
  })
  after(async () => {
    await two?.close()
    await one?.close()
    await redis?.close()
  })

  /** Calls without a pause until Redis counts as down; none may take as long as Redis is waited for. */
  async function callUntilDown(hub: TestHub): Promise<void> {
    await until('Redis to be down', async () => {
      const startedMs = performance.now()
      assert.equal((await hub.get('/auth/me')).headers.get('ratelimit-limit'), String(burst))
      const tookMs = performance.now() - startedMs
      assert.ok(tookMs < limits.redisAnswerMsMax, `a request took ${tookMs} ms`)
      return (await readiness(hub)).body.checks.redis === 'down'
    })
  }

  test('stopped: no request waits, ready is degraded, and all is shared when it goes on', async () => {
    redis.signal('SIGSTOP')
    await callUntilDown(one)
    await untilRedis(two, 'down')
    // The burst is spent by now, at this hub alone.
    await until('the burst to be spent', async () => (await remaining(one)) === undefined)
    redis.signal('SIGCONT')
    await untilRedis(one, 'ok')
    await untilRedis(two, 'ok')
    await exchanged(one)
    // What the other hub has never heard of it lets through once, and asks.
    assert.equal(await remaining(two), burst - 1)
    await exchanged(two)
    assert.equal(await remaining(two), undefined)
  })

  test('killed: degraded until it is back by itself, which is told what hubs know', async () => {
    await redis.kill()
    await callUntilDown(one)
    await untilRedis(two, 'down')
    await redis.start()
    await untilRedis(one, 'ok')
    assert.equal(await remaining(one), undefined)
    await until('the empty Redis to be told', async () => {
      return Number(await redis.command('DBSIZE')) > 0
    })
  })
})
