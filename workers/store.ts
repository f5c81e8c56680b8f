// The bounded write-behind store of one shard: claims, presence, command states and inventories reach
// PostgreSQL in batches, each row checked against its connection's epoch. Decides nothing about devices.
import { hash, randomBytes } from 'node:crypto'
import type { Batcher } from '../src/batch.ts'
import { plainArray, textArray, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { AgentMetrics, SessionElsewhere, TokenState, UpgradePhase } from '../src/protocol.ts'
import { writeAlerts, type AlertWrite } from './alert_writes.ts'
import { Checks, type CheckEvents } from './checks.ts'
import { CommandWrites, type CommandEvents } from './command_writes.ts'
import { lanes } from './lanes.ts'
import {
  claimSql,
  inventorySql,
  loadSql,
  offlineSql,
  phaseSql,
  renewSql,
  seenSql,
  type StoredCommand,
} from './statements.ts'
import { Strays, type StrayEvents } from './strays.ts'
import type { HighKind } from './thresholds.ts'

export interface Claim {
  deviceId: string
  orgId: string
  conn: number
  ip: string | null
  token: TokenState
}

export interface Claimed {
  claim: Claim
  /** 0: the device was decommissioned meanwhile. Null: it could not be claimed. */
  epoch: number | null
  commands: StoredCommand[]
  /** Its threshold alerts that are open. */
  high: HighKind[]
  terminals: SessionElsewhere[]
}

export interface Seen {
  deviceId: string
  epoch: number
  atMs: number
  metrics: AgentMetrics | null
  agentVersion: string | null
}

export interface StoreEvents extends CommandEvents, CheckEvents, StrayEvents {
  /** Awaited before devices of these organizations are claimed. */
  beforeClaims(orgIds: string[]): Promise<void>
  onClaimed(claimed: Claimed[]): void
  /** Claims were tried again: an earlier try, whose end nobody heard, may still run, and raise epochs. */
  onClaimsRepeated(): void
  /** Other hubs that held devices which were claimed. */
  onClaimedFrom(nodes: string[]): void
  /** New tokens, committed beside the old ones. */
  onTokens(renewed: { deviceId: string; epoch: number; token: string }[]): void
  /** These connections write no more: a newer one of the device took over. */
  onSuperseded(lost: { deviceId: string; epoch: number }[]): void
  /** Alerts that were not taken: too many wait, or an agent has too many open. */
  onAlertsRefused(count: number): void
}

interface Loaded extends Record<string, unknown> {
  commands: StoredCommand[] | null
  high: HighKind[] | null
  terminals: SessionElsewhere[] | null
}

interface Inventory {
  deviceId: string
  json: string
}

interface Phase {
  deviceId: string
  epoch: number
  /** The command. */
  id: string
  phase: UpgradePhase
}

/** A connection whose agent is to get a new token. */
interface Renewal {
  deviceId: string
  epoch: number
}

export class Store {
  readonly commands: CommandWrites
  readonly checks: Checks
  readonly strays: Strays
  private readonly claims: Batcher<Claim>
  private readonly offlines: Batcher<Seen>
  private readonly sightings: Batcher<Seen>
  private readonly inventories: Batcher<Inventory>
  private readonly alerts: Batcher<AlertWrite>
  private readonly phases: Batcher<Phase>
  private readonly renewals: Batcher<Renewal>
  private readonly stop = new AbortController()
  private readonly db: Database
  private readonly nodeId: string
  private readonly events: StoreEvents

  constructor(db: Database, nodeId: string, events: StoreEvents) {
    this.db = db
    this.nodeId = nodeId
    this.events = events
    const lane = lanes(events, this.stop.signal)
    this.commands = new CommandWrites(db, events, this.stop.signal)
    this.checks = new Checks(db, lane, events)
    this.strays = new Strays(db, lane, events)
    const presence = { queueMax: limits.presenceRowsMax }
    this.claims = lane('claim', (items) => this.writeClaims(items), limits.claimGapMs, {
      ...presence,
      // Nobody may wait for a welcome that never comes: the agent tries again.
      reject: (claim) =>
        events.onClaimed([{ claim, epoch: null, commands: [], high: [], terminals: [] }]),
      onRepeated: () => events.onClaimsRepeated(),
    })
    this.offlines = lane('offline', (items) => this.writeOfflines(items), 0, presence)
    // One statement a second takes them all: nobody reads lastSeenAt to the second.
    this.sightings = lane('seen', (items) => this.writeSightings(items), 1000)
    this.inventories = lane('inventory', (items) => this.writeInventories(items), 100, {
      bytesOf: (item) => item.json.length,
    })
    this.alerts = lane(
      'alert',
      (items) => writeAlerts(db, items, (count) => events.onAlertsRefused(count)),
      limits.alertGapMs,
      { rowsMax: limits.alertBatchMax },
    )
    this.phases = lane('phase', (items) => this.writePhases(items), 100)
    this.renewals = lane('token', (items) => this.renewTokens(items), limits.claimGapMs)
  }

  /** False when too many wait. */
  claim(claim: Claim): boolean {
    return this.claims.push(claim)
  }

  /** False when too many wait: somebody must look later who is online without a socket. */
  offline(last: Seen): boolean {
    return this.offlines.push(last)
  }

  seen(seen: Seen): void {
    this.sightings.push(seen)
  }

  inventory(deviceId: string, json: string): void {
    // Full: the agent sends it again with its next connection.
    this.inventories.push({ deviceId, json })
  }

  phase(phase: Phase): void {
    // Full: the next phase is told, and the end tells all.
    this.phases.push(phase)
  }

  alert(write: AlertWrite): void {
    // What agents say may fill half of the queue: what the hub itself found is not said again.
    const own = 'raise' in write && write.raise.kind === 'agent_reported'
    const full = own && this.alerts.queued >= limits.storeRowsMax / 2
    if (full || !this.alerts.push(write)) this.events.onAlertsRefused(1)
  }

  /** Gives the agent of this connection a new token; when refused here, its next connection asks again. */
  renewToken(renewal: Renewal): void {
    this.renewals.push(renewal)
  }

  /** True while so much is unwritten that no more frames should be taken. */
  get full(): boolean {
    const { rows, bytes } = this.commands
    return rows > limits.storeRowsMax || bytes > limits.storeBytesMax
  }

  depths(): Record<string, number> {
    return {
      claims: this.claims.queued,
      commands: this.commands.rows,
      presence: this.offlines.queued + this.sightings.queued,
      inventories: this.inventories.queued,
      alerts: this.alerts.queued,
    }
  }

  /** Resolves when everything handed over so far is committed. */
  async drained(): Promise<void> {
    const all = [
      this.claims,
      this.offlines,
      this.sightings,
      this.inventories,
      this.strays,
      this.checks,
      this.alerts,
      this.phases,
      this.renewals,
    ]
    await Promise.all([this.commands.drained(), ...all.map((lane) => lane.drained())])
  }

  /** Gives up waiting for a PostgreSQL that is away. */
  abort(): void {
    this.stop.abort()
  }

  private async writeClaims(claims: Claim[]): Promise<void> {
    // Two connects of one device in a batch: the later one holds the socket.
    const latest = new Map(claims.map((claim) => [claim.deviceId, claim]))
    const wanted = [...latest.values()]
    await this.events.beforeClaims(wanted.map((claim) => claim.orgId))
    const rows = await this.db.query<{ id: string; epoch: string; from: string | null }>(claimSql, [
      plainArray(wanted.map((claim) => claim.deviceId)),
      textArray(wanted.map((claim) => claim.ip)),
      plainArray(wanted.map((claim) => claim.token === 'next')),
      plainArray(wanted.map(() => newId())),
      this.nodeId,
    ])
    const from = new Set(rows.flatMap((row) => row.from ?? []))
    if (from.size > 0) this.events.onClaimedFrom([...from])
    const epochs = new Map(rows.map((row) => [row.id, Number(row.epoch)]))
    const loaded = await this.load([...epochs.keys()])
    this.events.onClaimed(
      wanted.map((claim) => {
        const { commands, high, terminals } = loaded.get(claim.deviceId) ?? {}
        const epoch = epochs.get(claim.deviceId) ?? 0
        const more = { commands: commands ?? [], high: high ?? [], terminals: terminals ?? [] }
        return { claim, epoch, ...more }
      }),
    )
  }

  /**
   * What the claimed devices have open. After the claim's commit: who committed a command before it is seen,
   * and who commits one from here on sees which hub holds the device.
   */
  private async load(deviceIds: string[]): Promise<Map<string, Loaded>> {
    const rows = await this.db.query<Loaded & { id: string }>(loadSql, [
      plainArray(deviceIds),
      limits.openCommandDaysMax,
      this.nodeId,
    ])
    return new Map(rows.map((row) => [row.id, row]))
  }

  private async writeOfflines(items: Seen[]): Promise<void> {
    await this.db.query(offlineSql, [...seenArrays(items), plainArray(items.map(() => newId()))])
  }

  private async writeSightings(items: Seen[]): Promise<void> {
    const rows = await this.db.query<{ id: string }>(seenSql, seenArrays(items))
    const written = new Set(rows.map((row) => row.id))
    const lost = items.filter((item) => !written.has(item.deviceId))
    if (lost.length > 0) this.events.onSuperseded(lost)
  }

  private async writeInventories(items: Inventory[]): Promise<void> {
    const latest = [...new Map(items.map((item) => [item.deviceId, item])).values()]
    await this.db.query(inventorySql, [
      plainArray(latest.map((item) => item.deviceId)),
      textArray(latest.map((item) => item.json)),
    ])
  }

  private async writePhases(items: Phase[]): Promise<void> {
    const latest = [...new Map(items.map((item) => [item.deviceId, item])).values()]
    await this.db.query(phaseSql, [
      plainArray(latest.map((item) => item.deviceId)),
      plainArray(latest.map((item) => item.epoch)),
      plainArray(latest.map((item) => item.id)),
      plainArray(latest.map((item) => item.phase)),
    ])
  }

  private async renewTokens(items: Renewal[]): Promise<void> {
    const fresh = items.map((item) => {
      const token = `mst_${randomBytes(32).toString('base64url')}`
      return { ...item, token, hash: `\\x${hash('sha256', token, 'hex')}` }
    })
    const rows = await this.db.query<{ id: string }>(renewSql, [
      plainArray(fresh.map((item) => item.deviceId)),
      plainArray(fresh.map((item) => item.epoch)),
      textArray(fresh.map((item) => item.hash)),
    ])
    const renewed = new Set(rows.map(({ id }) => id))
    this.events.onTokens(fresh.filter(({ deviceId }) => renewed.has(deviceId)))
  }
}

/** $1 to $5 of the statements that write what was seen. */
function seenArrays(items: readonly Seen[]): string[] {
  return [
    plainArray(items.map((item) => item.deviceId)),
    plainArray(items.map((item) => item.epoch)),
    plainArray(items.map((item) => item.atMs)),
    textArray(items.map((item) => (item.metrics === null ? null : JSON.stringify(item.metrics)))),
    textArray(items.map((item) => item.agentVersion)),
  ]
}
