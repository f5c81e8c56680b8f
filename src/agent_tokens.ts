// Whose socket is this: agents' tokens, checked in batches, so that a storm of reconnects is a few hundred
// statements. A token is bound to the device in the address.
import { sha256 } from './auth.ts'
import { Batcher } from './batch.ts'
import { plainArray, textArray, type Database } from './db.ts'
import { AppError } from './errors.ts'
import { isUuid } from './ids.ts'
import { limits } from './limits.ts'
import type { TokenState } from './protocol.ts'

export interface AgentIdentity {
  deviceId: string
  orgId: string
  token: TokenState
}

interface Waiting {
  deviceId: string
  hash: string
  resolve: (identity: AgentIdentity) => void
  reject: (error: unknown) => void
}

interface TokenRow extends Record<string, unknown> {
  n: number
  orgId: string
  current: boolean
  next: boolean
  old: boolean
  gone: boolean
  suspended: boolean
}

export class AgentTokens {
  private readonly batcher: Batcher<Waiting>
  private readonly db: Database
  // One string per organization, not one per socket.
  private readonly orgIds = new Map<string, string>()

  constructor(db: Database, onBatch: (rows: number) => void) {
    this.db = db
    this.batcher = new Batcher<Waiting>({
      rowsMax: limits.connectBatchMax,
      queueMax: limits.connectQueueMax,
      inFlight: 1,
      gapMs: limits.connectGapMs,
      onBatch,
      write: (items) => this.look(items),
    })
  }

  /**
   * Throws INVALID_TOKEN (one answer for an unknown device and a wrong token), DEVICE_DECOMMISSIONED,
   * ORGANIZATION_SUSPENDED, OVERLOADED, UNAVAILABLE.
   */
  check(deviceId: string, token: string): Promise<AgentIdentity> {
    if (!isUuid(deviceId) || !token.startsWith('mst_') || token.length > 128) {
      return Promise.reject(wrongToken())
    }
    const hash = `\\x${sha256(token).toString('hex')}`
    return new Promise((resolve, reject) => {
      if (this.batcher.push({ deviceId, hash, resolve, reject })) return
      reject(
        new AppError('OVERLOADED', 'too many agents connect at once', { retryAfterSeconds: 5 }),
      )
    })
  }

  private async look(items: Waiting[]): Promise<void> {
    try {
      const rows = await this.db.query<TokenRow>(tokensSql, [
        plainArray(items.map((item) => item.deviceId)),
        textArray(items.map((item) => item.hash)),
        limits.agentTokenDays,
      ])
      const byNumber = new Map(rows.map((row) => [row.n, row]))
      for (const [n, item] of items.entries()) this.answer(item, byNumber.get(n))
    } catch (error) {
      for (const item of items) item.reject(error)
    }
  }

  private answer(item: Waiting, row: TokenRow | undefined): void {
    if (row === undefined || !(row.current || row.next)) return item.reject(wrongToken())
    if (row.gone) {
      const message = 'this device is decommissioned; stop'
      return item.reject(new AppError('DEVICE_DECOMMISSIONED', message, { status: 403 }))
    }
    if (row.suspended) {
      const message = 'the organization is suspended; try again in 10 minutes'
      // Jitter, or a fleet that was suspended together comes back together.
      const jitter = 1 + Math.random() * limits.suspendedRetryJitter
      const retryAfterSeconds = Math.floor(limits.suspendedRetrySeconds * jitter)
      return item.reject(new AppError('ORGANIZATION_SUSPENDED', message, { retryAfterSeconds }))
    }
    item.resolve({
      deviceId: item.deviceId,
      orgId: this.interned(row.orgId),
      token: row.next && !row.current ? 'next' : row.old ? 'old' : 'current',
    })
  }

  private interned(orgId: string): string {
    const known = this.orgIds.get(orgId)
    if (known !== undefined) return known
    this.orgIds.set(orgId, orgId)
    return orgId
  }
}

function wrongToken(): AppError {
  // As long as agents wait at most: the token will hardly be good sooner. Jitter, or they come back together.
  const retryAfterSeconds = Math.ceil(limits.acceptRetrySecondsMax * (0.8 + 0.2 * Math.random()))
  const message = 'the agent’s token is not valid for this device'
  return new AppError('INVALID_TOKEN', message, { retryAfterSeconds })
}

const tokensSql = `
select (i.n - 1)::int as n, d.org_id as "orgId", d.token_hash = i.hash as current,
  coalesce(d.next_token_hash = i.hash, false) as next,
  d.token_made_at < now() - make_interval(days => $3) as old, d.decommissioned_at is not null as gone,
  o.status = 'suspended' as suspended
from unnest($1::uuid[], $2::bytea[]) with ordinality as i(device_id, hash, n)
join devices d on d.id = i.device_id
join organizations o on o.id = d.org_id`
