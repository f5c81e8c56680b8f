// What a group's counts mean, by value, and what must hold for any counts.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { judge, openOf, type Group } from '../workers/verdicts.ts'

const none = {
  running: 0,
  completed: 0,
  failed: 0,
  timeout: 0,
  expired: 0,
  cancelled: 0,
  skipped: 0,
}

function group(counts: Partial<Group>): Group {
  const thresholds = { successThreshold: 80, errorThreshold: 20 }
  return { number: 1, devices: 10, despite: false, ...none, ...thresholds, ...counts }
}

const verdict = (counts: Partial<Group>) => judge(group(counts)).type

describe('a group', () => {
  test('waits while neither threshold is met', () => {
    assert.equal(verdict({}), 'wait')
    assert.equal(verdict({ running: 3, completed: 7 }), 'wait')
    assert.equal(verdict({ running: 2, completed: 7, failed: 1 }), 'wait')
  })

  test('passes once enough are upgraded, whatever the rest does', () => {
    assert.equal(verdict({ completed: 8, running: 2 }), 'passed')
    assert.equal(verdict({ completed: 8 }), 'passed')
    assert.equal(verdict({ completed: 9, failed: 1 }), 'passed')
  })

  test('halts at the error threshold, at once and also after it passed', () => {
    assert.equal(verdict({ failed: 1, timeout: 1 }), 'halt')
    assert.equal(verdict({ completed: 8, failed: 2 }), 'halt')
    const { reason } = judge(group({ failed: 2 })) as { reason: string }
    assert.equal(reason, '2 of 10 devices of group 1 failed; its error threshold is 20 %')
  })

  test('halts when its success threshold is out of reach', () => {
    const counts = { errorThreshold: 90, successThreshold: 95, completed: 5, failed: 1 }
    const { reason } = judge(group(counts)) as { reason: string }
    assert.equal(
      reason,
      '1 of 10 devices of group 1 failed; its success threshold of 95 % is out of reach',
    )
  })

  test('does not count who was skipped, cancelled or never there', () => {
    assert.equal(verdict({ skipped: 5, expired: 2, cancelled: 1, completed: 2 }), 'passed')
    assert.equal(verdict({ skipped: 5, failed: 1 }), 'halt')
    assert.equal(verdict({ skipped: 10 }), 'passed')
    assert.equal(verdict({ devices: 0 }), 'passed')
  })

  test('of which nobody was reached proves nothing, and halts', () => {
    assert.equal(verdict({ skipped: 4, expired: 5, cancelled: 1 }), 'halt')
    assert.equal(verdict({ expired: 10 }), 'halt')
  })

  test('that was resumed despite its errors passes with its success, or when all have ended', () => {
    const despite = true
    assert.equal(verdict({ despite, failed: 5, running: 5 }), 'wait')
    assert.equal(verdict({ despite, failed: 5, completed: 5 }), 'passed')
    assert.equal(verdict({ despite, expired: 10 }), 'passed')
    assert.equal(verdict({ despite, failed: 1, completed: 8, running: 1 }), 'passed')
  })
})

const counts = fc
  .record({
    pending: fc.nat(20),
    running: fc.nat(20),
    completed: fc.nat(20),
    failed: fc.nat(20),
    timeout: fc.nat(20),
    expired: fc.nat(20),
    cancelled: fc.nat(20),
    skipped: fc.nat(20),
    successThreshold: fc.integer({ min: 1, max: 100 }),
    errorThreshold: fc.integer({ min: 1, max: 100 }),
    despite: fc.boolean(),
  })
  .map(({ pending, successThreshold, errorThreshold, despite, ...ends }): Group => {
    const devices = pending + Object.values(ends).reduce((all, count) => all + count, 0)
    return { number: 1, devices, successThreshold, errorThreshold, despite, ...ends }
  })

test('no group waits for nothing: what has ended in full passes or halts', () => {
  fc.assert(
    fc.property(counts, (given) => {
      if (openOf(given) === 0) assert.notEqual(judge(given).type, 'wait')
    }),
  )
})

test('another success never turns a pass into anything else, another failure never a halt', () => {
  fc.assert(
    fc.property(counts, (given) => {
      fc.pre(given.running > 0)
      const { type } = judge(given)
      const running = given.running - 1
      if (type === 'passed') {
        assert.equal(judge({ ...given, running, completed: given.completed + 1 }).type, 'passed')
      }
      if (type === 'halt') {
        assert.equal(judge({ ...given, running, failed: given.failed + 1 }).type, 'halt')
      }
    }),
  )
})

test('nobody is halted twice: a resumed group never halts', () => {
  fc.assert(
    fc.property(counts, (given) => {
      assert.notEqual(judge({ ...given, despite: true }).type, 'halt')
    }),
  )
})
