// One shard thread: the loop around its device actors. Takes mail from the front, runs the actors, carries
// their effects to the store and back to the front. Holds no rule of its own about devices.
import { parentPort, workerData } from 'node:worker_threads'
import { DataKeys } from '../src/data_keys.ts'
import { openDatabase } from '../src/db.ts'
import { collectGarbage } from '../src/garbage.ts'
import { partOf } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { LoopDelay } from '../src/loop_delay.ts'
import {
  closeCodes,
  type FrontMessage,
  type HubFrame,
  type ShardData,
  type ShardMail,
  type ShardMessage,
  type ToFront,
} from '../src/protocol.ts'
import { reportedAlert } from './alert_writes.ts'
import {
  commandFrame,
  endWrite,
  loadedCommand,
  openCommand,
  stateWrite,
  type Times,
} from './command_forms.ts'
import type { CommandOutcome } from './command_writes.ts'
import { step } from './device.ts'
import { find } from './device_queue.ts'
import {
  openDevice,
  type Device,
  type DeviceMessage,
  type Effect,
  type OpenCommand,
  type Rules,
} from './device_state.ts'
import { FlipFlops, twinAlert } from './flip_flops.ts'
import { jsonOf, readFrame } from './frames.ts'
import { devicesOf, endLost } from './nodes.ts'
import { Observations } from './observations.ts'
import { Organizations } from './organizations.ts'
import { ScriptFrames } from './script_frames.ts'
import { Store, type Claimed, type Seen } from './store.ts'
import { crossingWrite, highBits } from './thresholds.ts'

const data = workerData as ShardData
const port = parentPort
if (port === null) throw new Error('a shard runs as a worker thread')

const log = createLog(data.logLevel, `shard-${data.index}`)
const db = openDatabase({
  url: data.databaseUrl,
  name: `shard-${data.index}`,
  connections: limits.poolShard,
  planOnce: true,
  onIdleError: (error) => log.warn({ err: error }, 'a connection to PostgreSQL broke'),
})
const rules: Rules = {
  heartbeatTimeoutMs: data.heartbeatSeconds * 1000 * limits.heartbeatIntervalsMax,
  timeoutGraceMs: limits.timeoutGraceSeconds * 1000,
  presenceFlushMs: limits.presenceFlushMs,
  // Of the organization whose device is stepped.
  thresholds: {},
}
const confirmed = new Int32Array(data.confirmed)
const loop = new LoopDelay()

/** By the front's connection number. */
const byConn = new Map<number, Device>()
const byId = new Map<string, Device>()
const observed = new Observations()
const organizations = new Organizations(db)
const flipFlops = new FlipFlops()
let out: ToFront[] = []

// Time as the actors see it: the front's, less the time in which the front itself stood still.
let nowMs = Date.now()
let stalledMs = 0
let tickMs = 0
let handled = 0
let doubt: NodeJS.Timeout | undefined
let leaving = false
let stopping = false

const store = new Store(db, data.nodeId, {
  beforeClaims: (orgIds) => organizations.ensure(orgIds),
  onClaimed: (claimed) => {
    for (const one of claimed) onClaimed(one)
    flush()
  },
  onClaimsRepeated: () => {
    doubt ??= setTimeout(() => {
      doubt = undefined
      void reconcile()
    }, limits.doubtMs)
  },
  onClaimedFrom: (nodes) => {
    toFront({ type: 'claimed_from', nodes })
    flush()
  },
  onCommands: (outcomes) => {
    onCommands(outcomes)
    flush()
  },
  onChecked: (checked) => {
    for (const { asker, command } of checked) {
      if (byId.get(asker.id) !== asker) continue
      run(asker, { type: 'checked', command: openCommand(command, times()) })
    }
    flush()
  },
  onGone: (gone) => {
    for (const { deviceId, id } of gone) {
      store.outdate(id)
      tell(byId.get(deviceId), { type: 'gone', id })
    }
    flush()
  },
  onStrays: (strays) => {
    for (const { deviceId, id } of strays) sendTo(byId.get(deviceId), { type: 'ack', id })
    flush()
  },
  onTokens: (renewed) => {
    for (const { deviceId, epoch, token } of renewed) {
      const device = byId.get(deviceId)
      if (device?.epoch === epoch) sendTo(device, { type: 'token', agentToken: token })
    }
    flush()
  },
  onSuperseded: (lost) => {
    for (const { deviceId, epoch } of lost) supersede(byId.get(deviceId), epoch)
    flush()
  },
  onAlertsRefused: (count) => {
    for (let n = 0; n < count; n++) observed.dropped('alert')
  },
  onBatch: (statement, rows) => observed.batch(statement, rows),
  onProblem: (message, details) => log.error(details, message),
})

const wrapping = data.wrappingKeys.map((key) => Buffer.from(key))
const scripts = new ScriptFrames<Device>({
  db,
  keys: new DataKeys(db, wrapping),
  // Its socket may have gone, or the command ended, while the script was read.
  isWanted: (device, command) => byConn.get(device.conn) === device && command.stage === 'sending',
  onPayload: sendCommand,
  onUnsendable: (device, { id }, error) => tell(device, { type: 'unsendable', id, error }),
  onTurn: flush,
  onProblem: (message, error) => log.error({ err: error }, message),
})

port.on('message', ({ atMs, mail }: ShardMail) => {
  nowMs = atMs
  for (let i = 0; i < mail.length; i++) {
    const entry = mail[i]
    if (typeof entry === 'number') onFrame(entry, mail[++i] as string)
    else onMessage(entry as ShardMessage)
  }
  handled++
  confirm()
  flush()
})

/** Tells the front how far this shard is; held back while the store is full, which slows the front. */
function confirm(): void {
  if (store.full) setTimeout(confirm, 20)
  else Atomics.store(confirmed, 0, handled)
}

function flush(): void {
  if (out.length === 0) return
  port?.postMessage({ mail: out })
  out = []
}

function toFront(message: FrontMessage): void {
  out.push(message)
}

function clock(): number {
  return nowMs - stalledMs
}

function times(): Times {
  return { nowMs, stalledMs, timeoutGraceMs: rules.timeoutGraceMs }
}

// ---- mail ------------------------------------------------------------------------------------

function onFrame(conn: number, text: string): void {
  const device = byConn.get(conn)
  // Closed or superseded a moment ago.
  if (device === undefined) return
  try {
    const read = readFrame(text)
    if ('fault' in read) {
      observed.dropped(read.fault)
      if (read.fault !== 'unknown') {
        const code = read.fault === 'json' ? 'INVALID_JSON' : 'VALIDATION_ERROR'
        sendTo(device, { type: 'error', code, message: read.message })
      }
      return
    }
    if (read.frame.type === 'heartbeat') observed.heartbeats++
    run(device, { type: 'frame', frame: read.frame, bytes: text.length })
  } catch (error) {
    // A frame that breaks us must not take its neighbours along.
    observed.dropped('broken')
    log.error({ err: error, deviceId: device.id }, 'a frame could not be handled')
  }
}

function onMessage(message: ShardMessage): void {
  switch (message.type) {
    case 'connect':
      return connect(message)
    case 'replayed':
      void reconcile()
      return
    case 'closed':
      return onClosed(message.conn)
    case 'sent':
      return tell(byConn.get(message.conn), { type: 'sent', id: message.id })
    case 'command':
      return tell(byId.get(message.deviceId), { type: 'command', command: message.command })
    case 'check':
      return onCheck(byId.get(message.deviceId), message.id)
    case 'superseded':
      return onSuperseded(byId.get(message.deviceId), message.epoch)
    case 'cancel':
      return onCancel(message)
    case 'ended':
      store.outdate(message.id)
      return tell(byId.get(message.deviceId), { type: 'ended', id: message.id })
    case 'decommissioned':
      return closeDevice(byId.get(message.deviceId), closeCodes.decommissioned, 'decommissioned')
    case 'organization':
      void onOrganizations([message.orgId])
      return
    case 'organizations':
      void onOrganizations([...new Set(Array.from(byId.values(), ({ orgId }) => orgId))])
      return
    case 'reclaim':
      return reclaim()
    case 'leaving':
      leaving = true
      return
    case 'tick':
      return onTick(message.deaf)
    case 'gc':
      return collectGarbage()
    case 'stop':
      void stop()
  }
}

function connect(socket: Extract<ShardMessage, { type: 'connect' }>): void {
  const earlier = byId.get(socket.deviceId)
  if (earlier !== undefined && earlier.conn !== socket.conn) {
    byConn.delete(earlier.conn)
    onReplaced(earlier)
    toFront({
      type: 'close',
      conn: earlier.conn,
      code: closeCodes.superseded,
      reason: 'a newer socket of this device',
    })
  }
  // Spread over the interval, or a whole fleet that came at once would flush at once for ever.
  const device = openDevice(socket, clock(), clock() + Math.random() * limits.presenceFlushMs)
  // What the earlier connection told and nobody wrote yet is written with this one.
  if (earlier !== undefined) {
    device.metrics = earlier.metrics
    device.agentVersion = earlier.agentVersion
  }
  byId.set(device.id, device)
  byConn.set(socket.conn, device)
  const { deviceId, orgId, conn, ip, token } = socket
  store.claim({ deviceId, orgId, conn, ip, token })
}

/** A newer socket took this device over, here or on another hub. */
function onReplaced(device: Device): void {
  if (flipFlops.replaced(device.id, nowMs)) store.alert({ raise: twinAlert(device) })
}

function onClosed(conn: number): void {
  const device = byConn.get(conn)
  if (device === undefined) return
  byConn.delete(conn)
  run(device, { type: 'closed' })
  // A claim under way finds nobody and takes the presence back itself.
  if (byId.get(device.id) === device) byId.delete(device.id)
}

function onSuperseded(device: Device | undefined, epoch: number): void {
  // One that is being claimed is newer than what was told.
  if (device && device.epoch !== 0 && device.epoch < epoch) supersede(device, device.epoch)
}

function onCheck(device: Device | undefined, id: string): void {
  if (device && find(device, id) === undefined) store.check(device, id)
}

function onCancel(message: Extract<ShardMessage, { type: 'cancel' }>): void {
  const { deviceId, id, ask } = message
  const device = byId.get(deviceId)
  if (device) return run(device, { type: 'cancel', id, ask })
  // What it said before it left may not be written yet, and PostgreSQL is asked next.
  void store.commands.settled(id).then(() => {
    toFront({ type: 'answer', ask, value: 'unknown' })
    flush()
  })
}

/** Takes their settings, and closes the sockets of those that are suspended. */
async function onOrganizations(orgIds: string[]): Promise<void> {
  try {
    const suspended = await organizations.read(orgIds)
    if (suspended.size === 0) return
    for (const device of byId.values()) {
      if (!suspended.has(device.orgId)) continue
      closeDevice(device, closeCodes.organizationSuspended, 'the organization is suspended')
    }
    flush()
  } catch (error) {
    // Asked again until PostgreSQL answers: a suspension must not be missed.
    log.warn({ err: error }, 'organizations could not be read')
    setTimeout(() => void onOrganizations(orgIds), limits.storeRetryMs)
  }
}

/**
 * Compares what PostgreSQL shows online here with the sockets. Devices without one were left by the shard before this
 * one. Where a claim ran again after it was given up, devices without a socket, or with an actor of an earlier
 * epoch, are left by that.
 */
async function reconcile(): Promise<void> {
  try {
    const claimed = await devicesOf(db, data.nodeId)
    // A hub that goes down leaves their status to the next one.
    if (leaving) return
    const own = claimed.filter(({ id }) => partOf(id, data.count) === data.index)
    for (const { id, epoch } of own) {
      const device = byId.get(id)
      if (device && device.epoch !== 0 && device.epoch < Number(epoch)) claimAnew(device)
    }
    const lost = own.filter(({ id }) => !byId.has(id))
    for (let at = 0; at < lost.length; at += limits.sweepBatchMax) {
      await endLost(db, lost.slice(at, at + limits.sweepBatchMax))
    }
  } catch (error) {
    log.warn({ err: error }, 'devices could not be compared with their sockets; tried again')
    if (!stopping) setTimeout(() => void reconcile(), limits.storeRetryMs)
  }
}

function reclaim(): void {
  for (const device of Array.from(byId.values())) claimAnew(device)
}

/** The socket stays; its device begins again with a new epoch and the queue that PostgreSQL holds. */
function claimAnew({ conn, id: deviceId, orgId }: Device): void {
  connect({ type: 'connect', conn, deviceId, orgId, ip: null, resumed: true, token: 'current' })
}

function onTick(deaf: boolean): void {
  // Ticks come once a second; one that is late by more than jitter means that the front stood still,
  // and what agents sent meanwhile is still in the sockets. Their deadlines move by as much, and by the
  // whole second when the front threw heartbeats away.
  const sinceMs = tickMs === 0 ? 0 : nowMs - tickMs
  if (deaf) stalledMs += sinceMs
  else if (sinceMs > 1500) stalledMs += sinceMs - 1000
  tickMs = nowMs
  for (const device of byId.values()) run(device, { type: 'tick' })
  toFront({ type: 'observed', observed: observed.take(stats()) })
}

async function stop(): Promise<void> {
  if (stopping) return
  stopping = true
  clearTimeout(doubt)
  // Sockets are closed by now; what they left is written, unless PostgreSQL is away.
  const giveUp = setTimeout(() => store.abort(), limits.checkoutMsMax)
  scripts.stop()
  await store.drained()
  clearTimeout(giveUp)
  await db.close()
  toFront({ type: 'stopped' })
  flush()
  port?.close()
}

// ---- actors ----------------------------------------------------------------------------------

function tell(device: Device | undefined, message: DeviceMessage): void {
  if (device !== undefined) run(device, message)
}

function run(device: Device, message: DeviceMessage): void {
  rules.thresholds = organizations.thresholdsOf(device.orgId)
  const effects = step(device, message, clock(), rules)
  for (const effect of effects) apply(device, effect)
}

function apply(device: Device, effect: Effect): void {
  switch (effect.type) {
    case 'welcome':
      return sendTo(device, {
        type: 'welcome',
        serverTime: new Date(nowMs).toISOString(),
        heartbeatIntervalSeconds: data.heartbeatSeconds,
      })
    case 'send':
      if (effect.command.executionId !== null) return scripts.push(device, effect.command)
      return sendCommand(device, effect.command, effect.command.payload)
    case 'cancel':
    case 'ack':
      return sendTo(device, { type: effect.type, id: effect.id })
    case 'heartbeat_ack':
      return sendTo(device, { type: 'heartbeat_ack', seq: effect.seq })
    case 'close':
      return closeDevice(device, effect.code, effect.reason)
    case 'offline':
      if (device.epoch === 0) return
      // A hub that goes down says what it heard last, and leaves the status to the next one.
      if (leaving) return store.seen(seenOf(device, effect))
      return store.offline(seenOf(device, effect))
    case 'seen':
      return store.seen(seenOf(device, effect))
    case 'progress':
      return writeState(device, effect)
    case 'end':
      return store.commands.push(endWrite(device, effect, nowMs))
    case 'stray':
      return onStray(device, effect)
    case 'check':
      return store.check(device, effect.id)
    case 'look':
      return store.look(device.id, effect.id)
    case 'inventory':
      return onInventory(device, effect)
    case 'answer':
      return toFront({ type: 'answer', ask: effect.ask, value: effect.value })
    case 'alert':
      return store.alert({ raise: reportedAlert(device, effect.frame) })
    case 'crossing':
      return store.alert(crossingWrite(device, effect.crossing))
    case 'phase':
      return store.phase({ deviceId: device.id, epoch: device.epoch, ...effect })
  }
}

function seenOf(device: Device, effect: Pick<Seen, 'metrics' | 'agentVersion'>): Seen {
  const { metrics, agentVersion } = effect
  const atMs = device.heardMs + stalledMs
  return { deviceId: device.id, epoch: device.epoch, atMs, metrics, agentVersion }
}

function onStray(device: Device, { frame }: Extract<Effect, { type: 'stray' }>): void {
  // Terminals' ids are no commands: answered without a look at the table.
  if (frame.id.startsWith('term-')) sendTo(device, { type: 'ack', id: frame.id })
  else store.stray(device.id, device.orgId, frame)
}

function onInventory(device: Device, { frame }: Extract<Effect, { type: 'inventory' }>): void {
  const { type: _type, ...parts } = frame
  const json = jsonOf(parts)
  if (json !== null) store.inventory(device.id, json)
}

function writeState(
  device: Device,
  { command, stage }: Extract<Effect, { type: 'progress' }>,
): void {
  if (stage === 'delivered') observed.delivered(nowMs - command.createdMs)
  store.commands.push(stateWrite(device, command, stage, nowMs))
}

/** Ends a device's presence from our side; the socket's own close finds nothing left to do. */
function closeDevice(device: Device | undefined, code: number, reason: string): void {
  if (device === undefined) return
  toFront({ type: 'close', conn: device.conn, code, reason })
  onClosed(device.conn)
}

function supersede(device: Device | undefined, epoch: number): void {
  if (device?.epoch !== epoch) return
  // A decommission raises the epoch too, and the news of it is on its way: let that name the reason.
  toFront({ type: 'superseded' })
  setTimeout(() => {
    if (byId.get(device.id) !== device || device.epoch !== epoch) return
    onReplaced(device)
    closeDevice(device, closeCodes.superseded, 'a newer socket of this device')
    flush()
  }, limits.supersededMs)
}

function sendTo(device: Device | undefined, frame: HubFrame): void {
  if (device === undefined) return
  out.push(device.conn, JSON.stringify(frame))
}

function sendCommand(device: Device, command: OpenCommand, payload: string): void {
  const { id } = command
  toFront({ type: 'command', conn: device.conn, id, text: commandFrame(command, payload) })
  // Asked for while the frame was being made, and so told to an agent that did not know the id.
  if (command.cancelRequested) sendTo(device, { type: 'cancel', id })
}

// ---- what the store reports ------------------------------------------------------------------

function onClaimed({ claim, epoch, commands, high, terminals }: Claimed): void {
  const device = byConn.get(claim.conn)
  if (epoch === null) {
    const mine = device?.id === claim.deviceId && device.epoch === 0
    if (mine) closeDevice(device, closeCodes.overloaded, 'the hub could not take this socket')
    return
  }
  if (device?.id !== claim.deviceId || device.epoch !== 0) {
    // The socket closed while it was claimed.
    if (epoch !== 0 && byId.get(claim.deviceId) === undefined) {
      const nothing = { atMs: 0, metrics: null, agentVersion: null }
      store.offline({ deviceId: claim.deviceId, epoch, ...nothing })
    }
    return
  }
  if (epoch === 0) return closeDevice(device, closeCodes.decommissioned, 'decommissioned')
  if (terminals.length > 0) {
    toFront({ type: 'terminals', deviceId: device.id, conn: device.conn, sessions: terminals })
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

function onCommands(outcomes: CommandOutcome[]): void {
  const ended: string[] = []
  const anywhere: string[] = []
  const rows = new Map<string, string>()
  for (const { write, applied, fresh, row } of outcomes) {
    const device = byId.get(write.deviceId)
    const same = device?.epoch === write.epoch ? device : undefined
    if (!fresh) {
      supersede(same, write.epoch)
    } else if (write.completedMs === null) {
      if (!applied) {
        // Ended behind this actor's back: it must not wait for it.
        store.outdate(write.id)
        tell(same, { type: 'ended', id: write.id })
      }
    } else {
      store.outdate(write.id)
      if (applied) {
        ended.push(write.id)
        const ageMs = Date.now() - write.createdMs
        if (write.loaded && ageMs < limits.waitSecondsMax * 1000) anywhere.push(write.id)
        if (row !== null) rows.set(write.id, row)
        observed.ended(write.status, ageMs)
      }
      if (applied || !isSaid(same, write.id)) {
        tell(same, { type: 'committed', id: write.id })
      } else {
        // Somebody else ended it first. What the agent said is acknowledged once it is kept as a late result.
        const said = JSON.stringify({ ...JSON.parse(write.result ?? '{}'), status: write.status })
        store.strayText(write.deviceId, same.orgId, write.id, said)
        tell(same, { type: 'ended', id: write.id })
      }
    }
  }
  if (ended.length > 0) toFront({ type: 'ended', ids: ended, anywhere, rows })
}

/** Whether the end of this command is what its agent said. */
function isSaid(device: Device | undefined, id: string): device is Device {
  return device !== undefined && find(device, id)?.reported === true
}

function stats() {
  const counts = db.counts()
  return {
    devices: byId.size,
    depths: store.depths(),
    pool: counts,
    loopSeconds: loop.take(),
  }
}
