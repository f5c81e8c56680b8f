import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { sha256 } from '../src/auth.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { keyFrom, seal, unseal } from '../src/seal.ts'
import { revokeOtherSessions, revokeSession, rotate, startSession } from '../src/sessions.ts'
import { createDatabase } from './support/postgres.ts'

let database: Awaited<ReturnType<typeof createDatabase>>
let db: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 8 })
})
after(async () => {
  await db.close()
  await database.drop()
})

async function newUser(): Promise<string> {
  const id = newId()
  await db.query(
    `insert into users (id, email, role) values ($1::uuid, $1::text, 'platform_admin')`,
    [id],
  )
  return id
}

const signIn = async (userId?: string) =>
  startSession(db, { userId: userId ?? (await newUser()), ip: '192.0.2.7', userAgent: 'test' })

const refresh = (token: string, mayStay = true) =>
  db.transaction((tx) => rotate(tx, token, () => mayStay))

/** Refreshes and returns the successor. */
async function successorOf(token: string): Promise<string> {
  const rotation = await refresh(token)
  assert.equal(rotation.outcome, 'rotated')
  return rotation.refreshToken
}

/** Moves everything about a token into the past. */
async function age(token: string, interval: string): Promise<void> {
  await db.query(
    `update refresh_tokens set rotated_at = rotated_at - $2::interval,
       created_at = created_at - $2::interval, expires_at = expires_at - $2::interval
     where token_hash = $1`,
    [sha256(token), interval],
  )
}

test('each refresh yields another token, and the last one counts', async () => {
  const { refreshToken } = await signIn()
  const second = await successorOf(refreshToken)
  const third = await successorOf(second)
  assert.equal(new Set([refreshToken, second, third]).size, 3)
  assert.match(third, /^mrt_[\w-]{43}$/)
})

test('tokens are stored hashed or sealed, never readable', async () => {
  const { refreshToken } = await signIn()
  const second = await successorOf(refreshToken)
  const [row] = await db.query<{ row: string; successor: Buffer }>(
    'select r::text as row, successor from refresh_tokens r where token_hash = $1',
    [sha256(refreshToken)],
  )
  assert.ok(row)
  for (const text of [row.row, row.successor.toString('latin1')]) {
    assert.ok(!text.includes(refreshToken.slice(4)) && !text.includes(second.slice(4)))
  }
  assert.throws(() => unseal(keyFrom(second, 'refresh token successor'), row.successor))
})

test('two tabs that refresh together get the same successor', async () => {
  for (let round = 0; round < 10; round++) {
    const { refreshToken } = await signIn()
    const tabs = await Promise.all([1, 2, 3, 4, 5, 6].map(() => successorOf(refreshToken)))
    assert.equal(new Set(tabs).size, 1)
    await successorOf(tabs[0] ?? '')
  }
})

test('a replay within the leeway gets the same successor, as long as that is unused', async () => {
  const { refreshToken } = await signIn()
  const second = await successorOf(refreshToken)
  await age(refreshToken, '29 seconds')
  assert.equal(await successorOf(refreshToken), second)
  await successorOf(second)
  assert.equal((await refresh(refreshToken)).outcome, 'reused')
})

test('a replay after the leeway ends the family, also for who holds the newest token', async () => {
  const { refreshToken, sessionId } = await signIn()
  const second = await successorOf(refreshToken)
  await age(refreshToken, '31 seconds')
  const rotation = await refresh(refreshToken)
  assert.equal(rotation.outcome, 'reused')
  assert.equal(rotation.owner.sessionId, sessionId)
  assert.equal((await refresh(second)).outcome, 'ended')
  assert.equal((await refresh(refreshToken)).outcome, 'ended')
})

test('a token ends after 7 days, its family after 30 whatever is done', async () => {
  const { refreshToken, sessionId } = await signIn()
  await age(refreshToken, '7 days')
  assert.equal((await refresh(refreshToken)).outcome, 'ended')

  const family = await signIn()
  await db.query(`update sessions set ends_at = now() + interval '1 day' where id = $1`, [
    family.sessionId,
  ])
  const last = await successorOf(family.refreshToken)
  const [row] = await db.query<{ bounded: boolean }>(
    `select expires_at = ends_at as bounded from refresh_tokens r join sessions s on s.id = session_id
     where token_hash = $1`,
    [sha256(last)],
  )
  assert.equal(row?.bounded, true, 'a successor outlives its family')
  await db.query('update sessions set ends_at = now() where id = $1', [family.sessionId])
  assert.equal((await refresh(last)).outcome, 'ended')
  assert.notEqual(family.sessionId, sessionId)
})

test('an unknown token, and one that was changed by a character, are no tokens', async () => {
  const { refreshToken } = await signIn()
  const last = refreshToken.endsWith('A') ? 'B' : 'A'
  for (const token of ['', 'x', refreshToken.slice(0, -1), `${refreshToken.slice(0, -1)}${last}`]) {
    assert.equal((await refresh(token)).outcome, 'ended')
  }
  await successorOf(refreshToken)
})

test('who may not stay is refused and nothing changes', async () => {
  const { refreshToken } = await signIn()
  assert.equal((await refresh(refreshToken, false)).outcome, 'refused')
  await successorOf(refreshToken)
})

test('a session ends once; the others of its user end together', async () => {
  const userId = await newUser()
  const [kept, first, second] = [await signIn(userId), await signIn(userId), await signIn(userId)]
  const stranger = await signIn()
  assert.equal(await revokeSession(db, first.sessionId), true)
  assert.equal(await revokeSession(db, first.sessionId), false)
  assert.deepEqual(await revokeOtherSessions(db, userId, kept.sessionId), [second.sessionId])
  assert.equal((await refresh(first.refreshToken)).outcome, 'ended')
  assert.equal((await refresh(second.refreshToken)).outcome, 'ended')
  await successorOf(kept.refreshToken)
  await successorOf(stranger.refreshToken)
})

test('what was sealed opens with its key, and not after a bit changed', () => {
  const key = keyFrom('a secret', 'test')
  for (const plain of ['', 'x', 'ü\u0000'.repeat(500)]) {
    const sealed = seal(key, plain)
    assert.equal(unseal(key, sealed), plain)
    assert.notDeepEqual(seal(key, plain), sealed)
    for (const at of [0, 12, sealed.length - 1]) {
      const changed = Buffer.from(sealed)
      changed[at] = (changed[at] ?? 0) ^ 1
      assert.throws(() => unseal(key, changed))
    }
    assert.throws(() => unseal(keyFrom('a secret', 'other'), sealed))
    assert.throws(() => unseal(key, sealed.subarray(0, 20)))
  }
})
