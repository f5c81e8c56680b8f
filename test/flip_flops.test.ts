// When sockets of one device that replace each other are two agents, by a passed clock.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { limits } from '../src/limits.ts'
import { FlipFlops } from '../workers/flip_flops.ts'

test('as many as the bound within its time, for each device alone', () => {
  const flips = new FlipFlops()
  for (let n = 1; n < limits.flipFlopsMax; n++) {
    assert.equal(flips.replaced('a', n), false)
    assert.equal(flips.replaced('b', n), false)
  }
  assert.equal(flips.replaced('a', 1000), true)
  assert.equal(flips.replaced('a', 1001), true)
  assert.equal(flips.replaced('c', 1001), false)
})

test('a network that fails now and then is no twin', () => {
  const flips = new FlipFlops()
  const apartMs = limits.flipFlopMs / (limits.flipFlopsMax - 2)
  for (let n = 0; n < 100; n++) assert.equal(flips.replaced('a', n * apartMs), false)
})

test('the longest silent device is forgotten first', () => {
  const flips = new FlipFlops()
  for (let n = 1; n < limits.flipFlopsMax; n++) flips.replaced('old', n)
  for (let n = 0; n < limits.flipFlopDevicesMax; n++) flips.replaced(`d${n}`, 10)
  assert.equal(flips.replaced('old', 11), false)
})
