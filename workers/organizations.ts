// What a shard knows of the organizations whose devices it holds: their thresholds, read before the first
// of their devices is claimed and again whenever they change; and which of them are suspended.
import type { Database } from '../src/db.ts'
import type { Thresholds } from './thresholds.ts'

interface OrganizationRow extends Record<string, unknown> {
  id: string
  suspended: boolean
  thresholds: Thresholds
}

const noThresholds: Thresholds = {}

export class Organizations {
  private readonly thresholds = new Map<string, Thresholds>()
  /** The number of the latest reading: what was asked for earlier and answers later is old. */
  private readonly asked = new Map<string, number>()
  private asks = 0
  private readonly db: Database

  constructor(db: Database) {
    this.db = db
  }

  thresholdsOf(orgId: string): Thresholds {
    return this.thresholds.get(orgId) ?? noThresholds
  }

  /** Reads those that were never read. */
  async ensure(orgIds: Iterable<string>): Promise<void> {
    const missing = [...new Set(orgIds)].filter((orgId) => !this.thresholds.has(orgId))
    if (missing.length > 0) await this.read(missing)
  }

  /** Reads these again; returns those that are suspended. */
  async read(orgIds: readonly string[]): Promise<Set<string>> {
    const ask = ++this.asks
    for (const orgId of orgIds) this.asked.set(orgId, ask)
    const rows = await this.db.query<OrganizationRow>(
      `select id, status = 'suspended' as suspended,
         coalesce(settings->'thresholds', '{}') as thresholds
       from organizations where id = any($1::uuid[])`,
      [orgIds],
    )
    for (const { id, thresholds } of rows) {
      if (this.asked.get(id) === ask) this.thresholds.set(id, thresholds)
    }
    return new Set(rows.filter((row) => row.suspended).map((row) => row.id))
  }
}
