// The secrets of webhooks: made, sealed at rest under keys derived from JWT_SECRET, and what is signed with
// them (Standard Webhooks: HMAC-SHA256 over id, time and body).
import { createHmac, randomBytes } from 'node:crypto'
import { plainArray, textArray, type Queryable } from './db.ts'
import { limits } from './limits.ts'
import { keysFrom, seal, unseal } from './seal.ts'

const prefix = 'whsec_'
const purpose = 'webhook secrets'

/** The key that seals first, then those that may still open. */
export type SealKeys = readonly Buffer[]

export function sealKeys(secret: string, previous: string | undefined): SealKeys {
  return keysFrom(secret, previous, purpose)
}

/** A new secret as its owner gets it: `whsec_` and base64 of 256 bits. */
export function newWebhookSecret(): string {
  return prefix + randomBytes(32).toString('base64')
}

export function sealSecret([key]: SealKeys, secret: string): Buffer {
  if (key === undefined) throw new Error('there is no key to seal with')
  return seal(key, secret)
}

/** Throws when no key opens it. */
export function openSecret(keys: SealKeys, sealed: Buffer): string {
  return opened(keys, sealed).secret
}

function opened(keys: SealKeys, sealed: Buffer): { secret: string; by: number } {
  let failure: unknown
  for (const [by, key] of keys.entries()) {
    try {
      return { secret: unseal(key, sealed), by }
    } catch (error) {
      failure = error
    }
  }
  const message = 'the secret of a webhook was sealed under another JWT_SECRET; rotate it'
  throw new Error(message, { cause: failure })
}

/** The value of `webhook-signature`: one signature for each secret that counts now. */
export function signature(
  secrets: readonly string[],
  id: string,
  seconds: number,
  body: string,
): string {
  return secrets
    .map((secret) => {
      const key = Buffer.from(secret.slice(prefix.length), 'base64')
      return `v1,${createHmac('sha256', key).update(`${id}.${seconds}.${body}`).digest('base64')}`
    })
    .join(' ')
}

interface SealedRow extends Record<string, unknown> {
  id: string
  secret: Buffer
  previous: Buffer | null
}

/**
 * After a rotation of JWT_SECRET: seals every secret that the previous key opens under the present one, so
 * that the previous may go. Returns how many webhooks it changed.
 */
export async function resealSecrets(db: Queryable, keys: SealKeys): Promise<number> {
  if (keys.length < 2) return 0
  let changed = 0
  let after = '00000000-0000-0000-0000-000000000000'
  for (;;) {
    const rows = await db.query<SealedRow>(
      `select id, secret, previous_secret as previous from webhooks
       where deleted_at is null and id > $1 order by id limit $2`,
      [after, limits.sweepBatchMax],
    )
    const stale = rows.flatMap((row) => resealed(keys, row) ?? [])
    if (stale.length > 0) await replaceSecrets(db, stale)
    changed += stale.length
    after = rows.at(-1)?.id ?? after
    if (rows.length < limits.sweepBatchMax) return changed
  }
}

interface Resealed extends SealedRow {
  was: Buffer
}

function resealed(keys: SealKeys, row: SealedRow): Resealed | undefined {
  try {
    const { secret, by } = opened(keys, row.secret)
    if (by === 0) return undefined
    const previous = row.previous && sealSecret(keys, openSecret(keys, row.previous))
    return { id: row.id, was: row.secret, secret: sealSecret(keys, secret), previous }
  } catch {
    // Neither key opens it: its deliveries say so, and its owner rotates it.
    return undefined
  }
}

/** Only where nobody rotated the secret meanwhile. */
async function replaceSecrets(db: Queryable, rows: readonly Resealed[]): Promise<void> {
  const base64 = (pick: (row: Resealed) => Buffer | null) =>
    textArray(rows.map((row) => pick(row)?.toString('base64') ?? null))
  await db.query(
    `update webhooks w set secret = decode(n.secret, 'base64'),
       previous_secret = decode(n.previous, 'base64')
     from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as n(id, was, secret, previous)
     where w.id = n.id and w.secret = decode(n.was, 'base64')`,
    [
      plainArray(rows.map(({ id }) => id)),
      base64((row) => row.was),
      base64((row) => row.secret),
      base64((row) => row.previous),
    ],
  )
}
