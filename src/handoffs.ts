// What hubs hand to each other: a change is committed together with a row for the hub that holds the device; that
// hub takes the row, reads what is true now and tells the actor. The bus only says when; what it loses, a
// sweep finds.
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { everyHub, uuidsIn, type Bus } from './bus.ts'
import { openIdsSql } from './command_row.ts'
import { plainArray, type Database } from './db.ts'
import { takenSql, takeSql } from './handoff_sql.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import type { CancelAnswer } from './protocol.ts'
import type { Shards } from './shards.ts'

export interface HandoffsOptions {
  nodeId: string
  db: Database
  bus: Bus
  shards: Shards
  log: Logger
  metrics: Metrics
  /** A device that is connected here is at this site now. */
  onSite: (deviceId: string, siteId: string) => void
  /** Commands whose end a request here waits for, oldest first. */
  awaited: () => string[]
}

interface Taken extends Record<string, unknown> {
  /** Its place in the table. */
  row: string
  deviceId: string
  nodeId: string | null
  /** Null: there is no such device any more. */
  epoch: string | null
  gone: boolean
  siteId: string
  commandId: string | null
  origin: string | null
  /** Null: the command is not there, or the row tells of the device. */
  ended: boolean | null
  cancelRequested: boolean
}

export class Handoffs {
  /** Hubs that wait for the end of a command, by its id; as long as a request may wait. */
  private readonly origins = new LRUCache<string, Set<string>>({
    max: limits.waitersMax,
    ttl: limits.waitSecondsMax * 1000,
  })
  /** Requests that wait for what an actor on another hub says to a cancel. */
  private readonly asking = new Map<string, (answer: CancelAnswer) => void>()
  private readonly stop = new AbortController()
  private taking: Promise<void> | undefined
  private again = false
  private readonly sweeping: Promise<void>
  private readonly options: HandoffsOptions

  constructor(options: HandoffsOptions) {
    this.options = options
    const { bus, shards } = options
    bus.on('handed', () => void this.take('hint'))
    bus.on('ended', (_from, body) => shards.ended(uuidsIn(body)))
    bus.on('cancel', (_from, body) => {
      const [answer, id = ''] = body.toString('latin1').split(' ')
      this.asking.get(id)?.(answer as CancelAnswer)
    })
    bus.onBack(() => void this.take('sweep'))
    shards.onEnded((ids) => this.tellOrigins(ids))
    this.sweeping = this.sweep()
  }

  /** These hubs have rows to take; call it after the commit. */
  wake(nodes: Iterable<string>): void {
    for (const node of nodes) this.options.bus.send(node, 'handed', '')
  }

  /**
   * What the actor on another hub says to the cancel that was handed to it; undefined when nothing is heard of it
   * for so long, or `onAbort` calls. Of two requests at once the later one hears it.
   */
  async cancelAnswer(
    id: string,
    seconds: number,
    onAbort: (gone: () => void) => void,
  ): Promise<CancelAnswer | undefined> {
    const { promise, resolve } = Promise.withResolvers<CancelAnswer | undefined>()
    const timer = setTimeout(() => resolve(undefined), seconds * 1000)
    this.asking.set(id, resolve)
    onAbort(() => resolve(undefined))
    const answer = await promise
    clearTimeout(timer)
    if (this.asking.get(id) === resolve) this.asking.delete(id)
    return answer
  }

  /** Ends that a request committed here, and no actor: whoever waits for them hears it, on whichever hub. */
  ended(ids: string[]): void {
    this.options.shards.ended(ids)
    this.tellEveryHub(ids)
  }

  /** Of ends that were committed here, where nobody knows which hub waits for them. */
  tellEveryHub(ids: readonly string[]): void {
    if (ids.length > 0) this.options.bus.send(everyHub, 'ended', ids.join(' '))
  }

  /** Takes what waits for this hub. Those who call meanwhile share one more look. */
  take(found: 'hint' | 'sweep'): Promise<void> {
    if (this.taking) {
      this.again = true
      return this.taking
    }
    this.taking = this.takeAll(found).finally(() => {
      this.taking = undefined
    })
    return this.taking
  }

  async close(): Promise<void> {
    this.stop.abort()
    await this.sweeping
    await this.taking
  }

  private async takeAll(found: 'hint' | 'sweep'): Promise<void> {
    const { db, nodeId, log, metrics } = this.options
    let rows: Taken[]
    do {
      this.again = false
      try {
        rows = await db.query<Taken>(takeSql, [nodeId, limits.handoffBatchMax])
      } catch (error) {
        // The rows are still there: the sweep tries again.
        log.debug({ err: error }, 'what other hubs handed over can not be taken')
        return
      }
      metrics.handoffs.inc({ found }, rows.length)
      for (const row of rows) this.tell(row)
      if (rows.length > 0 && !(await this.done(rows))) return
    } while (this.again || rows.length === limits.handoffBatchMax)
  }

  /** Whoever is told twice knows it; a row that was deleted and not told would be lost. */
  private async done(rows: readonly Taken[]): Promise<boolean> {
    const { db, log, nodeId } = this.options
    try {
      await db.query(takenSql, [nodeId, plainArray(rows.map(({ row }) => row))])
      return true
    } catch (error) {
      log.debug({ err: error }, 'what other hubs handed over is told once more')
      return false
    }
  }

  private tell(row: Taken): void {
    const { shards, nodeId, onSite } = this.options
    const { deviceId, commandId: id, ended } = row
    if (row.epoch === null) return
    if (row.gone) return shards.tell(deviceId, { type: 'decommissioned', deviceId })
    if (row.nodeId !== nodeId) {
      // Who claimed it has read its queue after the change; here it is over.
      return shards.tell(deviceId, { type: 'superseded', deviceId, epoch: Number(row.epoch) })
    }
    if (id === null) return onSite(deviceId, row.siteId)
    if (ended === null) return
    if (ended) {
      shards.tell(deviceId, { type: 'ended', deviceId, id })
      if (row.origin !== null) this.options.bus.send(row.origin, 'ended', id)
      return
    }
    if (row.origin !== null) {
      this.origins.set(id, (this.origins.get(id) ?? new Set()).add(row.origin))
    }
    // It may have been cancelled here, or have ended, since it was read: its actor asks for itself.
    shards.check(deviceId, id)
    if (row.cancelRequested) void this.cancel(deviceId, id, row.origin)
  }

  private async cancel(deviceId: string, id: string, origin: string | null): Promise<void> {
    const { shards, bus } = this.options
    try {
      const answer = await shards.cancel(deviceId, id)
      if (origin !== null) bus.send(origin, 'cancel', `${answer} ${id}`)
    } catch {
      // Its shard restarts: the new one finds the wish in the command's row.
    }
  }

  private tellOrigins(ids: readonly string[]): void {
    if (this.origins.size === 0) return
    const byNode = new Map<string, string[]>()
    for (const id of ids) {
      const origins = this.origins.get(id)
      if (origins === undefined) continue
      this.origins.delete(id)
      for (const node of origins) byNode.set(node, [...(byNode.get(node) ?? []), id])
    }
    for (const [node, ended] of byNode) this.options.bus.send(node, 'ended', ended.join(' '))
  }

  /** What the bus lost: rows for this hub, and ends that its requests wait for. */
  private async sweep(): Promise<void> {
    const { signal } = this.stop
    for (;;) {
      const isDown = this.options.bus.state() === 'down'
      const pauseMs = isDown ? limits.handoffSweepDownMs : limits.sweepMs
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
      if (signal.aborted) return
      await this.take('sweep')
      await this.lookForEnds()
    }
  }

  private async lookForEnds(): Promise<void> {
    const { db, shards, awaited, log } = this.options
    const ids = awaited()
    if (ids.length === 0) return
    try {
      const open = new Set((await db.query<{ id: string }>(openIdsSql, [ids])).map(({ id }) => id))
      const ended = ids.filter((id) => !open.has(id))
      if (ended.length > 0) shards.ended(ended)
    } catch (error) {
      log.debug({ err: error }, 'ends that requests wait for can not be read')
    }
  }
}
