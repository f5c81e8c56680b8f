// The clock of a shard: deadlines of actors do not run while the front stands still, or throws heartbeats away.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ShardClock } from '../workers/shard_clock.ts'

const startMs = Date.parse('2026-01-01T00:00:00Z')

/** A clock that has ticked for the first time. */
function ticking(): { clock: ShardClock; tick: (afterMs: number, deaf?: boolean) => void } {
  const clock = new ShardClock()
  const tick = (afterMs: number, deaf = false) => {
    clock.nowMs += afterMs
    clock.tick(deaf)
  }
  clock.nowMs = startMs
  tick(0)
  return { clock, tick }
}

test('time goes on with ticks, and with ticks that are a little late', () => {
  const { clock, tick } = ticking()
  tick(1000)
  tick(1500)
  assert.deepEqual([clock.nowMs, clock.actorMs], [startMs + 2500, startMs + 2500])
})

test('what a tick is late by does not count, but for the second it is due after', () => {
  const { clock, tick } = ticking()
  tick(8000)
  assert.deepEqual([clock.nowMs, clock.actorMs], [startMs + 8000, startMs + 1000])
  tick(1000)
  assert.equal(clock.actorMs, startMs + 2000)
})

test('no time passes while heartbeats are thrown away', () => {
  const { clock, tick } = ticking()
  tick(1000, true)
  tick(4000, true)
  assert.equal(clock.actorMs, startMs)
  tick(1000)
  assert.deepEqual([clock.stalledMs, clock.actorMs], [5000, startMs + 1000])
})
