import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { AppError } from '../src/errors.ts'
import { limits, rateDefaults } from '../src/limits.ts'
import { RateTally } from '../src/rate_tally.ts'
import { rateLimits, takeOne, type RateHeaders } from '../src/rates.ts'

const ip = '192.0.2.7'
const email = 'ann@example.org'

/** Limits whose clock the test moves. */
function fixture(overrides: Partial<typeof rateDefaults> = {}) {
  const clock = { ms: 1_000_000 }
  return { clock, rates: rateLimits({ ...rateDefaults, ...overrides }, () => clock.ms) }
}

function refusalOf(call: () => unknown): AppError {
  try {
    call()
  } catch (error) {
    assert.ok(error instanceof AppError)
    assert.equal(error.code, 'RATE_LIMITED')
    return error
  }
  assert.fail('it was not refused')
}

test('a user may spend the burst at once, then as much as the rate gives back', () => {
  const { clock, rates } = fixture()
  for (let n = 1; n <= 120; n++) {
    assert.equal(rates.api('u')['RateLimit-Remaining'], String(120 - n))
  }
  const refusal = refusalOf(() => rates.api('u'))
  assert.equal(refusal.retryAfterSeconds, 1)
  assert.deepEqual(refusal.headers, {
    'RateLimit-Limit': '120',
    'RateLimit-Remaining': '0',
    'RateLimit-Reset': '12',
  })
  // 600 a minute: one each 100 ms, and a refused call costs nothing.
  clock.ms += 99
  refusalOf(() => rates.api('u'))
  clock.ms += 1
  rates.api('u')
  refusalOf(() => rates.api('u'))
})

test('another user is not counted against the first', () => {
  const { rates } = fixture({ API_BURST: 1 })
  rates.api('u')
  rates.api('v')
  refusalOf(() => rates.api('u'))
})

test('a rate of 0 is off and says nothing', () => {
  const { rates } = fixture({ API: 0, LOGIN: 0, LOGIN_IP: 0 })
  for (let n = 0; n < 1000; n++) assert.deepEqual(rates.api('u'), {})
  for (let n = 0; n < 100; n++) rates.loginFailed(ip, email)
  assert.deepEqual(rates.login(ip, email), {})
})

test('asking whether a login is allowed counts nothing, failing does', () => {
  const { rates } = fixture()
  for (let n = 0; n < 100; n++) rates.login(ip, email)
  for (let left = 4; left >= 0; left--) {
    assert.equal(rates.loginFailed(ip, email)['RateLimit-Remaining'], String(left))
  }
  const refusal = refusalOf(() => rates.login(ip, email))
  assert.equal(refusal.retryAfterSeconds, 60)
  assert.equal(refusal.headers?.['RateLimit-Limit'], '5')
  assert.equal(refusal.headers?.['RateLimit-Reset'], '300')
})

test('the email counts in any case, and the same email from elsewhere is another caller', () => {
  const { rates } = fixture()
  for (let n = 0; n < 5; n++) rates.loginFailed(ip, email)
  refusalOf(() => rates.login(ip, 'ANN@Example.org'))
  rates.login('192.0.2.8', email)
  rates.login(ip, 'bob@example.org')
})

test('spraying many emails from one address is stopped at 20 failures', () => {
  const { clock, rates } = fixture()
  for (let n = 0; n < 20; n++) rates.loginFailed(ip, `user${n}@example.org`)
  assert.equal(refusalOf(() => rates.login(ip, 'new@example.org')).retryAfterSeconds, 15)
  clock.ms += 15_000
  rates.login(ip, 'new@example.org')
})

test('a right password clears the failures of the person, not those of the address', () => {
  const { rates } = fixture({ LOGIN_IP: 6 })
  for (let n = 0; n < 5; n++) rates.loginFailed(ip, email)
  rates.loginSucceeded(ip, email)
  rates.login(ip, email)
  rates.loginFailed(ip, email)
  refusalOf(() => rates.login(ip, email))
})

test('all addresses of an IPv6 /64 are one caller', () => {
  const { rates } = fixture({ LOGIN_IP: 2 })
  rates.loginFailed('2001:db8::1', 'a@example.org')
  rates.loginFailed('2001:db8::ffff:2', 'b@example.org')
  refusalOf(() => rates.login('2001:db8:0:0:9::', 'c@example.org'))
  rates.login('2001:db8:0:1::1', 'c@example.org')
})

test('wrong enrollment secrets stop an address before its enrollments do', () => {
  const { rates } = fixture()
  for (let n = 0; n < 10; n++) {
    rates.enroll(ip)
    rates.enrollFailed(ip)
  }
  assert.equal(refusalOf(() => rates.enroll(ip)).headers?.['RateLimit-Limit'], '10')
})

test('refresh and connect count per user and per device', () => {
  const { rates } = fixture()
  const count = (call: () => RateHeaders) => {
    let allowed = 0
    while (allowed < 1000 && Number(call()['RateLimit-Remaining']) > 0) allowed++
    refusalOf(call)
    return allowed + 1
  }
  assert.equal(
    count(() => rates.refresh('u')),
    10,
  )
  assert.equal(
    count(() => rates.connect('d')),
    6,
  )
})

/** Limits with a tally, on a clock that the test moves. */
function shared() {
  const clock = { ms: 1_000_000 }
  const tally = new RateTally(() => clock.ms)
  return { clock, tally, rates: rateLimits(rateDefaults, () => clock.ms, tally) }
}

test('what others took is adopted, with what was taken here meanwhile on top', () => {
  const { clock, tally, rates } = shared()
  rates.api('u')
  const batch = tally.next()
  assert.deepEqual(batch.dues, [
    { name: 'API u', cleared: false, takenMs: 100, aheadMs: 0, windowMs: 12_000 },
  ])
  assert.equal(tally.size, 0)
  rates.api('u')
  clock.ms += 50
  batch.settle([3_000])
  // 30 were taken at the time of asking, one since; half of one came back.
  assert.equal(rates.api('u')['RateLimit-Remaining'], String(120 - 32))
  const [due] = tally.next().dues
  assert.deepEqual([due?.takenMs, due?.aheadMs], [200, 2_950])
})

test('an answer from before is void for who was forgiven meanwhile', () => {
  const { tally, rates } = shared()
  for (let n = 0; n < 5; n++) rates.loginFailed(ip, email)
  const batch = tally.next()
  rates.loginSucceeded(ip, email)
  batch.settle(batch.dues.map(({ windowMs }) => windowMs))
  rates.login('192.0.2.8', email)
  assert.equal(tally.next().dues.find(({ name }) => name.startsWith('LOGIN '))?.cleared, true)
  assert.equal(refusalOf(() => rates.login(ip, email)).headers?.['RateLimit-Limit'], '20')
})

test('after an hour without an exchange nobody is charged for that hour at once', () => {
  const { clock, tally, rates } = shared()
  for (let second = 0; second < 3600; second++) {
    rates.api('u')
    clock.ms += 1000
  }
  const [due] = tally.next().dues
  assert.deepEqual([due?.takenMs, due?.aheadMs], [0, 0])
})

test('the tally is bounded, and tells of the longest waiting first', () => {
  const { tally, rates } = shared()
  for (let n = 0; n <= limits.rateTouchedKeysMax; n++) rates.refresh(`u${n}`)
  assert.equal(tally.size, limits.rateTouchedKeysMax)
  const { dues } = tally.next()
  assert.equal(dues.length, limits.rateExchangeKeysMax)
  assert.equal(dues[0]?.name, 'REFRESH u1')
})

test('no sequence of calls gets more than the burst and what the time gave back', () => {
  const steps = fc.array(fc.record({ waitMs: fc.nat(3000), calls: fc.nat(20) }), { maxLength: 50 })
  const bucket = fc.record({
    intervalMs: fc.integer({ min: 1, max: 2000 }),
    burst: fc.integer({ min: 1, max: 20 }),
  })
  fc.assert(
    fc.property(steps, bucket, (sequence, { intervalMs, burst }) => {
      let now = 0
      let fullAt = 0
      let allowed = 0
      for (const { waitMs, calls } of sequence) {
        now += waitMs
        for (let n = 0; n < calls; n++) {
          const next = takeOne(fullAt, now, intervalMs, burst)
          if (next === undefined) continue
          fullAt = next
          allowed++
        }
      }
      assert.ok(allowed <= burst + now / intervalMs)
    }),
  )
})

test('the headers agree: Remaining calls are allowed, after Retry-After one is, after Reset all are', () => {
  const rate = fc.record({
    API: fc.integer({ min: 1, max: 5000 }),
    API_BURST: fc.integer({ min: 1, max: 50 }),
    waitsMs: fc.array(fc.nat(3000), { maxLength: 60 }),
  })
  fc.assert(
    fc.property(rate, ({ waitsMs, ...overrides }) => {
      const { clock, rates } = fixture(overrides)
      const spend = () => {
        for (let calls = 0; ; calls++) {
          try {
            rates.api('u')
          } catch (error) {
            return { calls, refusal: error as AppError }
          }
        }
      }
      let headers: RateHeaders = {}
      for (const waitMs of [0, ...waitsMs]) {
        clock.ms += waitMs
        try {
          headers = rates.api('u')
        } catch (error) {
          headers = (error as AppError).headers ?? {}
        }
      }
      const { calls, refusal } = spend()
      assert.equal(calls, Number(headers['RateLimit-Remaining']))
      const retrySeconds = refusal.retryAfterSeconds ?? 0
      const resetSeconds = Number(refusal.headers?.['RateLimit-Reset'])
      assert.ok(retrySeconds <= resetSeconds, `${retrySeconds} s, then ${resetSeconds} s`)
      const refusedMs = clock.ms
      clock.ms = refusedMs + retrySeconds * 1000
      assert.ok(spend().calls >= 1)
      clock.ms += Number(refusalOf(() => rates.api('u')).headers?.['RateLimit-Reset']) * 1000
      assert.equal(spend().calls, Number(refusal.headers?.['RateLimit-Limit']))
    }),
  )
})

test('of two rates that refuse, the longer wait is told', () => {
  const { rates } = fixture({ ENROLL: 600, ENROLL_FAILURES: 1, LOGIN: 1, LOGIN_IP: 20 })
  for (let n = 0; n < 20; n++) rates.loginFailed(ip, n === 0 ? email : `user${n}@example.org`)
  assert.equal(refusalOf(() => rates.login(ip, email)).retryAfterSeconds, 300)
})

test('asking whether a device may connect takes nothing and refuses as connecting would', () => {
  const { rates } = fixture({ CONNECT: 2 })
  for (let n = 0; n < 10; n++) rates.mayConnect('d')
  rates.connect('d')
  rates.connect('d')
  assert.equal(refusalOf(() => rates.mayConnect('d')).retryAfterSeconds, 30)
})
