// The lane of command states: what it puts into one statement.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { CommandWrites, type CommandWrite } from '../workers/command_writes.ts'
import { commandsSql, plainCommandsSql } from '../workers/statements.ts'

const ended = { status: 'completed', result: '{}', completedMs: 1 } as const

/** A lane, and what it asks of PostgreSQL, which answers the first statement when it is told to. */
function laneOf() {
  const statements: { sql: string; ids: string[] }[] = []
  const first = Promise.withResolvers<void>()
  const db = {
    async query(sql: string, values: string[]) {
      statements.push({ sql, ids: (values[0] ?? '').slice(1, -1).split(',') })
      if (statements.length === 1) await first.promise
      return []
    },
  } as unknown as Database
  const events = { onCommands: () => {}, onBatch: () => {}, onProblem: () => {} }
  const lane = new CommandWrites(db, events, new AbortController().signal)
  return { lane, statements, answer: first.resolve }
}

function write(id: string, epoch: number, more: Partial<CommandWrite> = {}): CommandWrite {
  return {
    id,
    epoch,
    deviceId: newId(),
    status: 'sent',
    result: null,
    attempts: 1,
    createdMs: 1,
    sentMs: 1,
    deliveredMs: null,
    startedMs: null,
    completedMs: null,
    awaited: false,
    loaded: false,
    plain: true,
    ...more,
  }
}

test('an end of one connection and a state of the next are never in one statement', async () => {
  const { lane, statements, answer } = laneOf()
  const [other, id] = [newId(), newId()]
  lane.push(write(other, 1, ended))
  lane.push(write(id, 1, ended))
  lane.push(write(id, 2))
  // Until the state is due, while the first statement is under way.
  await sleep(2 * limits.progressDelayMs)
  answer()
  await lane.drained()
  assert.deepEqual(
    statements.map(({ ids }) => ids),
    [[other], [id], [id]],
  )
})

test('one upgrade or execution in a batch, and the statement counts and tells of it', async () => {
  const { lane, statements, answer } = laneOf()
  const [first, plain, special] = [newId(), newId(), newId()]
  lane.push(write(first, 1, ended))
  lane.push(write(plain, 1, ended))
  lane.push(write(special, 1, { ...ended, plain: false }))
  answer()
  await lane.drained()
  assert.deepEqual(statements, [
    { sql: plainCommandsSql, ids: [first] },
    { sql: commandsSql, ids: [plain, special] },
  ])
})
