// Frames that a socket may send: a burst is as large as it is called, at whatever moment it begins.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { allowance } from '../src/allowance.ts'

for (const [perMinute, burst] of [
  [1, 5],
  [60, 50],
  [600, 120],
] as const) {
  test(`of ${perMinute} a minute ${burst} may come at once`, () => {
    const take = allowance(perMinute, burst)
    // Moments are fractions of a millisecond, which are rounded.
    for (let n = 0; n < 500; n++) {
      const holder = { fullMs: 0 }
      for (let frame = 1; frame <= burst; frame++) {
        assert.ok(take(holder), `frame ${frame} of ${burst}`)
      }
    }
  })
}

test('and no more than those', () => {
  const take = allowance(1, 5)
  const holder = { fullMs: 0 }
  for (let frame = 1; frame <= 5; frame++) assert.ok(take(holder))
  assert.equal(take(holder), false)
})

test('a rate of 0 is none', () => {
  assert.ok(allowance(0, 0)({ fullMs: Infinity }))
})
