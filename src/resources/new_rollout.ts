// Making a roll-out: whom it is for, who goes in which group, and what it would do (dry run). What becomes of
// it is `workers/rollouts.ts`.
import { Type, type Static } from 'typebox'
import { auditOf, insertAudit } from '../audit.ts'
import type { Scope } from '../auth.ts'
import { sqlState, type Queryable, type Where } from '../db.ts'
import { AppError } from '../errors.ts'
import { targetConditions } from '../execution_targets.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { sendRollout } from '../queue.ts'
import { invalid, type Call, type Context, type Reply } from '../route.ts'
import { versionLengthMax, versionPattern } from '../versions.ts'
import { requireOrganization } from './organizations.ts'
import { getRollout, groupSettings, RolloutFilter } from './rollout_row.ts'
import { nullable } from './shapes.ts'

export const NewRollout = Type.Object({
  orgId: Type.Optional(
    Type.String({
      format: 'uuid',
      description: 'Yours when absent; without it a platform admin reaches every organization.',
    }),
  ),
  version: Type.String({ pattern: versionPattern, maxLength: versionLengthMax }),
  filter: RolloutFilter,
  groups: Type.Array(Type.Object(groupSettings, { additionalProperties: false }), {
    minItems: 1,
    maxItems: limits.rolloutGroupsMax,
  }),
  timeoutSeconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: limits.commandTimeoutSecondsMax,
      default: limits.upgradeTimeoutSeconds,
      description: 'For one device, from when it took its command.',
    }),
  ),
  expiresInSeconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: limits.expiresSecondsMax,
      default: limits.expiresSecondsDefault,
      description: 'How long a device may be away, from when its group begins.',
    }),
  ),
  dryRun: Type.Optional(Type.Boolean({ description: 'Count whom it would reach; start nothing.' })),
})

const skips = ['already_installed', 'no_binary'] as const

export const RolloutDryRun = Type.Object({
  version: Type.String(),
  counts: Type.Object({
    total: Type.Integer({ description: 'Devices that the filter finds.' }),
    upgraded: Type.Integer({ description: 'Of those, the ones that would be upgraded.' }),
    online: Type.Integer({ description: 'Of those, the ones that are online.' }),
    alreadyInstalled: Type.Integer({ description: 'Run this version.' }),
    noBinary: Type.Integer({ description: 'This version has no verified binary for them.' }),
    inOpenRollout: Type.Integer({
      description: 'Are in a roll-out that has not ended; a device can be in one only.',
    }),
  }),
  groups: Type.Array(Type.Object({ number: Type.Integer(), devices: Type.Integer() })),
  byPlatform: Type.Array(
    Type.Object({
      os: Type.String(),
      arch: Type.String(),
      total: Type.Integer(),
      hasBinary: Type.Boolean(),
    }),
  ),
  byVersion: Type.Array(
    Type.Object({ agentVersion: nullable(Type.String()), total: Type.Integer() }),
    { description: `The ${limits.rolloutVersionsMax} versions that most devices run.` },
  ),
})

type NewRolloutBody = Static<typeof NewRollout>
type NewRolloutCall = Call<undefined, undefined, NewRolloutBody>

interface Plan {
  id: string
  orgId: string | null
  /** The devices `d` that it is for. */
  where: Where
  platforms: readonly string[]
}

/** POST /agents/rollouts */
export async function createRollout(ctx: Context, call: NewRolloutCall): Promise<Reply> {
  const { actor, body } = call
  requireShares(body.groups)
  const plan = await planOf(ctx, call)
  if (body.dryRun) return { status: 200, body: await dryRun(ctx.db, body, plan) }
  const json = await ctx.db
    .transaction(async (tx) => {
      await requireTargets(tx, actor, plan)
      await insertRollout(tx, call, plan)
      await insertDevices(tx, body, plan)
      await recordCreate(tx, call, plan)
      await sendRollout(tx, plan.id)
      return getRollout(tx, actor, plan.id)
    })
    .catch((error: unknown) => {
      // Another request put one of its devices into a roll-out at the same time.
      if (sqlState(error) === uniqueViolation) throw inOpenRollout('another roll-out')
      throw error
    })
  return { status: 201, json, headers: { Location: `/api/v1/agents/rollouts/${plan.id}` } }
}

const uniqueViolation = '23505'

function requireShares(groups: NewRolloutBody['groups']): void {
  const all = sum(groups.map(({ percent }) => percent))
  if (all === 100) return
  const message = `have shares that add up to ${all} percent; they must add up to 100`
  throw invalid('/groups', `${message}, each group with its own share of the devices`)
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, number) => all + number, 0)
}

async function planOf(ctx: Context, { actor, body }: NewRolloutCall): Promise<Plan> {
  const platforms = ctx.releases.platformsOf(body.version).map(({ os, arch }) => `${os}/${arch}`)
  const { deviceIds, ...filter } = body.filter
  const orgId = actor.orgId ?? body.orgId ?? filter.orgId ?? null
  if (body.orgId !== undefined) await requireOrganization(ctx.db, actor, body.orgId)
  const where = targetConditions({ orgId, siteIds: actor.siteIds }, filter)
  if (deviceIds !== undefined) where.and('d.id = any(?::uuid[])', deviceIds)
  return { id: newId(), orgId, where, platforms }
}

const from = 'devices d join device_presence p on p.device_id = d.id'

/** Throws VALIDATION_ERROR where there is nobody, or too many, and CONFLICT where one is taken. */
async function requireTargets(tx: Queryable, scope: Scope, { where }: Plan): Promise<void> {
  const [row] = await tx.query<{ devices: number }>(
    `select count(*)::int as devices from (
       select from ${from} ${where.text()} limit ${limits.rolloutDevicesMax + 1}) t`,
    where.values,
  )
  const devices = row?.devices ?? 0
  if (devices === 0) throw invalid('/filter', 'finds no device that you see')
  if (devices > limits.rolloutDevicesMax) {
    const message = `finds more than ${limits.rolloutDevicesMax} devices; narrow it, for example to a site`
    throw invalid('/filter', message)
  }
  const [taken] = await tx.query<{ id: string; orgId: string | null; hostname: string }>(
    `select r.id, r.org_id as "orgId", d.hostname from ${from}
     join rollout_devices x on x.device_id = d.id and x.status in ('pending', 'running')
     join rollouts r on r.id = x.rollout_id ${where.text()} limit 1`,
    where.values,
  )
  if (taken === undefined) return
  const seen = scope.orgId === null || taken.orgId === scope.orgId
  const name = seen ? `roll-out ${taken.id}` : 'a roll-out of the platform'
  throw inOpenRollout(`${name} (${taken.hostname} for one)`)
}

function inOpenRollout(name: string): AppError {
  const message = `devices of the filter are still in ${name}; wait for its end, abort it, or leave them out`
  return new AppError('CONFLICT', message)
}

// ---- rows ------------------------------------------------------------------------------------

async function insertRollout(
  tx: Queryable,
  { actor, body, ip, userAgent, requestId }: NewRolloutCall,
  { id, orgId, platforms }: Plan,
): Promise<void> {
  await tx.query(
    `insert into rollouts (id, org_id, version, filter, platforms, timeout_seconds,
       expires_in_seconds, created_by, created_email, ip, user_agent, request_id)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
    [
      id,
      orgId,
      body.version,
      JSON.stringify(body.filter),
      platforms,
      body.timeoutSeconds ?? limits.upgradeTimeoutSeconds,
      body.expiresInSeconds ?? limits.expiresSecondsDefault,
      actor.userId,
      actor.email,
      ip || null,
      userAgent,
      requestId,
    ],
  )
}

/**
 * SQL: the devices of a plan with their group and, where they need nothing, why. The order is a hash of
 * roll-out and device: nobody is always the first. Who is skipped is spread apart, so that a group of
 * 10 % has a tenth of those that are upgraded. A group with a share has a device as long as there are any.
 */
function placedSql(
  where: Where,
  { id, platforms }: Plan,
  { version, groups }: NewRolloutBody,
): string {
  const shares = groups.map(({ percent }) => percent)
  const ends = where.value(shares.map((_, n) => sum(shares.slice(0, n + 1))))
  const target = where.value(version)
  return `
  select t.id, t.skip, (
    select min(n) from unnest(${ends}::int[]) with ordinality as s(percent, n)
    where t.place <= ceil(t.total * s.percent / 100.0)
  ) as "group"
  from (
    select m.id, m.skip, count(*) over (partition by m.skip is null) as total,
      row_number() over (partition by m.skip is null order by md5(${where.value(id)}::text || m.id)) as place
    from (
      select d.id, case when d.agent_version = ${target} then 'already_installed'
        when d.os || '/' || d.arch <> all(${where.value(platforms)}::text[]) then 'no_binary' end as skip
      from ${from} ${where.text()}
    ) m
  ) t`
}

/** Where a device goes stays so, whatever becomes of filter and fleet. */
async function insertDevices(tx: Queryable, body: NewRolloutBody, plan: Plan): Promise<void> {
  const { where, id } = plan
  const placed = placedSql(where, plan, body)
  await tx.query(
    `insert into rollout_devices (rollout_id, group_number, device_id, status, reason, ended_at)
     select ${where.value(id)}, "group", id, case when skip is null then 'pending' else 'skipped' end,
       skip, case when skip is not null then now() end
     from (${placed}) p order by id`,
    where.values,
  )
  const { groups } = body
  await tx.query(
    `insert into rollout_groups (rollout_id, number, percent, success_threshold, error_threshold,
       devices, skipped, started_at)
     select $1, g.number, g.percent, g.success, g.error, count(x.device_id),
       count(x.device_id) filter (where x.status = 'skipped'),
       case when g.number = 1 then now() end
     from unnest($2::int[], $3::int[], $4::int[]) with ordinality as g(percent, success, error, number)
     left join rollout_devices x on x.rollout_id = $1 and x.group_number = g.number
     group by g.number, g.percent, g.success, g.error`,
    [
      id,
      groups.map(({ percent }) => percent),
      groups.map(({ successThreshold }) => successThreshold),
      groups.map(({ errorThreshold }) => errorThreshold),
    ],
  )
}

async function recordCreate(tx: Queryable, call: NewRolloutCall, { id, orgId }: Plan) {
  const { version, groups, filter } = call.body
  const { deviceIds, ...rest } = filter
  const whom = deviceIds === undefined ? rest : { ...rest, devices: deviceIds.length }
  await insertAudit(tx, [
    auditOf(call, {
      action: 'rollout.create',
      resourceType: 'rollout',
      resourceId: id,
      orgId,
      details: { after: { version, filter: whom, groups } },
    }),
  ])
}

// ---- dry run ---------------------------------------------------------------------------------

async function dryRun(
  db: Queryable,
  body: NewRolloutBody,
  plan: Plan,
): Promise<Static<typeof RolloutDryRun>> {
  const { where, platforms } = plan
  const placed = placedSql(where, plan, body)
  const offered = where.value(platforms)
  const numbers = where.value(body.groups.map((_, index) => index + 1))
  const of = (skip: (typeof skips)[number]) => `count(*) filter (where m.skip = '${skip}')::int`
  const [row] = await db.query<Omit<Static<typeof RolloutDryRun>, 'version'>>(
    `with m as materialized (
       select p.*, d.os, d.arch, d.agent_version, s.status = 'online' as online, exists (
         select from rollout_devices x
         where x.device_id = d.id and x.status in ('pending', 'running')) as taken
       from (${placed}) p join devices d on d.id = p.id join device_presence s on s.device_id = p.id
     ), g as (
       select n as number, count(m.id)::int as devices
       from unnest(${numbers}::int[]) as n left join m on m."group" = n and m.skip is null
       group by n
     ), pl as (
       select os, arch, count(*)::int as total,
         os || '/' || arch = any(${offered}::text[]) as "hasBinary"
       from m group by os, arch
     ), v as (
       select agent_version as "agentVersion", count(*)::int as total from m
       group by agent_version order by total desc, agent_version limit ${limits.rolloutVersionsMax}
     )
     select (
         select json_build_object('total', count(*), 'upgraded', count(*) filter (where m.skip is null),
           'online', count(*) filter (where m.skip is null and m.online),
           'alreadyInstalled', ${of('already_installed')}, 'noBinary', ${of('no_binary')},
           'inOpenRollout', count(*) filter (where m.taken))
         from m) as counts,
       coalesce((select json_agg(g order by number) from g), '[]') as groups,
       coalesce((select json_agg(pl order by os, arch) from pl), '[]') as "byPlatform",
       coalesce((select json_agg(v order by total desc) from v), '[]') as "byVersion"`,
    where.values,
  )
  if (row) return { version: body.version, ...row }
  throw new Error('an aggregate without a row')
}
