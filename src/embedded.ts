// The hub's own PostgreSQL, for when nobody gives it one: real, durable, reachable by this user only. It
// ends with the hub however the hub ends, and is started again when it is killed. Holds no connection.

import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { mkdirSync, realpathSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { isMainThread } from 'node:worker_threads'
import { addressOf, prepareCluster, removeSocketDir, type Address } from './postgres_cluster.ts'
import { claimFolder, freeCluster, readLock } from './postgres_lock.ts'
import { ended, keepLines, lastWords, signalPostgres, spawnProgram } from './postgres_process.ts'
import { chooseRunner, type Runner } from './postgres_programs.ts'

/** A start replays at most max_wal_size of log; 2 GB take a minute or two on a slow disk. */
const readyMsMax = 300_000
const readyPollMs = 15
/** People are told that a recovery goes on, this often. */
const stillStartingMs = 5_000
/** A fast shutdown writes shared_buffers out; past this it is told to quit, and the next start recovers. */
const stopMsMax = 30_000
const quitMsMax = 5_000
/** Restarts wait from 0.1 to 10 s: a killed server is back at once, a full disk is not hammered. */
const restartMsMin = 100
const restartMsMax = 10_000
/** A server that lived this long did not die of its start: the next restart is quick again. */
const steadyMs = 60_000

const settings = {
  // What the hub promises after a power cut hangs on these three; they are never switched off.
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  shared_buffers: '128MB',
  // Between checkpoints, so that a burst of commands doesn't force one; bounds recovery too.
  max_wal_size: '2GB',
  // Our statements are short: compiling one costs more than it saves.
  jit: 'off',
  timezone: 'UTC',
  log_timezone: 'UTC',
  // Failed statements are answered to their callers; the server's log is about the server.
  log_min_messages: 'log',
  log_checkpoints: 'off',
  log_line_prefix: '',
}

/** A hub's pools take about 40; a bench, a second hub and people's psql fit beside it. */
const connectionsMax = 100

/** Lines of the server worth telling people: it suffered, or it repairs. */
const worthTelling =
  /^PANIC|was terminated by signal|was interrupted|No space left|redo (starts|done)/

export interface EmbeddedOptions {
  /** A folder for this server alone; made when missing. */
  dataDir: string
  log: (message: string) => void
  /** How many it takes at most; 100 by default. */
  connections?: number | undefined
  /** The folder with the programs' `bin`, `lib` and `share`; by default npm's package. */
  native?: string | undefined
  /** False: as where user namespaces are forbidden. */
  namespaces?: boolean | undefined
  /** True: loopback TCP with a generated password, as on Windows, instead of a socket in a closed folder. */
  tcp?: boolean | undefined
}

export interface EmbeddedPostgres {
  /** For any PostgreSQL client of this user. */
  readonly url: string
  /** The folder of the socket; empty on TCP. */
  readonly socketDir: string
  /** The postmaster's process id; another one after a restart, and 0 where none could be started. */
  readonly pid: number
  /** Disconnects everybody and stops the server, everything written. May be called again. */
  stop: () => Promise<void>
}

/**
 * Starts the server in `dataDir`, making its data first where there is none. Throws an `Error` whose
 * message says what to do when another hub holds the folder or PostgreSQL can't run here.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  // The kernel's parent-death signal is tied to the thread that spawns, and workers come and go.
  assert(isMainThread, 'the embedded PostgreSQL must be started on the main thread')
  const { log, tcp = process.platform === 'win32' } = options
  mkdirSync(options.dataDir, { recursive: true, mode: 0o700 })
  const dataDir = realpathSync(options.dataDir)
  const claim = await claimFolder(dataDir)
  try {
    const runner = chooseRunner({ ...options, dataDir, cluster: join(dataDir, 'cluster') })
    const cluster = await prepareCluster(runner, dataDir, log)
    await freeCluster(cluster, log)
    const address = addressOf(runner, dataDir, tcp)
    const postmaster = new Postmaster(runner, cluster, address, options)
    await postmaster.start().catch((error: unknown) => {
      removeSocketDir(address)
      throw error
    })
    return postmasterHandle(postmaster, address, claim)
  } catch (error) {
    await claim.release()
    throw error
  }
}

function postmasterHandle(
  postmaster: Postmaster,
  address: Address,
  claim: { release(): Promise<void> },
): EmbeddedPostgres {
  let stopped: Promise<void> | undefined
  const stop = async () => {
    await postmaster.stop()
    removeSocketDir(address)
    // Last: until here another hub on this folder would meet our server.
    await claim.release()
  }
  return {
    url: address.url,
    socketDir: address.socketDir,
    get pid() {
      return postmaster.pid
    },
    stop: () => (stopped ??= stop()),
  }
}

/** The server process and whatever replaces it, from `start()` to `stop()`. */
class Postmaster {
  readonly #runner: Runner
  readonly #cluster: string
  readonly #address: Address
  readonly #log: (message: string) => void
  readonly #connections: number
  readonly #stopping = new AbortController()
  readonly #onExit = () => this.#signal('INT')
  #child: ChildProcess | undefined
  #startedMs = 0
  #watch: Promise<void> = Promise.resolve()

  constructor(runner: Runner, cluster: string, address: Address, options: EmbeddedOptions) {
    this.#runner = runner
    this.#cluster = cluster
    this.#address = address
    this.#log = options.log
    this.#connections = options.connections ?? connectionsMax
  }

  get pid(): number {
    return this.#child?.pid ?? 0
  }

  async start(): Promise<void> {
    // For systems without a parent-death signal: a hub that exits takes its server with it.
    process.on('exit', this.#onExit)
    const child = this.#launch()
    try {
      await this.#ready(child)
    } catch (error) {
      this.#signal('KILL')
      await ended(child.process)
      process.off('exit', this.#onExit)
      throw error
    }
    this.#watch = this.#keepRunning(child.process)
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    // INT is PostgreSQL's fast shutdown: sessions end, everything is written, no recovery later.
    this.#signal('INT')
    const quit = setTimeout(() => this.#signal('QUIT'), stopMsMax)
    const kill = setTimeout(() => this.#signal('KILL'), stopMsMax + quitMsMax)
    await this.#watch
    clearTimeout(quit)
    clearTimeout(kill)
    process.off('exit', this.#onExit)
  }

  async #keepRunning(first: ChildProcess): Promise<void> {
    let child = first
    let pauseMs = restartMsMin
    for (;;) {
      const why = await ended(child)
      if (this.#stopping.signal.aborted) return
      if (performance.now() - this.#startedMs > steadyMs) pauseMs = restartMsMin
      this.#log(`PostgreSQL ended (${why}); starting it again in ${pauseMs} ms`)
      await sleep(pauseMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
      if (this.#stopping.signal.aborted) return
      pauseMs = Math.min(pauseMs * 2, restartMsMax)
      try {
        await freeCluster(this.#cluster, this.#log)
        if (this.#stopping.signal.aborted) return
        const next = this.#launch()
        child = next.process
        await this.#ready(next)
        this.#log(`PostgreSQL is back after ${Math.round(performance.now() - this.#startedMs)} ms`)
      } catch (error) {
        // Told, and tried again by the next turn of the loop.
        this.#log(error instanceof Error ? error.message : String(error))
      }
    }
  }

  #launch(): Launched {
    const args = ['-D', this.#cluster, ...this.#address.listen]
    args.push('-c', `max_connections=${this.#connections}`)
    for (const [name, value] of Object.entries(settings)) args.push('-c', `${name}=${value}`)
    const child = spawnProgram(this.#runner, 'postgres', args, 'INT')
    this.#child = child
    this.#startedMs = performance.now()
    const lines = keepLines(child, (line) => {
      if (worthTelling.test(line)) this.#log(`PostgreSQL: ${line}`)
    })
    return { process: child, lines }
  }

  /** Waits for the line that PostgreSQL itself writes for those who wait. */
  async #ready({ process: child, lines }: Launched): Promise<void> {
    const startedMs = performance.now()
    let tellMs = startedMs + stillStartingMs
    for (;;) {
      const lock = readLock(this.#cluster)
      if (lock?.ready && lock.pid === child.pid) return
      if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) {
        throw new Error(`PostgreSQL did not start: ${await lastWords(child, lines)}`)
      }
      const nowMs = performance.now()
      if (nowMs - startedMs > readyMsMax) {
        throw new Error(`PostgreSQL is not ready after ${readyMsMax / 1000} s: ${lines.join('; ')}`)
      }
      if (nowMs > tellMs) {
        this.#log(`PostgreSQL is still starting: ${lines.at(-1) ?? 'it says nothing'}`)
        tellMs = nowMs + stillStartingMs
      }
      await sleep(readyPollMs)
    }
  }

  #signal(name: 'INT' | 'QUIT' | 'KILL'): void {
    if (this.#child !== undefined) signalPostgres(this.#runner, this.#child, name)
  }
}

interface Launched {
  process: ChildProcess
  lines: string[]
}
