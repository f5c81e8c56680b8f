// One of everything that a tenant can own, as rows: for tests that ask every route about it. Every text
// holds the marker, so that an answer which gives any of it away can be told from one that does not.
import { randomBytes } from 'node:crypto'
import { newId } from '../../src/ids.ts'
import { sealSecret } from '../../src/webhook_secrets.ts'
import type { TestHub } from './hub.ts'
import type { Place } from './rows.ts'

/** Ids of what was planted, by the name of the resource. */
export interface Plant extends Place {
  marker: string
  device: string
  command: string
  /** `term-` and a UUID, of a session that has ended. */
  terminal: string
  alert: string
  script: string
  execution: string
  rollout: string
  webhook: string
  delivery: string
  key: string
  user: string
}

/** Adds an organization whose name is the marker; returns its id. */
export async function plantOrganization(hub: TestHub, marker: string): Promise<string> {
  const id = newId()
  await hub.hub.ctx.db.query('insert into organizations (id, name, slug) values ($1, $2, $3)', [
    id,
    marker,
    `${marker.toLowerCase()}-${id.slice(-12)}`,
  ])
  return id
}

/**
 * Adds one of everything in an organization and at a site, which is a new one unless it is named. The delivery
 * has ended, command and execution are open, the roll-out is paused and done with the device.
 */
export async function plant(
  hub: TestHub,
  orgId: string,
  marker: string,
  siteId = newId(),
): Promise<Plant> {
  const names = [
    'device',
    'command',
    'alert',
    'script',
    'execution',
    'rollout',
    'webhook',
    'delivery',
    'key',
    'user',
  ] as const
  const ids = Object.fromEntries(names.map((name) => [name, newId()])) as Omit<
    Plant,
    'orgId' | 'siteId' | 'marker' | 'terminal'
  >
  const terminalId = newId()
  const secret = sealSecret(hub.hub.ctx.webhookKeys, `whsec_${randomBytes(32).toString('base64')}`)
  await hub.hub.ctx.db.query(plantSql, [
    orgId,
    marker,
    secret,
    randomBytes(32),
    randomBytes(32),
    siteId,
    ...names.map((name) => ids[name]),
    newId(),
    newId(),
    terminalId,
  ])
  return { orgId, siteId, marker, ...ids, terminal: `term-${terminalId}` }
}

// $1 organization, $2 marker, $3 sealed secret, $4 and $5 hashes, $6 site, then ids in the order of the names.
const plantSql = `
with given (org, m, secret, token, key_hash, site, device, command, alert, script, execution, rollout,
  webhook, delivery, key, usr, audit, event, terminal) as (
  values ($1::uuid, $2::text, $3::bytea, $4::bytea, $5::bytea, $6::uuid, $7::uuid, $8::uuid, $9::uuid,
    $10::uuid, $11::uuid, $12::uuid, $13::uuid, $14::uuid, $15::uuid, $16::uuid, $17::uuid,
    $18::uuid, $19::uuid)
), s as (
  insert into sites (id, org_id, name, address) select site, org, m, m from given on conflict do nothing
), d as (
  insert into devices (id, org_id, site_id, hostname, display_name, os, os_version, arch, machine_id,
    tags, token_hash)
  select device, org, site, m, m, 'linux', m, 'amd64', m || device, array[m], token from given
), p as (
  insert into device_presence (device_id, org_id, ip_address) select device, org, m from given
), i as (
  insert into device_inventory (device_id, inventory) select device, jsonb_build_object('m', m) from given
), sc as (
  insert into scripts (id, org_id, name, description) select script, org, m, m from given
), sv as (
  insert into script_versions (script_id, version, language, content, content_bytes, os,
    timeout_seconds, sha256)
  select script, 1, 'sh', m, length(m), '{linux}', 60, m from given
), e as (
  insert into executions (id, org_id, script_id, version, status, site_ids, device_ids, parameters,
    timeout_seconds, expires_at, created_email, total, started, started_at, fanned_out_at)
  select execution, org, script, 1, 'running', array[site], array[device], jsonb_build_object('m', m),
    60, now() + interval '1 day', m, 1, 1, now(), now() from given
), ro as (
  insert into rollouts (id, org_id, version, filter, status, reason, platforms, timeout_seconds,
    expires_in_seconds, due_at)
  select rollout, org, '2.0.0', jsonb_build_object('tag', m), 'paused', m, '{linux/amd64}', 60, 60, null
  from given
), rg as (
  insert into rollout_groups (rollout_id, number, percent, success_threshold, error_threshold, devices,
    completed, started_at)
  select rollout, 1, 100, 100, 100, 1, 1, now() from given
), rd as (
  insert into rollout_devices (rollout_id, group_number, device_id, status, ended_at)
  select rollout, 1, device, 'completed', now() from given
), c as (
  insert into commands (id, device_id, org_id, action, payload, timeout_seconds, execution_id,
    created_at, expires_at)
  select command, device, org, 'run_command', jsonb_build_object('command', m), 60, execution, now(),
    now() + interval '1 day' from given
), t as (
  insert into terminals (id, org_id, device_id, user_email, node_id, cols, rows, ended_at, end_reason)
  select terminal, org, device, m, gen_random_uuid(), 80, 24, now(), 'closed' from given
), tr as (
  insert into terminal_recordings (terminal_id, seq, lines)
  select terminal, 0, '[0,"o","' || m || '"]' || E'\\n' from given
), a as (
  insert into alerts (id, org_id, site_id, device_id, kind, severity, title, message, context,
    dedupe_key, occurrences)
  select alert, org, site, device, 'agent_reported', 'high', m, m, jsonb_build_object('m', m),
    m || alert, 1 from given
), w as (
  insert into webhooks (id, org_id, url, events, secret)
  select webhook, org, 'http://127.0.0.1:9/' || m, '{agent.upgrade.rolled_back}', secret from given
), wd as (
  insert into webhook_deliveries (id, webhook_id, event_id, event_type, body, status, attempts,
    completed_at, response, error)
  select delivery, webhook, event, 'device.online', '{}', 'succeeded', 1, now(), m, m from given
), k as (
  insert into enrollment_keys (id, org_id, site_id, name, key_hash)
  select key, org, site, m, key_hash from given
), u as (
  insert into users (id, org_id, email, name, role)
  select usr, org, lower(m) || '.' || usr || '@example.org', m, 'viewer' from given
), au as (
  insert into audit (id, org_id, at, actor_type, actor_email, action, resource_type, resource_id,
    device_id, result, user_agent, request_id, details)
  select audit, org, now(), 'user', m, 'device.update', 'device', device::text, device, 'success', m, m,
    jsonb_build_object('m', m) from given
)
insert into events (id, org_id, type, at, site_id, data)
select event, org, 'device.updated', now(), site, jsonb_build_object('m', m, 'deviceId', device) from given`
