// Hysteresis, for any measurements and any change of thresholds.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { afterCrossings, clearsAt, crossings, highBits } from '../workers/thresholds.ts'

const metrics = ['cpuPercent', 'memoryPercent', 'diskPercent'] as const
const percent = fc.oneof(
  fc.integer({ min: 0, max: 100 }),
  fc.double({ min: 0, max: 100, noNaN: true }),
)
const some = (value: fc.Arbitrary<number>) =>
  fc.record({ cpuPercent: value, memoryPercent: value, diskPercent: value }, { requiredKeys: [] })
const thresholds = some(fc.integer({ min: 1, max: 100 }))
const beats = fc.array(
  fc.record({ measured: some(percent), changed: fc.option(thresholds, { freq: 8 }) }),
)

test('an alert opens at its threshold, ends at its lower mark, and nothing happens in between', () => {
  fc.assert(
    fc.property(thresholds, beats, (first, plan) => {
      let rules = first
      let bits = 0
      const open = new Set<string>()
      for (const { measured, changed } of plan) {
        rules = changed ?? rules
        const changes = crossings(bits, measured, rules)
        bits = afterCrossings(bits, changes)
        for (const metric of metrics) {
          const value = measured[metric]
          const threshold = rules[metric]
          const was = open.has(metric)
          const change = changes.filter((one) => one.metric === metric)
          const wanted =
            value === undefined
              ? was
              : threshold === undefined
                ? false
                : was
                  ? value > clearsAt(threshold)
                  : value >= threshold
          assert.equal(change.length, wanted === was ? 0 : 1)
          if (change[0]) assert.deepEqual([change[0].high, change[0].value], [wanted, value])
          if (wanted) open.add(metric)
          else open.delete(metric)
        }
        const kinds = [...open].map(
          (metric) =>
            metric.replace('Percent', '_high') as 'cpu_high' | 'memory_high' | 'disk_high',
        )
        assert.equal(bits, highBits(kinds))
      }
    }),
  )
})

test('the lower mark is below every threshold and above zero, so that each alert can end', () => {
  for (let threshold = 1; threshold <= 100; threshold++) {
    assert.ok(clearsAt(threshold) < threshold && clearsAt(threshold) > 0)
  }
  assert.deepEqual([clearsAt(90), clearsAt(50), clearsAt(20)], [85, 45, 18])
})
