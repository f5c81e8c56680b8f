// One scenario's workplace: its programs, databases, devices and fleets, in a temp folder, all gone
// when it is closed. A program under test is a Target, whether the bench started it or `--url` named it.
import { randomBytes, randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { BenchOptions } from './args.ts'
import { startBroker } from './brokers.ts'
import { startDatabase, type BenchDatabase } from './database.ts'
import { Findings } from './findings.ts'
import { Fleet, type FleetOptions } from './fleet.ts'
import { fillHubTables, madeUpToken } from './hub_tables.ts'
import { decommission, enroll, signIn, type Credentials } from './operator.ts'
import { processCpuMs, treeCpuMs } from './proc.ts'
import { checkout, startProgram } from './programs.ts'
import type { Progress } from './progress.ts'
import type { Side } from './rows.ts'
import type { Device } from './sim_agent.ts'
import { isBroker, type Broker } from './wires.ts'

export interface Target {
  side: Side
  origin: string
  credentials: Credentials
  /** Absent for a hub that `--url` named: its processes are not ours to look at. */
  pid: number | undefined
  database: BenchDatabase | undefined
  /** Reads its /metrics; absent for a foreign hub. */
  metricsToken: string | undefined
  /** Heartbeats that came through; of a broker, which has no metrics of ours. */
  heard?: () => number
  stop(): Promise<void>
  kill(): Promise<void>
}

export interface StartOptions {
  port?: number
  /** A checkout of another version. */
  folder?: string
  nodeFlags?: string[]
  /** Let the database count its statements. */
  statements?: boolean
  /** Another program of the same side on the same database, with a data folder of its own. */
  copy?: string
  env?: Record<string, string>
  /** Another program that is the same hub. */
  program?: string
}

const programFiles: Partial<Record<Side, string>> = {
  hub: 'src/start.js',
  bare: 'bench/limits/bare.ts',
  bare_echo: 'bench/limits/bare.ts',
  passing: 'bench/limits/least.ts',
  least: 'bench/limits/least.ts',
  online: 'bench/limits/online.ts',
  baseline: 'bench/baseline.ts',
  page: 'bench/limits/page.ts',
  echo: 'bench/limits/echo.ts',
  relay: 'bench/limits/relay.ts',
}

/** Whose database they have: their own, or the one that the hub filled. */
const databaseOf: Partial<Record<Side, Side>> = {
  hub: 'hub',
  baseline: 'baseline',
  least: 'least',
  online: 'online',
  page: 'hub',
}
/** They take any name for a device. */
const knowNoDevices: ReadonlySet<Side> = new Set([
  'bare',
  'bare_echo',
  'passing',
  'nats',
  'mosquitto',
])

/** Before anything is done to a hub that is not ours: who could not take it back must not begin. */
async function requireOperator({ origin, credentials }: Foreign): Promise<void> {
  try {
    await signIn(origin, credentials)
  } catch (error) {
    // What fetch calls failed is told by its cause.
    const told = error instanceof Error && error.cause instanceof Error ? error.cause : error
    const reason = told instanceof Error ? told.message : String(told)
    throw new Error(
      `nothing was measured: no sign-in at ${origin} (${reason}). Is a hub up there, and are --email and --password an admin's?`,
      { cause: error },
    )
  }
}

type Foreign = NonNullable<BenchOptions['foreign']>

/** Every rate that would refuse a load on purpose is off; what is measured is the work itself. */
const limitsOff = {
  LIMIT_LOGIN: '0',
  LIMIT_API: '0',
  LIMIT_ENROLL: '0',
  LIMIT_CONNECT: '0',
  LIMIT_FRAMES: '0',
  LIMIT_ACCEPT: '0',
}

export class Lab {
  readonly options: BenchOptions
  readonly progress: Progress
  readonly findings: Findings
  readonly folder = mkdtempSync(join(tmpdir(), 'muster-bench-'))
  readonly #credentials: Credentials = {
    email: 'bench@example.com',
    password: randomBytes(18).toString('base64url'),
    enrollmentSecret: randomBytes(24).toString('base64url'),
  }
  readonly #stack = new AsyncDisposableStack()
  readonly #databases = new Map<Side, BenchDatabase>()
  readonly #devices = new Map<Side, Device[]>()
  #starting: Promise<unknown> | undefined
  #closing = false

  constructor(options: BenchOptions, progress: Progress, findings = new Findings('bench')) {
    this.options = options
    this.findings = findings
    this.progress = progress
    this.#stack.defer(() => rmSync(this.folder, { recursive: true, force: true }))
  }

  /** Starts a side's program; starting it again after `stop` finds the same database. */
  start(side: Side, options: StartOptions = {}): Promise<Target> {
    return this.starting(() => this.#start(side, options))
  }

  /** Does work that starts something and defers its end; `close` waits for it. */
  starting<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closing) throw new Error('the lab is closed')
    const started = work()
    this.#starting = started
    return started
  }

  /** At least `count` devices of a target, enrolled through its API; a limit program knows no devices. */
  async devices(target: Target, count: number): Promise<Device[]> {
    const known = this.#devices.get(target.side) ?? []
    const missing = count - known.length
    if (missing > 0) {
      this.progress.step(`${target.side}: enrolling ${missing} devices`)
      // Known before they are there: an interrupt takes back those that are by then.
      if (known.length === 0 && target.pid === undefined) {
        this.defer(() => this.#retire(target, known))
      }
      this.#devices.set(target.side, known)
      await this.starting(() => this.#addDevices(target, missing, known))
    }
    return known.slice(0, count)
  }

  async #addDevices(target: Target, count: number, known: Device[]): Promise<void> {
    const { side, origin, credentials, database } = target
    if (knowNoDevices.has(side)) {
      known.push(...Array.from({ length: count }, () => madeUpDevice()))
    } else if ((side === 'least' || side === 'online') && database) {
      known.push(...(await fillHubTables(database.url, count)).map((id) => madeUpDevice(id)))
    } else {
      await enroll(origin, credentials, count, (device, done) => {
        known.push(device)
        if (done % 100 === 0) this.progress.count(done, count)
        if (this.#closing) throw new Error('the lab is closed')
      })
    }
  }

  async fleet(
    target: Target,
    devices: readonly Device[],
    more: Partial<FleetOptions> = {},
  ): Promise<Fleet> {
    const { origin, side } = target
    const broker = isBroker(side) ? side : undefined
    const processes = this.options.generators
    const fleet = await Fleet.start({ origin, devices, broker, processes, ...more })
    this.defer(() => fleet.close())
    return fleet
  }

  /** Work to be done when the lab closes, last deferred first. */
  defer(work: () => void | Promise<void>): void {
    this.#stack.defer(work)
  }

  /** Stops everything, also what is just being started: it can't be stopped before it is there. */
  async close(): Promise<void> {
    this.#closing = true
    await Promise.allSettled([this.#starting])
    await this.#stack.disposeAsync()
  }

  async #start(side: Side, options: StartOptions): Promise<Target> {
    const { foreign } = this.options
    if (side === 'hub' && foreign) {
      await requireOperator(foreign)
      const stop = () => Promise.resolve()
      const unknown = { pid: undefined, database: undefined, metricsToken: undefined }
      return { side, ...foreign, ...unknown, stop, kill: stop }
    }
    if (isBroker(side)) return this.#startBroker(side)
    const file = options.program ?? programFiles[side]
    if (file === undefined) throw new Error(`${side} is no program of its own`)
    this.progress.step(`${side}: starting`)
    const owner = databaseOf[side]
    const database = owner && (await this.#database(owner, options.statements ?? false))
    const credentials = this.#credentials
    const metricsToken = randomBytes(24).toString('base64url')
    const program = await startProgram({
      command: [
        process.execPath,
        ...(side === 'hub' ? startFlags(options.folder) : []),
        ...(options.nodeFlags ?? []),
        file,
      ],
      env: {
        ...limitsOff,
        ...(database ? { DATABASE_URL: database.url } : {}),
        DATA_DIR: join(this.folder, `${side}${options.copy ?? ''}-data`),
        ADMIN_EMAIL: credentials.email,
        ADMIN_PASSWORD: credentials.password,
        AGENT_ENROLLMENT_SECRET: credentials.enrollmentSecret,
        METRICS_SCRAPE_TOKEN: metricsToken,
        LOG_LEVEL: 'warn',
        ...(side === 'bare_echo' ? { ECHO: '1' } : {}),
        ...options.env,
      },
      logFile: join(this.folder, `${side}${options.copy ?? ''}.log`),
      ...(options.port ? { port: options.port } : {}),
      ...(options.folder ? { folder: options.folder } : {}),
    })
    this.defer(() => program.stop())
    return { side, ...program, credentials, database, metricsToken }
  }

  async #startBroker(side: Broker): Promise<Target> {
    this.progress.step(`${side}: starting`)
    const broker = await startBroker(side, this.folder)
    this.defer(() => broker.stop())
    return {
      side,
      ...broker.program,
      credentials: this.#credentials,
      database: undefined,
      metricsToken: undefined,
      heard: broker.heard,
      stop: () => broker.stop(),
    }
  }

  /** On a hub that is not ours nothing stays but decommissioned devices and what the audit says of them. */
  async #retire({ origin, credentials }: Target, devices: readonly Device[]): Promise<void> {
    this.progress.step(`decommissioning ${devices.length} devices`)
    await decommission(origin, credentials, devices, (done) =>
      this.progress.count(done, devices.length),
    ).catch((error: unknown) =>
      this.progress.note(`warning: devices stay enrolled: ${String(error)}`),
    )
  }

  /** The PostgreSQL of the rows alone, with nobody before it. */
  rowsDatabase(): Promise<BenchDatabase> {
    return this.starting(() => this.#database('rows', false))
  }

  async #database(side: Side, statements: boolean): Promise<BenchDatabase> {
    const known = this.#databases.get(side)
    if (known) return known
    const database = await startDatabase(join(this.folder, `${side}-postgres`), statements)
    this.defer(() => database.stop())
    this.#databases.set(side, database)
    const [row] = await database.read('show server_version')
    this.findings.postgres = String(row?.['server_version'])
    return database
  }
}

/** The flags of Node with which `npm start` starts the hub of a checkout. */
function startFlags(folder?: string): string[] {
  return startWords(folder).filter((word) => word.startsWith('--'))
}

/** What `npm start` runs in a checkout. */
export function startWords(folder: string = checkout): string[] {
  const { scripts } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    scripts: { start: string }
  }
  return scripts.start.split(' ')
}

/** CPU of the program and of its PostgreSQL so far; undefined where its processes are not ours. */
export function cpuMs(target: Target): { program: number; postgres: number } | undefined {
  if (target.pid === undefined) return undefined
  return {
    program: processCpuMs(target.pid),
    postgres: target.database ? treeCpuMs(target.database.pid) : 0,
  }
}

/** Heartbeats a program says it handled; undefined where its metrics are not ours to read. */
export async function heartbeatsHandled(target: Target): Promise<number | undefined> {
  if (target.heard) return target.heard()
  if (target.metricsToken === undefined) return undefined
  const headers = { Authorization: `Bearer ${target.metricsToken}` }
  const text = await (await fetch(`${target.origin}/metrics`, { headers })).text()
  const count = /^muster_heartbeats_total (\d+)$/m.exec(text)?.[1]
  if (count === undefined) throw new Error(`${target.side} does not tell its heartbeats`)
  return Number(count)
}

function madeUpDevice(id: string = randomUUID()): Device {
  return { id, token: madeUpToken(id) }
}
