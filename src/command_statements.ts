// The statements that accept commands, many at once: command, audit row, event, idempotency key and handoff. What
// their rows mean for those who wait stands in `commands.ts`.
import type { NewCommand } from './commands.ts'
import { plainArray, textArray } from './db.ts'
import { devicesSql } from './handoff_sql.ts'
import { idFloor, newId } from './ids.ts'
import { limits } from './limits.ts'

/** A command that is to be accepted under this id. */
export interface AcceptedCommand {
  command: NewCommand
  id: string
  /** Of what a repeat under its Idempotency-Key must be alike in; null without a key. */
  bodyHash: string | null
  createdMs: number
}

/** What the statement says of the command at place `n`; no row where the device is not there for the caller. */
export interface AcceptRow extends Record<string, unknown> {
  n: number
  gone: boolean
  open: number
  first: string | null
  accepted: boolean
  status: string
  suspended: boolean
  /** The device is connected to this hub. */
  here: boolean
  /** Of a device that is here: commands that other hubs handed over and this one has yet to take. */
  ahead: string[] | null
  /** The other hub that it was handed to. */
  elsewhere: string | null
}

/** The values of acceptSql. */
export function acceptValues(items: readonly AcceptedCommand[], nodeId: string): unknown[] {
  // Where a command stands among those of its device in this very batch: the count of open ones in
  // PostgreSQL does not see its neighbours.
  const seen = new Map<string, number>()
  const places = items.map(({ command }) => {
    const place = seen.get(command.deviceId) ?? 0
    seen.set(command.deviceId, place + 1)
    return place
  })
  const commands = items.map((item) => item.command)
  return [
    plainArray(items.map((item) => item.id)),
    plainArray(commands.map((command) => command.deviceId)),
    plainArray(commands.map((command) => command.actor.orgId)),
    textArray(commands.map(({ actor }) => actor.siteIds && plainArray(actor.siteIds))),
    textArray(commands.map((command) => command.action)),
    textArray(commands.map((command) => command.payload)),
    plainArray(commands.map((command) => command.timeoutSeconds)),
    plainArray(commands.map((command) => command.expiresInSeconds)),
    plainArray(items.map((item) => item.createdMs)),
    plainArray(commands.map((command) => command.actor.userId)),
    textArray(commands.map((command) => command.actor.email)),
    textArray(commands.map((command) => command.ip)),
    textArray(commands.map((command) => command.userAgent)),
    textArray(commands.map((command) => command.requestId)),
    textArray(commands.map((command) => command.idempotencyKey)),
    textArray(items.map((item) => item.bodyHash)),
    plainArray(places),
    plainArray(items.map(() => newId())),
    plainArray(items.map(() => newId())),
    idFloor(Date.now() - limits.openCommandDaysMax * 86_400_000),
    // Past what any hub's clock calls now.
    idFloor(Date.now() + 3_600_000),
    limits.openCommandsMax,
    plainArray(commands.map((command) => command.awaited)),
    nodeId,
  ]
}

/**
 * Accepts many commands at once. A device that is missing or out of the caller's scope yields no row.
 * A command for another hub comes with a row for it. Both bounds of the count matter: without the upper one every
 * partition made for months to come is looked into.
 */
export const acceptSql = `
with i as (
  select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[],
    $7::int[], $8::int[], $9::float8[], $10::uuid[], $11::text[], $12::text[], $13::text[],
    $14::text[], $15::text[], $16::text[], $17::int[], $18::uuid[], $19::uuid[], $23::boolean[])
    with ordinality as i(id, device_id, org_id, site_ids, action, payload, timeout_seconds,
      expires_in, created_ms, user_id, email, ip, user_agent, request_id, key, body_hash, place,
      audit_id, event_id, awaited, n)
), ${devicesSql({ ids: '$2::uuid[]', node: '$24::uuid' })}, t as (
  select i.*, d.org_id as device_org, d.site_id, d.gone, d.status, d.suspended, d.here, d.elsewhere, q.open, q.first,
    to_timestamp(i.created_ms / 1000) as at,
    not d.gone and q.open + i.place < $22 as takes
  from i join d on d.id = i.device_id
    and (i.org_id is null or d.org_id = i.org_id)
    and (i.site_ids is null or d.site_id = any(i.site_ids::uuid[]))
  cross join lateral (
    select count(*)::int as open, (array_agg(o.id))[1] as first from (
      select c.id from commands c
      where c.device_id = i.device_id and c.completed_at is null and c.id >= $20 and c.id < $21
      order by c.id limit $22
    ) o
  ) q
), k as (
  insert into idempotency_keys (user_id, key, body_hash, command_id)
  select user_id, key, decode(body_hash, 'hex'), id from t where key is not null and takes
  order by user_id, key
  on conflict do nothing
  returning command_id
), a as (
  select t.*, takes and (key is null or id in (select command_id from k)) as accepted from t
), c as (
  insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_by,
    created_at, expires_at)
  select id, device_id, device_org, action, payload::jsonb, timeout_seconds, user_id, at,
    at + make_interval(secs => expires_in)
  from a where accepted
), u as (
  insert into audit (id, org_id, at, actor_type, actor_id, actor_email, action, resource_type,
    resource_id, device_id, result, ip, user_agent, request_id, details)
  select audit_id, device_org, at, 'user', user_id, email, 'command.create', 'command', id::text,
    device_id, 'success', ip, user_agent, request_id,
    jsonb_build_object('after', jsonb_build_object('action', action, 'deviceId', device_id)
      || case action when 'upgrade_agent' then payload::jsonb else '{}' end)
  from a where accepted
), e as (
  insert into events (id, org_id, type, at, site_id, data)
  select event_id, device_org, 'command.queued', at, site_id,
    jsonb_build_object('commandId', id, 'deviceId', device_id, 'action', action,
      'status', 'pending')
  from a where accepted
), h as (
  insert into handoffs (node_id, device_id, command_id, origin)
  select elsewhere, device_id, id, case when awaited then $24::uuid end
  from a where accepted and elsewhere is not null
  order by id
)
select (n - 1)::int as n, gone, open + place as open, first, accepted, status, suspended, here, elsewhere,
  case when here and open > 0 then (
    select array_agg(w.command_id::text order by w.id) from handoffs w
    where w.node_id = $24 and w.device_id = a.device_id and w.command_id is not null) end as ahead
from a`

/** First commands of Idempotency-Keys. $1 places, $2 users, $3 keys, $4 hashes of the bodies */
export const repeatsSql = `
select i.n, k.body_hash = decode(i.body_hash, 'hex') as same, k.command_id as id,
  c.completed_at is not null as ended,
  floor(extract(epoch from c.created_at) * 1000)::float8 as "createdMs",
  floor(extract(epoch from c.expires_at) * 1000)::float8 as "expiresMs"
from unnest($1::int[], $2::uuid[], $3::text[], $4::text[]) as i(n, user_id, key, body_hash)
join idempotency_keys k on k.user_id = i.user_id and k.key = i.key
join commands c on c.id = k.command_id`
