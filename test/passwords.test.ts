import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, test } from 'node:test'
import { AppError } from '../src/errors.ts'
import { limits } from '../src/limits.ts'
import { passwords } from '../src/passwords.ts'

const pool = passwords({ threads: 1 })
after(() => pool.close())

test('a password fits its own hash and no other', async () => {
  const phc = await pool.hash('correct horse battery staple')
  assert.match(phc, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$[\w+/]{22}\$[\w+/]{43}$/)
  assert.equal(await pool.verify('correct horse battery staple', phc), true)
  assert.equal(await pool.verify('correct horse battery stapler', phc), false)
  assert.equal(await pool.verify('', phc), false)
  assert.notEqual(await pool.hash('correct horse battery staple'), phc)
})

test('a string that another implementation made fits, with its own parameters', async () => {
  // A test vector of the reference implementation (argon2id, "password", "somesalt").
  const phc =
    '$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc'
  assert.equal(await pool.verify('password', phc), true)
  assert.equal(await pool.verify('Password', phc), false)
})

test('nobody can sign in as a user without a password', async () => {
  assert.equal(await pool.verify('', null), false)
  assert.equal(await pool.verify('\u0000'.repeat(32), null), false)
})

test('a user who does not exist costs a whole verification', async () => {
  const cost = async (phc: string | null) => {
    const before = process.cpuUsage()
    for (let n = 0; n < 5; n++) await pool.verify('a wrong password', phc)
    const { user, system } = process.cpuUsage(before)
    return user + system
  }
  const phc = await pool.hash('something else entirely')
  await cost(phc)
  const [known, unknown] = [await cost(phc), await cost(null)]
  // CPU, not time: a busy machine slows both. Skipping the work would be a hundredth.
  assert.ok(unknown > known / 3, `unknown ${unknown} µs, known ${known} µs`)
})

test('a full queue refuses at once and what waits is still done', async () => {
  const small = passwords({ threads: 1, queueMax: 2 })
  try {
    const outcomes = await Promise.allSettled(
      Array.from({ length: 12 }, () => small.hash('twelve at the same time')),
    )
    const refused = outcomes.filter((outcome) => outcome.status === 'rejected')
    assert.ok(refused.length >= 8 && refused.length <= 10, `${refused.length} were refused`)
    for (const { reason } of refused) {
      assert.ok(reason instanceof AppError)
      assert.equal(reason.code, 'OVERLOADED')
      assert.equal(reason.retryAfterSeconds, 2)
    }
    assert.match(await small.hash('and again afterwards'), /^\$argon2id/)
  } finally {
    await small.close()
  }
})

test('hashing threads yield to the front', { skip: process.platform !== 'linux' }, async () => {
  await pool.hash('so that the thread runs')
  const nice = readdirSync('/proc/self/task').map((id) => {
    const fields = readFileSync(`/proc/self/task/${id}/stat`, 'utf8').replace(/^.*\) /, '')
    return Number(fields.split(' ')[16])
  })
  const base = Math.min(...nice)
  assert.ok(nice.includes(Math.min(19, base + limits.hashNice)), nice.join(' '))
})

test('what waits when the hub stops is refused, not lost', async () => {
  const stopping = passwords({ threads: 1 })
  const waiting = assert.rejects(
    Promise.all([1, 2, 3].map(() => stopping.hash('never to be finished'))),
    { code: 'UNAVAILABLE' },
  )
  await stopping.close()
  await waiting
})
