// Batches that form by themselves: what many callers share of one statement.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Batcher, type BatcherOptions } from '../src/batch.ts'

/** Writes end when the test says so. */
function held(options: Partial<BatcherOptions<string>>) {
  const begun: string[][] = []
  const ends: (() => void)[] = []
  const batcher = new Batcher<string>({
    rowsMax: 3,
    queueMax: 100,
    inFlight: 1,
    write: (items) => {
      begun.push(items)
      const { promise, resolve } = Promise.withResolvers<void>()
      ends.push(resolve)
      return promise
    },
    ...options,
  })
  const push = (...items: string[]) => items.map((item) => batcher.push(item))
  /** Of the write that began first. */
  const end = async () => {
    ends.shift()?.()
    await new Promise(setImmediate)
  }
  return { batcher, begun, push, end }
}

test('what arrives while a write is under way is the next batch, as large as one may be', async () => {
  const { begun, push, end } = held({})
  push('a', 'b', 'c', 'd', 'e')
  assert.deepEqual(begun, [['a']])
  await end()
  assert.deepEqual(begun, [['a'], ['b', 'c', 'd']])
  await end()
  assert.deepEqual(begun, [['a'], ['b', 'c', 'd'], ['e']])
})

test('a batch ends before it holds too many bytes; one item alone may', async () => {
  const { begun, push, end } = held({ rowsMax: 10, bytesMax: 4, bytesOf: ({ length }) => length })
  push('a', 'bb', 'cc', 'ddddddd', 'e')
  for (let n = 0; n < 3; n++) await end()
  assert.deepEqual(begun, [['a'], ['bb', 'cc'], ['ddddddd'], ['e']])
})

test('as many writes are under way as may be, and what waits beyond its bound is refused', async () => {
  const { batcher, begun, push, end } = held({ inFlight: 2, queueMax: 2 })
  assert.deepEqual(push('a', 'b', 'c', 'd', 'e'), [true, true, true, true, false])
  assert.deepEqual(begun, [['a'], ['b']])
  assert.equal(batcher.queued, 2)
  await end()
  assert.deepEqual(begun, [['a'], ['b'], ['c', 'd']])
})

test('a batch waits for others until the gap is over, but not once it is full', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { begun, push, end } = held({ gapMs: 3_600_000 })
  push('a')
  await end()
  push('b', 'c')
  assert.deepEqual(begun, [['a']])
  push('d')
  assert.deepEqual(begun, [['a'], ['b', 'c', 'd']])
  push('e', 'f', 'g', 'h')
  await end()
  assert.deepEqual(begun, [['a'], ['b', 'c', 'd'], ['e', 'f', 'g']])
  await end()
  assert.equal(begun.length, 3)
})

test('it is drained when nothing waits and nothing is under way', async () => {
  const { batcher, push, end } = held({})
  await batcher.drained()
  push('a', 'b')
  let isDrained = false
  const drained = batcher.drained().then(() => (isDrained = true))
  await end()
  assert.equal(isDrained, false)
  await end()
  await drained
})
