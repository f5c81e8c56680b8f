// A recording by itself: pieces that are written again, its end, and how large it may be.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { limits } from '../src/limits.ts'
import { Recording } from '../src/terminal_recorder.ts'

const recording = () => new Recording('a', () => {})

/** Takes all that waits, as if each piece was stored. */
function drain(of: Recording): [number, string, string][] {
  let lines = ''
  for (let chunk = of.take(); chunk; chunk = of.take()) {
    lines += chunk.lines
    of.stored()
  }
  return lines
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line))
}

test('a piece that may be stored already stays the same; what came meanwhile is the next', () => {
  const one = recording()
  one.output(Buffer.from('first'))
  const taken = one.take()
  one.output(Buffer.from('second'))
  assert.deepEqual(one.take(), taken)
  one.stored()
  assert.deepEqual(
    drain(one).map(([, , text]) => text),
    ['second'],
  )
  assert.equal(one.waiting, false)
})

test('half a character at the end is not lost', () => {
  const one = recording()
  one.output(Buffer.from([0x61, 0xc3]))
  one.end()
  assert.deepEqual(
    drain(one).map(([, , text]) => text),
    ['a', '\ufffd'],
  )
})

test('one that may hold no more says so, and is not complete', () => {
  const one = recording()
  const piece = Buffer.alloc(1024 * 1024, 'x')
  let shown = 0
  let kept = 0
  const marks: string[] = []
  while (shown <= limits.recordingBytesMax + 5 * piece.length) {
    one.output(piece)
    shown += piece.length
    for (const [, kind, text] of drain(one)) {
      if (kind === 'm') marks.push(text)
      else kept += text.length
    }
    assert.equal(one.complete, marks.length === 0)
  }
  assert.equal(one.complete, false)
  assert.equal(marks.length, 1)
  assert.ok(kept >= limits.recordingBytesMax - piece.length && kept < shown)
})

test('of sizes that come while there is no room the last one is kept', () => {
  const one = recording()
  one.output(Buffer.alloc(limits.recordingWaitingCharsMax + 1, 'x'))
  for (let cols = 1; cols <= 1000; cols++) one.resize({ cols, rows: 9 })
  assert.deepEqual(
    drain(one)
      .slice(1)
      .map(([, kind, text]) => kind + text),
    ['r1000x9'],
  )
})
