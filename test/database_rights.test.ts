// A database user that may not make what a first start makes: it is told all that is missing, as statements that help.
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import pg from 'pg'
import { hubVersion } from '../src/config.ts'
import { migrationsDirectory } from '../src/database.ts'
import { missingRole } from '../src/database_rights.ts'
import { openDatabase } from '../src/db.ts'
import { startEmbedded } from '../src/embedded.ts'
import { migrate, MigrationRefused } from '../src/migrate.ts'
import { removeFolder } from './support/folders.ts'
import { createDatabase } from './support/postgres.ts'

const undo: (() => unknown)[] = []
after(async () => {
  for (const step of undo.splice(0).toReversed()) await step()
})

async function run(url: string, ...statements: string[]): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    let rows: Record<string, unknown>[] = []
    for (const statement of statements) ({ rows } = await client.query(statement))
    return rows
  } finally {
    await client.end()
  }
}

/** The address of a database for another user of its server. */
function as(url: string, user: string, password: string): string {
  const address = new URL(url)
  address.username = encodeURIComponent(user)
  address.password = password
  return address.href
}

/** The statements that the refusal names; none when it goes through. */
async function namedBy(connectionString: string): Promise<string[]> {
  try {
    await migrate({ connectionString, hubVersion, directory: migrationsDirectory })
    return []
  } catch (error) {
    assert.ok(error instanceof MigrationRefused, String(error))
    assert.equal(error.exitCode, 1)
    const [sentence, ...lines] = error.message.split('\n')
    assert.match(
      sentence ?? '',
      /^the database user .* may not .*\(permission denied .*start again:$/,
    )
    return lines.map((line) => line.trim())
  }
}

test('what is named helps, whatever is missing, and the hub works as its role', async () => {
  const database = await createDatabase({ migrated: false })
  undo.push(() => database.drop())
  const user = `${database.name} Owner`
  await run(database.url, `create role "${user}" login password 'word'`)
  undo.push(() => run(database.url, `drop owned by "${user}"`, `drop role "${user}"`))
  const url = as(database.url, user, 'word')
  const [server] = await run(database.url, `select current_setting('server_version_num')::int as v`)
  const named = await namedBy(url)
  assert.deepEqual(named, [
    `alter role "${user}" createrole;`,
    // The role is there, from the template of this run.
    ...(Number(server?.['v']) >= 160_000
      ? [`grant muster_hub to "${user}" with admin option;`]
      : []),
    `grant create on database ${database.name} to "${user}";`,
    `grant create on schema public to "${user}";`,
  ])
  // One is not enough, and what is still missing is named again.
  await run(database.url, named[0] ?? '')
  assert.deepEqual(await namedBy(url), named.slice(1))
  await run(database.url, ...named.slice(1))
  assert.deepEqual(await namedBy(url), [])
  const db = openDatabase({ url, name: 'test', connections: 1 })
  assert.deepEqual(await db.query('select current_user as user'), [{ user: 'muster_hub' }])
  await db.close()
})

test('on a server of its own the owner of the database needs CREATEROLE alone', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-rights-'))
  const server = await startEmbedded({ dataDir, log: () => {} })
  undo.push(async () => {
    await server.stop()
    removeFolder(dataDir)
  })
  await run(server.url, `create role app login password 'word'`, 'create database own owner app')
  const address = new URL(server.url)
  address.pathname = '/own'
  const url = as(address.href, 'app', 'word')
  assert.deepEqual(await namedBy(url), ['alter role app createrole;'])
  await run(server.url, 'alter role app createrole')
  assert.deepEqual(await namedBy(url), [])

  // As after the restore of a dump where the role was not there: its tables are, its grants are not.
  assert.equal(await lacking(url), null)
  await run(address.href, 'revoke select on data_keys from muster_hub')
  assert.match(
    (await lacking(url)) ?? '',
    /lacks its rights.*\n.*create role muster_hub.*\n.*to app /,
  )
  await run(address.href, 'drop owned by muster_hub', 'drop role muster_hub')
  assert.match((await lacking(url)) ?? '', /muster_hub.* is missing/)
})

async function lacking(url: string): Promise<string | null> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return await missingRole(client)
  } finally {
    await client.end()
  }
}
