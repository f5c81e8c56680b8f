// Brings the schema up to this version of the hub, forward only, and refuses where this version must not
// run on what is there. Migrations are SQL files; node-pg-migrate runs each in a transaction of its own.

import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { RunnerOption } from 'node-pg-migrate'
import pg from 'pg'
import { missingGrants } from './database_rights.ts'
import { compareVersions } from './versions.ts'

/** Our tables stand apart from the hub's, which its role may write. */
const schema = 'migration'
const connectMsMax = 10_000
/** What node-pg-migrate itself locks, exported so that a test can hold it against the library. */
export const lockId = 7_241_865_325_823_964
/**
 * A migration waits no longer than this for a table that is in use: whoever comes after it waits behind
 * it, so that a patient migration would stop every running hub.
 */
const lockMsMax = 15_000

/** Why the schema was left as it is; one line for people, and how the process should exit. */
export class MigrationRefused extends Error {
  /** 78 (EX_CONFIG): this hub doesn't fit this database. 1: PostgreSQL refused a migration. */
  readonly exitCode: 1 | 78

  constructor(message: string, exitCode: 1 | 78 = 78, cause?: unknown) {
    super(message, { cause })
    this.name = 'MigrationRefused'
    this.exitCode = exitCode
  }
}

export interface MigrateOptions {
  connectionString: string
  /** This hub's version, X.Y.Z. */
  hubVersion: string
  /** The folder with `NNNN_name.sql` files. */
  directory: string
  log?: (message: string) => void
  /** Once the schema is there, still under the lock. */
  after?: (client: pg.Client) => Promise<void>
}

/** One file: its name without `.sql`, its text, and what is compared with the database. */
interface Migration {
  name: string
  text: string
  sha256: string
  /** The oldest hub that can run on the schema it makes. */
  minHub: string
}

type Applied = Omit<Migration, 'text'>

/**
 * Applies what is missing, each file in a transaction of its own; runners at the same time wait for each
 * other. Throws MigrationRefused when an applied file was edited, when the database needs a newer hub, or
 * when PostgreSQL refuses a file; what came before that file stays.
 */
export async function migrate(options: MigrateOptions): Promise<{ applied: string[] }> {
  const migrations = readMigrations(options.directory, options.hubVersion)
  return withClient(options, async (client) => {
    await lock(client, options.log)
    await client.query(`create schema if not exists ${schema}`)
    await client.query(`
      create table if not exists ${schema}.files (
        name text primary key,
        sha256 text not null,
        min_hub text not null,
        applied_at timestamptz not null default now()
      )`)
    const applied = await readApplied(client)
    check(migrations, applied, options.hubVersion)
    const isComplete = migrations.every(({ name }, index) => applied[index]?.name === name)
    const done = isComplete ? [] : await apply(client, options, migrations)
    await options.after?.(client)
    return { applied: done }
  })
}

/** The names that `migrate` would apply. Throws MigrationRefused where it would. Changes nothing. */
export async function pendingMigrations(options: MigrateOptions): Promise<string[]> {
  const migrations = readMigrations(options.directory, options.hubVersion)
  return withClient(options, async (client) => {
    const applied = await readApplied(client)
    check(migrations, applied, options.hubVersion)
    const names = new Set(applied.map(({ name }) => name))
    return migrations.map(({ name }) => name).filter((name) => !names.has(name))
  })
}

async function withClient<T>(
  { connectionString }: MigrateOptions,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({
    connectionString,
    connectionTimeoutMillis: connectMsMax,
    application_name: 'muster migrate',
  })
  // The statement that fails tells; without a listener the connection's own error would end the process.
  client.on('error', () => {})
  await client.connect()
  try {
    return await work(client)
  } catch (error) {
    throw await withGrants(client, error)
  } finally {
    // Also gives the lock back.
    await client.end()
  }
}

/** What PostgreSQL did not permit, with all that it takes to permit it; any other error as it is. */
async function withGrants(client: pg.Client, error: unknown): Promise<unknown> {
  const refused = error instanceof MigrationRefused ? error.cause : error
  if (!(refused instanceof Error) || !('code' in refused) || refused.code !== '42501') return error
  await client.query('rollback')
  const { user, run } = await missingGrants(client)
  if (run.length === 0) return error
  return new MigrationRefused(
    `the database user ${user} may not make what a first start makes (${refused.message}); ` +
      `let a superuser run this in the database, and start again:\n${run.map((one) => `  ${one}`).join('\n')}`,
    1,
    refused,
  )
}

/** The lock of node-pg-migrate itself, which a session may take twice: our checks are under it too. */
async function lock(client: pg.Client, log: MigrateOptions['log']): Promise<void> {
  const { rows } = await client.query<{ got: boolean }>(
    `select pg_try_advisory_lock(${lockId}) as got`,
  )
  if (rows[0]?.got) return
  log?.('waiting for a migration that runs elsewhere')
  await client.query(`select pg_advisory_lock(${lockId})`)
}

function readMigrations(directory: string, hubVersion: string): Migration[] {
  const files = readdirSync(directory).filter((file) => !file.startsWith('.'))
  const migrations = files.toSorted().map((file) => readMigration(directory, file))
  for (const [index, { name, minHub }] of migrations.entries()) {
    const number = name.slice(0, 4)
    if (number === migrations[index + 1]?.name.slice(0, 4)) {
      throw new MigrationRefused(`two migrations have the number ${number}`)
    }
    if (isBelow(hubVersion, minHub)) {
      throw new MigrationRefused(
        `migration ${name} needs hub ${minHub}, and the hub it comes with is ${hubVersion}`,
      )
    }
  }
  return migrations
}

function readMigration(directory: string, file: string): Migration {
  if (!/^\d{4}_[a-z0-9_]+\.sql$/.test(file)) {
    throw new MigrationRefused(`${join(directory, file)} is not named NNNN_name.sql`)
  }
  // A checkout with Windows line ends is the same migration.
  const text = readFileSync(join(directory, file), 'utf8').replaceAll('\r\n', '\n')
  const minHub = /^-- minHub: (\d+\.\d+\.\d+)\n/.exec(text)?.[1]
  if (minHub === undefined) {
    throw new MigrationRefused(`${join(directory, file)} does not start with "-- minHub: X.Y.Z"`)
  }
  const sha256 = createHash('sha256').update(text).digest('hex')
  return { name: file.slice(0, -'.sql'.length), text, sha256, minHub }
}

async function readApplied(client: pg.Client): Promise<Applied[]> {
  const { rows: found } = await client.query<{ exists: boolean }>(
    `select to_regclass('${schema}.files') is not null as exists`,
  )
  if (!found[0]?.exists) return []
  const { rows } = await client.query<Applied>(
    `select name, sha256, min_hub as "minHub" from ${schema}.files order by name`,
  )
  return rows
}

/** Newer migrations that this hub doesn't know are fine: theirs is the promise, `minHub`, to stay usable. */
function check(migrations: Migration[], applied: Applied[], hubVersion: string): void {
  const known = new Map(migrations.map((migration) => [migration.name, migration]))
  for (const { name, sha256 } of applied) {
    const file = known.get(name)
    if (file !== undefined && file.sha256 !== sha256) {
      throw new MigrationRefused(
        `migration ${name}.sql was edited after it was applied: restore the file, and write a new one`,
      )
    }
  }
  const newest = applied.toSorted((a, b) => compareVersions(a.minHub, b.minHub)).at(-1)
  if (newest !== undefined && isBelow(hubVersion, newest.minHub)) {
    throw new MigrationRefused(
      `this hub is ${hubVersion}, and the database needs hub ${newest.minHub} or newer ` +
        `since migration ${newest.name}`,
    )
  }
}

async function apply(
  client: pg.Client,
  { directory }: MigrateOptions,
  migrations: Migration[],
): Promise<string[]> {
  let running: Migration | undefined
  const units = migrations.map((migration) => ({
    id: join(directory, `${migration.name}.sql`),
    filePaths: [],
    actions: {
      up: (builder: { sql(text: string): void }) => {
        running = migration
        builder.sql(`set local lock_timeout = ${lockMsMax}`)
        builder.sql(migration.text)
        builder.sql(insertion(migration))
      },
      down: false as const,
    },
  }))
  const options: RunnerOption = {
    dbClient: client,
    dir: directory,
    direction: 'up',
    migrationsSchema: schema,
    migrationsTable: 'runs',
    advisoryLockMode: 'wait',
    // An applied file that is missing here, or one that was slipped in before an applied one.
    checkOrder: true,
    migrationLoaderStrategies: [{ extensions: ['.sql'], loader: async () => units }],
    // What it would print, whole files, is told by the error instead.
    logger: { debug() {}, info() {}, warn() {}, error() {} },
  }
  try {
    // Only now: it brings 4 MB, and most starts have nothing to apply.
    const { runner } = await import('node-pg-migrate')
    const ran = await runner(options)
    return ran.map(({ name }) => name)
  } catch (error) {
    throw refusal(error, running)
  }
}

/** Built from checked names and digits of our own: node-pg-migrate takes no parameters here. */
function insertion({ name, sha256, minHub }: Migration): string {
  const values = [name, sha256, minHub].map((value) => `'${value}'`).join(', ')
  return `insert into ${schema}.files (name, sha256, min_hub) values (${values})`
}

function refusal(error: unknown, running: Migration | undefined): unknown {
  if (!(error instanceof Error)) return error
  if (running === undefined) {
    // Its sentence names both files; anything else, like a lost connection, is not ours to explain.
    return error.message.startsWith('Not run migration')
      ? new MigrationRefused(error.message, 78, error)
      : error
  }
  const { message } = error
  const code = 'code' in error && typeof error.code === 'string' ? ` (${error.code})` : ''
  const at = 'position' in error ? Number(error.position) : 0
  const line = at > 0 ? ` line ${running.text.slice(0, at).split('\n').length}` : ''
  return new MigrationRefused(
    `migration ${running.name}.sql${line} failed and was rolled back: ${message}${code}`,
    1,
    error,
  )
}

/** A pre-release and a build of X.Y.Z have the code of X.Y.Z. */
function isBelow(hubVersion: string, minHub: string): boolean {
  return compareVersions(hubVersion.split(/[-+]/)[0] ?? '', minHub) < 0
}
