// Results for ids that are not open at their actor, until they are kept as late results or audited: only then may the
// agent forget them.
import type { Batcher } from '../src/batch.ts'
import { plainArray, textArray, type Database } from '../src/db.ts'
import { isUuid, newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { ResultFrame } from '../src/protocol.ts'
import type { OpenLane } from './lanes.ts'
import { straySql } from './statements.ts'

export interface StrayEvents {
  /** Results of ids that were not open: they are dealt with and may be acked. */
  onStrays(strays: { deviceId: string; id: string }[]): void
}

interface Stray {
  deviceId: string
  orgId: string
  /** The command. */
  id: string
  /** JSON text of what it said. */
  result: string
}

export class Strays {
  private readonly lane: Batcher<Stray>
  /** Device and id of those that wait: agents say each again until it is acknowledged. */
  private readonly waiting = new Set<string>()
  private bytes = 0
  private readonly db: Database
  private readonly events: StrayEvents

  constructor(db: Database, lane: OpenLane, events: StrayEvents) {
    this.db = db
    this.events = events
    this.lane = lane('stray', (items) => this.write(items), 0, {
      bytesOf: ({ result }) => result.length,
      reject: (stray) => this.forget([stray]),
    })
  }

  /** When it is refused here, the agent sends it again in 10 s. */
  add(deviceId: string, orgId: string, { id, type: _type, ...rest }: ResultFrame): void {
    this.addText(deviceId, orgId, id, JSON.stringify(rest))
  }

  /** The same, as the JSON text of what the agent said without the id. */
  addText(deviceId: string, orgId: string, id: string, result: string): void {
    const key = keyOf(deviceId, id)
    if (this.waiting.has(key)) return
    if (this.bytes > 0 && this.bytes + result.length > limits.strayBytesMax) return
    // Noted before: a batch without any id that could be a command's is over before `push` returns.
    this.waiting.add(key)
    this.bytes += result.length
    const stray = { deviceId, orgId, id, result }
    if (!this.lane.push(stray)) this.forget([stray])
  }

  async drained(): Promise<void> {
    await this.lane.drained()
  }

  private async write(items: Stray[]): Promise<void> {
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
    this.forget(items)
    this.events.onStrays(items)
  }

  private forget(items: readonly Stray[]): void {
    for (const { deviceId, id, result } of items) {
      this.waiting.delete(keyOf(deviceId, id))
      this.bytes -= result.length
    }
  }
}

function keyOf(deviceId: string, id: string): string {
  return `${deviceId} ${id}`
}
