// What the hub reads of PostgreSQL into memory that it uses again: nothing may be overwritten before it is understood.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import * as fc from 'fast-check'
import pg from 'pg'
import { messageEnds } from '../src/database_socket.ts'
import { connection } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { createDatabase } from './support/postgres.ts'

test('a read is known to end with a message, however the messages were cut', () => {
  const bodies = fc.array(fc.constantFrom(0, 1, 3, 4, 5, 250, 300, 70_000), {
    minLength: 1,
    maxLength: 5,
  })
  fc.assert(
    fc.property(
      bodies,
      fc.array(fc.integer({ min: 1, max: 400 }), { maxLength: 40 }),
      (sizes, cuts) => {
        const ends = new Set<number>()
        let at = 0
        const messages = sizes.map((size) => {
          const message = Buffer.alloc(5 + size, 0xff)
          message.writeUInt32BE(size + 4, 1)
          ends.add((at += message.length))
          return message
        })
        const bytes = Buffer.concat(messages)
        const follow = messageEnds()
        let from = 0
        for (const cut of [...cuts, bytes.length]) {
          const to = Math.min(from + cut, bytes.length)
          if (to === from) break
          assert.equal(follow(bytes.subarray(from, to)), ends.has(to), `${from} to ${to}`)
          from = to
        }
      },
    ),
  )
})

test('rows of every size come whole, one after the other and in the middle of a read', async () => {
  const database = await createDatabase()
  const client = new pg.Client(connection({ url: database.url, name: 'reads' }))
  await client.connect()
  try {
    // From a read that holds many messages to messages of many reads.
    for (const [rows, chars] of [
      [5000, 40],
      [200, 7_000],
      [5, limits.databaseReadBytes - 11],
      [3, 5 * limits.databaseReadBytes],
    ] as const) {
      const salt = randomBytes(8).toString('hex')
      const { rows: read } = await client.query<{ n: number; text: string }>(
        `select n, rpad(md5($1 || n), $2, md5(n || $1)) as text from generate_series(1, $3::int) n`,
        [salt, chars, rows],
      )
      assert.equal(read.length, rows)
      for (const [index, { n, text }] of read.entries()) {
        assert.equal(n, index + 1)
        const fill = md5(`${n}${salt}`)
        assert.equal(
          text,
          (md5(`${salt}${n}`) + fill.repeat(Math.ceil(chars / 32))).slice(0, chars),
        )
      }
    }
    // Many at once on one connection: each answer begins where the one before it ended.
    const many = await Promise.all(
      Array.from({ length: 500 }, (_, n) =>
        client.query<{ text: string }>('select repeat($1, 1000) as text', [String(n % 10)]),
      ),
    )
    for (const [n, { rows: read }] of many.entries()) {
      assert.equal(read[0]?.text, String(n % 10).repeat(1000))
    }
    await assert.rejects(client.query('select 1/0'), /division by zero/)
    await assert.rejects(client.query(`select repeat('x', 100000)::int`), /invalid input syntax/)
  } finally {
    await client.end()
    await database.drop()
  }
})

function md5(text: string): string {
  return createHash('md5').update(text).digest('hex')
}
