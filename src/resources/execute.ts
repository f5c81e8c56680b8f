// Executing a script: whom a request means, what it would do (dry run), and the execution as one row with
// its job, audit row and event. What becomes of it is `workers/executions.ts`; reading it, `executions.ts`.
import { createHmac, type KeyObject } from 'node:crypto'
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import type { Queryable, Row } from '../db.ts'
import { AppError, type ErrorCode } from '../errors.ts'
import { insertEvents } from '../events.ts'
import { targetConditions, type DeviceFilter } from '../execution_targets.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { sendExecution } from '../queue.ts'
import { invalid, type Call, type Context, type Reply } from '../route.ts'
import { getExecution } from './execution_row.ts'
import { requireOrganization } from './organizations.ts'
import { environmentOf, ParameterValues, type Parameter } from './parameters.ts'
import { readableScripts, scriptNotFound } from './scripts.ts'
import { deviceFilter, Id } from './shapes.ts'

const Filter = Type.Object(deviceFilter, {
  additionalProperties: false,
  description: 'As in the list of devices; {} means every device that you see.',
})

export const ExecuteBody = Type.Object({
  deviceIds: Type.Optional(Type.Array(Id, { minItems: 1, maxItems: limits.executionDevicesMax })),
  filter: Type.Optional(Filter),
  parameters: Type.Optional(ParameterValues),
  timeoutSeconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: limits.scriptTimeoutSecondsMax,
      description: 'The script’s own when absent.',
    }),
  ),
  expiresInSeconds: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.expiresSecondsMax })),
  dryRun: Type.Optional(Type.Boolean({ description: 'Count whom it would reach; run nothing.' })),
})

export const Refused = Type.Object({
  deviceId: Id,
  code: Type.Enum(['NOT_FOUND', 'DEVICE_DECOMMISSIONED', 'UNSUPPORTED_ACTION']),
  message: Type.String(),
})

export const DryRun = Type.Object({
  scriptId: Id,
  version: Type.Integer(),
  counts: Type.Object({
    total: Type.Integer({ description: 'Devices that would run it.' }),
    online: Type.Integer(),
    offline: Type.Integer(),
    unsupportedOs: Type.Integer({
      description: 'Devices of the filter that the script is not for.',
    }),
    byOs: Type.Record(Type.String(), Type.Integer()),
    bySite: Type.Array(Type.Object({ siteId: Id, total: Type.Integer(), online: Type.Integer() }), {
      description: `The ${limits.dryRunSitesMax} sites with the most devices.`,
    }),
    moreSites: Type.Integer({ description: 'Sites that are not in bySite.' }),
  }),
  failed: Type.Array(Refused),
})

type ExecuteCall = Call<{ id: string }, undefined, Static<typeof ExecuteBody>>
type Refusal = Static<typeof Refused>

interface Runnable extends Row {
  id: string
  orgId: string | null
  version: number
  name: string
  os: string[]
  parameters: Parameter[]
  timeoutSeconds: number
}

/** Whom a request means. */
interface Targets {
  scope: Scope
  /** Named devices that may run it, sorted; null: whom the filter finds. */
  deviceIds: string[] | null
  filter: DeviceFilter
  /** The organization it belongs to; null: several, or none that is known yet. */
  orgId: string | null
  /** The sites it concerns; null: any. */
  siteIds: readonly string[] | null
  refused: Refusal[]
}

/** POST /scripts/:id/execute */
export async function executeScript(ctx: Context, call: ExecuteCall): Promise<Reply> {
  const { body } = call
  if ((body.deviceIds === undefined) === (body.filter === undefined)) {
    throw invalid('/deviceIds', 'must be given where filter is not, and only there')
  }
  if (body.dryRun) return dryRun(ctx, call)
  const fresh = newId()
  const { id, json, refused } = await ctx.db.transaction((tx) => startOnce(ctx, tx, call, fresh))
  return {
    status: 202,
    json: `${json.slice(0, -1)},"failed":${JSON.stringify(refused)}}`,
    headers: { Location: `/api/v1/executions/${id}` },
  }
}

/** The execution, which is an earlier one where the request is a repeat. */
async function startOnce(
  ctx: Context,
  tx: Queryable,
  call: ExecuteCall,
  id: string,
): Promise<{ id: string; json: string; refused: Refusal[] }> {
  const { actor, params, body } = call
  const earlier = await startedUnder(tx, call, ctx.cursorKey, id)
  const script = await findRunnable(tx, actor, params.id, true)
  if (earlier !== undefined) {
    const again = await findTargets(tx, call, script)
    const json = await getExecution(tx, actor, earlier)
    return { id: earlier, json, refused: again.refused }
  }
  const environment = environmentOf(script.parameters, body.parameters ?? {})
  const targets = await findTargets(tx, call, script)
  const { secrets } = environment
  const sealed = Object.keys(secrets).length > 0 ? ctx.dataKeys.seal(JSON.stringify(secrets)) : null
  await insertExecution(tx, call, { id, script, targets, environment, sealed })
  await recordStart(tx, call, { id, script, targets, shown: environment.shown })
  await sendExecution(tx, id)
  return { id, json: await getExecution(tx, actor, id), refused: targets.refused }
}

/**
 * The execution that this request started already, under its Idempotency-Key; undefined where it is the first, which the
 * key stands for from here on. Throws IDEMPOTENCY_KEY_REUSED.
 */
async function startedUnder(
  tx: Queryable,
  call: ExecuteCall,
  secret: KeyObject,
  id: string,
): Promise<string | undefined> {
  const sent = call.header('idempotency-key')
  if (sent === '') return undefined
  // Beside those of commands, which hold no space.
  const key = `execute ${sent}`
  // With a secret, since parameters may be ones that could be guessed.
  const hash = createHmac('sha256', secret).update(sameRequest(call)).digest()
  const { userId } = call.actor
  const made = await tx.query(
    `insert into idempotency_keys (user_id, key, body_hash, command_id) values ($1, $2, $3, $4)
     on conflict (user_id, key) do nothing returning true as made`,
    [userId, key, hash, id],
  )
  if (made.length > 0) return undefined
  const [row] = await tx.query<{ id: string; same: boolean }>(
    `select command_id as id, body_hash = $3 as same from idempotency_keys where user_id = $1 and key = $2`,
    [userId, key, hash],
  )
  if (row?.same) return row.id
  const message =
    'this Idempotency-Key was used for another execution in the last 24 hours; take a new one'
  throw new AppError('IDEMPOTENCY_KEY_REUSED', message)
}

/** What must be the same for a repeat to be one, in whichever order its fields come. */
function sameRequest({ params, body }: ExecuteCall): string {
  const { deviceIds, filter, parameters, timeoutSeconds, expiresInSeconds } = body
  const ordered = (members: Record<string, unknown> | undefined) =>
    members &&
    Object.keys(members)
      .toSorted()
      .map((name) => [name, members[name]])
  return JSON.stringify([
    params.id,
    deviceIds,
    ordered(filter),
    ordered(parameters),
    timeoutSeconds,
    expiresInSeconds,
  ])
}

async function dryRun(ctx: Context, call: ExecuteCall): Promise<Reply> {
  const script = await findRunnable(ctx.db, call.actor, call.params.id, false)
  environmentOf(script.parameters, call.body.parameters ?? {})
  const targets = await findTargets(ctx.db, call, script)
  const counts = await countTargets(ctx.db, targets, script.os)
  return {
    status: 200,
    body: { scriptId: script.id, version: script.version, counts, failed: targets.refused },
  }
}

// ---- whom it means ---------------------------------------------------------------------------

async function findRunnable(
  db: Queryable,
  scope: Scope,
  id: string,
  keep: boolean,
): Promise<Runnable> {
  const where = readableScripts(scope).and('s.id = ?', id)
  // Kept until the commit: a change of the script deletes versions that nobody runs.
  const [row] = await db.query<Runnable>(
    `select s.id, s.org_id as "orgId", s.version, s.name, v.os, v.parameters,
       v.timeout_seconds as "timeoutSeconds"
     from scripts s join script_versions v on v.script_id = s.id and v.version = s.version
     ${where.text()} ${keep ? 'for key share of s' : ''}`,
    where.values,
  )
  if (row) return row
  throw scriptNotFound(id)
}

async function findTargets(db: Queryable, call: ExecuteCall, script: Runnable): Promise<Targets> {
  const { actor, body } = call
  // A script of an organization runs on that organization's devices, whoever starts it.
  const scope = { orgId: actor.orgId ?? script.orgId, siteIds: actor.siteIds }
  if (body.deviceIds !== undefined) return namedTargets(db, scope, body.deviceIds, script)
  const filter = body.filter ?? {}
  if (scope.orgId === null && filter.orgId !== undefined) {
    await requireOrganization(db, scope, filter.orgId)
  }
  return {
    scope,
    deviceIds: null,
    filter,
    orgId: scope.orgId ?? filter.orgId ?? null,
    siteIds: filter.siteId === undefined ? scope.siteIds : sitesWithin(scope, filter.siteId),
    refused: [],
  }
}

function sitesWithin(scope: Scope, siteId: string): readonly string[] {
  // Of another site nothing is found; what was asked is still the caller's own.
  return scope.siteIds === null || scope.siteIds.includes(siteId) ? [siteId] : scope.siteIds
}

interface NamedDevice extends Row {
  id: string
  orgId: string
  siteId: string
  os: string
  gone: boolean
}

async function namedTargets(
  db: Queryable,
  scope: Scope,
  named: readonly string[],
  script: Runnable,
): Promise<Targets> {
  const ids = [...new Set(named)].toSorted()
  const rows = await db.query<NamedDevice>(
    `select d.id, d.org_id as "orgId", d.site_id as "siteId", d.os,
       d.decommissioned_at is not null as gone
     from devices d
     where d.id = any($1::uuid[]) and ($2::uuid is null or d.org_id = $2)
       and ($3::uuid[] is null or d.site_id = any($3))`,
    [ids, scope.orgId, scope.siteIds],
  )
  const found = new Map(rows.map((row) => [row.id, row]))
  const taken: NamedDevice[] = []
  const refused: Refusal[] = []
  for (const id of ids) {
    const device = found.get(id)
    const refusal = refusalOf(device, script)
    if (refusal) refused.push({ deviceId: id, ...refusal })
    else if (device) taken.push(device)
  }
  const orgIds = new Set(taken.map(({ orgId }) => orgId))
  const [only] = orgIds.size === 1 ? orgIds : []
  return {
    scope,
    deviceIds: taken.map(({ id }) => id),
    filter: {},
    orgId: scope.orgId ?? only ?? null,
    siteIds: taken.length > 0 ? [...new Set(taken.map(({ siteId }) => siteId))] : scope.siteIds,
    refused,
  }
}

function refusalOf(
  device: NamedDevice | undefined,
  script: Runnable,
): { code: Refusal['code'] & ErrorCode; message: string } | undefined {
  if (device === undefined) return { code: 'NOT_FOUND', message: 'there is no such device' }
  if (device.gone) {
    return { code: 'DEVICE_DECOMMISSIONED', message: 'the device is decommissioned' }
  }
  if (script.os.includes(device.os)) return undefined
  const message = `the script is for ${script.os.join(', ')}; the device runs ${device.os}`
  return { code: 'UNSUPPORTED_ACTION', message }
}

async function countTargets(
  db: Queryable,
  { scope, filter, deviceIds }: Targets,
  os: readonly string[],
): Promise<Static<typeof DryRun>['counts']> {
  const where = targetConditions(scope, filter)
  if (deviceIds !== null) where.and('d.id = any(?::uuid[])', deviceIds)
  const systems = where.value(os)
  const [row] = await db.query<Static<typeof DryRun>['counts']>(
    `with g as (
      select d.site_id, d.os, d.os = any(${systems}::text[]) as fits, count(*) as total,
        count(*) filter (where p.status = 'online') as online
      from devices d join device_presence p on p.device_id = d.id ${where.text()}
      group by d.site_id, d.os
    ), s as (
      select site_id, sum(total)::int as total, sum(online)::int as online from g where fits
      group by site_id
    ), o as (
      select os, sum(total)::int as total from g where fits group by os
    )
    select coalesce(sum(total) filter (where fits), 0)::int as total,
      coalesce(sum(online) filter (where fits), 0)::int as online,
      coalesce(sum(total - online) filter (where fits), 0)::int as offline,
      coalesce(sum(total) filter (where not fits), 0)::int as "unsupportedOs",
      coalesce((select json_object_agg(os, total) from o), '{}') as "byOs",
      coalesce((
        select json_agg(json_build_object('siteId', site_id, 'total', total, 'online', online)
          order by total desc, site_id)
        from (select * from s order by total desc, site_id limit ${limits.dryRunSitesMax}) t
      ), '[]') as "bySite",
      greatest(0, (select count(*) from s) - ${limits.dryRunSitesMax})::int as "moreSites"
    from g`,
    where.values,
  )
  if (row) return row
  throw new Error('an aggregate without a row')
}

// ---- the row, its audit and its event --------------------------------------------------------

interface Start {
  id: string
  script: Runnable
  targets: Targets
}

async function insertExecution(
  tx: Queryable,
  { actor, body, ip, userAgent, requestId }: ExecuteCall,
  start: Start & { environment: ReturnType<typeof environmentOf>; sealed: Buffer | null },
): Promise<void> {
  const { id, script, targets, environment, sealed } = start
  await tx.query(
    `insert into executions (id, org_id, script_id, version, scope_org_id, scope_site_ids, site_ids,
       device_ids, filter, parameters, env, secrets, timeout_seconds, expires_at, created_by,
       created_email, ip, user_agent, request_id, refused, total)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
       now() + make_interval(secs => $14), $15, $16, $17, $18, $19, $20, $21)`,
    [
      id,
      targets.orgId,
      script.id,
      script.version,
      targets.scope.orgId,
      targets.scope.siteIds,
      targets.siteIds,
      targets.deviceIds,
      targets.deviceIds === null ? JSON.stringify(targets.filter) : null,
      JSON.stringify(environment.shown),
      JSON.stringify(environment.env),
      sealed,
      body.timeoutSeconds ?? script.timeoutSeconds,
      body.expiresInSeconds ?? limits.expiresSecondsDefault,
      actor.userId,
      actor.email,
      ip || null,
      userAgent,
      requestId,
      targets.refused.length,
      targets.deviceIds?.length ?? 0,
    ],
  )
}

async function recordStart(
  tx: Queryable,
  call: ExecuteCall,
  { id, script, targets, shown }: Start & { shown: Record<string, unknown> },
): Promise<void> {
  const { orgId, deviceIds, filter, siteIds } = targets
  const whom = deviceIds === null ? { filter } : { devices: deviceIds.length }
  await insertAudit(tx, [
    auditOf(call, {
      action: 'script.execute',
      resourceType: 'script',
      resourceId: script.id,
      orgId,
      details: {
        after: {
          executionId: id,
          name: script.name,
          version: script.version,
          parameters: shown,
          ...whom,
        },
      },
    }),
  ])
  const siteId = siteIds?.length === 1 ? (siteIds[0] ?? null) : null
  const data = { executionId: id, scriptId: script.id, version: script.version }
  await insertEvents(tx, [{ orgId, siteId, type: 'script.started', data }])
}
