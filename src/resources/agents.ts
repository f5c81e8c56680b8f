// Agents become devices here: enrollment by the global secret, a site's key, or the token of the device
// itself. Their sockets are `../front.ts`.
import { Type, type Static } from 'typebox'
import { raiseAlerts, type NewAlert } from '../alerts.ts'
import { insertAudit, auditOf } from '../audit.ts'
import { opaqueToken, sameSecret, sha256 } from '../auth.ts'
import { bearer } from '../http_headers.ts'
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { insertEvents } from '../events.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { invalid, route, type Ask, type Call, type Context, type Route } from '../route.ts'
import { archNames, archWords, osNames, osWords } from './platforms.ts'

const EnrollBody = Type.Object({
  enrollmentSecret: Type.Optional(Type.String({ maxLength: limits.credentialBytesMax })),
  hostname: Type.String({ minLength: 1, maxLength: 255 }),
  os: Type.Enum(osWords),
  arch: Type.Enum(archWords),
  osVersion: Type.Optional(Type.String({ maxLength: 255 })),
  agentVersion: Type.Optional(Type.String({ maxLength: 64 })),
  siteId: Type.Optional(Type.String({ format: 'uuid' })),
  machineId: Type.Optional(Type.String({ minLength: 1, maxLength: 255 })),
})

const uuid = Type.String({ format: 'uuid' })
const Enrollment = Type.Object({
  deviceId: uuid,
  agentToken: Type.String({ description: 'Shown once: the identity of this device.' }),
  orgId: uuid,
  siteId: uuid,
  websocketUrl: Type.String(),
  heartbeatIntervalSeconds: Type.Integer(),
  releaseKeys: Type.Array(Type.String(), {
    description: 'Public keys that prove releases of the agent: base64 of 32 bytes each.',
  }),
})

type Body = Static<typeof EnrollBody>
type EnrollCall = Call<undefined, undefined, Body>

export const agentRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/agents/enroll',
    name: 'enrollAgent',
    tag: 'agents',
    summary: 'Enroll a device with the enrollment secret or a site’s key',
    may: 'public',
    body: EnrollBody,
    headers: ['x-enrollment-secret', 'idempotency-key', 'authorization', 'host'],
    responses: { 201: Enrollment },
    beforeRefusal: requireSecret,
    handle: enroll,
  }),
]

/** Who has no secret is told that, whatever else is wrong: fields are for those who may enroll. */
async function requireSecret(ctx: Context, { sent, ip, header }: Ask): Promise<void> {
  ctx.rates.mayEnroll(ip)
  const secret = secretIn(sent) ?? header('x-enrollment-secret')
  if (secret !== '' && (isGlobalSecret(ctx, secret) || (await isKey(ctx.db, secret)))) return
  ctx.rates.enrollFailed(ip)
  throw wrongSecret(secret === '' ? noSecret : badSecret)
}

/** Of a body that nobody has checked. */
function secretIn(sent: string): string | undefined {
  try {
    const { enrollmentSecret } = JSON.parse(sent) as { enrollmentSecret?: unknown }
    return typeof enrollmentSecret === 'string' ? enrollmentSecret : undefined
  } catch {
    return undefined
  }
}

async function isKey(db: Queryable, secret: string): Promise<boolean> {
  const rows = await db.query(
    `select true as found from enrollment_keys k where k.key_hash = $1 and ${usableKeySql}`,
    [sha256(secret)],
  )
  return rows.length > 0
}

async function enroll(ctx: Context, call: EnrollCall) {
  const rateHeaders = ctx.rates.enroll(call.ip)
  const secret = call.body.enrollmentSecret ?? call.header('x-enrollment-secret')
  const token = opaqueToken('mst_')
  let device: { id: string; orgId: string; siteId: string }
  try {
    device = await ctx.db.transaction(async (tx) => {
      const made = await enrollDevice(ctx, tx, call, secret, token)
      ctx.rates.mayEnroll(call.ip)
      return made
    })
  } catch (error) {
    if (error instanceof AppError && error.code === 'INVALID_ENROLLMENT_SECRET') {
      ctx.rates.enrollFailed(call.ip)
    }
    throw error
  }
  const body = {
    deviceId: device.id,
    agentToken: token,
    orgId: device.orgId,
    siteId: device.siteId,
    websocketUrl: `${socketOrigin(ctx, call)}/api/v1/agents/${device.id}/ws`,
    heartbeatIntervalSeconds: ctx.config.heartbeatSeconds,
    releaseKeys: [...ctx.releases.keys],
  }
  const headers = { ...rateHeaders, Location: `/api/v1/devices/${device.id}` }
  return { status: 201, body, headers }
}

/** Where the agent's socket goes: the public address, or else the very host it enrolled at. */
function socketOrigin(ctx: Context, call: EnrollCall): string {
  const host = call.header('host')
  const origin =
    ctx.config.publicOrigin ?? (/^[\w.:[\]-]+$/.test(host) ? `http://${host}` : ctx.publicOrigin)
  return origin.replace(/^http/, 'ws')
}

type Place = {
  orgId: string
  siteId: string
  keyId: string | null
}

async function enrollDevice(
  ctx: Context,
  tx: Queryable,
  call: EnrollCall,
  secret: string,
  token: string,
): Promise<{ id: string; orgId: string; siteId: string }> {
  if (secret === '') throw wrongSecret(noSecret)
  const { siteId } = call.body
  const repeat = await findRepeat(tx, call, secret, token)
  if (repeat) return repeat
  const known = await findByToken(tx, bearer(call.header('authorization')))
  // The global secret leads a device that proves itself to where it lives.
  const home = known && !known.gone ? known.siteId : undefined
  const place = isGlobalSecret(ctx, secret)
    ? await globalPlace(tx, siteId ?? home)
    : await keyPlace(tx, secret, siteId)
  if (known === undefined) return insertDevice(tx, call, place, secret, token)
  if (known.gone) {
    const message = 'this device is decommissioned; enroll it anew without its old token'
    throw new AppError('DEVICE_DECOMMISSIONED', message, { status: 403 })
  }
  if (known.orgId !== place.orgId) throw livesElsewhere(siteId)
  return reenroll(tx, call, known, token)
}

/** Never a second device unasked: its history and its commands are at the first one. */
function livesElsewhere(siteId: string | undefined): AppError {
  const message = 'belongs to another organization than the device whose token was sent'
  if (siteId !== undefined) return invalid('/siteId', message)
  return new AppError(
    'CONFLICT',
    `the enrollment key ${message}; decommission the device there, or enroll without its old token`,
  )
}

function isGlobalSecret({ config }: Context, secret: string): boolean {
  // Both are compared always, so that time tells nothing.
  const current = sameSecret(secret, config.enrollmentSecret)
  const previous = sameSecret(secret, config.enrollmentSecretPrevious ?? config.enrollmentSecret)
  return current || previous
}

/**
 * A repeat of an enrollment whose answer was lost: the same row with a new token. Throws
 * IDEMPOTENCY_KEY_REUSED where the key came with another body.
 */
async function findRepeat(tx: Queryable, call: EnrollCall, secret: string, token: string) {
  const hashes = repeatHashes(call, secret)
  if (hashes === null) return undefined
  const { request, body } = hashes
  // Two repeats at once: the second waits until the first has made the row.
  await tx.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [request.toString('hex')])
  const earlier = await tx.query<{ id: string; fresh: boolean; same: boolean }>(
    `select d.id, p.epoch = 0 and d.decommissioned_at is null as fresh,
      d.enroll_key_hash in ($1::bytea, $1::bytea || $2::bytea) as same
    from devices d join device_presence p on p.device_id = d.id
    where d.enroll_key_hash >= $1::bytea and d.enroll_key_hash <= $1::bytea || $3::bytea
      and d.created_at > now() - make_interval(secs => $4)`,
    [request, body, Buffer.alloc(body.length, 0xff), limits.enrollRepeatSeconds],
  )
  if (earlier.some(({ same }) => !same)) {
    const message = 'this Idempotency-Key came with another body before; make a new one'
    throw new AppError('IDEMPOTENCY_KEY_REUSED', message)
  }
  const fresh = earlier.find((device) => device.fresh)
  if (fresh === undefined) return undefined
  const [row] = await tx.query<{ id: string; orgId: string; siteId: string }>(
    `update devices set token_hash = $2 where id = $1
    returning id, org_id as "orgId", site_id as "siteId"`,
    [fresh.id, sha256(token)],
  )
  return row
}

/**
 * What a repeat is known by: key and secret, behind which the row keeps a hash of the body. Rows of an
 * older hub have the first alone.
 */
function repeatHashes(call: EnrollCall, secret: string): { request: Buffer; body: Buffer } | null {
  const key = call.header('idempotency-key')
  if (key === '') return null
  const { enrollmentSecret: _secret, ...body } = call.body
  return {
    request: sha256(JSON.stringify([key, secret])),
    body: sha256(JSON.stringify(Object.entries(body).toSorted(([a], [b]) => (a < b ? -1 : 1)))),
  }
}

/** Where the global secret leads: the named site, or the one that the first start made. */
async function globalPlace(tx: Queryable, siteId: string | undefined): Promise<Place> {
  const [row] = await tx.query<Place & { allowed: boolean; suspended: boolean }>(
    `select s.id as "siteId", s.org_id as "orgId", null as "keyId",
      coalesce((o.settings ->> 'globalEnrollment')::boolean, true) as allowed,
      o.status = 'suspended' as suspended
    from sites s join organizations o on o.id = s.org_id
    where $1::uuid is null or s.id = $1
    order by s.id limit 1`,
    [siteId ?? null],
  )
  if (row === undefined) throw invalid('/siteId', 'is no site of this hub')
  if (!row.allowed) {
    throw wrongSecret('this organization takes only its sites’ enrollment keys')
  }
  if (row.suspended) throw suspended()
  return row
}

const noSecret = 'send the enrollment secret'
const badSecret =
  'the enrollment secret is wrong, or a site’s key that is used up, expired or revoked'

/** SQL: the key `k` may make one more device. */
const usableKeySql = `k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
      and (k.max_uses is null or k.uses < k.max_uses)`

/** Where a site's key leads; its use is counted in the transaction that makes the device. */
async function keyPlace(tx: Queryable, key: string, siteId: string | undefined): Promise<Place> {
  const [row] = await tx.query<Place & { suspended: boolean }>(
    `update enrollment_keys k set uses = k.uses + 1
    from organizations o
    where o.id = k.org_id and k.key_hash = $1 and ${usableKeySql}
    returning k.id as "keyId", k.site_id as "siteId", k.org_id as "orgId",
      o.status = 'suspended' as suspended`,
    [sha256(key)],
  )
  if (row === undefined) {
    throw wrongSecret(badSecret)
  }
  if (siteId !== undefined && siteId !== row.siteId) {
    throw invalid('/siteId', 'is another site than the one this key is for')
  }
  if (row.suspended) throw suspended()
  return row
}

interface KnownDevice extends Record<string, unknown> {
  id: string
  orgId: string
  siteId: string
  gone: boolean
}

async function findByToken(tx: Queryable, token: string | undefined) {
  if (token === undefined) return undefined
  const hash = sha256(token)
  const find = async (condition: string) => {
    const [row] = await tx.query<KnownDevice>(
      `select id, org_id as "orgId", site_id as "siteId", decommissioned_at is not null as gone
      from devices where ${condition} for update`,
      [hash],
    )
    return row
  }
  const current = await find('token_hash = $1')
  return (
    current ??
    find(
      `replaced_token_hash = $1
        and token_made_at > now() - interval '${limits.enrollRepeatSeconds} seconds'`,
    )
  )
}

/**
 * The same device again, proved by its old token: new token, fresh facts, its site stays. For some minutes the old
 * one may do so once more: the answer may have been lost, and nothing else proves the device then.
 */
async function reenroll(tx: Queryable, call: EnrollCall, known: KnownDevice, token: string) {
  const { body } = call
  const { id, orgId, siteId } = known
  const old = sha256(bearer(call.header('authorization')) ?? '')
  await tx.query(
    `update devices set token_hash = $2, next_token_hash = null, replaced_token_hash = $9,
      token_made_at = now(), hostname = $3, os = $4, arch = $5, os_version = $6, agent_version = $7,
      machine_id = coalesce($8, machine_id), updated_at = now()
    where id = $1`,
    [id, sha256(token), ...facts(body), old],
  )
  await insertAudit(tx, [agentEntry(call, 'device.reenroll', known, { hostname: body.hostname })])
  return { id, orgId, siteId }
}

async function insertDevice(
  tx: Queryable,
  call: EnrollCall,
  place: Place,
  secret: string,
  token: string,
) {
  const { body } = call
  const { orgId, siteId, keyId } = place
  const id = newId()
  const hashes = repeatHashes(call, secret)
  const repeat = hashes && Buffer.concat([hashes.request, hashes.body])
  const twins = await twinsOf(tx, place, body.machineId)
  await tx.query(
    `insert into devices (id, org_id, site_id, token_hash, hostname, os, arch, os_version,
      agent_version, machine_id, enroll_key_hash)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
    [id, orgId, siteId, sha256(token), ...facts(body), repeat],
  )
  await tx.query('insert into device_presence (device_id, org_id) values ($1, $2)', [id, orgId])
  await insertAudit(tx, [
    agentEntry(
      call,
      'device.enroll',
      { id, orgId },
      {
        hostname: body.hostname,
        siteId,
        enrollmentKeyId: keyId,
        ...twins,
      },
    ),
  ])
  const data = { deviceId: id, hostname: body.hostname, siteId }
  await insertEvents(tx, [{ orgId, siteId, type: 'device.enrolled', data }])
  if (twins) await raiseAlerts(tx, [twinAlert(call.body, { id, orgId, siteId }, twins)])
  return { id, orgId, siteId }
}

interface Twins {
  /** Of the same site, the first few. */
  sameMachineAs: string[]
  /** Whether there are more at other sites, which not everybody sees who reads of this device. */
  atOtherSites: boolean
}

/** Who has this machine id in the organization; undefined: nobody. */
async function twinsOf(
  tx: Queryable,
  { orgId, siteId }: { orgId: string; siteId: string },
  machineId: string | undefined,
): Promise<Twins | undefined> {
  if (machineId === undefined) return undefined
  const rows = await tx.query<{ id: string; isHere: boolean }>(
    `with known as not materialized (
      select id, site_id from devices
      where org_id = $1 and machine_id = $2 and decommissioned_at is null
    )
    (select id, true as "isHere" from known where site_id = $3 limit 5)
    union all
    (select id, false from known where site_id <> $3 limit 1)`,
    [orgId, machineId, siteId],
  )
  if (rows.length === 0) return undefined
  const here = rows.filter(({ isHere }) => isHere)
  return { sameMachineAs: here.map(({ id }) => id), atOtherSites: here.length < rows.length }
}

function twinAlert(
  { hostname, machineId }: Body,
  device: { id: string; orgId: string; siteId: string },
  twins: Twins,
): NewAlert {
  return {
    kind: 'duplicate_identity',
    severity: 'medium',
    title: `${hostname} enrolled as a machine that is known already`,
    message:
      'A device with this machine id exists, and the new one did not prove to be it: a cloned machine, or one whose agent lost its state. Decommission what is not there any more.',
    context: { reason: 'machineId', machineId, ...twins },
    dedupeKey: `duplicate_identity:${device.siteId}:${machineId}`,
    deviceId: device.id,
    orgId: device.orgId,
  }
}

function facts(body: Body): (string | null)[] {
  const { hostname, os, arch, osVersion, agentVersion, machineId } = body
  return [
    hostname,
    osNames[os],
    archNames[arch],
    osVersion ?? null,
    agentVersion ?? null,
    machineId ?? null,
  ]
}

function agentEntry(
  call: EnrollCall,
  action: string,
  device: { id: string; orgId: string },
  details: Record<string, unknown>,
) {
  const { ip, userAgent, requestId } = call
  const entry = auditOf(
    { ip, userAgent, requestId },
    {
      action,
      resourceType: 'device',
      resourceId: device.id,
      deviceId: device.id,
      orgId: device.orgId,
      details,
    },
  )
  return { ...entry, actorType: 'agent' as const, actorId: device.id }
}

function wrongSecret(message: string): AppError {
  return new AppError('INVALID_ENROLLMENT_SECRET', message)
}

function suspended(): AppError {
  return new AppError('ORGANIZATION_SUSPENDED', 'the organization is suspended; ask its admin')
}
