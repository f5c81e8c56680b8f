// Databases for tests: one server per run of `npm test` (test/support/setup.ts), one database per caller,
// copied from a migrated template. With TEST_DATABASE_URL the server is that one, of any version from 15.
// Durability stays on: a database takes about 0.1 s and the server half a second, so nothing is won.
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { hubVersion } from '../../src/config.ts'
import { migrationsDirectory } from '../../src/database.ts'
import { startEmbedded } from '../../src/embedded.ts'
import { migrate } from '../../src/migrate.ts'
import { removeFolder } from './folders.ts'

/** A test file run by hand keeps its own server this long after its last database, for the next one. */
const lingerMs = 300

/** Several test files at once, some of them with several hubs, each of which may take forty. */
const connectionsMax = 400

export interface TestDatabase {
  url: string
  name: string
  /** Removes it, whoever is still connected. May be called again. */
  drop: () => Promise<void>
}

/** What a test process is told of the server: the names of the run's databases begin with `prefix`. */
export interface SharedServer {
  url: string
  prefix: string
}

export interface TestServer extends SharedServer {
  /** Removes every database of the run, and the server if it is ours. */
  stop: () => Promise<void>
}

let own: Promise<TestServer> | undefined
let ownDatabases = 0
let lingering: NodeJS.Timeout | undefined
let made = 0

/** Makes a database with the hub's schema, or with nothing in it (`migrated: false`). */
export async function createDatabase({ migrated = true } = {}): Promise<TestDatabase> {
  const shared = process.env['MUSTER_TEST_SERVER']
  if (shared !== undefined) return makeDatabase(JSON.parse(shared) as SharedServer, migrated)

  clearTimeout(lingering)
  ownDatabases += 1
  own ??= startServer()
  const { name, url, drop } = await makeDatabase(await own, migrated)
  let dropped: Promise<void> | undefined
  const dropAndLinger = async () => {
    await drop()
    ownDatabases -= 1
    if (ownDatabases === 0) lingering = setTimeout(() => void stopOwn(), lingerMs)
  }
  return { name, url, drop: () => (dropped ??= dropAndLinger()) }
}

async function stopOwn(): Promise<void> {
  const ending = own
  own = undefined
  await (await ending)?.stop()
}

async function makeDatabase(
  { url, prefix }: SharedServer,
  migrated: boolean,
): Promise<TestDatabase> {
  const name = `${prefix}_${process.pid}_${++made}`
  const template = migrated ? `${prefix}_template` : 'template0'
  await onServer(url, `create database ${name} template ${template}`)
  const drop = () => onServer(url, `drop database if exists ${name} with (force)`)
  return { name, url: urlOf(url, name), drop }
}

/** Starts the server of a run, or takes TEST_DATABASE_URL's, and makes the template of these migrations. */
export async function startServer(directory = migrationsDirectory): Promise<TestServer> {
  const { url, stop: stopServer } = await anyServer()
  const prefix = `muster_test_${process.pid}_${Date.now().toString(36)}`
  const stop = async () => {
    await dropAll(url, prefix)
    await stopServer()
  }
  try {
    const template = `${prefix}_template`
    await onServer(url, `create database ${template} template template0`)
    const connectionString = urlOf(url, template)
    await migrate({ connectionString, hubVersion, directory })
    return { url, prefix, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

async function anyServer(): Promise<{ url: string; stop: () => Promise<void> }> {
  const external = process.env['TEST_DATABASE_URL']
  if (external) return { url: external, stop: async () => {} }
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-postgres-'))
  const remove = () => removeFolder(dataDir)
  // Also where nothing stops it any more: the server itself ends with this process.
  process.on('exit', remove)
  const server = await startEmbedded({ dataDir, log: () => {}, connections: connectionsMax })
  const stop = async () => {
    await server.stop()
    process.off('exit', remove)
    remove()
  }
  return { url: server.url, stop }
}

async function dropAll(url: string, prefix: string): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    const { rows } = await client.query<{ datname: string }>(
      'select datname from pg_database where starts_with(datname, $1)',
      [prefix],
    )
    for (const { datname } of rows) {
      await client.query(`drop database if exists ${datname} with (force)`)
    }
  } finally {
    await client.end()
  }
}

async function onServer(url: string, statement: string): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}

function urlOf(server: string, database: string): string {
  const url = new URL(server)
  url.pathname = `/${database}`
  return url.href
}
