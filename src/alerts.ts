// Raising and resolving alerts: many in one statement, each with its event in the transaction of the caller.
// One alert is open per dedupe key; a repeat counts up. Why something is an alert is decided elsewhere.
import { cleanText, jsonText } from './clean.ts'
import { plainArray, textArray, type Queryable } from './db.ts'
import { newEventId } from './events.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'

export const alertKinds = [
  'device_offline',
  'cpu_high',
  'memory_high',
  'disk_high',
  'command_failed',
  'script_failed',
  'upgrade_failed',
  'agent_reported',
  'duplicate_identity',
  'auth_abuse',
] as const
export type AlertKind = (typeof alertKinds)[number]

export const severities = ['critical', 'high', 'medium', 'low', 'info'] as const
export type Severity = (typeof severities)[number]

export interface NewAlert {
  kind: AlertKind
  severity: Severity
  title: string
  message: string
  /** Never a secret. */
  context: Readonly<Record<string, unknown>>
  /** Names its device, site or user, so that no two organizations share one. */
  dedupeKey: string
  /** Organization and site of a device's alert are the device's own. */
  deviceId: string | null
  orgId: string | null
  siteId?: string | null
  /** Of the connection that raises it: an older one than the device's writes nothing. */
  epoch?: number | null
  /** How often it occurred; once when absent. */
  times?: number
}

export interface RaisedAlert extends Record<string, unknown> {
  id: string
  dedupeKey: string
}

/**
 * Opens or counts up alerts in the caller's transaction; returns those that are open now. Left out are
 * those of devices that are gone, of superseded connections, and an agent's own beyond their bound.
 */
export async function raiseAlerts(
  tx: Queryable,
  alerts: readonly NewAlert[],
): Promise<RaisedAlert[]> {
  if (alerts.length === 0) return []
  const times = new Map<string, number>()
  const latest = new Map<string, NewAlert>()
  for (const alert of alerts) {
    const key = cleanText(alert.dedupeKey, Infinity)
    latest.set(key, alert)
    times.set(key, (times.get(key) ?? 0) + (alert.times ?? 1))
  }
  const rows = [...latest.entries()]
  const values = rows.map(([, alert]) => alert)
  const devices = plainArray(values.map((alert) => alert.deviceId))
  // In a statement of its own: only the next one sees where a device is that was moving, and what others
  // have opened for it.
  await tx.query(lockSql, [devices])
  return tx.query<RaisedAlert>(raiseSql, [
    plainArray(rows.map(() => newId())),
    plainArray(rows.map(() => newId())),
    plainArray(values.map((alert) => alert.orgId)),
    plainArray(values.map((alert) => alert.siteId ?? null)),
    devices,
    plainArray(values.map((alert) => alert.epoch ?? null)),
    plainArray(values.map((alert) => alert.kind)),
    plainArray(values.map((alert) => alert.severity)),
    textArray(values.map((alert) => cleanText(alert.title, limits.alertTitleCharsMax))),
    textArray(values.map((alert) => cleanText(alert.message, limits.alertMessageCharsMax))),
    textArray(values.map((alert) => jsonText(alert.context))),
    textArray(rows.map(([key]) => key)),
    plainArray(rows.map(([key]) => times.get(key) ?? 1)),
    limits.agentAlertsMax,
  ])
}

/** What an event says of the alert `a`. */
export const alertEventData = `jsonb_build_object('alertId', a.id, 'kind', a.kind,
    'severity', a.severity, 'status', a.status, 'title', a.title, 'deviceId', a.device_id,
    'siteId', a.site_id, 'occurrences', a.occurrences)`

/** $1 device ids. Before any alert is locked: who moves or ends a device locks it first, too. */
export const lockSql = `
select d.id from devices d where d.id = any($1::uuid[]) order by d.id for no key update`

/**
 * $1 ids, $2 event ids, $3 organizations, $4 sites, $5 devices or null, $6 epochs or null, $7 kinds,
 * $8 severities, $9 titles, $10 messages, $11 contexts, $12 dedupe keys, $13 occurrences, $14 how many of
 * an agent's own may be open
 */
export const raiseSql = `
with i as (
  select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::bigint[],
    $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[])
    as i(id, event_id, org_id, site_id, device_id, epoch, kind, severity, title, message, context,
      dedupe_key, times)
), d as (
  select d.id, d.org_id, d.site_id, p.epoch
  from devices d join device_presence p on p.device_id = d.id
  where d.id = any($5::uuid[]) and p.device_id = any($5::uuid[]) and d.decommissioned_at is null
), known as (
  select a.dedupe_key from alerts a
  where a.dedupe_key = any($12::text[]) and a.status <> 'resolved'
), own as (
  select a.device_id, count(*) as open from alerts a
  where a.device_id = any($5::uuid[]) and a.kind = 'agent_reported' and a.status <> 'resolved'
  group by a.device_id
), wanted as (
  select i.*, coalesce(d.org_id, i.org_id) as org, coalesce(d.site_id, i.site_id) as site,
    i.dedupe_key in (select dedupe_key from known) as known
  from i left join d on d.id = i.device_id
  where (i.device_id is null or d.id is not null) and (i.epoch is null or i.epoch = d.epoch)
), placed as (
  select w.*, row_number() over (partition by w.device_id, w.kind, w.known order by w.id) as place
  from wanted w
), raised as (
  insert into alerts as a (id, org_id, site_id, device_id, kind, severity, title, message, context,
    dedupe_key, occurrences)
  select w.id, w.org, w.site, w.device_id, w.kind, w.severity, w.title, w.message,
    w.context::jsonb, w.dedupe_key, w.times
  from placed w left join own o on o.device_id = w.device_id
  where w.kind <> 'agent_reported' or w.known or coalesce(o.open, 0) + w.place <= $14
  order by w.dedupe_key
  on conflict (dedupe_key) where status <> 'resolved' do update set
    occurrences = a.occurrences + excluded.occurrences, last_seen_at = now(),
    severity = excluded.severity, title = excluded.title, message = excluded.message,
    context = excluded.context
  returning a.*
), told as (
  insert into events (id, org_id, type, at, site_id, data)
  select i.event_id, a.org_id, 'alert.triggered', a.triggered_at, a.site_id, ${alertEventData}
  from raised a join i on i.id = a.id
)
select a.id, a.dedupe_key as "dedupeKey" from raised a`

/**
 * SQL: resolves the open alerts `a` that fit `condition`, by themselves, and tells of it. `$1` is the
 * reason, kept in the context. In the order in which raising locks.
 */
export function resolving(condition: string): string {
  return `
with open as (
  select a.id from alerts a
  where a.status <> 'resolved' and ${condition}
  order by a.dedupe_key
  for update of a
), resolved as (
  update alerts a set status = 'resolved', resolved_at = now(),
    context = a.context || jsonb_build_object('resolution', $1::text)
  where a.id = any(array(select id from open))
  returning a.*
)
insert into events (id, org_id, type, at, site_id, data)
select ${newEventId}, a.org_id, 'alert.resolved', a.resolved_at, a.site_id, ${alertEventData}
from resolved a`
}

/** $1 reason, $2 dedupe keys, $3 devices, $4 epochs: those of a superseded connection stay. */
export const resolveKeysSql = resolving(`a.dedupe_key = any($2::text[]) and exists (
    select from unnest($2::text[], $3::uuid[], $4::bigint[]) as i(dedupe_key, device_id, epoch)
    join device_presence p on p.device_id = i.device_id and p.epoch = i.epoch
    where i.dedupe_key = a.dedupe_key and p.device_id = any($3::uuid[]))`)

const resolveDeviceSql = resolving('a.device_id = $2::uuid')

/** Resolves what is open of a device that is decommissioned; the caller holds the device's row. */
export async function endDeviceAlerts(tx: Queryable, deviceId: string): Promise<void> {
  await tx.query(resolveDeviceSql, ['the device was decommissioned', deviceId])
}

/** A device's alerts move with it to another site; the caller holds the device's row. */
export async function moveDeviceAlerts(
  tx: Queryable,
  deviceId: string,
  siteId: string,
): Promise<void> {
  await tx.query(
    'update alerts set site_id = $2 where device_id = $1 and site_id is distinct from $2',
    [deviceId, siteId],
  )
}
