// Accepting commands: group commit of command, audit row, event and idempotency key in one statement, and
// the waiting for ends. What a command is stands in `actions.ts`; what becomes of it, in the actor.
import type { Actor } from './auth.ts'
import { sha256 } from './auth.ts'
import { Batcher } from './batch.ts'
import {
  acceptSql,
  acceptValues,
  repeatsSql,
  type AcceptedCommand,
  type AcceptRow,
} from './command_statements.ts'
import { plainArray, textArray, type Database } from './db.ts'
import { AppError } from './errors.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'
import { isConcurrent } from './protocol.ts'
import type { Shards } from './shards.ts'

export interface NewCommand {
  deviceId: string
  action: string
  /** JSON text of an object. */
  payload: string
  timeoutSeconds: number
  expiresInSeconds: number
  idempotencyKey: string | null
  /** The caller waits for the end. */
  awaited: boolean
  actor: Actor
  ip: string
  userAgent: string | null
  requestId: string
}

/** What a commit says of one command. */
export interface Accepted {
  id: string
  /** False: the Idempotency-Key had accepted it before, and `id` is that first command. */
  fresh: boolean
  /** Only of a first command that was found: it has ended, nothing is to be waited for. */
  ended: boolean
  createdMs: number
  expiresMs: number
  blockedBy: { reason: 'offline' | 'busy' | 'suspended'; commandId?: string } | null
}

interface Waiting extends AcceptedCommand {
  resolve: (accepted: Accepted) => void
  reject: (error: unknown) => void
}

type Waker = (row?: string) => void

export interface CommandsOptions {
  nodeId: string
  db: Database
  shards: Shards
  /** Commands were handed to these hubs, and committed. */
  onHanded: (nodes: Iterable<string>) => void
  onAccepted: (count: number) => void
}

export class Commands {
  private readonly batcher: Batcher<Waiting>
  private readonly waiters = new Map<string, Set<Waker>>()
  private waiterCount = 0
  private released = false
  private readonly options: CommandsOptions

  constructor(options: CommandsOptions) {
    this.options = options
    this.batcher = new Batcher<Waiting>({
      rowsMax: limits.commandBatchMax,
      bytesMax: limits.commandBatchBytesMax,
      bytesOf: ({ command }) => command.payload.length,
      queueMax: limits.commandQueueMax,
      inFlight: limits.commandBatchesInFlight,
      write: (items) => this.commit(items),
    })
    options.shards.onEnded((ids, rows) => {
      for (const id of ids) for (const wake of this.waiters.get(id) ?? []) wake(rows.get(id))
    })
  }

  get queued(): number {
    return this.batcher.queued
  }

  /**
   * Resolves once the command is committed, told to its actor and answered for. Throws NOT_FOUND,
   * DEVICE_DECOMMISSIONED, QUEUE_FULL, IDEMPOTENCY_KEY_REUSED, UNAVAILABLE, OVERLOADED.
   */
  accept(command: NewCommand): Promise<Accepted> {
    const bodyHash =
      command.idempotencyKey === null ? null : sha256(sameBody(command)).toString('hex')
    return new Promise((resolve, reject) => {
      const createdMs = Date.now()
      const id = newId(createdMs)
      const pushed = this.batcher.push({ command, id, bodyHash, createdMs, resolve, reject })
      if (pushed) return
      reject(new AppError('OVERLOADED', 'too many commands wait', { retryAfterSeconds: 1 }))
    })
  }

  /**
   * Resolves when the command has ended on this hub, the time is over, or the caller has gone; with the
   * ended command as JSON text when the end brought it along.
   */
  async ended(
    id: string,
    seconds: number,
    onAbort: (gone: () => void) => void,
  ): Promise<string | undefined> {
    if (this.released || this.waiterCount >= limits.waitersMax) return undefined
    this.waiterCount++
    const wakers = this.waiters.get(id) ?? new Set()
    this.waiters.set(id, wakers)
    const row = await new Promise<string | undefined>((resolve) => {
      const wake: Waker = (text) => {
        clearTimeout(timer)
        // Others may wait for the same command, and longer.
        wakers.delete(wake)
        if (wakers.size === 0 && this.waiters.get(id) === wakers) this.waiters.delete(id)
        resolve(text)
      }
      const timer = setTimeout(() => wake(), seconds * 1000)
      wakers.add(wake)
      onAbort(() => wake())
    })
    this.waiterCount--
    return row
  }

  /** What requests wait for, the longest first, as many as one statement may look for. */
  awaited(): string[] {
    return Array.from(this.waiters.keys()).slice(0, limits.waitersReadMax)
  }

  /** Answers everyone who waits with what there is: the hub goes down. */
  release(): void {
    this.released = true
    for (const wakers of this.waiters.values()) for (const wake of wakers) wake()
  }

  async drained(): Promise<void> {
    await this.batcher.drained()
  }

  private async commit(items: Waiting[]): Promise<void> {
    try {
      const { db, nodeId, onHanded } = this.options
      const rows = await db.query<AcceptRow>(acceptSql, acceptValues(items, nodeId))
      const byNumber = new Map(rows.map((row) => [row.n, row]))
      let count = 0
      const repeats: Waiting[] = []
      const handed = new Set<string>()
      for (const [n, item] of items.entries()) {
        const row = byNumber.get(n)
        if (row?.accepted) {
          count++
          // Whoever claims a device that nobody holds reads its queue then.
          if (row.here) this.tell(item, row.ahead ?? [])
          else if (row.elsewhere !== null) handed.add(row.elsewhere)
          item.resolve(acceptedOf(item, row))
        } else if (item.bodyHash !== null) {
          repeats.push(item)
        } else {
          item.reject(refusalOf(row))
        }
      }
      if (handed.size > 0) onHanded(handed)
      this.options.onAccepted(count)
      if (repeats.length > 0) await this.answerRepeats(repeats, byNumber, items)
    } catch (error) {
      // The statement is one: when it failed, nobody's row is there. What one row spoiled must not
      // reach the callers of the others.
      if (items.length === 1 || error instanceof AppError) {
        if (isInDoubt(error)) this.doubt(items)
        for (const item of items) item.reject(error)
        return
      }
      const middle = items.length >> 1
      await this.commit(items.slice(0, middle))
      await this.commit(items.slice(middle))
    }
  }

  /** Callers whose key was taken: the first command, or a clear refusal. */
  private async answerRepeats(
    repeats: Waiting[],
    byNumber: Map<number, AcceptRow>,
    items: Waiting[],
  ): Promise<void> {
    const rows = await this.options.db.query<{
      n: number
      same: boolean
      ended: boolean
      id: string
      createdMs: number
      expiresMs: number
    }>(repeatsSql, [
      plainArray(repeats.map((_, n) => n)),
      plainArray(repeats.map((item) => item.command.actor.userId)),
      textArray(repeats.map((item) => item.command.idempotencyKey)),
      textArray(repeats.map((item) => item.bodyHash)),
    ])
    const found = new Map(rows.map((row) => [row.n, row]))
    for (const [n, item] of repeats.entries()) {
      const first = found.get(n)
      if (first === undefined) {
        item.reject(refusalOf(byNumber.get(items.indexOf(item))))
      } else if (first.same) {
        const { id, ended, createdMs, expiresMs } = first
        // Whoever accepted it may not have lived to tell.
        if (!ended) this.options.shards.check(item.command.deviceId, id)
        item.resolve({ id, fresh: false, ended, createdMs, expiresMs, blockedBy: null })
      } else {
        item.reject(
          new AppError(
            'IDEMPOTENCY_KEY_REUSED',
            'this Idempotency-Key was used for another command in the last 24 hours; take a new one',
          ),
        )
      }
    }
  }

  /**
   * The answer was lost, which says nothing of the commit: the devices' actors look, now and once more when a
   * statement that was given up has run at the latest. Their callers repeat under an Idempotency-Key, or ask.
   */
  private doubt(items: readonly Waiting[]): void {
    const look = () => {
      for (const { command, id } of items) this.options.shards.check(command.deviceId, id)
    }
    look()
    setTimeout(look, limits.doubtMs).unref()
  }

  private tell({ command, id, createdMs }: Waiting, ahead: readonly string[]): void {
    const { shards } = this.options
    // They were accepted before, and come first.
    for (const earlier of ahead) shards.check(command.deviceId, earlier)
    shards.tellCommand(command.deviceId, {
      id,
      action: command.action,
      payload: command.payload,
      timeoutSeconds: command.timeoutSeconds,
      createdMs,
      expiresMs: createdMs + command.expiresInSeconds * 1000,
      concurrent: isConcurrent(command.action),
      awaited: command.awaited,
      executionId: null,
    })
  }
}

/** What must be the same for a repeat to be one; the device too, since it is in the path. */
function sameBody({ deviceId, action, payload, timeoutSeconds, expiresInSeconds }: NewCommand) {
  return JSON.stringify([deviceId, action, payload, timeoutSeconds, expiresInSeconds])
}

function acceptedOf(item: Waiting, row: AcceptRow): Accepted {
  const { id, createdMs, command } = item
  const ahead = row.open > 0 && row.first !== null && !isConcurrent(command.action)
  const blockedBy = row.suspended
    ? ({ reason: 'suspended' } as const)
    : row.status !== 'online'
      ? ({ reason: 'offline' } as const)
      : ahead
        ? { reason: 'busy' as const, commandId: row.first as string }
        : null
  const expiresMs = createdMs + command.expiresInSeconds * 1000
  return { id, fresh: true, ended: false, createdMs, expiresMs, blockedBy }
}

/** False where the statement was not even begun. */
function isInDoubt(error: unknown): boolean {
  return error instanceof AppError && error.code === 'UNAVAILABLE'
}

function refusalOf(row: AcceptRow | undefined): AppError {
  if (row === undefined) return new AppError('NOT_FOUND', 'there is no such device')
  if (row.gone) {
    return new AppError(
      'DEVICE_DECOMMISSIONED',
      'the device is decommissioned; it takes no commands',
    )
  }
  return new AppError(
    'QUEUE_FULL',
    `${limits.openCommandsMax} commands of this device are open; cancel some or wait`,
  )
}
