// Who is connected to a shard: the device actors by socket and by id, from the connect on over the claim to the close.
// Of several sockets of a device, here or on another hub, the newest holds it.
import type { Database } from '../src/db.ts'
import { partOf } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { Logger } from '../src/log.ts'
import { closeCodes, type ShardData, type ShardMessage } from '../src/protocol.ts'
import { loadedCommand, type Times } from './command_forms.ts'
import { openDevice, type Device, type DeviceMessage } from './device_state.ts'
import { FlipFlops, twinAlert } from './flip_flops.ts'
import type { FrontPost } from './front_post.ts'
import { devicesOf, endLost } from './nodes.ts'
import type { ShardClock } from './shard_clock.ts'
import type { Claim, Claimed, Seen, Store } from './store.ts'
import { highBits } from './thresholds.ts'

export interface RosterOptions {
  data: Pick<ShardData, 'index' | 'count' | 'nodeId'>
  db: Database
  store: Store
  front: FrontPost
  clock: ShardClock
  log: Logger
  times: () => Times
  /** Has the actor deal with a message. */
  run: (device: Device, message: DeviceMessage) => void
}

export class Roster {
  /** The hub goes down, and leaves the status of its devices to the next one. */
  leaving = false
  /** By the front's connection number. */
  private readonly byConn = new Map<number, Device>()
  private readonly byId = new Map<string, Device>()
  /** Whose claim is under way, and was doubted since. */
  private readonly doubted = new WeakSet<Device>()
  private readonly flipFlops = new FlipFlops()
  private doubtTimer: NodeJS.Timeout | undefined
  private stopped = false
  private readonly options: RosterOptions

  constructor(options: RosterOptions) {
    this.options = options
  }

  get size(): number {
    return this.byId.size
  }

  devices(): MapIterator<Device> {
    return this.byId.values()
  }

  /** The device's actor, if the device is connected here. */
  find(deviceId: string): Device | undefined {
    return this.byId.get(deviceId)
  }

  /** The actor behind a socket, unless it closed or gave way a moment ago. */
  at(conn: number): Device | undefined {
    return this.byConn.get(conn)
  }

  // ---- sockets

  connect(socket: Extract<ShardMessage, { type: 'connect' }>): void {
    const { clock, front } = this.options
    const earlier = this.byId.get(socket.deviceId)
    if (earlier !== undefined && earlier.conn !== socket.conn) {
      this.byConn.delete(earlier.conn)
      this.replaced(earlier)
      front.tell({
        type: 'close',
        conn: earlier.conn,
        code: closeCodes.superseded,
        reason: 'a newer socket of this device',
      })
    }
    // Spread over the interval, or a whole fleet that came at once would flush at once for ever.
    const flushMs = clock.actorMs + Math.random() * limits.presenceFlushMs
    const device = openDevice(socket, clock.actorMs, flushMs)
    // What the earlier connection told and nobody wrote yet is written with this one.
    if (earlier !== undefined) {
      device.metrics = earlier.metrics
      device.agentVersion = earlier.agentVersion
    }
    this.byId.set(device.id, device)
    this.byConn.set(socket.conn, device)
    const { deviceId, orgId, conn, ip, token } = socket
    this.claim(device, { deviceId, orgId, conn, ip, token })
  }

  private claim(device: Device, claim: Claim): void {
    if (!this.options.store.claim(claim)) this.unclaimed(device)
  }

  /** Nobody may wait for a welcome that never comes: the agent tries again. An earlier claim may still show it online. */
  private unclaimed(device: Device | undefined): void {
    this.close(device, closeCodes.overloaded, 'the hub could not take this socket')
    this.doubt()
  }

  /** The device is offline with this, unless a newer connection holds it. */
  left(last: Seen): void {
    // Too many at once: those who were not written are found by comparing.
    if (!this.options.store.offline(last)) this.doubt()
  }

  /** The socket is closed. */
  disconnect(conn: number): void {
    const device = this.byConn.get(conn)
    if (device === undefined) return
    this.byConn.delete(conn)
    this.options.run(device, { type: 'closed' })
    // A claim under way finds nobody and takes the presence back itself.
    if (this.byId.get(device.id) === device) this.byId.delete(device.id)
  }

  /** Ends a device's presence from our side; the socket's own close finds nothing left to do. */
  close(device: Device | undefined, code: number, reason: string): void {
    if (device === undefined) return
    this.options.front.tell({ type: 'close', conn: device.conn, code, reason })
    this.disconnect(device.conn)
  }

  /** A newer socket took this device over, here or on another hub. */
  private replaced(device: Device): void {
    const { clock, store } = this.options
    if (this.flipFlops.replaced(device.id, clock.nowMs)) store.alert({ raise: twinAlert(device) })
  }

  /** Another hub says that it holds the device by now, with this epoch. */
  heldElsewhere(deviceId: string, epoch: number): void {
    const device = this.byId.get(deviceId)
    // One that is being claimed is newer than what was told.
    if (device && device.epoch !== 0 && device.epoch < epoch) this.supersede(device, device.epoch)
  }

  /** PostgreSQL takes nothing more of this epoch. */
  supersede(device: Device | undefined, epoch: number): void {
    if (device?.epoch !== epoch) return
    const { front } = this.options
    // A decommission raises the epoch too, and the news of it is on its way: let that name the reason.
    front.tell({ type: 'superseded' })
    setTimeout(() => {
      if (this.byId.get(device.id) !== device || device.epoch !== epoch) return
      this.replaced(device)
      this.close(device, closeCodes.superseded, 'a newer socket of this device')
      front.flush()
    }, limits.supersededMs)
  }

  // ---- claims

  claimed({ claim, epoch, commands, high, terminals }: Claimed): void {
    const { front, run, store, times } = this.options
    const device = this.byConn.get(claim.conn)
    if (epoch === null) {
      const mine = device?.id === claim.deviceId && device.epoch === 0
      if (mine) this.unclaimed(device)
      return
    }
    if (device?.id !== claim.deviceId || device.epoch !== 0) {
      // The socket closed while it was claimed.
      if (epoch !== 0 && this.byId.get(claim.deviceId) === undefined) {
        const nothing = { atMs: 0, metrics: null, agentVersion: null }
        this.left({ deviceId: claim.deviceId, epoch, ...nothing })
      }
      return
    }
    if (epoch === 0) return this.close(device, closeCodes.decommissioned, 'decommissioned')
    if (this.doubted.delete(device)) {
      const token = claim.token === 'old' ? 'old' : 'current'
      return this.claim(device, { ...claim, token })
    }
    if (terminals.length > 0) {
      front.tell({ type: 'terminals', deviceId: device.id, conn: device.conn, sessions: terminals })
    }
    run(device, {
      type: 'claimed',
      epoch,
      atMs: Date.now(),
      commands: commands.map((stored) => loadedCommand(stored, times())),
      high: highBits(high),
    })
    // After the welcome.
    if (claim.token === 'old') store.renewToken({ deviceId: device.id, epoch })
  }

  /** What PostgreSQL shows may not be so: compares, once nothing that was given up can run any more. */
  doubt(): void {
    this.doubtTimer ??= setTimeout(() => {
      this.doubtTimer = undefined
      void this.reconcile()
    }, limits.doubtMs)
  }

  /**
   * Compares what PostgreSQL shows online here with the sockets. Devices without one were left by the shard before
   * this one. Where a claim ran again after it was given up, devices without a socket, or with an actor of an earlier
   * epoch, are left by that.
   */
  async reconcile(): Promise<void> {
    const { data, db, log } = this.options
    try {
      const claimed = await devicesOf(db, data.nodeId)
      if (this.leaving) return
      const own = claimed.filter(({ id }) => partOf(id, data.count) === data.index)
      for (const { id, epoch } of own) {
        const device = this.byId.get(id)
        if (device && device.epoch !== 0 && device.epoch < Number(epoch)) this.claimAnew(device)
      }
      const lost = own.filter(({ id }) => !this.byId.has(id))
      for (let at = 0; at < lost.length; at += limits.sweepBatchMax) {
        await endLost(db, lost.slice(at, at + limits.sweepBatchMax))
      }
    } catch (error) {
      log.warn({ err: error }, 'devices could not be compared with their sockets; tried again')
      if (!this.stopped) setTimeout(() => void this.reconcile(), limits.storeRetryMs)
    }
  }

  /** Claims every device once more: others may have taken this hub for dead. */
  reclaim(): void {
    for (const device of Array.from(this.byId.values())) this.claimAnew(device)
  }

  /**
   * The socket stays; its device begins again with a new epoch and the queue that PostgreSQL holds. One that waits for
   * its claim goes on waiting: of two claims under way it would take the first for its own, and write with an epoch
   * that the second had raised.
   */
  private claimAnew(device: Device): void {
    if (device.epoch === 0) {
      this.doubted.add(device)
      return
    }
    const { conn, id: deviceId, orgId } = device
    const more = { ip: null, resumed: true, token: 'current' } as const
    this.connect({ type: 'connect', conn, deviceId, orgId, ...more })
  }

  /** Looks after nothing any more. */
  stop(): void {
    this.stopped = true
    clearTimeout(this.doubtTimer)
  }
}
