// Rows as a test wants them, past every door: for statements that judge what lies in the tables.
import { idFloor, newId } from '../../src/ids.ts'
import type { Queryable } from '../../src/db.ts'

export interface Place {
  orgId: string
  siteId: string
}

/** Adds an organization with a site. */
export async function addPlace(db: Queryable, settings: object = {}): Promise<Place> {
  const orgId = newId()
  const siteId = newId()
  await db.query(
    'insert into organizations (id, name, slug, settings) values ($1::uuid, $1::uuid::text, $1::uuid::text, $2)',
    [orgId, JSON.stringify(settings)],
  )
  await db.query('insert into sites (id, org_id, name) values ($1, $2, $3)', [
    siteId,
    orgId,
    'site',
  ])
  return { orgId, siteId }
}

interface DeviceRow {
  status?: 'online' | 'offline'
  nodeId?: string | null
}

/** Adds a device with its presence; returns its id. */
export async function addDevice(
  db: Queryable,
  { orgId, siteId }: Place,
  { status = 'offline', nodeId = null }: DeviceRow = {},
): Promise<string> {
  const id = newId()
  await db.query(
    `insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
     values ($1::uuid, $2, $3, 'host', 'linux', 'amd64', decode(md5($1::uuid::text), 'hex'))`,
    [id, orgId, siteId],
  )
  await db.query(
    `insert into device_presence (device_id, org_id, status, node_id, epoch)
     values ($1, $2, $3, $4, 1)`,
    [id, orgId, status, nodeId],
  )
  return id
}

/** Adds a node whose lease ends in so many seconds; returns its id. */
export async function addNode(db: Queryable, leaseSeconds: number): Promise<string> {
  const id = newId()
  await db.query(
    `insert into nodes (id, version, lease_until)
     values ($1, '0.0.0', now() + make_interval(secs => $2))`,
    [id, leaseSeconds],
  )
  return id
}

interface CommandRow {
  status?: string
  timeoutSeconds?: number
  /** Seconds before now; negative ones are still to come. */
  createdAgo?: number
  expiresAgo?: number
  deliveredAgo?: number
  startedAgo?: number
}

/** Adds a command as it stands; returns its id. */
export async function addCommand(
  db: Queryable,
  deviceId: string,
  command: CommandRow = {},
): Promise<string> {
  const {
    status = 'pending',
    timeoutSeconds = 300,
    createdAgo = 3600,
    expiresAgo = -3600,
  } = command
  const id = idFloor(Date.now() - createdAgo * 1000).slice(0, 14) + newId().slice(14)
  await db.query(
    `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds,
       created_at, expires_at, delivered_at, started_at)
     select $1, d.id, d.org_id, 'ping', '{}', $3, $4, now() - make_interval(secs => $5),
       now() - make_interval(secs => $6), now() - make_interval(secs => $7),
       now() - make_interval(secs => $8)
     from devices d where d.id = $2`,
    [
      id,
      deviceId,
      status,
      timeoutSeconds,
      createdAgo,
      expiresAgo,
      command.deliveredAgo ?? null,
      command.startedAgo ?? null,
    ],
  )
  return id
}

/** What became of a command. */
export async function commandRow(db: Queryable, id: string) {
  const [row] = await db.query<{ status: string; result: unknown; ended: boolean }>(
    'select status, result, completed_at is not null as ended from commands where id = $1',
    [id],
  )
  return row
}

/** The events about a command or a device, oldest first. */
export function eventsAbout(db: Queryable, id: string) {
  return db.query<{ type: string; siteId: string; data: unknown }>(
    `select type, site_id as "siteId", data from events
     where data->>'commandId' = $1 or (data->>'deviceId' = $1 and type like 'device.%')
     order by xid, id`,
    [id],
  )
}
