// The bounded write-behind store of one shard: claims, presence, command states and inventories reach
// PostgreSQL in batches, each row checked against its connection's epoch. Decides nothing about devices.
import { hash, randomBytes } from 'node:crypto'
import { Batcher } from '../src/batch.ts'
import { openIdsSql } from '../src/command_row.ts'
import { plainArray, textArray, type Database } from '../src/db.ts'
import { isUuid, newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type {
  AgentMetrics,
  ResultFrame,
  SessionElsewhere,
  TokenState,
  UpgradePhase,
} from '../src/protocol.ts'
import { jsonOf } from './frames.ts'
import { writeAlerts, type AlertWrite } from './alert_writes.ts'
import { CommandWrites, type CommandOutcome } from './command_writes.ts'
import type { Device } from './device_state.ts'
import {
  checkSql,
  claimSql,
  inventorySql,
  loadSql,
  offlineSql,
  phaseSql,
  renewSql,
  seenSql,
  straySql,
} from './statements.ts'
import { persist } from './persist.ts'
import type { HighKind } from './thresholds.ts'

/** A command as the claim finds it in PostgreSQL; times in ms since 1970. */
export interface StoredCommand {
  id: string
  action: string
  payload: string
  status: 'pending' | 'sent' | 'delivered' | 'running'
  attempts: number
  timeoutSeconds: number
  createdMs: number
  expiresMs: number
  deliveredMs: number | null
  startedMs: number | null
  cancelRequested: boolean
  executionId: string | null
}

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

export interface StoreEvents {
  /** Awaited before devices of these organizations are claimed. */
  beforeClaims(orgIds: string[]): Promise<void>
  onClaimed(claimed: Claimed[]): void
  /** Claims were tried again: an earlier try, whose end nobody heard, may still run, and raise epochs. */
  onClaimsRepeated(): void
  /** Other hubs that held devices which were claimed. */
  onClaimedFrom(nodes: string[]): void
  onCommands(outcomes: CommandOutcome[]): void
  /** Of the commands asked for, those that are open, for the actors that asked. */
  onChecked(checked: { asker: Device; command: StoredCommand }[]): void
  /** Of the commands looked for, those that are open no more. */
  onGone(gone: { deviceId: string; id: string }[]): void
  /** Results of ids that were not open: they are dealt with and may be acked. */
  onStrays(strays: { deviceId: string; id: string }[]): void
  /** New tokens, committed beside the old ones. */
  onTokens(renewed: { deviceId: string; epoch: number; token: string }[]): void
  /** These connections write no more: a newer one of the device took over. */
  onSuperseded(lost: { deviceId: string; epoch: number }[]): void
  /** Alerts that were not taken: too many wait, or an agent has too many open. */
  onAlertsRefused(count: number): void
  onBatch(statement: string, rows: number): void
  onProblem(message: string, details: Record<string, unknown>): void
}

interface Loaded extends Record<string, unknown> {
  commands: StoredCommand[] | null
  high: HighKind[] | null
  terminals: SessionElsewhere[] | null
}

interface Look {
  deviceId: string
  /** The command. */
  id: string
}

/** A check that is under way. */
interface Check {
  /** The last actor that asked: one of another connection has loaded what is open itself. */
  asker: Device
  /** What is read may be older than what became of the command since. */
  stale: boolean
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

interface Stray {
  deviceId: string
  orgId: string
  /** The command. */
  id: string
  /** JSON text of what it said. */
  result: string
}

export class Store {
  readonly commands: CommandWrites
  private readonly claims: Batcher<Claim>
  private readonly offlines: Batcher<Seen>
  private readonly sightings: Batcher<Seen>
  private readonly inventories: Batcher<Inventory>
  private readonly strays: Batcher<Stray>
  /** Ids of commands. */
  private readonly checks: Batcher<string>
  private readonly checking = new Map<string, Check>()
  private readonly looks: Batcher<Look>
  /** Commands that are asked for: while PostgreSQL is away their actors ask again. */
  private readonly lookIds = new Set<string>()
  private readonly alerts: Batcher<AlertWrite>
  private readonly phases: Batcher<Phase>
  private readonly renewals: Batcher<Renewal>
  /** Device and id of strays that wait: agents say each again until it is acknowledged. */
  private readonly strayIds = new Set<string>()
  private strayBytes = 0
  private readonly stop = new AbortController()
  private readonly db: Database
  private readonly nodeId: string
  private readonly events: StoreEvents

  constructor(db: Database, nodeId: string, events: StoreEvents) {
    this.db = db
    this.nodeId = nodeId
    this.events = events
    this.commands = new CommandWrites(db, events, this.stop.signal)
    this.claims = this.lane('claim', (items) => this.writeClaims(items), limits.claimGapMs, {
      // Nobody may wait for a welcome that never comes: the agent tries again.
      reject: (claim) =>
        events.onClaimed([{ claim, epoch: null, commands: [], high: [], terminals: [] }]),
      onRepeated: () => events.onClaimsRepeated(),
    })
    this.offlines = this.lane('offline', (items) => this.writeOfflines(items))
    // One statement a second takes them all: nobody reads lastSeenAt to the second.
    this.sightings = this.lane('seen', (items) => this.writeSightings(items), 1000)
    this.inventories = this.lane('inventory', (items) => this.writeInventories(items), 100, {
      bytesOf: (item) => item.json.length,
    })
    this.checks = this.lane('check', (items) => this.readChecks(items), 0, {
      reject: (id) => this.checking.delete(id),
    })
    this.looks = this.lane('look', (items) => this.readLooks(items), limits.lookGapMs / 10, {
      reject: ({ id }) => this.lookIds.delete(id),
    })
    this.alerts = this.lane(
      'alert',
      (items) => writeAlerts(db, items, (count) => events.onAlertsRefused(count)),
      limits.alertGapMs,
      { rowsMax: limits.alertBatchMax },
    )
    this.phases = this.lane('phase', (items) => this.writePhases(items), 100)
    this.strays = this.lane('stray', (items) => this.writeStrays(items), 0, {
      bytesOf: ({ result }) => result.length,
      reject: (stray) => this.forgetStrays([stray]),
    })
    this.renewals = this.lane('token', (items) => this.renewTokens(items), limits.claimGapMs)
  }

  claim(claim: Claim): void {
    this.claims.push(claim)
  }

  offline(last: Seen): void {
    this.offlines.push(last)
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

  /** Asks whether a command is open that the actor does not hold, and once more where that is being asked already. */
  check(asker: Device, id: string): void {
    const stale = this.checking.has(id)
    this.checking.set(id, { asker, stale })
    if (!stale && !this.checks.push(id)) this.checking.delete(id)
  }

  /** Something became of this command: a check that is under way does not count, and is asked anew. */
  outdate(id: string): void {
    const check = this.checking.get(id)
    if (check) check.stale = true
  }

  /** Asks whether a command is still open that the actor holds; when refused here, it asks again. */
  look(deviceId: string, id: string): void {
    if (this.lookIds.has(id)) return
    this.lookIds.add(id)
    if (!this.looks.push({ deviceId, id })) this.lookIds.delete(id)
  }

  /** Gives the agent of this connection a new token; when refused here, its next connection asks again. */
  renewToken(renewal: Renewal): void {
    this.renewals.push(renewal)
  }

  /** A result for an id that is not open; when refused here, the agent sends it again in 10 s. */
  stray(deviceId: string, orgId: string, { id, type: _type, ...rest }: ResultFrame): void {
    const deep = `{"status":"${rest.status}","error":"the result nests too deeply to be stored"}`
    this.strayText(deviceId, orgId, id, jsonOf(rest) ?? deep)
  }

  /** The same, as the JSON text of what the agent said without the id. */
  strayText(deviceId: string, orgId: string, id: string, result: string): void {
    const key = `${deviceId} ${id}`
    if (this.strayIds.has(key)) return
    if (this.strayBytes > 0 && this.strayBytes + result.length > limits.strayBytesMax) return
    // Noted before: a batch without any id that could be a command's is over before `push` returns.
    this.strayIds.add(key)
    this.strayBytes += result.length
    const stray = { deviceId, orgId, id, result }
    if (!this.strays.push(stray)) this.forgetStrays([stray])
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
    const lanes = [
      this.claims,
      this.offlines,
      this.sightings,
      this.inventories,
      this.strays,
      this.checks,
      this.looks,
      this.alerts,
      this.phases,
      this.renewals,
    ]
    await Promise.all([this.commands.drained(), ...lanes.map((lane) => lane.drained())])
  }

  /** Gives up waiting for a PostgreSQL that is away. */
  abort(): void {
    this.stop.abort()
  }

  private lane<T>(
    name: string,
    write: (items: T[]) => Promise<void>,
    gapMs = 0,
    more: {
      rowsMax?: number
      bytesOf?: (item: T) => number
      reject?: (item: T) => void
      /** Written after tries that PostgreSQL did not answer. */
      onRepeated?: () => void
    } = {},
  ): Batcher<T> {
    return new Batcher<T>({
      rowsMax: more.rowsMax ?? limits.storeBatchMax,
      bytesMax: limits.storeBatchBytesMax,
      queueMax: limits.storeRowsMax,
      inFlight: 1,
      gapMs,
      ...(more.bytesOf ? { bytesOf: more.bytesOf } : {}),
      onBatch: (rows) => this.events.onBatch(name, rows),
      write: async (items) => {
        let repeated = false
        await persist(items, {
          write,
          signal: this.stop.signal,
          onOutage: (error) => {
            repeated = true
            this.problem('PostgreSQL does not take writes; they wait', name, error)
          },
          reject: (item, error) => {
            this.problem('PostgreSQL refused a row; it is dropped', name, error)
            more.reject?.(item)
          },
        })
        if (repeated) more.onRepeated?.()
      },
    })
  }

  private problem(message: string, statement: string, error: unknown): void {
    this.events.onProblem(message, { statement, reason: String(error) })
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

  private async readChecks(ids: string[]): Promise<void> {
    const rows = await this.db.query<{ deviceId: string; command: StoredCommand }>(checkSql, [
      plainArray(ids),
    ])
    const byId = new Map(rows.map((row) => [row.command.id, row]))
    const checks = ids.flatMap((id) => {
      const check = this.checking.get(id)
      return check ? [{ id, ...check, row: byId.get(id) }] : []
    })
    this.events.onChecked(
      checks.flatMap(({ asker, stale, row }) =>
        !stale && row?.deviceId === asker.id ? [{ asker, command: row.command }] : [],
      ),
    )
    for (const { id } of checks) this.checking.delete(id)
    for (const { id, asker, stale } of checks) if (stale) this.check(asker, id)
  }

  private async readLooks(items: Look[]): Promise<void> {
    const rows = await this.db.query<{ id: string }>(openIdsSql, [
      plainArray(items.map((item) => item.id)),
    ])
    for (const { id } of items) this.lookIds.delete(id)
    const open = new Set(rows.map(({ id }) => id))
    this.events.onGone(items.filter(({ id }) => !open.has(id)))
  }

  private forgetStrays(items: Stray[]): void {
    for (const { deviceId, id, result } of items) {
      this.strayIds.delete(`${deviceId} ${id}`)
      this.strayBytes -= result.length
    }
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

  private async writeStrays(items: Stray[]): Promise<void> {
    const known = items.filter(({ id }) => isUuid(id))
    if (known.length > 0) {
      await this.db.query(straySql, [
        plainArray(known.map((item) => item.id)),
        plainArray(known.map((item) => item.deviceId)),
        plainArray(known.map((item) => item.orgId)),
        textArray(known.map((item) => item.result)),
        plainArray(known.map(() => newId())),
      ])
    }
    this.forgetStrays(items)
    this.events.onStrays(items)
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
