// What a journal replays to, by value.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { executedIdMsMax, executedIdsMax } from '../../agent/limits.ts'
import { apply, briefResult, forget, replay, snapshot } from '../../agent/ledger.ts'
import type { JournalRecord, Ledger } from '../../agent/ledger.ts'

const end = { status: 'completed', exitCode: 0, error: null } as const

function commandRecord(id: string): JournalRecord {
  const fields = { action: 'run_command', payload: { secret: 1 }, attempt: 1, timeoutSeconds: 9 }
  return { type: 'command', command: { type: 'command', id, ...fields }, at: 1 }
}

function life(id: string): JournalRecord[] {
  return [
    commandRecord(id),
    { type: 'started', id, at: 2 },
    { type: 'process', id, process: { pid: 7, startTime: 's' } },
    { type: 'result', result: { type: 'result', id, status: 'completed', exitCode: 0 }, at: 3 },
    { type: 'acked', id, at: 4 },
  ]
}

function text(records: Iterable<JournalRecord>): string {
  return [...records].map((record) => `${JSON.stringify(record)}\n`).join('')
}

test('each record moves its command one phase on', () => {
  const phases = life('a').map((_, count) => {
    return replay(text(life('a').slice(0, count + 1))).ledger.get('a')?.phase
  })
  assert.deepEqual(phases, ['waiting', 'running', 'running', 'ended', 'done'])
})

test('a torn last line, wherever it is torn, costs at most its own record', () => {
  const whole = text(life('a'))
  const lastLine = whole.lastIndexOf('\n', whole.length - 2) + 1
  for (let at = lastLine + 1; at < whole.length - 1; at++) {
    const { ledger, broken } = replay(whole.slice(0, at))
    assert.deepEqual([ledger.get('a')?.phase, broken], ['ended', 1])
  }
})

test('replaying any records again changes nothing', () => {
  const records = fc.shuffledSubarray([...life('a'), ...life('b')])
  fc.assert(
    fc.property(records, (some) => {
      const once = replay(text(some)).ledger
      const twice = replay(text(some) + text(some)).ledger
      // A record may have come too early for its phase; that it is repeated may only help it on.
      for (const [id, entry] of once) {
        const order = ['waiting', 'running', 'ended', 'done']
        assert.ok(order.indexOf(twice.get(id)?.phase ?? '') >= order.indexOf(entry.phase))
      }
    }),
  )
})

test('a snapshot replays to the same ledger, without payloads of what was started', () => {
  for (const count of [1, 2, 3, 4, 5]) {
    const { ledger } = replay(text(life('a').slice(0, count)))
    const written = text(snapshot(ledger))
    assert.equal(written.includes('secret'), count === 1)
    assert.equal(replay(written).ledger.get('a')?.phase, ledger.get('a')?.phase)
  }
})

test('ids are forgotten after 31 days, and the oldest first when there are too many', () => {
  const ledger: Ledger = new Map()
  apply(ledger, { type: 'end', id: 'old', end, at: 0 })
  apply(ledger, { type: 'end', id: 'young', end, at: 1000 })
  apply(ledger, commandRecord('open'))
  forget(ledger, executedIdMsMax + 500)
  assert.deepEqual([...ledger.keys()], ['young', 'open'])
  for (let at = 0; at < executedIdsMax; at++) {
    apply(ledger, { type: 'end', id: `e${at}`, end, at: 2000 })
  }
  forget(ledger, 3000)
  assert.equal(ledger.size, executedIdsMax)
  assert.ok(!ledger.has('young') && ledger.has('open') && ledger.has(`e${executedIdsMax - 1}`))
})

test('the brief answer says how it ended and that more was said', () => {
  const failed = { status: 'failed', exitCode: 3, error: 'exit code 3' } as const
  assert.deepEqual(briefResult('a', failed), {
    type: 'result',
    id: 'a',
    ...failed,
    truncated: true,
  })
})
