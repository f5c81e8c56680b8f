// A PostgreSQL that took a statement and never answers, as one whose machine froze: its own deadline is silent too.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import { limits } from '../src/limits.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'

let database: TestDatabase
let db: Database

before(async () => {
  database = await createDatabase({ migrated: false })
  const options = { role: 'owner', connections: 2, statementMsMax: 300 } as const
  db = openDatabase({ url: database.url, name: 'silent', ...options })
})
after(async () => {
  await db.close()
  await database.drop()
})

const backendOf = async (queryable: Pick<Database, 'query'>): Promise<number> => {
  const [row] = await queryable.query<{ pid: number }>('select pg_backend_pid() as pid')
  assert.ok(row)
  return row.pid
}

const isAway = (error: unknown) => error instanceof AppError && error.code === 'UNAVAILABLE'

test('a statement alone fails in time, and the next one has a connection that answers', async () => {
  const pid = await backendOf(db)
  process.kill(pid, 'SIGSTOP')
  try {
    await assert.rejects(db.query('select 1'), isAway)
    assert.notEqual(await backendOf(db), pid)
    await until('it to be given up', () => db.counts().total === 1)
  } finally {
    process.kill(pid, 'SIGCONT')
  }
})

test('so does one of a transaction, whose connection is not used again', async () => {
  let pid = 0
  const stopped = db.transaction(async (tx) => {
    pid = await backendOf(tx)
    process.kill(pid, 'SIGSTOP')
    await tx.query('select 1')
  })
  try {
    await assert.rejects(stopped, isAway)
    assert.notEqual(await backendOf(db), pid)
  } finally {
    process.kill(pid, 'SIGCONT')
  }
})

test('a transaction that the server ended because nothing came of it is an outage, too', async () => {
  const ended = db.transaction(async (tx) => {
    const pid = await backendOf(tx)
    await tx.query('set local idle_in_transaction_session_timeout = 50')
    process.kill(pid, 'SIGSTOP')
    const next = tx.query('select 1')
    // When it goes on, its timer is due before the statement is read.
    setTimeout(() => process.kill(pid, 'SIGCONT'), 200)
    await next
  })
  await assert.rejects(ended, isAway)
  assert.equal((await db.query('select 1 as one')).length, 1)
})

test('a pool that was closed says nothing of how its connections end', async () => {
  const told: Error[] = []
  const own = openDatabase({
    url: database.url,
    name: 'closed',
    role: 'owner',
    connections: 1,
    onIdleError: (error) => told.push(error),
  })
  const pid = await backendOf(own)
  process.kill(pid, 'SIGSTOP')
  const closed = own.close()
  // Before it reads the goodbye: as when the hub stops its own PostgreSQL.
  process.kill(pid, 'SIGTERM')
  process.kill(pid, 'SIGCONT')
  await closed
  await until('it to end', async () => {
    const rows = await db.query('select from pg_stat_activity where pid = $1', [pid])
    return rows.length === 0
  })
  assert.deepEqual(told, [])
})

test('a transaction that waits for something else than the database is not given up', async () => {
  const waits = limits.statementGraceMs + 300 + 2 * limits.statementWatchMs
  const pids = await db.transaction(async (tx) => {
    const first = await backendOf(tx)
    await new Promise((resolve) => setTimeout(resolve, waits))
    return [first, await backendOf(tx)]
  })
  assert.equal(pids[0], pids[1])
})
