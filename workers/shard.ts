// One shard thread: the loop around its device actors. Takes mail from the front, runs the actors, has their effects
// carried out. Holds no rule of its own about devices.
import { parentPort, workerData } from 'node:worker_threads'
import { DataKeys } from '../src/data_keys.ts'
import { openDatabase } from '../src/db.ts'
import { collectGarbage } from '../src/garbage.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { LoopDelay } from '../src/loop_delay.ts'
import { closeCodes, type ShardData, type ShardMail, type ShardMessage } from '../src/protocol.ts'
import { openCommand, type Times } from './command_forms.ts'
import type { CommandOutcome } from './command_writes.ts'
import { step } from './device.ts'
import { find } from './device_queue.ts'
import type { Device, DeviceMessage, Rules } from './device_state.ts'
import { Effects } from './effects.ts'
import { readFrame } from './frames.ts'
import { FrontPost } from './front_post.ts'
import { Observations } from './observations.ts'
import { Organizations } from './organizations.ts'
import { Roster } from './roster.ts'
import { ScriptFrames } from './script_frames.ts'
import { ShardClock } from './shard_clock.ts'
import { Store } from './store.ts'

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
const clock = new ShardClock()
const front = new FrontPost(port)
const observed = new Observations()
const organizations = new Organizations(db)
let handled = 0
let stopping = false

const store = new Store(db, data.nodeId, {
  beforeClaims: (orgIds) => organizations.ensure(orgIds),
  onClaimed: (claimed) => {
    for (const one of claimed) roster.claimed(one)
    front.flush()
  },
  onClaimsRepeated: () => roster.doubt(),
  onClaimedFrom: (nodes) => {
    front.tell({ type: 'claimed_from', nodes })
    front.flush()
  },
  onCommands: (outcomes) => {
    onCommands(outcomes)
    front.flush()
  },
  onChecked: (checked) => {
    for (const { asker, id, stored } of checked) {
      if (roster.find(asker.id) !== asker) continue
      run(asker, { type: 'checked', id, command: stored && openCommand(stored, times()) })
    }
    front.flush()
  },
  onGone: (gone) => {
    for (const { deviceId, id } of gone) {
      store.checks.outdate(id)
      tell(roster.find(deviceId), { type: 'gone', id })
    }
    front.flush()
  },
  onStrays: (strays) => {
    for (const { deviceId, id } of strays) front.frame(roster.find(deviceId), { type: 'ack', id })
    front.flush()
  },
  onTokens: (renewed) => {
    for (const { deviceId, epoch, token } of renewed) {
      const device = roster.find(deviceId)
      if (device?.epoch === epoch) front.frame(device, { type: 'token', agentToken: token })
    }
    front.flush()
  },
  onSuperseded: (lost) => {
    for (const { deviceId, epoch } of lost) roster.supersede(roster.find(deviceId), epoch)
    front.flush()
  },
  onAlertsRefused: (count) => {
    for (let n = 0; n < count; n++) observed.dropped('alert')
  },
  onBatch: (statement, rows) => observed.batch(statement, rows),
  onProblem: (message, details) => log.error(details, message),
})
const roster = new Roster({ data, db, store, front, clock, log, times, run })
const wrapping = data.wrappingKeys.map((key) => Buffer.from(key))
const scripts = new ScriptFrames<Device>({
  db,
  keys: new DataKeys(db, wrapping),
  // Its socket may have gone, or the command ended, while the script was read.
  isWanted: (device, command) => roster.at(device.conn) === device && command.stage === 'sending',
  onPayload: (device, command, payload) => front.command(device, command, payload),
  onUnsendable: (device, { id }, error) => tell(device, { type: 'unsendable', id, error }),
  onTurn: () => front.flush(),
  onProblem: (message, error) => log.error({ err: error }, message),
})
const { heartbeatSeconds } = data
const effects = new Effects({ front, store, roster, scripts, observed, clock, heartbeatSeconds })

port.on('message', ({ atMs, mail }: ShardMail) => {
  clock.nowMs = atMs
  for (let i = 0; i < mail.length; i++) {
    const entry = mail[i]
    if (typeof entry === 'number') onFrame(entry, mail[++i] as string)
    else onMessage(entry as ShardMessage)
  }
  handled++
  confirm()
  front.flush()
})

/** Tells the front how far this shard is; held back while the store is full, which slows the front. */
function confirm(): void {
  if (store.full) setTimeout(confirm, 20)
  else Atomics.store(confirmed, 0, handled)
}

function tell(device: Device | undefined, message: DeviceMessage): void {
  if (device !== undefined) run(device, message)
}

function run(device: Device, message: DeviceMessage): void {
  rules.thresholds = organizations.thresholdsOf(device.orgId)
  for (const effect of step(device, message, clock.actorMs, rules)) effects.apply(device, effect)
}

function times(): Times {
  const { nowMs, stalledMs } = clock
  return { nowMs, stalledMs, timeoutGraceMs: rules.timeoutGraceMs }
}

// ---- mail ------------------------------------------------------------------------------------

function onFrame(conn: number, text: string): void {
  const device = roster.at(conn)
  // Closed or superseded a moment ago.
  if (device === undefined) return
  try {
    const read = readFrame(text)
    if ('fault' in read) {
      observed.dropped(read.fault)
      if (read.fault !== 'unknown') {
        const code = read.fault === 'json' ? 'INVALID_JSON' : 'VALIDATION_ERROR'
        front.frame(device, { type: 'error', code, message: read.message })
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
      return roster.connect(message)
    case 'replayed':
      void roster.reconcile()
      return
    case 'closed':
      return roster.disconnect(message.conn)
    case 'sent':
      return tell(roster.at(message.conn), { type: 'sent', id: message.id })
    case 'command':
      return tell(roster.find(message.deviceId), { type: 'command', command: message.command })
    case 'check':
      return tell(roster.find(message.deviceId), { type: 'ask', id: message.id })
    case 'superseded':
      return roster.heldElsewhere(message.deviceId, message.epoch)
    case 'cancel':
      return onCancel(message)
    case 'ended':
      store.checks.outdate(message.id)
      return tell(roster.find(message.deviceId), { type: 'ended', id: message.id })
    case 'decommissioned':
      return roster.close(
        roster.find(message.deviceId),
        closeCodes.decommissioned,
        'decommissioned',
      )
    case 'organization':
      void onOrganizations([message.orgId])
      return
    case 'organizations':
      void onOrganizations([...new Set(Array.from(roster.devices(), ({ orgId }) => orgId))])
      return
    case 'reclaim':
      return roster.reclaim()
    case 'leaving':
      roster.leaving = true
      return
    case 'tick':
      return onTick(message.deaf)
    case 'gc':
      return collectGarbage()
    case 'stop':
      void stop()
  }
}

function onCancel(message: Extract<ShardMessage, { type: 'cancel' }>): void {
  const { deviceId, id, ask } = message
  const device = roster.find(deviceId)
  if (device) return run(device, { type: 'cancel', id, ask })
  // What it said before it left may not be written yet, and PostgreSQL is asked next.
  void store.commands.settled(id).then(() => {
    front.tell({ type: 'answer', ask, value: 'unknown' })
    front.flush()
  })
}

/** Takes their settings, and closes the sockets of those that are suspended. */
async function onOrganizations(orgIds: string[]): Promise<void> {
  try {
    const suspended = await organizations.read(orgIds)
    if (suspended.size === 0) return
    for (const device of roster.devices()) {
      if (!suspended.has(device.orgId)) continue
      roster.close(device, closeCodes.organizationSuspended, 'the organization is suspended')
    }
    front.flush()
  } catch (error) {
    // Asked again until PostgreSQL answers: a suspension must not be missed.
    log.warn({ err: error }, 'organizations could not be read')
    setTimeout(() => void onOrganizations(orgIds), limits.storeRetryMs)
  }
}

function onTick(deaf: boolean): void {
  clock.tick(deaf)
  for (const device of roster.devices()) run(device, { type: 'tick' })
  front.tell({ type: 'observed', observed: observed.take(stats()) })
}

async function stop(): Promise<void> {
  if (stopping) return
  stopping = true
  roster.stop()
  // Sockets are closed by now; what they left is written, unless PostgreSQL is away.
  const giveUp = setTimeout(() => store.abort(), limits.checkoutMsMax)
  scripts.stop()
  await store.drained()
  clearTimeout(giveUp)
  await db.close()
  front.tell({ type: 'stopped' })
  front.flush()
  port?.close()
}

// ---- what the store reports ------------------------------------------------------------------

function onCommands(outcomes: CommandOutcome[]): void {
  const ended: string[] = []
  const anywhere: string[] = []
  const rows = new Map<string, string>()
  for (const { write, applied, fresh, row } of outcomes) {
    const device = roster.find(write.deviceId)
    const same = device?.epoch === write.epoch ? device : undefined
    if (!fresh) {
      roster.supersede(same, write.epoch)
    } else if (write.completedMs === null) {
      if (!applied) {
        // Ended behind this actor's back: it must not wait for it.
        store.checks.outdate(write.id)
        tell(same, { type: 'ended', id: write.id })
      }
    } else {
      store.checks.outdate(write.id)
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
        store.strays.addText(write.deviceId, same.orgId, write.id, said)
        tell(same, { type: 'ended', id: write.id })
      }
    }
  }
  if (ended.length > 0) front.tell({ type: 'ended', ids: ended, anywhere, rows })
}

/** Whether the end of this command is what its agent said. */
function isSaid(device: Device | undefined, id: string): device is Device {
  return device !== undefined && find(device, id)?.reported === true
}

function stats() {
  const counts = db.counts()
  return {
    devices: roster.size,
    depths: store.depths(),
    pool: counts,
    loopSeconds: loop.take(),
  }
}
