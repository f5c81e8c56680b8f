// The only file that makes a PostgreSQL pool. Owns how a statement is prepared, how a failure of the
// database is told from a mistake of ours, and how arrays travel. Knows no table.
import { createHash } from 'node:crypto'
import pg from 'pg'
import { databaseSocket } from './database_socket.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'

export type Row = Record<string, unknown>

/** Where a statement can run: a pool, or one transaction of it. */
export interface Queryable {
  /** Runs one prepared statement and returns its rows. Throws UNAVAILABLE when PostgreSQL is away. */
  query<T extends Row>(text: string, values?: readonly unknown[]): Promise<T[]>
}

export interface Database extends Queryable {
  readonly name: string
  /** Runs `work` in one transaction on one connection; rolls back when it throws. */
  transaction<T>(work: (tx: Queryable) => Promise<T>): Promise<T>
  /** Connections: in all, idle, and callers waiting for one. */
  counts(): { total: number; idle: number; waiting: number }
  close(): Promise<void>
}

export interface DatabaseOptions {
  url: string
  /** Shows in pg_stat_activity and in metrics. */
  name: string
  connections: number
  /** `hub`: may not change audit rows. `owner`: migrations and retention only. */
  role?: 'hub' | 'owner'
  statementMsMax?: number
  /**
   * Plans each statement once per connection. For pools whose statements find rows by key: on partitioned
   * tables PostgreSQL otherwise plans every call anew, at ten times the cost of the execution. Not for
   * lists, whose plan depends on the limit.
   */
  planOnce?: boolean
  /**
   * Plans every call for its values and for how large the tables are now: for searches whose filters find much
   * or little, and for walks in an order from a place on, which a kept plan would sort to the end each time.
   */
  planEach?: boolean
  /** A connection that broke while idle; the pool replaces it by itself. */
  onIdleError?: (error: Error) => void
}

/** Opens a pool; no connection is made before the first statement. */
export function openDatabase(options: DatabaseOptions): Database {
  const pool = new pg.Pool({
    ...connection(options),
    max: options.connections,
    min: 0,
    idleTimeoutMillis: limits.poolIdleMs,
  })
  let closing = false
  // Without a listener a connection that dies idle would end the process. A pool that closes waits for no goodbye.
  pool.on('error', (error) => {
    if (!closing) options.onIdleError?.(error)
  })
  const watch = watching(pool, deadlineMs(options))
  const prepared = preparing(options.planEach ? limits.searchNamesMax : limits.statementNamesMax)
  return {
    name: options.name,
    query: async <T extends Row>(text: string, values: readonly unknown[] = []) => {
      try {
        return (await pool.query<T>(prepared(text, values))).rows
      } catch (error) {
        throw translate(error, pool)
      }
    },
    transaction: (work) => inTransaction(pool, watch, prepared, work),
    counts: () => ({ total: pool.totalCount, idle: pool.idleCount, waiting: pool.waitingCount }),
    close: () => {
      closing = true
      watch.stop()
      return pool.end()
    },
  }
}

/**
 * A plan that is kept must suit the table when it has grown, so none reads a table from end to end; PostgreSQL
 * before 18 counts that ban as a cost high enough to compile, hence no JIT. Nor does one read a small table's index
 * whole: pages, which are in memory, cost next to nothing here and rows ten times the usual, so that a key is looked
 * up where fifty rows are known, the fewest that autovacuum analyzes. (A statement planned for a hundred devices took
 * 1.4 s for five hundred of 15,000 that left, and 14 ms with a look-up each.)
 */
const planOnceSettings = [
  'plan_cache_mode=force_generic_plan',
  'enable_seqscan=off',
  'jit=off',
  'seq_page_cost=0.01',
  'random_page_cost=0.01',
  'cpu_tuple_cost=0.1',
  'cpu_index_tuple_cost=0.05',
]

/** The options of one connection, also for a client that stays open to LISTEN. */
export function connection(
  options: Omit<DatabaseOptions, 'connections' | 'onIdleError'>,
): pg.ClientConfig {
  const settings = [
    'timezone=UTC',
    `statement_timeout=${options.statementMsMax ?? limits.statementMsMax}`,
    `idle_in_transaction_session_timeout=${limits.statementMsMax}`,
    ...(options.role === 'owner' ? [] : ['role=muster_hub']),
    ...(options.planOnce ? planOnceSettings : []),
    ...(options.planEach ? ['plan_cache_mode=force_custom_plan', 'jit=off'] : []),
  ]
  return {
    connectionString: options.url,
    application_name: `muster ${options.name}`,
    connectionTimeoutMillis: limits.checkoutMsMax,
    stream: databaseSocket,
    keepAlive: true,
    keepAliveInitialDelayMillis: limits.keepAliveMs,
    options: settings.map((setting) => `-c ${setting}`).join(' '),
  }
}

/**
 * A host that is gone says nothing, and TCP would wait for minutes: the server's own deadline is not enough.
 */
function deadlineMs({ statementMsMax = limits.statementMsMax }: DatabaseOptions): number {
  return statementMsMax + limits.statementGraceMs
}

interface Watch {
  /** A statement was sent; the connection is ended if it is not answered in time. */
  began(client: pg.PoolClient): void
  ended(client: pg.PoolClient): void
  stop(): void
}

/**
 * Ends the connections of a pool that do not answer, which fails their statements. One timer for all: pg's own
 * `query_timeout` is one for each statement, and what hangs on it was kept for thousands of them, so that V8 moved
 * and marked a quarter of all that the hub read.
 */
function watching(pool: pg.Pool, msMax: number): Watch {
  const sinceMs = new Map<pg.PoolClient, number>()
  const began = (client: pg.PoolClient) => void sinceMs.set(client, performance.now())
  const ended = (client: pg.PoolClient) => void sinceMs.delete(client)
  pool.on('acquire', began)
  pool.on('release', (_error, client) => ended(client))
  const timer = setInterval(() => {
    const dueMs = performance.now() - msMax
    for (const [client, ms] of sinceMs) {
      // With a statement under way it does not wait for the server.
      if (ms < dueMs && client instanceof pg.Client) void client.end()
    }
  }, limits.statementWatchMs)
  timer.unref()
  return { began, ended, stop: () => clearInterval(timer) }
}

async function inTransaction<T>(
  pool: pg.Pool,
  watch: Watch,
  prepared: Prepare,
  work: (tx: Queryable) => Promise<T>,
): Promise<T> {
  let client: pg.PoolClient
  try {
    client = await pool.connect()
  } catch (error) {
    throw translate(error, pool)
  }
  let broken: Error | undefined
  // A backend that dies between two statements tells the connection, not a query.
  const onError = (error: Error) => {
    broken = error
  }
  client.on('error', onError)
  const query = async <R extends Row>(statement: pg.QueryConfig): Promise<R[]> => {
    watch.began(client)
    try {
      return (await client.query<R>(statement)).rows
    } finally {
      watch.ended(client)
    }
  }
  try {
    await query({ text: 'begin' })
    const result = await work({
      query: <R extends Row>(text: string, values: readonly unknown[] = []) =>
        query<R>(prepared(text, values)),
    })
    await query({ text: 'commit' })
    return result
  } catch (error) {
    await query({ text: 'rollback' }).catch((failure: Error) => {
      broken = failure
    })
    throw translate(error, pool)
  } finally {
    client.off('error', onError)
    client.release(broken)
  }
}

type Prepare = (text: string, values: readonly unknown[]) => pg.QueryConfig

/**
 * Names the statements of a pool, so that each connection parses them once. Texts are built from a closed set of
 * fragments, but filters multiply: past the bound the others go without a name, and are parsed with every call.
 */
function preparing(namesMax: number): Prepare {
  const names = new Map<string, string>()
  return (text, values) => {
    let name = names.get(text)
    if (name === undefined && names.size < namesMax) {
      name = createHash('sha256').update(text).digest('base64url').slice(0, 20)
      names.set(text, name)
    }
    return { ...(name === undefined ? {} : { name }), text, values: values as unknown[] }
  }
}

/** True for a failure of the connection or the server, where the same statement may succeed later. */
export function isConnectionFailure(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  // 08 connection, 28 sign-in, 3D no such database, 57P admin shutdown and crash, 53 out of resources, 58 its
  // machine, 40 retryable conflict; 25P03 and 25P04 end a transaction that stood still, as after the server did.
  if (/^(08|28|3D|57P|53|58|40|25P0[34])/.test(code)) return true
  if (code === '57014' || code === '25006') return true
  if (/^E[A-Z]+$/.test(code)) return true
  // A certificate that is refused, by whichever side.
  if (/^(ERR_TLS_|ERR_SSL_|CERT_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_)/.test(code)) return true
  return (
    /connection|timeout exceeded|query read timeout|Client was closed|^SASL/i.test(error.message) &&
    !/^\w{5}$/.test(code)
  )
}

/** SQLSTATE of an error that came from PostgreSQL, else undefined. */
export function sqlState(error: unknown): string | undefined {
  const cause = error instanceof AppError ? error.cause : error
  if (!(cause instanceof Error) || !('code' in cause) || typeof cause.code !== 'string') return
  return /^[0-9A-Z]{5}$/.test(cause.code) ? cause.code : undefined
}

function translate(error: unknown, pool: pg.Pool): unknown {
  if (error instanceof AppError || !isConnectionFailure(error)) return error
  const busy = error instanceof Error && error.message.startsWith('timeout exceeded')
  if (busy && pool.totalCount >= pool.options.max) {
    return new AppError('OVERLOADED', 'the hub is busy; try again shortly', {
      retryAfterSeconds: 2,
      cause: error,
    })
  }
  return new AppError('UNAVAILABLE', 'the database does not answer; try again shortly', {
    retryAfterSeconds: 2,
    cause: error,
  })
}

/** Collects conditions and their values; the text depends on which are there, never on the values. */
export class Where {
  readonly values: unknown[] = []
  private readonly conditions: string[] = []

  /** Adds a value and returns its placeholder. */
  value(value: unknown): string {
    this.values.push(value)
    return `$${this.values.length}`
  }

  /** Adds `condition` with each `?` replaced by the placeholder of the next value. */
  and(condition: string, ...values: unknown[]): this {
    let next = 0
    this.conditions.push(condition.replace(/\?/g, () => this.value(values[next++])))
    return this
  }

  /** `where …`, or nothing when there is no condition. */
  text(): string {
    return this.conditions.length === 0 ? '' : `where ${this.conditions.join(' and ')}`
  }
}

// A text that needs more than a backslash before a quote or a backslash in an array literal.
// oxlint-disable-next-line no-control-regex
const controls = /[\u0000-\u001f]/

/**
 * An array literal of texts, made by the native JSON writer: for whole texts without control characters both
 * notations agree once the brackets are swapped. About five times as fast as escaping one by one. Half a surrogate
 * pair becomes U+FFFD on its way.
 */
export function textArray(values: readonly (string | null)[]): string {
  for (const value of values) {
    if (value !== null && (controls.test(value) || !value.isWellFormed())) {
      return escapedArray(values)
    }
  }
  return `{${JSON.stringify(values).slice(1, -1)}}`
}

/** An array literal of things that need no quoting: numbers, UUIDs, booleans, null. */
export function plainArray(values: readonly (string | number | boolean | null)[]): string {
  let text = '{'
  for (let i = 0; i < values.length; i++) text += `${i === 0 ? '' : ','}${values[i] ?? 'NULL'}`
  return `${text}}`
}

function escapedArray(values: readonly (string | null)[]): string {
  const parts = values.map((value) =>
    value === null ? 'NULL' : `"${value.replace(/[\\"]/g, '\\$&')}"`,
  )
  return `{${parts.join(',')}}`
}
