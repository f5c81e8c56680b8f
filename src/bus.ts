// What hubs tell each other through Redis: hints and terminal frames, sealed, so that Redis reads and forges
// nothing. Nothing is kept and nothing is sent twice: whoever needs to know more than that something may have
// happened reads it from PostgreSQL.
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { hexOf, isUuid, uuidOf } from './ids.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import { connectionTo, keepRedis, type Connection, type RedisNews } from './redis.ts'
import { keysFrom, sealBytes, unsealBytes } from './seal.ts'

/**
 * `handed`: rows wait for the hub it is sent to. `ended`: ids of commands that its requests wait for. `cancel`: what
 * an actor answered, and the id of the command.
 * `terminal`, `frame`: a terminal session whose ends are on two hubs. `interrupted`: terminals of hubs that are gone
 * were ended. `probe`: to oneself.
 */
export const busKinds = [
  'probe',
  'handed',
  'ended',
  'cancel',
  'terminal',
  'frame',
  'interrupted',
] as const
export type BusKind = (typeof busKinds)[number]

/** In the place of a node: every hub but the one that sends. For what is rare, and nobody knows whom it concerns. */
export const everyHub = 'every'

/** `from` is the node that sent it. */
export type BusListener = (from: string, body: Buffer) => void

export interface Bus {
  /** `off` without Redis. */
  state(): 'ok' | 'down' | 'off'
  /** Sends with everything else of this turn, to one hub or `everyHub`; false when it can't be sent. True is no promise. */
  send(node: string, kind: BusKind, body: string | Uint8Array): boolean
  on(kind: BusKind, listener: BusListener): void
  /** Called when it works from now on; what was sent before may have been missed. */
  onBack(listener: () => void): void
  /** Called when it works no more. */
  onLost(listener: () => void): void
  close(): Promise<void>
}

export interface BusOptions {
  nodeId: string
  /** `redis://` or `rediss://`; it may hold a password and is never logged. */
  url: string | undefined
  /** The key that seals first, then those that may still open. */
  keys: readonly Buffer[]
  log: Logger
  news: RedisNews
  metrics: Metrics
}

export function busKeys(secret: string, previous: string | undefined): Buffer[] {
  return keysFrom(secret, previous, 'bus')
}

/** Joins the bus; resolves never, fails never: while Redis is away it keeps trying. */
export function joinBus({ url, ...options }: BusOptions): Bus {
  return url === undefined ? new NoBus() : new RedisBus({ ...options, url })
}

class NoBus implements Bus {
  state = () => 'off' as const
  send = () => false
  on = () => {}
  onBack = () => {}
  onLost = () => {}
  close = () => Promise.resolve()
}

class RedisBus implements Bus {
  private readonly listeners = new Map<number, BusListener>()
  private readonly backListeners: (() => void)[] = []
  private readonly lostListeners: (() => void)[] = []
  /** Of this turn, by node. */
  private readonly outbox = new Map<string, Buffer[]>()
  private outboxBytes = 0
  private scheduled = false
  private publisher: Connection | undefined
  /** Bytes handed to the publisher and not confirmed. */
  private unconfirmed = 0
  private sent = 0n
  /** The last number of each sender: what comes again, or late, is dropped. */
  private readonly heard = new LRUCache<string, bigint>({ max: limits.busSendersMax })
  /** That messages come which nothing here opens. */
  private toldForeign = false
  private readonly stop = new AbortController()
  private readonly link
  private probed: (() => void) | undefined
  private readonly sender: Buffer
  private readonly options: BusOptions & { url: string }

  constructor(options: BusOptions & { url: string }) {
    this.options = options
    const { news, metrics, nodeId } = options
    this.sender = Buffer.from(hexOf(nodeId), 'hex')
    this.on('probe', () => this.probed?.())
    this.link = keepRedis({
      use: (works) => this.use(works),
      onLost: (error) => {
        news.lost('bus', error)
        for (const listener of this.lostListeners) listener()
      },
      onBack: () => {
        this.toldForeign = false
        news.back('bus')
        for (const listener of this.backListeners) listener()
      },
      signal: this.stop.signal,
    })
    // There from the start, so that the first one is an increase.
    metrics.busMessages.inc({ kind: 'any', outcome: 'sealed_otherwise' }, 0)
    metrics.onScrape(() => metrics.redisUp.set({ use: 'bus' }, this.link.state() === 'ok' ? 1 : 0))
  }

  state(): 'ok' | 'down' {
    return this.link.state()
  }

  on(kind: BusKind, listener: BusListener): void {
    this.listeners.set(busKinds.indexOf(kind), listener)
  }

  onBack(listener: () => void): void {
    this.backListeners.push(listener)
  }

  onLost(listener: () => void): void {
    this.lostListeners.push(listener)
  }

  send(node: string, kind: BusKind, body: string | Uint8Array): boolean {
    const bytes = typeof body === 'string' ? Buffer.from(body) : body
    const full = this.outboxBytes + this.unconfirmed + bytes.length > limits.busBytesMax
    if (full || (kind !== 'probe' && this.state() !== 'ok')) {
      this.options.metrics.busMessages.inc({ kind, outcome: 'refused' })
      return false
    }
    const head = Buffer.alloc(5)
    head.writeUInt32BE(bytes.length)
    head.writeUInt8(busKinds.indexOf(kind), 4)
    const waiting = this.outbox.get(node)
    if (waiting) waiting.push(head, Buffer.from(bytes))
    else this.outbox.set(node, [head, Buffer.from(bytes)])
    this.outboxBytes += bytes.length
    this.options.metrics.busMessages.inc({ kind, outcome: 'sent' })
    if (!this.scheduled) {
      this.scheduled = true
      // After the poll phase: one message to a node for all that this turn brought.
      setImmediate(() => this.flush())
    }
    return true
  }

  async close(): Promise<void> {
    this.flush()
    this.stop.abort()
    await this.link.ended
  }

  private flush(): void {
    this.scheduled = false
    const { publisher } = this
    const [key] = this.options.keys
    for (const [node, parts] of this.outbox) {
      if (publisher === undefined || key === undefined) continue
      const head = Buffer.alloc(24)
      this.sender.copy(head)
      head.writeBigUInt64BE(++this.sent, 16)
      const channel = channelOf(node)
      const message = sealBytes(key, Buffer.concat([head, ...parts]), channel)
      this.unconfirmed += message.length
      const publishing = publisher.client.publish(channel, message)
      publisher
        .answer(publishing)
        // Everything else of that connection fails with it.
        .catch((error: unknown) => publisher.fail(error as Error))
        .finally(() => (this.unconfirmed -= message.length))
    }
    this.outbox.clear()
    this.outboxBytes = 0
  }

  /** Two connections, since one that listens may say nothing else; until one of them fails. */
  private async use(works: () => void): Promise<void> {
    const { url, nodeId } = this.options
    const listening = await connectionTo(url, this.stop.signal)
    const publisher = await connectionTo(url, this.stop.signal)
    try {
      await Promise.all([listening.open(), publisher.open()])
      for (const channel of [channelOf(nodeId), channelOf(everyHub)]) {
        const onMessage = (message: Buffer) => this.receive(channel, message)
        await listening.answer(listening.client.subscribe(channel, onMessage, true))
      }
      this.publisher = publisher
      for (;;) {
        await Promise.race([this.probe(publisher), listening.broken])
        works()
        const pause = sleep(limits.redisProbeMs, undefined, { signal: this.stop.signal })
        await Promise.race([pause, listening.broken, publisher.broken])
      }
    } finally {
      this.publisher = undefined
      listening.close()
      publisher.close()
    }
  }

  /** All the way through Redis and back: a connection that is open may still bring nothing. */
  private async probe(publisher: Connection): Promise<void> {
    const heard = new Promise<void>((resolve) => (this.probed = resolve))
    this.send(this.options.nodeId, 'probe', '')
    await publisher.answer(heard)
  }

  private receive(channel: string, message: Buffer): void {
    const opened = this.open(channel, message)
    if (opened === undefined || opened.length < 24) return this.dropForeign()
    const from = uuidOf(opened.toString('hex', 0, 16))
    const number = opened.readBigUInt64BE(16)
    if (number <= (this.heard.get(from) ?? 0n)) return this.drop('repeated')
    this.heard.set(from, number)
    if (from === this.options.nodeId && channel === channelOf(everyHub)) return
    for (let at = 24; at + 5 <= opened.length;) {
      const end = at + 5 + opened.readUInt32BE(at)
      const kind = opened.readUInt8(at + 4)
      try {
        // A kind of a newer version is nothing to this one.
        this.listeners.get(kind)?.(from, opened.subarray(at + 5, end))
      } catch (error) {
        this.options.log.error({ err: error, kind: busKinds[kind] }, 'a message of another hub')
      }
      at = end
    }
  }

  private open(channel: string, message: Buffer): Buffer | undefined {
    for (const key of this.options.keys) {
      try {
        return unsealBytes(key, message, channel)
      } catch {
        // Another key may open it.
      }
    }
    return undefined
  }

  private dropForeign(): void {
    this.drop('sealed_otherwise')
    if (this.toldForeign) return
    this.toldForeign = true
    this.options.log.warn(
      'a message in Redis opens with no JWT_SECRET of this hub: another hub has another one, or somebody else writes to this Redis; more of them are only counted',
    )
  }

  private drop(outcome: string): void {
    this.options.metrics.busMessages.inc({ kind: 'any', outcome })
  }
}

function channelOf(node: string): string {
  return `muster:node:${node}`
}

/** UUIDs as a message lists them; anything else in it is left out. */
export function uuidsIn(body: Buffer): string[] {
  return body.toString('latin1').split(' ').filter(isUuid)
}
