// The mail to a shard: one message for a turn, in order, no more of them under way than the bound, nothing lost.
import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { limits } from '../src/limits.ts'
import { Mailbox } from '../src/mailbox.ts'
import type { ToShard } from '../src/protocol.ts'

/** A mailbox whose shard takes nothing but when it is told to; its timers run by `tick`. */
function mailboxOf(t: TestContext) {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const delivered: ToShard[][] = []
  const mailbox = new Mailbox((mail) => delivered.push(mail))
  const counter = new Int32Array(mailbox.confirmed)
  const confirm = (batches: number) => Atomics.add(counter, 0, batches)
  const tick = (ms: number) => t.mock.timers.tick(ms)
  return { mailbox, delivered, confirm, tick }
}

test('what one turn brings is one message, in order; what may wait goes with it, or a moment later', async (t) => {
  const { mailbox, delivered, tick } = mailboxOf(t)
  mailbox.frame(1, 'can wait', true)
  await turn()
  assert.deepEqual(delivered, [])
  mailbox.frame(2, 'a', false)
  mailbox.post({ type: 'gc' })
  mailbox.frame(3, 'b', true)
  await turn()
  assert.deepEqual(delivered, [[1, 'can wait', 2, 'a', { type: 'gc' }, 3, 'b']])
  mailbox.frame(4, 'c', true)
  tick(limits.heartbeatGapMs)
  assert.deepEqual(delivered.slice(1), [[4, 'c']])
})

test('a shard that takes nothing has the most it may have under way; the rest comes when it takes, all of it', async (t) => {
  const { mailbox, delivered, confirm, tick } = mailboxOf(t)
  const sent: string[] = []
  const send = async () => {
    const text = `frame ${sent.length}`
    sent.push(text)
    mailbox.frame(1, text, false)
    await turn()
  }
  while (sent.length < 2 * limits.shardBatchesMax) await send()
  assert.equal(delivered.length, limits.shardBatchesMax)
  tick(limits.shardLookMs)
  assert.equal(delivered.length, limits.shardBatchesMax)
  confirm(1)
  tick(limits.shardLookMs)
  assert.equal(delivered.length, limits.shardBatchesMax + 1)
  assert.deepEqual(
    delivered.flat().filter((entry) => entry !== 1),
    sent,
  )
})

test('no message is longer than the bound, also of what waited', async (t) => {
  const { mailbox, delivered, confirm, tick } = mailboxOf(t)
  for (let n = 0; n < limits.shardBatchesMax; n++) {
    mailbox.frame(n, 'x', false)
    await turn()
  }
  const frames = 3 * limits.shardBatchFramesMax + 1
  for (let n = 0; n < frames; n++) mailbox.frame(n, 'y', false)
  await turn()
  confirm(limits.shardBatchesMax)
  tick(limits.shardLookMs)
  const late = delivered.slice(limits.shardBatchesMax)
  assert.deepEqual(
    late.map((mail) => mail.length / 2),
    [...Array.from({ length: 3 }, () => limits.shardBatchFramesMax), 1],
  )
})

test('bytes count until they are confirmed: first heartbeats are dropped, then senders', async (t) => {
  const { mailbox, confirm } = mailboxOf(t)
  const text = 'x'.repeat(1024 * 1024)
  const fill = async (bytes: number) => {
    for (let sum = 0; sum < bytes; sum += text.length) mailbox.frame(1, text, false)
    await turn()
  }
  assert.equal(mailbox.pressure(), 'none')
  await fill(limits.shardBusyBytes)
  assert.equal(mailbox.pressure(), 'busy')
  await fill(limits.shardBytesMax - limits.shardBusyBytes)
  assert.equal(mailbox.pressure(), 'full')
  assert.ok(mailbox.behindMs() >= 0)
  confirm(1)
  assert.equal(mailbox.pressure(), 'busy')
  confirm(1)
  assert.equal(mailbox.pressure(), 'none')
  assert.equal(mailbox.behindMs(), 0)
})

test('the end waits for nothing, and comes last', async (t) => {
  const { mailbox, delivered } = mailboxOf(t)
  for (let n = 0; n < 2 * limits.shardBatchesMax; n++) {
    mailbox.frame(n, 'x', false)
    await turn()
  }
  mailbox.end()
  mailbox.post({ type: 'stop' })
  await turn()
  const all = delivered.flat()
  assert.equal(all.length, 4 * limits.shardBatchesMax + 1)
  assert.deepEqual(all.at(-1), { type: 'stop' })
})
