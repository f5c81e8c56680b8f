// Devices: shape, queries and routes. Presence (status, lastSeenAt, metrics) is written by the shards and
// only read here; commands to a device are in `commands.ts` beside it.
import { Type } from 'typebox'
import { endDeviceAlerts, moveDeviceAlerts } from '../alerts.ts'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { handOver } from '../handoff_sql.ts'
import { countEndsSql } from '../execution_ends.ts'
import { insertEvents } from '../events.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager } from '../page.ts'
import { upgradePhases } from '../protocol.ts'
import { idParams, invalid, route, type Call, type Context, type Route } from '../route.ts'
import { pageOfIds, walkedPage, type DeviceFilters, type PageId } from './device_pages.ts'
import { deviceItems, findDevice } from './device_row.ts'
import { Name, nullable } from './shapes.ts'

const text = nullable(Type.String())
const uuid = Type.String({ format: 'uuid' })
const os = Type.Enum(['linux', 'darwin', 'windows'])
const status = Type.Enum(['online', 'offline', 'decommissioned'])

const heardDescription = `What the agent said last; while it is online up to ${limits.presenceFlushMs / 1000} s old. \
Alerts are judged at once.`

const deviceFields = {
  id: uuid,
  orgId: uuid,
  siteId: uuid,
  hostname: Type.String(),
  displayName: text,
  os,
  osVersion: text,
  arch: Type.Enum(['amd64', 'arm64']),
  agentVersion: text,
  status,
  lastSeenAt: nullable(Type.String({ description: heardDescription })),
  enrolledAt: Type.String(),
  ipAddress: text,
  tags: Type.Array(Type.String()),
  metrics: Type.Union([Type.Record(Type.String(), Type.Number()), Type.Null()], {
    description: heardDescription,
  }),
  upgrade: Type.Union(
    [
      Type.Object({
        commandId: uuid,
        version: Type.String(),
        phase: Type.Enum(['pending', 'starting', ...upgradePhases], {
          description: 'pending: the agent has not begun. Then what the agent says.',
        }),
      }),
      Type.Null(),
    ],
    { description: 'The upgrade that the agent is at, or that waits for it.' },
  ),
  pendingCommands: Type.Integer({
    minimum: 0,
    description: 'Open commands, the running one included.',
  }),
  createdAt: Type.String(),
  updatedAt: Type.String(),
}

export const Device = Type.Object(deviceFields)
const DeviceWithInventory = Type.Object({
  ...deviceFields,
  inventory: Type.Union([Type.Record(Type.String(), Type.Unknown()), Type.Null()]),
})

const listQuery = Type.Object({
  ...pageQuery,
  status: Type.Optional(status),
  siteId: Type.Optional(uuid),
  orgId: Type.Optional(uuid),
  os: Type.Optional(os),
  tag: Type.Optional(Type.String({ minLength: 1, maxLength: limits.tagCharsMax })),
  q: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 255,
      description: 'Prefix of hostname or displayName.',
    }),
  ),
  sort: Type.Optional(Type.Enum(['hostname', 'newest'])),
})

const patchBody = Type.Object({
  displayName: Type.Optional(nullable(Name)),
  siteId: Type.Optional(uuid),
  tags: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: limits.tagCharsMax }), {
      maxItems: limits.tagsMax,
    }),
  ),
})

// ---- queries ---------------------------------------------------------------------------------

/** Adds the conditions that keep a query inside the caller's scope; `d` is the device's table. */
export function withinScope(where: Where, scope: Scope): Where {
  if (scope.orgId !== null) where.and('d.org_id = ?', scope.orgId)
  if (scope.siteIds !== null) where.and('d.site_id = any(?::uuid[])', scope.siteIds)
  return where
}

async function listDevices(
  ctx: Context,
  scope: Scope,
  query: DeviceFilters & { limit?: number; cursor?: string },
) {
  const { limit: _limit, cursor: _cursor, ...filters } = query
  const page = pager(ctx.cursorKey, ['devices', filters, scope.orgId, scope.siteIds], query)
  const walk = walkedPage(scope, filters, page)
  if (walk) {
    const rows = await ctx.commandDb.query<{ item: string }>(walk.text, walk.values)
    const items = rows.map(({ item }) => item)
    if (walk.whole || items.length > page.limit)
      return page.envelopeOf(items, (n) => [(JSON.parse(items[n] ?? '') as { id: string }).id])
  }
  const search = pageOfIds(scope, filters, page)
  // Two statements: which devices is planned anew for its filters, what is shown of them is not.
  const found = await ctx.db.query<PageId>(search.text, search.values)
  const ids = found.map(({ id }) => id)
  const items = await deviceItems(ctx.commandDb, scope, ids)
  const rows = found.flatMap(({ id, name }) => {
    const item = items.get(id)
    // One that left the scope since then is not shown.
    return item === undefined ? [] : [{ item, keys: name === null ? [id] : [name, id] }]
  })
  return page.envelope(rows, found.length > page.limit)
}

interface LockedDevice extends Record<string, unknown> {
  orgId: string
  siteId: string
  displayName: string | null
  tags: string[]
  decommissioned: boolean
}

async function lockDevice(tx: Queryable, scope: Scope, id: string): Promise<LockedDevice> {
  const where = withinScope(new Where().and('d.id = ?', id), scope)
  const [row] = await tx.query<LockedDevice>(
    `select d.org_id as "orgId", d.site_id as "siteId", d.display_name as "displayName", d.tags,
      d.decommissioned_at is not null as decommissioned
    from devices d ${where.text()} for update`,
    where.values,
  )
  if (row === undefined) throw new AppError('NOT_FOUND', 'there is no such device')
  return row
}

// ---- routes ----------------------------------------------------------------------------------

const tag = 'devices'

export const deviceRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/devices',
    name: 'listDevices',
    tag,
    summary: 'List devices, newest first or by hostname',
    may: 'devices.read',
    query: listQuery,
    responses: { 200: pageOf(Device) },
    handle: async (ctx, { actor, query }) => ({
      status: 200,
      json: await listDevices(ctx, actor, query),
    }),
  }),
  route({
    method: 'GET',
    path: '/devices/:id',
    name: 'getDevice',
    tag,
    summary: 'One device with its inventory',
    may: 'devices.read',
    params: idParams,
    responses: { 200: DeviceWithInventory },
    handle: async (ctx, { actor, params }) => ({
      status: 200,
      json: await findDevice(ctx.commandDb, actor, params.id, true),
    }),
  }),
  route({
    method: 'PATCH',
    path: '/devices/:id',
    name: 'updateDevice',
    tag,
    summary: 'Change displayName, siteId or tags',
    may: 'devices.write',
    params: idParams,
    body: patchBody,
    responses: { 200: DeviceWithInventory },
    handle: updateDevice,
  }),
  route({
    method: 'DELETE',
    path: '/devices/:id',
    name: 'decommissionDevice',
    tag,
    summary: 'Decommission: cancel its commands, close its socket, refuse its token',
    may: 'devices.decommission',
    params: idParams,
    responses: { 200: Device },
    handle: decommissionDevice,
  }),
]

interface Patch {
  displayName?: string | null
  siteId?: string
  tags?: string[]
}

async function updateDevice(ctx: Context, call: Call<{ id: string }, undefined, Patch>) {
  const { actor, params, body } = call
  const nodes: string[] = []
  const json = await ctx.db.transaction(async (tx) => {
    const before = await lockDevice(tx, actor, params.id)
    if (before.decommissioned) throw decommissioned()
    if (body.siteId !== undefined) await requireSite(tx, actor, before.orgId, body.siteId)
    const after = {
      displayName: body.displayName === undefined ? before.displayName : body.displayName,
      siteId: body.siteId ?? before.siteId,
      tags: body.tags === undefined ? before.tags : [...new Set(body.tags)],
    }
    await tx.query(
      `update devices set display_name = $2, site_id = $3, tags = $4, updated_at = now()
      where id = $1`,
      [params.id, after.displayName, after.siteId, after.tags],
    )
    if (after.siteId !== before.siteId) {
      await moveDeviceAlerts(tx, params.id, after.siteId)
      nodes.push(...(await handOver(tx, ctx.nodeId, [{ deviceId: params.id }])))
    }
    const { displayName, siteId, tags } = before
    await insertAudit(tx, [
      auditOf(call, {
        action: 'device.update',
        resourceType: 'device',
        resourceId: params.id,
        deviceId: params.id,
        orgId: before.orgId,
        details: { before: { displayName, siteId, tags }, after },
      }),
    ])
    const event = {
      orgId: before.orgId,
      siteId: after.siteId,
      data: { deviceId: params.id, ...after },
    }
    await insertEvents(tx, [{ ...event, type: 'device.updated' }])
    return findDevice(tx, actor, params.id, true)
  })
  ctx.handoffs.wake(nodes)
  if (body.siteId !== undefined) {
    ctx.terminals.deviceMoved(params.id, body.siteId)
  }
  return { status: 200, json }
}

/** The new site must be one the caller sees, of the device's own organization. */
async function requireSite(tx: Queryable, scope: Scope, orgId: string, siteId: string) {
  const [site] = await tx.query('select 1 as found from sites where id = $1 and org_id = $2', [
    siteId,
    orgId,
  ])
  const seen = scope.siteIds === null || scope.siteIds.includes(siteId)
  if (site === undefined || !seen) {
    throw invalid('/siteId', 'is no site of the device’s organization that you see')
  }
}

async function decommissionDevice(ctx: Context, call: Call<{ id: string }, undefined, undefined>) {
  const { actor, params } = call
  const ended: string[] = []
  const nodes: string[] = []
  const json = await ctx.db.transaction(async (tx) => {
    const before = await lockDevice(tx, actor, params.id)
    // Twice is as good as once; the second time changes and records nothing.
    if (!before.decommissioned) {
      nodes.push(...(await handOver(tx, ctx.nodeId, [{ deviceId: params.id }])))
      ended.push(...(await decommission(tx, call, before)))
    }
    return findDevice(tx, actor, params.id, false)
  })
  ctx.handoffs.wake(nodes)
  ctx.shards.tell(params.id, { type: 'decommissioned', deviceId: params.id })
  ctx.handoffs.ended(ended)
  return { status: 200, json }
}

/** Ends the device and its open commands; returns the ids of those. */
async function decommission(
  tx: Queryable,
  call: Call<{ id: string }, undefined, undefined>,
  device: LockedDevice,
): Promise<string[]> {
  const { id } = call.params
  await tx.query('update devices set decommissioned_at = now(), updated_at = now() where id = $1', [
    id,
  ])
  // A new epoch: whatever the old socket still brings is refused.
  await tx.query(
    `update device_presence set status = 'decommissioned', status_at = now(), node_id = null,
      epoch = epoch + 1, absent = false
    where device_id = $1`,
    [id],
  )
  const cancelled = await tx.query<{
    id: string
    action: string
    upgrading: boolean
    version: string | null
  }>(
    `with c as (
      update commands set status = 'cancelled', completed_at = now(),
        result = jsonb_build_object('exitCode', null, 'stdout', '', 'stderr', '', 'truncated', false,
          'error', 'the device was decommissioned', 'durationMs', null)
      where device_id = $1 and completed_at is null
      returning id, action, status, execution_id, completed_at,
        action = 'upgrade_agent' and started_at is not null as upgrading,
        case when action = 'upgrade_agent' then payload->>'version' end as version
    ), counted as (
      ${countEndsSql('c')}
    )
    select id, action, upgrading, version from c`,
    [id],
  )
  await endDeviceAlerts(tx, id)
  await insertAudit(tx, [
    auditOf(call, {
      action: 'device.decommission',
      resourceType: 'device',
      resourceId: id,
      deviceId: id,
      orgId: device.orgId,
      details: { cancelledCommands: cancelled.length },
    }),
  ])
  const { orgId, siteId } = device
  await insertEvents(tx, [
    { orgId, siteId, type: 'device.decommissioned', data: { deviceId: id } },
    ...cancelled.map((command) => ({
      orgId,
      siteId,
      type: 'command.cancelled' as const,
      data: { commandId: command.id, deviceId: id, action: command.action, status: 'cancelled' },
    })),
    ...cancelled
      .filter(({ upgrading }) => upgrading)
      .map(({ id: commandId, version }) => ({
        orgId,
        siteId,
        type: 'agent.upgrade.rolled_back' as const,
        data: { deviceId: id, commandId, version, reason: 'decommissioned' },
      })),
  ])
  return cancelled.map((command) => command.id)
}

function decommissioned(): AppError {
  return new AppError('DEVICE_DECOMMISSIONED', 'the device is decommissioned; nothing changes it')
}
