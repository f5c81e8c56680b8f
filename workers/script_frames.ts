// Frames of commands that an execution made: the command names its execution, and the script, its language
// and its environment are put into the frame when it is written. So a script of 256 KiB is stored once and
// not once per device, and a secret is open only as long as it takes to write one frame.
import { LRUCache } from 'lru-cache'
import { Batcher } from '../src/batch.ts'
import type { DataKeys } from '../src/data_keys.ts'
import { plainArray, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import type { OpenCommand } from './device_state.ts'
import { persist } from './persist.ts'

export interface ScriptFramesOptions<D> {
  db: Database
  keys: DataKeys
  isWanted(device: D, command: OpenCommand): boolean
  /** The frame's payload as JSON text. */
  onPayload(device: D, command: OpenCommand, payload: string): void
  onUnsendable(device: D, command: OpenCommand, error: string): void
  /** After what was written outside of a turn of the shard. */
  onTurn(): void
  onProblem(message: string, error: unknown): void
}

/** An execution's script, ready but for its secrets. */
interface Script {
  /** JSON text up to the environment. */
  head: string
  env: Record<string, string>
  /** Opens the secret part of the environment; null where there is none. */
  open: (() => string) | null
}

interface Waiting<D> {
  device: D
  command: OpenCommand
  executionId: string
}

interface ScriptRow extends Record<string, unknown> {
  id: string
  language: string
  content: string
  env: Record<string, string>
  secrets: Buffer | null
}

const gone = 'its execution is no longer there'
const sealed =
  'its secret parameters can’t be opened: the JWT_SECRET they were sealed under is gone'

export class ScriptFrames<D> {
  /** A string: why the frames of this execution can't be made. */
  private readonly ready = new LRUCache<string, Script | string>({
    maxSize: limits.scriptCacheBytesMax,
    sizeCalculation: (script) => 512 + (typeof script === 'string' ? 0 : script.head.length),
  })
  /** In order; one entry per device at most, since only one command of it is on its way. */
  private queue: Waiting<D>[] = []
  /** Of executions that are being read. */
  private readonly parked = new Map<string, Waiting<D>[]>()
  private readonly loads: Batcher<string>
  private readonly stopping = new AbortController()
  private timer: NodeJS.Timeout | undefined
  private sliceEndsMs = 0
  private sliceBytes = 0
  private readonly options: ScriptFramesOptions<D>

  constructor(options: ScriptFramesOptions<D>) {
    this.options = options
    this.loads = new Batcher<string>({
      rowsMax: limits.scriptLoadMax,
      queueMax: Infinity,
      inFlight: 1,
      write: (ids) =>
        persist(ids, {
          write: (some) => this.load(some),
          signal: this.stopping.signal,
          onOutage: (error) =>
            options.onProblem('scripts can’t be read; they are asked again', error),
          reject: (id, error) => {
            options.onProblem('a script can’t be read', error)
            this.unpark(id, gone)
          },
        }),
    })
  }

  /** Writes the command's frame as soon as its script is there and the slice of time has room. */
  push(device: D, command: OpenCommand): void {
    const { executionId } = command
    if (executionId === null) throw new Error('a command of no execution has its own payload')
    this.queue.push({ device, command, executionId })
    if (this.timer === undefined) this.pump()
  }

  stop(): void {
    this.stopping.abort()
    clearTimeout(this.timer)
    this.queue = []
  }

  private pump(): void {
    const nowMs = performance.now()
    if (nowMs >= this.sliceEndsMs) {
      this.sliceEndsMs = nowMs + limits.scriptSliceMs
      this.sliceBytes = 0
    }
    let taken = 0
    for (const waiting of this.queue) {
      if (this.sliceBytes >= limits.scriptSliceBytesMax) break
      this.write(waiting)
      taken++
    }
    this.queue.splice(0, taken)
    if (this.queue.length === 0 || this.stopping.signal.aborted) return
    this.timer = setTimeout(() => {
      this.timer = undefined
      this.pump()
      this.options.onTurn()
    }, this.sliceEndsMs - nowMs)
  }

  private write(waiting: Waiting<D>): void {
    const { device, command, executionId } = waiting
    if (!this.options.isWanted(device, command)) return
    const script = this.ready.get(executionId)
    if (script === undefined) this.park(waiting)
    else if (typeof script === 'string') this.options.onUnsendable(device, command, script)
    else this.writeFrame(waiting, script)
  }

  private writeFrame({ device, command }: Waiting<D>, { head, env, open }: Script): void {
    const secrets = open === null ? {} : (JSON.parse(open()) as Record<string, string>)
    const payload = `${head}${JSON.stringify({ ...env, ...secrets })}}`
    this.sliceBytes += payload.length
    this.options.onPayload(device, command, payload)
  }

  private park(waiting: Waiting<D>): void {
    const parked = this.parked.get(waiting.executionId)
    if (parked) {
      parked.push(waiting)
      return
    }
    this.parked.set(waiting.executionId, [waiting])
    this.loads.push(waiting.executionId)
  }

  private async load(ids: string[]): Promise<void> {
    const rows = await this.options.db.query<ScriptRow>(scriptsSql, [plainArray(ids)])
    const scripts = await Promise.all(rows.map((row) => this.prepare(row)))
    const byId = new Map(rows.map((row, n) => [row.id, scripts[n]]))
    for (const id of ids) this.unpark(id, byId.get(id) ?? gone)
  }

  private async prepare(row: ScriptRow): Promise<Script | string> {
    const open = row.secrets === null ? null : await this.options.keys.opener(row.secrets)
    if (row.secrets !== null && open === null) return sealed
    const { language, content, env } = row
    const head = `${JSON.stringify({ language, content }).slice(0, -1)},"env":`
    return { head, env, open }
  }

  private unpark(id: string, script: Script | string): void {
    this.ready.set(id, script)
    const parked = this.parked.get(id) ?? []
    this.parked.delete(id)
    this.queue = [...parked, ...this.queue]
    if (this.timer === undefined) this.pump()
    this.options.onTurn()
  }
}

/** $1 execution ids */
export const scriptsSql = `
select e.id, v.language, v.content, e.env, e.secrets
from executions e
join script_versions v on v.script_id = e.script_id and v.version = e.version
where e.id = any($1::uuid[])`
