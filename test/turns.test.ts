// Turns of the event loop: how much is begun in each, in which order, and that nobody waits without need.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Turns } from '../src/turns.ts'

const turn = () => new Promise(setImmediate)

test('so many are admitted in a turn, the others in the order in which they came', async () => {
  const turns = new Turns(3)
  const admitted: number[] = []
  const asked = Array.from({ length: 8 }, async (_, n) => {
    await turns.take()
    admitted.push(n)
  })
  await Promise.resolve()
  assert.deepEqual(admitted, [0, 1, 2])
  await turn()
  assert.deepEqual(admitted, [0, 1, 2, 3, 4, 5])
  await turn()
  assert.deepEqual(admitted, [0, 1, 2, 3, 4, 5, 6, 7])
  await Promise.all(asked)
})

test('who comes later takes what is left of a turn, and never passes those who wait', async () => {
  const turns = new Turns(3)
  const admitted: string[] = []
  const ask = async (name: string) => {
    await turns.take()
    admitted.push(name)
  }
  const asked = ['a', 'b', 'c', 'd'].map(ask)
  await turn()
  asked.push(...['e', 'f', 'g'].map(ask))
  await Promise.resolve()
  assert.deepEqual(admitted, ['a', 'b', 'c', 'd', 'e', 'f'])
  await turn()
  assert.deepEqual(admitted, ['a', 'b', 'c', 'd', 'e', 'f', 'g'])
  await Promise.all(asked)
})

test('who is alone does not wait', async () => {
  const turns = new Turns(2)
  for (let n = 0; n < 5; n++) {
    assert.equal(turns.take(), undefined)
    await turn()
  }
  assert.equal(turns.take(), undefined)
  assert.equal(turns.take(), undefined)
  const third = turns.take()
  assert.ok(third)
  await third
})
