import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test, type TestContext } from 'node:test'
import { PG_MIGRATE_LOCK_ID } from 'node-pg-migrate'
import pg from 'pg'
import { lockId, migrate, pendingMigrations } from '../src/migrate.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

let root: string

before(async () => {
  root = await mkdtemp(join(tmpdir(), 'muster-migrate-'))
})
after(() => removeFolder(root))

const first = '-- minHub: 1.0.0\ncreate table a (n int);\ninsert into a values (1);\n'
const second = '-- minHub: 1.0.0\nalter table a add column m int;\n'

test('what is missing is applied in order, once', async (t) => {
  const trial = await Trial.start(t, { '0001_first': first })
  assert.deepEqual(await trial.pending(), ['0001_first'])
  assert.deepEqual(await trial.migrate(), { applied: ['0001_first'] })
  assert.deepEqual(await trial.pending(), [])
  assert.deepEqual(await trial.migrate(), { applied: [] })
  await trial.write('0002_second', second)
  assert.deepEqual(await trial.pending(), ['0002_second'])
  assert.deepEqual(await trial.migrate(), { applied: ['0002_second'] })
  assert.deepEqual(await trial.query('select * from a'), [{ n: 1, m: null }])
})

test('an edited migration is refused and named, other line ends are no edit', async (t) => {
  const trial = await Trial.start(t, { '0001_first': first, '0002_second': second })
  await trial.migrate()
  await trial.write('0001_first', first.replaceAll('\n', '\r\n'))
  assert.deepEqual(await trial.migrate(), { applied: [] })
  await trial.write('0001_first', `${first}-- later thought\n`)
  const refusal = {
    name: 'MigrationRefused',
    exitCode: 78,
    message: /^migration 0001_first\.sql was edited/,
  }
  await assert.rejects(trial.migrate(), refusal)
  await assert.rejects(trial.pending(), refusal)
})

test('a hub older than the highest applied minHub is refused, both versions named', async (t) => {
  const trial = await Trial.start(t, {
    '0001_first': first,
    '0002_second': second.replace('1.0.0', '1.10.0'),
    '0003_third': '-- minHub: 1.2.0\ncreate table b ();\n',
  })
  await trial.migrate('1.10.0')
  await trial.remove('0002_second')
  await trial.remove('0003_third')
  for (const attempt of [() => trial.migrate('1.9.0'), () => trial.pending('1.9.0')]) {
    await assert.rejects(attempt(), {
      exitCode: 78,
      message:
        'this hub is 1.9.0, and the database needs hub 1.10.0 or newer since migration 0002_second',
    })
  }
})

test('newer migrations that this hub does not know are no reason to refuse', async (t) => {
  const trial = await Trial.start(t, { '0001_first': first, '0002_second': second })
  await trial.migrate('2.0.0')
  await trial.remove('0002_second')
  assert.deepEqual(await trial.migrate('1.0.0'), { applied: [] })
  assert.deepEqual(await trial.pending('1.0.0'), [])
})

test('our lock is the one that node-pg-migrate takes', () => {
  assert.equal(lockId, PG_MIGRATE_LOCK_ID)
})

test('runners at the same time wait for each other, and one applies', async (t) => {
  const slow = '-- minHub: 1.0.0\nselect pg_sleep(0.3);\ncreate table a ();\n'
  const trial = await Trial.start(t, { '0001_slow': slow })
  const results = await Promise.all([1, 2, 3, 4].map(() => trial.migrate()))
  assert.deepEqual(
    results.flatMap(({ applied }) => applied),
    ['0001_slow'],
  )
  assert.match(trial.said.join('\n'), /waiting for a migration that runs elsewhere/)
})

test('a failing migration is rolled back and named with its line, earlier ones stay', async (t) => {
  const trial = await Trial.start(t, {
    '0001_first': first,
    '0002_broken': '-- minHub: 1.0.0\ncreate table b ();\nselect nothing\n  from nowhere;\n',
    '0003_third': '-- minHub: 1.0.0\ncreate table c ();\n',
  })
  await assert.rejects(trial.migrate(), {
    name: 'MigrationRefused',
    exitCode: 1,
    message:
      'migration 0002_broken.sql line 4 failed and was rolled back: relation "nowhere" does not exist (42P01)',
  })
  assert.deepEqual(await trial.query(`select to_regclass('b') as b, to_regclass('c') as c`), [
    { b: null, c: null },
  ])
  assert.deepEqual(await trial.pending(), ['0002_broken', '0003_third'])
  await trial.write('0002_broken', '-- minHub: 1.0.0\ncreate table b ();\n')
  assert.deepEqual(await trial.migrate(), { applied: ['0002_broken', '0003_third'] })
  const others = `select 1 from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`
  await until('every connection is closed', async () => (await trial.query(others)).length === 0)
})

test('a migration slipped in before an applied one, or one that went missing, is refused', async (t) => {
  const trial = await Trial.start(t, { '0001_first': first, '0003_third': second })
  await trial.migrate()
  await trial.write('0002_late', '-- minHub: 1.0.0\ncreate table late ();\n')
  await assert.rejects(trial.migrate(), { exitCode: 78, message: /0002_late .* 0003_third/ })
  await trial.remove('0002_late')
  await trial.remove('0001_first')
  await assert.rejects(trial.migrate(), { exitCode: 78, message: /0003_third .* 0001_first/ })
})

test('files that say too little are refused before anything runs', async (t) => {
  const cases: [string, string, RegExp][] = [
    ['0001_headless', 'create table a ();\n', /0001_headless\.sql does not start with "-- minHub/],
    ['first', first, /first\.sql is not named NNNN_name\.sql/],
    ['0001_future', first.replace('1.0.0', '3.0.0'), /0001_future needs hub 3\.0\.0.* is 2\.0\.0/],
  ]
  for (const [name, text, message] of cases) {
    const trial = await Trial.start(t, { [name]: text })
    await assert.rejects(trial.migrate(), { exitCode: 78, message })
    assert.deepEqual(await trial.query(`select to_regclass('a') as a`), [{ a: null }])
  }
  const twins = await Trial.start(t, { '0001_one': first, '0001_two': second })
  await assert.rejects(twins.migrate(), /two migrations have the number 0001/)
})

test('npm run migrate applies the files of the repository, and says what it needs', async (t) => {
  const database = await createDatabase({ migrated: false })
  t.after(database.drop)
  const run = (env: Record<string, string>) =>
    spawnSync(process.execPath, ['scripts/migrate.ts'], {
      cwd: join(import.meta.dirname, '..'),
      env: { PATH: process.env['PATH'], ...env },
      encoding: 'utf8',
    })
  const applied = run({ DATABASE_URL: database.url })
  assert.match(applied.stdout, /^Applied: 0001_\w+/m)
  assert.equal(applied.status, 0)
  assert.equal(run({ DATABASE_URL: database.url }).stdout, 'Nothing to migrate.\n')
  const unset = run({})
  assert.match(unset.stderr, /^DATABASE_URL is not set.*\n$/)
  assert.equal(unset.status, 78)
})

/** A database with nothing in it and a folder of migrations. */
class Trial {
  readonly said: string[] = []
  readonly #database: TestDatabase
  readonly #directory: string

  constructor(database: TestDatabase, directory: string) {
    this.#database = database
    this.#directory = directory
  }

  static async start(t: TestContext, files: Record<string, string>): Promise<Trial> {
    const database = await createDatabase({ migrated: false })
    t.after(database.drop)
    const trial = new Trial(database, await mkdtemp(join(root, 'm-')))
    for (const [name, text] of Object.entries(files)) await trial.write(name, text)
    return trial
  }

  migrate(hubVersion = '2.0.0'): Promise<{ applied: string[] }> {
    return migrate({ ...this.#options(hubVersion), log: (line) => this.said.push(line) })
  }

  pending(hubVersion = '2.0.0'): Promise<string[]> {
    return pendingMigrations(this.#options(hubVersion))
  }

  write(name: string, text: string): Promise<void> {
    return writeFile(join(this.#directory, `${name}.sql`), text)
  }

  remove(name: string): Promise<void> {
    return rm(join(this.#directory, `${name}.sql`))
  }

  async query(text: string): Promise<Record<string, unknown>[]> {
    const client = new pg.Client(this.#database.url)
    await client.connect()
    try {
      return (await client.query(text)).rows
    } finally {
      await client.end()
    }
  }

  #options(hubVersion: string) {
    return { connectionString: this.#database.url, hubVersion, directory: this.#directory }
  }
}
