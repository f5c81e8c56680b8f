// Checks of the store: which answers of PostgreSQL reach the actor that asked, and which are asked for anew.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import type { Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { openDevice } from '../workers/device_state.ts'
import { Store, type StoreEvents } from '../workers/store.ts'

const deviceId = newId()
const actor = (conn: number, id = deviceId) =>
  openDevice({ deviceId: id, orgId: newId(), conn, resumed: false }, 0, 0)

/** A store whose checks are answered one by one: each command that is asked for is open, and this device's. */
function storeOf(onTold: (id: string) => void = () => {}) {
  const reads: { ids: string[]; answer: () => void }[] = []
  const told: string[] = []
  const problems: string[] = []
  const db = {
    async query(_sql: string, [texts = '']: string[]) {
      const ids = texts.slice(1, -1).split(',')
      const { promise, resolve } = Promise.withResolvers<void>()
      reads.push({ ids, answer: resolve })
      await promise
      return ids.map((id) => ({ deviceId, command: { id } }))
    },
  } as unknown as Database
  const events = {
    onBatch: () => {},
    onProblem: (message: string) => problems.push(message),
    onChecked: (checked: Parameters<StoreEvents['onChecked']>[0]) => {
      for (const { asker, id, stored } of checked) {
        if (stored) onTold(id)
        told.push(`${id}${stored ? '' : ' is not open'} to ${asker.conn}`)
      }
    },
  } as unknown as StoreEvents
  const store = new Store(db, newId(), events)
  /** Answers the n-th read, and lets what follows from it happen. */
  const answer = async (n: number) => {
    reads[n]?.answer()
    for (let turns = 0; turns < 20; turns++) await turn()
  }
  return { store, reads, told, problems, answer }
}

test('an answer that is older than what became of the command is asked for anew', async () => {
  const { store, reads, told, answer } = storeOf()
  const [id, other] = [newId(), newId()]
  store.checks.check(actor(1), id)
  await answer(-1)
  store.checks.check(actor(1), other)
  store.checks.outdate(id)
  await answer(0)
  assert.deepEqual(told, [])
  assert.deepEqual(
    reads.map(({ ids }) => ids),
    [[id], [other, id]],
  )
  await answer(1)
  assert.deepEqual(told, [`${other} to 1`, `${id} to 1`])
  // What is settled is not kept.
  store.checks.outdate(id)
  store.checks.check(actor(1), id)
  await answer(2)
  assert.equal(told.at(-1), `${id} to 1`)
  assert.equal(reads.length, 3)
})

test('the last who asked is told, of what was read after that; a foreign command is none', async () => {
  const { store, reads, told, answer } = storeOf()
  const [id, foreign] = [newId(), newId()]
  store.checks.check(actor(1), id)
  await answer(-1)
  store.checks.check(actor(2), id)
  store.checks.check(actor(3, newId()), foreign)
  await answer(0)
  await answer(1)
  await answer(2)
  assert.deepEqual(told, [`${foreign} is not open to 3`, `${id} to 2`])
  assert.equal(reads.flatMap(({ ids }) => ids).filter((read) => read === id).length, 2)
})

test('an actor that breaks takes no answer from the others', async () => {
  const ids = [newId(), newId(), newId(), newId()]
  const { store, reads, told, problems, answer } = storeOf((id) => {
    if (id === ids[1]) throw new Error('broken')
  })
  for (const id of ids) store.checks.check(actor(1), id)
  for (let n = 0; n < 12; n++) await answer(n)
  assert.deepEqual(
    ids.map((id) => told.includes(`${id} to 1`)),
    [true, false, true, true],
  )
  assert.ok(told.includes(`${ids[1]} is not open to 1`), 'it does not wait for ever')
  assert.equal(problems.length, 1)
  const before = reads.length
  store.checks.check(actor(1), ids[1] ?? '')
  await answer(-1)
  assert.equal(reads.length, before + 1, 'it may be asked for again')
})
