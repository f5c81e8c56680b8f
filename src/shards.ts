// Device id → shard thread: the mailboxes between the front and the shards. Restarts a dead thread and
// replays its open sockets to the new one. Knows neither uWebSockets.js nor what a frame means.
import { Worker } from 'node:worker_threads'
import { AppError } from './errors.ts'
import { partOf } from './ids.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import { Mailbox, type Pressure } from './mailbox.ts'
import type {
  CancelAnswer,
  CommandMessage,
  FrontMail,
  FrontMessage,
  Observed,
  ShardData,
  ShardMessage,
} from './protocol.ts'

/** What happens to sockets; the front gives it once it is there. */
export interface Sockets {
  send(conn: number, text: string): void
  /** False when the frame did not go out. */
  sendCommand(conn: number, text: string): boolean
  close(conn: number, code: number, reason: string): void
  /** The open sockets of a shard, for its replacement. */
  openOf(shard: number): Iterable<SocketOf>
}

export interface SocketOf {
  conn: number
  deviceId: string
  orgId: string
  ip: string
  /** It was welcomed. */
  resumed: boolean
}

export interface ShardsOptions {
  count: number
  nodeId: string
  databaseUrl: string
  logLevel: string
  heartbeatSeconds: number
  wrappingKeys: Uint8Array[]
  log: Logger
  onObserved: (shard: number, observed: Observed) => void
  onRestart: () => void
  onBatch: (frames: number) => void
  /** These hubs have lost devices to this one. */
  onClaimedFrom: (nodes: string[]) => void
  /** Ends that requests on any hub may wait for. */
  onEndedAnywhere: (ids: string[]) => void
  /** A device that came here has terminals on other hubs. */
  onTerminals: (message: Extract<FrontMessage, { type: 'terminals' }>) => void
  /** Another hub did something to a device of this one: it may say what. */
  onSuperseded: () => void
}

/** Ids of ended commands; rows by id as JSON texts, where the end brought them along. */
export type EndListener = (ids: string[], rows: ReadonlyMap<string, string>) => void

const noRows: ReadonlyMap<string, string> = new Map()

interface Shard {
  index: number
  worker: Worker
  mailbox: Mailbox
  /** Heartbeats were dropped since the last tick. */
  deaf: boolean
  stopped: (() => void) | undefined
}

export class Shards {
  private readonly shards: Shard[] = []
  private readonly asked = new Map<number, (value: unknown) => void>()
  private readonly endListeners: EndListener[] = []
  private sockets: Sockets | undefined
  private asks = 0
  private ticker: NodeJS.Timeout | undefined
  private closing = false
  private readonly options: ShardsOptions

  constructor(options: ShardsOptions) {
    this.options = options
    for (let index = 0; index < options.count; index++) this.shards.push(this.start(index))
    this.ticker = setInterval(() => this.tick(), 1000)
  }

  get count(): number {
    return this.shards.length
  }

  /** The front's sockets; before this call no agent is connected. */
  attach(sockets: Sockets): void {
    this.sockets = sockets
  }

  /** The shard of a device: by the random end of its id. */
  of(deviceId: string): number {
    return partOf(deviceId, this.shards.length)
  }

  /** Hands a message to a device's actor; it is lost when the device is not connected here. */
  tell(deviceId: string, message: ShardMessage): void {
    this.shard(this.of(deviceId)).mailbox.post(message)
  }

  /** A committed command on its way to its device. */
  tellCommand(deviceId: string, command: CommandMessage): void {
    this.tell(deviceId, { type: 'command', deviceId, command })
  }

  /** Has the actor, if it is here, look whether this command is open: nobody may have told of its commit. */
  check(deviceId: string, id: string): void {
    this.tell(deviceId, { type: 'check', deviceId, id })
  }

  /** Has the actor cancel, if it is here; what comes of it shows in the command. */
  tellCancel(deviceId: string, id: string): void {
    // Nobody waits for number 0.
    this.tell(deviceId, { type: 'cancel', deviceId, id, ask: 0 })
  }

  /** Asks the actor to cancel. */
  async cancel(deviceId: string, id: string): Promise<CancelAnswer> {
    const ask = ++this.asks
    const answer = new Promise<unknown>((resolve, reject) => {
      const timer = setTimeout(() => {
        this.asked.delete(ask)
        reject(
          new AppError('UNAVAILABLE', 'the hub is restarting a part of itself; try again', {
            retryAfterSeconds: 1,
          }),
        )
      }, limits.checkoutMsMax)
      this.asked.set(ask, (value) => {
        clearTimeout(timer)
        resolve(value)
      })
    })
    this.tell(deviceId, { type: 'cancel', deviceId, id, ask })
    return (await answer) as CancelAnswer
  }

  /** Tells every shard. */
  broadcast(message: ShardMessage): void {
    for (const shard of this.shards) shard.mailbox.post(message)
  }

  /** Status or settings of an organization changed and are committed. */
  organizationChanged(orgId: string): void {
    this.broadcast({ type: 'organization', orgId })
  }

  /** Called when ends of commands were committed. */
  onEnded(listener: EndListener): void {
    this.endListeners.push(listener)
  }

  /** Tells waiting requests of ends that someone else than an actor committed. */
  ended(ids: string[], rows: ReadonlyMap<string, string> = noRows): void {
    for (const listener of this.endListeners) listener(ids, rows)
  }

  /** Hands a frame over with everything else of this event-loop turn; one that can wait, with what comes next. */
  frame(shardIndex: number, conn: number, text: string, canWait: boolean): void {
    this.shard(shardIndex).mailbox.frame(conn, text, canWait)
  }

  /** How far a shard is behind right now. */
  pressure(shardIndex: number): Pressure {
    return this.shard(shardIndex).mailbox.pressure()
  }

  /** The front drops a heartbeat of this shard: no deadline may run while it does. */
  dropHeartbeat(shardIndex: number): void {
    this.shard(shardIndex).deaf = true
  }

  /** True when every shard has taken its mail within the time it may need. */
  healthy(): boolean {
    return this.shards.every(({ mailbox }) => mailbox.behindMs() < limits.shardBehindMsMax)
  }

  /** Lets every shard write what it holds, then ends the threads. */
  async close(): Promise<void> {
    this.closing = true
    clearInterval(this.ticker)
    await Promise.all(
      this.shards.map(async (shard) => {
        const stopped = new Promise<void>((resolve) => {
          shard.stopped = resolve
          shard.worker.once('exit', () => resolve())
        })
        shard.mailbox.end()
        shard.mailbox.post({ type: 'stop' })
        await stopped
        await shard.worker.terminate()
      }),
    )
  }

  /** The threads themselves: for tests that kill one. */
  threads(): Worker[] {
    return this.shards.map((shard) => shard.worker)
  }

  private tick(): void {
    for (const shard of this.shards) {
      shard.mailbox.post({ type: 'tick', deaf: shard.deaf })
      shard.deaf = false
    }
  }

  private shard(index: number): Shard {
    const shard = this.shards[index]
    if (shard === undefined) throw new Error(`there is no shard ${index}`)
    return shard
  }

  private start(index: number): Shard {
    const mailbox = new Mailbox((mail) => {
      this.options.onBatch(mail.length)
      worker.postMessage({ atMs: Date.now(), mail })
    })
    const { count, nodeId, databaseUrl, logLevel, heartbeatSeconds, wrappingKeys } = this.options
    const workerData: ShardData = {
      index,
      count,
      nodeId,
      databaseUrl,
      logLevel,
      heartbeatSeconds,
      wrappingKeys,
      confirmed: mailbox.confirmed,
    }
    const worker = new Worker(new URL('../workers/shard.ts', import.meta.url), { workerData })
    const shard: Shard = { index, worker, mailbox, deaf: false, stopped: undefined }
    worker.on('message', ({ mail }: FrontMail) => this.receive(shard, mail))
    worker.on('error', (error) =>
      this.options.log.error({ err: error, shard: index }, 'shard died'),
    )
    worker.on('exit', (code) => this.replace(shard, code))
    return shard
  }

  /** A dead thread's devices go to a new one; their sockets stay open and notice nothing. */
  private replace(dead: Shard, code: number): void {
    if (this.closing || this.shards[dead.index] !== dead) return
    this.options.log.error({ shard: dead.index, code }, 'a shard thread ended; it is replaced')
    this.options.onRestart()
    dead.mailbox.abandon()
    const shard = this.start(dead.index)
    this.shards[dead.index] = shard
    for (const socket of this.sockets?.openOf(dead.index) ?? []) {
      shard.mailbox.post({ type: 'connect', ...socket, token: 'current' })
    }
    // Sockets that closed while the dead one still owed the word of it are nobody's any more.
    shard.mailbox.post({ type: 'replayed' })
  }

  private receive(shard: Shard, mail: FrontMail['mail']): void {
    const { sockets } = this
    for (let i = 0; i < mail.length; i++) {
      const entry = mail[i]
      if (typeof entry === 'number') sockets?.send(entry, mail[++i] as string)
      else this.handle(shard, entry as FrontMessage)
    }
  }

  private handle(shard: Shard, message: FrontMessage): void {
    switch (message.type) {
      case 'command': {
        const { conn, id, text } = message
        if (this.sockets?.sendCommand(conn, text)) shard.mailbox.post({ type: 'sent', conn, id })
        return
      }
      case 'close':
        return this.sockets?.close(message.conn, message.code, message.reason)
      case 'ended':
        if (message.anywhere.length > 0) this.options.onEndedAnywhere(message.anywhere)
        return this.ended(message.ids, message.rows)
      case 'answer':
        this.asked.get(message.ask)?.(message.value)
        this.asked.delete(message.ask)
        return
      case 'claimed_from':
        return this.options.onClaimedFrom(message.nodes)
      case 'terminals':
        return this.options.onTerminals(message)
      case 'superseded':
        return this.options.onSuperseded()
      case 'observed':
        return this.options.onObserved(shard.index, message.observed)
      case 'stopped':
        return shard.stopped?.()
    }
  }
}
