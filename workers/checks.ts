// Questions of actors about single commands: whether one is open that the actor does not hold, and whether one still
// is that it holds. An answer that may be older than what became of the command is not told.
import type { Batcher } from '../src/batch.ts'
import { openIdsSql } from '../src/command_row.ts'
import { plainArray, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import type { Device } from './device_state.ts'
import type { OpenLane } from './lanes.ts'
import { checkSql, type StoredCommand } from './statements.ts'

/** What PostgreSQL says of a command, for the actor that asked. */
export interface Checked {
  asker: Device
  id: string
  /** Null: it is not open, or is another device's; or it could not be asked for. */
  stored: StoredCommand | null
}

export interface CheckEvents {
  onChecked(checked: Checked[]): void
  /** Of the commands looked for, those that are open no more. */
  onGone(gone: { deviceId: string; id: string }[]): void
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

export class Checks {
  /** Ids of commands. */
  private readonly checks: Batcher<string>
  private readonly checking = new Map<string, Check>()
  private readonly looks: Batcher<Look>
  /** Commands that are asked for: while PostgreSQL is away their actors ask again. */
  private readonly lookIds = new Set<string>()
  private readonly db: Database
  private readonly events: CheckEvents

  constructor(db: Database, lane: OpenLane, events: CheckEvents) {
    this.db = db
    this.events = events
    this.checks = lane('check', (items) => this.readChecks(items), 0, {
      reject: (id) => this.giveUp(id),
    })
    this.looks = lane('look', (items) => this.readLooks(items), limits.lookGapMs / 10, {
      reject: ({ id }) => this.lookIds.delete(id),
    })
  }

  /** Asks whether a command is open that the actor does not hold, and once more where that is being asked already. */
  check(asker: Device, id: string): void {
    const stale = this.checking.has(id)
    this.checking.set(id, { asker, stale })
    if (!stale && !this.checks.push(id)) this.giveUp(id)
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

  async drained(): Promise<void> {
    await Promise.all([this.checks.drained(), this.looks.drained()])
  }

  /** Its actor must not wait for it. */
  private giveUp(id: string): void {
    const check = this.checking.get(id)
    this.checking.delete(id)
    if (check) this.events.onChecked([{ asker: check.asker, id, stored: null }])
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
      checks.flatMap(({ id, asker, stale, row }) => {
        const stored = row?.deviceId === asker.id ? row.command : null
        return stale ? [] : [{ asker, id, stored }]
      }),
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
}
