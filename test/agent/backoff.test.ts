// When the agent tries again, by value.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { decide, fullJitterMs } from '../../agent/backoff.ts'
import type { Ending } from '../../agent/backoff.ts'

function refused(status: number, code: string, retryAfterSeconds: number | null = null): Ending {
  return { type: 'refused', status, code, retryAfterSeconds }
}

function closed(code: number): Ending {
  return { type: 'closed', code }
}

test('full jitter lies anywhere below a window that doubles from 1 s up to 30 s', () => {
  assert.equal(fullJitterMs(0, 0.999), 999)
  assert.equal(fullJitterMs(3, 0.5), 4000)
  assert.equal(fullJitterMs(50, 0.5), 15_000)
  const numbers = fc.tuple(fc.nat(10_000), fc.double({ min: 0, max: 1, noNaN: true }))
  fc.assert(
    fc.property(numbers, ([attempt, random]) => {
      const ms = fullJitterMs(attempt, random)
      return ms >= 0 && ms <= 30_000
    }),
  )
})

test('a decommissioned device stops, however it was told', () => {
  assert.deepEqual(decide(closed(4003), 0, 0.5), { type: 'stop' })
  assert.deepEqual(decide(refused(403, 'DEVICE_DECOMMISSIONED'), 0, 0.5), { type: 'stop' })
})

test('a bad token waits the longest back-off at once, and never stops the agent', () => {
  for (const ending of [closed(4001), refused(401, 'UNAUTHENTICATED'), refused(404, 'NOT_FOUND')]) {
    assert.deepEqual(decide(ending, 0, 0), { type: 'retry', delayMs: 24_000 })
    assert.deepEqual(decide(ending, 9, 1), { type: 'retry', delayMs: 30_000 })
  }
})

test('a suspended organization is asked again after 10 minutes, spread over one more', () => {
  for (const ending of [closed(4004), refused(403, 'ORGANIZATION_SUSPENDED')]) {
    assert.deepEqual(decide(ending, 0, 0), { type: 'retry', delayMs: 600_000 })
    assert.deepEqual(decide(ending, 0, 1), { type: 'retry', delayMs: 660_000 })
  }
})

test('Retry-After is the least wait, with jitter on top and a bound', () => {
  for (const status of [429, 503]) {
    assert.deepEqual(decide(refused(status, '', 20), 1, 0), { type: 'retry', delayMs: 20_000 })
    assert.deepEqual(decide(refused(status, '', 20), 1, 0.5), { type: 'retry', delayMs: 21_000 })
    assert.deepEqual(decide(refused(status, '', 1e9), 0, 0), { type: 'retry', delayMs: 3_600_000 })
  }
})

test('every other ending retries with full jitter', () => {
  const endings: Ending[] = [
    ...[1001, 1006, 1009, 1012, 1013, 4002, 4008, 4029].map(closed),
    refused(426, 'UPGRADE_REQUIRED'),
    refused(503, 'UNAVAILABLE'),
    { type: 'unreachable' },
    { type: 'silent' },
  ]
  for (const ending of endings) {
    assert.deepEqual(decide(ending, 2, 0.5), { type: 'retry', delayMs: 2000 })
  }
})
