// A PostgreSQL for one program under test: the same launcher and the same durable settings for the hub
// and for its baseline, in a temp folder. The bench starts it itself, so that its CPU can be told apart.
import { Client, Pool } from 'pg'
import { startEmbedded } from '../src/embedded.ts'

export interface BenchDatabase {
  url: string
  /** The postmaster. */
  pid: number
  /** One small statement of the bench's own, never counted by `countStatements`. */
  read(text: string): Promise<Record<string, unknown>[]>
  stop(): Promise<void>
}

/**
 * Starts an empty database cluster in `folder`. With `statements` it also counts what it runs, through
 * pg_stat_statements: transactions per database alone would hide how many statements each held.
 */
export async function startDatabase(folder: string, statements: boolean): Promise<BenchDatabase> {
  // What it tells while it starts is for operators; a failure to start is thrown.
  const log = () => undefined
  const first = await startEmbedded({ dataDir: folder, log })
  if (!statements) return open(first)
  const client = await connect(first.url)
  await client.query("alter system set shared_preload_libraries = 'pg_stat_statements'")
  await client.end()
  // The library is loaded at start only.
  await first.stop()
  const database = await open(await startEmbedded({ dataDir: folder, log }))
  await database.read('create extension pg_stat_statements')
  return database
}

/** Statements run so far by everyone but the bench, transaction control and background work included. */
export async function countStatements(database: BenchDatabase): Promise<number> {
  const [row] = await database.read(
    `select sum(calls) as calls from pg_stat_statements where query not like '%${mark}%'`,
  )
  return Number(row?.['calls'] ?? 0)
}

const mark = '/* bench */'

async function open(embedded: Awaited<ReturnType<typeof startEmbedded>>): Promise<BenchDatabase> {
  // A pool, for it outlives a server that is restarted.
  const pool = new Pool({ connectionString: embedded.url, max: 1 })
  pool.on('error', () => undefined)
  return {
    url: embedded.url,
    get pid() {
      return embedded.pid
    },
    read: async (text) => (await pool.query<Record<string, unknown>>(`${mark} ${text}`)).rows,
    stop: async () => {
      await pool.end()
      await embedded.stop()
    },
  }
}

async function connect(url: string): Promise<Client> {
  const client = new Client({ connectionString: url })
  // A server that stops ends its clients; without a listener that would end the bench.
  client.on('error', () => undefined)
  await client.connect()
  return client
}
