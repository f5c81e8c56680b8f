// The lane of command states: what it puts into one statement.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { CommandWrites, type CommandWrite } from '../workers/command_writes.ts'

test('an end of one connection and a state of the next are never in one statement', async () => {
  const statements: string[][] = []
  const first = Promise.withResolvers<void>()
  const db = {
    async query(_text: string, values: string[]) {
      statements.push((values[0] ?? '').slice(1, -1).split(','))
      if (statements.length === 1) await first.promise
      return []
    },
  } as unknown as Database
  const events = { onCommands: () => {}, onBatch: () => {}, onProblem: () => {} }
  const lane = new CommandWrites(db, events, new AbortController().signal)
  const write = (id: string, epoch: number, more: Partial<CommandWrite> = {}): CommandWrite => ({
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
    ...more,
  })
  const [other, id] = [newId(), newId()]
  const ended = { status: 'completed', result: '{}', completedMs: 1 } as const
  lane.push(write(other, 1, ended))
  lane.push(write(id, 1, ended))
  lane.push(write(id, 2))
  // Until the state is due, while the first statement is under way.
  await sleep(2 * limits.progressDelayMs)
  first.resolve()
  await lane.drained()
  assert.deepEqual(statements, [[other], [id], [id]])
})
