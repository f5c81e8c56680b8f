// The database a hub runs on: the one of DATABASE_URL, or its own PostgreSQL in the data folder. Waits for
// it, migrates it, and says in one sentence why it can't.
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { join } from 'node:path'
import type { Config } from './config.ts'
import { missingRole } from './database_rights.ts'
import { isConnectionFailure, openDatabase, sqlState } from './db.ts'
import { startEmbedded } from './embedded.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import { continueOrder } from './hub_order.ts'
import { migrate } from './migrate.ts'

export interface RunningDatabase {
  url: string
  /** Told to people: where the rows are. */
  where: string
  stop(): Promise<void>
}

/** An expected reason not to start: printed without a stack, then exit `code`. */
export class StartError extends Error {
  readonly exitCode: number

  constructor(message: string, exitCode: number) {
    super(message)
    this.name = 'StartError'
    this.exitCode = exitCode
  }
}

const restoredElsewhere =
  'This database comes from a PostgreSQL that had counted more transactions: events and the audit go on from there'

export const migrationsDirectory = fileURLToPath(new URL('../migrations', import.meta.url))

/** Connects to, or starts, PostgreSQL, and brings its schema up to this version of the hub. */
export async function startDatabase(
  config: Config,
  say: (line: string) => void,
): Promise<RunningDatabase> {
  const database = config.databaseUrl
    ? await waitForDatabase(config.databaseUrl, say)
    : await ownDatabase(config, say)
  try {
    const { applied } = await migrate({
      connectionString: database.url,
      hubVersion: config.version,
      directory: migrationsDirectory,
      log: say,
      after: async (client) => {
        const lacking = await missingRole(client)
        if (lacking !== null) throw new StartError(lacking, 78)
        if (await continueOrder(client)) say(restoredElsewhere)
      },
    })
    if (applied.length > 0) say(`Migrated: ${applied.join(', ')}`)
    return database
  } catch (error) {
    await database.stop()
    throw error
  }
}

async function ownDatabase(config: Config, say: (line: string) => void): Promise<RunningDatabase> {
  const dataDir = join(config.dataDir, 'postgres')
  const { url, stop } = await startEmbedded({ dataDir, log: say }).catch((error: unknown) => {
    // A plain Error's message is for people, the system's too; TypeError and its kin are our bugs.
    const plain = error instanceof Error && error.constructor === Error
    throw plain ? new StartError(error.message, 1) : error
  })
  // For psql or a backup; on a platform where it holds a password it stays untold.
  const address = new URL(url).password === '' ? ` (DATABASE_URL=${url})` : ''
  return { url, where: `embedded PostgreSQL in ${dataDir}${address}`, stop }
}

async function waitForDatabase(url: string, say: (line: string) => void): Promise<RunningDatabase> {
  const where = `PostgreSQL at ${addressOf(url)}`
  const db = openDatabase({ url, name: 'start', connections: 1, role: 'owner' })
  const giveUpMs = performance.now() + limits.startRetrySeconds * 1000
  try {
    for (;;) {
      try {
        const [row] = await db.query<{ version: number }>(
          `select current_setting('server_version_num')::int as version`,
        )
        if ((row?.version ?? 0) >= 150_000) return { url, where, stop: async () => {} }
        throw new StartError(`${where} is older than version 15, which Muster needs`, 78)
      } catch (error) {
        if (error instanceof StartError) throw error
        const cause = error instanceof AppError ? error.cause : error
        const reason = cause instanceof Error ? cause.message || String(cause) : String(cause)
        const isRefused = /^(28|3D)/.test(sqlState(error) ?? '')
        if (isRefused || (!(error instanceof AppError) && !isConnectionFailure(error))) {
          throw new StartError(`${where} refuses: ${reason}`, 1)
        }
        const leftMs = giveUpMs - performance.now()
        if (leftMs <= 0) {
          const seconds = limits.startRetrySeconds
          throw new StartError(`${where} did not answer for ${seconds} s: ${reason}`, 1)
        }
        say(
          `${where} does not answer (${reason}); trying for another ${Math.ceil(leftMs / 1000)} s`,
        )
        await sleep(Math.min(2000, leftMs))
      }
    }
  } finally {
    await db.close()
  }
}

/** Host, port and database of a connection string, never its password. */
function addressOf(url: string): string {
  const { hostname, port, pathname, searchParams } = new URL(url)
  const host = searchParams.get('host') ?? hostname
  return `${host}${port ? `:${port}` : ''}${pathname}`
}
