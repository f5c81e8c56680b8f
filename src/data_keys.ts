// Keys that seal secrets at rest. Each is stored wrapped by a key derived from JWT_SECRET, so that a copy
// of the database opens nothing, and a rotation of JWT_SECRET wraps 32 bytes anew instead of every secret.
import { randomBytes } from 'node:crypto'
import type { Database, Queryable } from './db.ts'
import { newId } from './ids.ts'
import type { Logger } from './log.ts'
import { keysFrom, seal, unseal } from './seal.ts'

/** The keys that wrap data keys: the present one first, then the one before a rotation. */
export function wrappingKeys(jwtSecret: string, previous: string | undefined): Buffer[] {
  return keysFrom(jwtSecret, previous, 'data key')
}

interface KeyRow extends Record<string, unknown> {
  id: string
  wrapped: Buffer
}

/** Keys that open with no secret of this hub, and the executions that need them. */
export interface LostKeys {
  lost: number
  executions: number
}

const idBytes = 16

export class DataKeys {
  private readonly opened = new Map<string, Buffer>()
  private newest: string | undefined
  private readonly db: Database
  private readonly wrapping: readonly Buffer[]

  constructor(db: Database, wrapping: readonly Buffer[]) {
    this.db = db
    this.wrapping = wrapping
  }

  /**
   * Wraps anew what the previous secret still opens, and makes a key where none can be opened. Returns how
   * many keys open with neither secret, and how many executions have something sealed under those: they fail
   * until that secret is back. A hub with another secret leaves a key here that seals nothing of ours.
   */
  async prepare(): Promise<LostKeys> {
    return this.db.transaction(async (tx) => {
      // Two hubs that start at once must not each make a first key.
      await tx.query(`select pg_advisory_xact_lock(hashtext('muster.data_keys'))`)
      const rows = await tx.query<KeyRow>('select id, wrapped from data_keys order by id')
      const lost: string[] = []
      for (const row of rows) if (!(await this.take(tx, row))) lost.push(row.id)
      if (this.newest === undefined) await this.make(tx)
      return { lost: lost.length, executions: lost.length === 0 ? 0 : await sealedUnder(tx, lost) }
    })
  }

  /** Seals under the newest key; what it returns names that key. */
  seal(plain: string): Buffer {
    const { newest } = this
    if (newest === undefined) throw new Error('data keys are used before they are prepared')
    const key = this.opened.get(newest) as Buffer // `newest` is only set with its key
    return Buffer.concat([Buffer.from(newest.replaceAll('-', ''), 'hex'), seal(key, plain)])
  }

  /**
   * Fetches the key of what was sealed, and returns what opens it; null when no secret of this hub opens
   * the key. Nothing is opened before the returned function is called.
   */
  async opener(sealed: Buffer): Promise<(() => string) | null> {
    const id = uuidOf(sealed.subarray(0, idBytes))
    const key = this.opened.get(id) ?? (await this.fetch(id))
    return key ? () => unseal(key, sealed.subarray(idBytes)) : null
  }

  private async fetch(id: string): Promise<Buffer | undefined> {
    const [row] = await this.db.query<KeyRow>('select id, wrapped from data_keys where id = $1', [
      id,
    ])
    const key = row && this.unwrap(row.wrapped)?.key
    if (key) this.opened.set(id, key)
    return key
  }

  private async take(tx: Queryable, { id, wrapped }: KeyRow): Promise<boolean> {
    const found = this.unwrap(wrapped)
    if (found === undefined) return false
    this.opened.set(id, found.key)
    this.newest = id
    if (!found.present) {
      const anew = this.wrap(found.key)
      await tx.query('update data_keys set wrapped = $2 where id = $1', [id, anew])
    }
    return true
  }

  private async make(tx: Queryable): Promise<void> {
    const id = newId()
    const key = randomBytes(32)
    await tx.query('insert into data_keys (id, wrapped) values ($1, $2)', [id, this.wrap(key)])
    this.opened.set(id, key)
    this.newest = id
  }

  private wrap(key: Buffer): Buffer {
    const [present] = this.wrapping
    if (present === undefined) throw new Error('there is no key to wrap with')
    return seal(present, key.toString('base64'))
  }

  private unwrap(wrapped: Buffer): { key: Buffer; present: boolean } | undefined {
    for (const [n, wrapping] of this.wrapping.entries()) {
      try {
        return { key: Buffer.from(unseal(wrapping, wrapped), 'base64'), present: n === 0 }
      } catch {
        // Another secret's: the next one may open it.
      }
    }
    return undefined
  }
}

/**
 * Says what is lost and what brings it back; `made`: this hub made its own JWT_SECRET. A key alone harms nobody:
 * whoever started a hub with another secret on this database has left one.
 */
export function tellLostKeys(log: Logger, { lost, executions }: LostKeys, made: boolean): void {
  if (lost === 0) return
  const counts = { keys: lost, executions }
  const closed = 'data keys open with no JWT_SECRET that is set'
  const cure = made
    ? 'this hub made its own JWT_SECRET, for it is not set: set it to what the other hubs have'
    : 'the secret that they were made under belongs into JWT_SECRET_PREVIOUS'
  if (executions > 0) log.error(counts, `${closed}, and executions need them: ${cure}`)
  else if (made) log.warn(counts, `${closed}: ${cure}`)
  else
    log.info(counts, 'data keys of another JWT_SECRET are here, and nothing that waits needs them')
}

/** How many executions that have not ended have parameters sealed under these keys. */
async function sealedUnder(tx: Queryable, keys: readonly string[]): Promise<number> {
  const [row] = await tx.query<{ count: number }>(
    `select count(*)::int as count from executions
     where secrets is not null and completed_at is null
       and encode(substring(secrets from 1 for ${idBytes}), 'hex') = any($1::text[])`,
    [keys.map((id) => id.replaceAll('-', ''))],
  )
  return row?.count ?? 0
}

function uuidOf(bytes: Buffer): string {
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}
