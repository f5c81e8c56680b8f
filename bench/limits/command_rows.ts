// The rows that a command costs, as the hub stores them, and nothing but them: one statement for the command with
// its audit entry and its event, one for its end with an event. No scope, no limits, no locks, no handing over.
// `least.ts` writes them behind a server, the bench alone behind nothing.
import type { Client } from 'pg'
import { plainArray, textArray } from '../../src/db.ts'
import { newId } from '../../src/ids.ts'

export interface NewCommand {
  id: string
  deviceId: string
  orgId: string
  siteId: string
  action: string
  /** JSON text. */
  payload: string
}

export interface EndedCommand {
  id: string
  status: string
  /** JSON text. */
  result: string
}

/** Fields of the hub's audit entry that say who asked. */
const caller = {
  userId: '01a00000-0000-7000-8000-000000000001',
  email: 'bench@example.com',
  ip: '127.0.0.1',
  requestId: '01a00000-0000-7000-8000-000000000002',
}
const timeoutSeconds = 300

/** Commits commands with their audit entries and events. */
export async function storeCommands(
  client: Client,
  commands: readonly NewCommand[],
): Promise<void> {
  await client.query({
    name: 'store',
    text: `with i as materialized (
  select *, now() as at from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[],
    $7::uuid[], $8::uuid[]) as i(id, device_id, org_id, site_id, action, payload, audit_id, event_id)
), c as (
  insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_by, created_at,
    expires_at)
  select id, device_id, org_id, action, payload::jsonb, ${timeoutSeconds}, '${caller.userId}', at,
    at + interval '1 day' from i
), u as (
  insert into audit (id, org_id, at, actor_type, actor_id, actor_email, action, resource_type, resource_id,
    device_id, result, ip, request_id, details)
  select audit_id, org_id, at, 'user', '${caller.userId}', '${caller.email}', 'command.create', 'command',
    id::text, device_id, 'success', '${caller.ip}', '${caller.requestId}',
    jsonb_build_object('after', jsonb_build_object('action', action, 'deviceId', device_id)) from i
)
insert into events (id, org_id, type, at, site_id, data)
select event_id, org_id, 'command.queued', at, site_id, jsonb_build_object('commandId', id,
  'deviceId', device_id, 'action', action, 'status', 'pending') from i`,
    values: [
      plainArray(commands.map(({ id }) => id)),
      plainArray(commands.map(({ deviceId }) => deviceId)),
      plainArray(commands.map(({ orgId }) => orgId)),
      plainArray(commands.map(({ siteId }) => siteId)),
      textArray(commands.map(({ action }) => action)),
      textArray(commands.map(({ payload }) => payload)),
      plainArray(commands.map(() => newId())),
      plainArray(commands.map(() => newId())),
    ],
  })
}

/** Commits ends of commands with their events; one that ended already stays as it is. */
export async function storeEnds(client: Client, ends: readonly EndedCommand[]): Promise<void> {
  await client.query({
    name: 'end',
    text: `with ended as (
  update commands c set status = i.status, completed_at = now(), attempts = 1, sent_at = now(),
    delivered_at = now(), started_at = now(), result = i.result::jsonb
  from unnest($1::uuid[], $2::text[], $3::text[]) as i(id, status, result)
  where c.id = i.id and c.id = any($1::uuid[]) and c.completed_at is null
  returning c.id, c.device_id, c.org_id, c.action, c.status
)
insert into events (id, org_id, type, at, site_id, data)
select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid, e.org_id,
  'command.' || e.status, now(), d.site_id, jsonb_build_object('commandId', e.id, 'deviceId', e.device_id,
  'action', e.action, 'status', e.status)
from ended e join devices d on d.id = e.device_id`,
    values: [
      plainArray(ends.map(({ id }) => id)),
      textArray(ends.map(({ status }) => status)),
      textArray(ends.map(({ result }) => result)),
    ],
  })
}
