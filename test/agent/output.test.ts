// Bounded text and result frames, by value.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { lastEncoded } from '../../agent/actions/collect_logs.ts'
import { errorBytesMax, frameBytesMax, outputBytesMax } from '../../agent/limits.ts'
import { BoundedText, cutEncoded, encodedBytes } from '../../agent/output.ts'
import { makeResult, withoutOutput } from '../../agent/result.ts'

const anyText = fc.string({ unit: 'binary', maxLength: 60 })

test('encoded bytes count every escape', () => {
  assert.equal(encodedBytes('a'), 1)
  assert.equal(encodedBytes('\0'), 6)
  assert.equal(encodedBytes('"\\\n'), 6)
  assert.equal(encodedBytes('é€😀'), 9)
})

test('a cut is the longest beginning that fits, in whole characters', () => {
  assert.equal(cutEncoded('a\0b', 7), 'a\0')
  assert.equal(cutEncoded('a\0b', 6), 'a')
  assert.equal(cutEncoded('😀😀', 7), '😀')
  fc.assert(
    fc.property(anyText, fc.nat(100), (text, bytesMax) => {
      const cut = cutEncoded(text, bytesMax)
      const rest = text.codePointAt(cut.length)
      return (
        text.startsWith(cut) &&
        encodedBytes(cut) <= bytesMax &&
        (rest === undefined || encodedBytes(cut + String.fromCodePoint(rest)) > bytesMax)
      )
    }),
  )
})

test('an end of a text fits as well', () => {
  assert.equal(lastEncoded('one\ntwo\nthree', 9), 'three')
  fc.assert(
    fc.property(anyText, fc.nat(100), (text, bytesMax) => {
      const cut = lastEncoded(text, bytesMax)
      return (
        encodedBytes(cut) <= bytesMax && text.toWellFormed().endsWith(cut.replace(/^\uFFFD/, ''))
      )
    }),
  )
})

test('chunks add up to the text, wherever they are split', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), fc.array(fc.nat(40)), (text, splits) => {
      const bytes = Buffer.from(text)
      const collected = new BoundedText(10_000)
      let at = 0
      let live = ''
      for (const length of splits) {
        live += collected.push(bytes.subarray(at, at + length))
        at += length
      }
      live += collected.push(bytes.subarray(at)) + collected.end()
      return collected.text === text && live === text && !collected.truncated
    }),
  )
})

test('after the cut nothing more is kept, not even what would fit', () => {
  const text = new BoundedText(5)
  assert.equal(text.push(Buffer.from('abc\0')), 'abc')
  assert.equal(text.push(Buffer.from('d')), '')
  assert.deepEqual([text.text, text.truncated], ['abc', true])
})

test('the largest result fits into one frame', () => {
  const huge = '\0'.repeat(2 ** 20)
  const data = 'x'.repeat(2 ** 20 - 2)
  const outcome = { status: 'failed', stdout: huge, stderr: huge, error: huge, data } as const
  const frame = makeResult('id', outcome, 1.6)
  assert.ok(Buffer.byteLength(JSON.stringify(frame)) <= frameBytesMax)
  assert.ok(encodedBytes(frame.stdout ?? '') <= outputBytesMax)
  assert.ok(encodedBytes(frame.error ?? '') <= errorBytesMax)
  assert.deepEqual([frame.truncated, frame.durationMs, frame.data], [true, 2, data])
  assert.equal('data' in makeResult('id', { status: 'completed', data: `${data}x` }, 0), false)
})

test('a result without its output keeps its end', () => {
  const frame = makeResult('id', { status: 'failed', exitCode: 3, stdout: 'x', error: 'e' }, 5)
  const { stdout, truncated, status, exitCode, error } = withoutOutput(frame)
  assert.deepEqual([stdout, truncated, status, exitCode, error], ['', true, 'failed', 3, 'e'])
})
