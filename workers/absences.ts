// Absences as alerts: a device that stays away for its organization's grace, or a site whose devices go
// together, which is one alert. Judged by the rows alone, so that it does not matter which hub held a
// device or died meanwhile. One hub judges at a time.
import { raiseAlerts, resolving, type NewAlert } from '../src/alerts.ts'
import { plainArray, textArray, type Database, type Queryable } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { takeTurn } from './turns.ts'

/** How long this hub runs, and until when it leaves alone what went before that. */
export interface Uptime {
  seconds: number
  graceSeconds: number
}

interface Due extends Record<string, unknown> {
  deviceId: string
  orgId: string
  siteId: string
  hostname: string
  since: string
  /** Its socket was closed by the organization's suspension, which everybody knows. */
  suspended: boolean
}

interface Fold extends Record<string, unknown> {
  siteId: string
  orgId: string
  name: string
  devices: string[]
  total: number
}

/** Judges the absences that are due, oldest first; returns how many, at most a batch. */
export function judgeAbsences(db: Database, uptime: Uptime): Promise<number> {
  return db.transaction(async (tx) => {
    if (!(await takeTurn(tx, 'absences'))) return 0
    const due = await tx.query<Due>(dueSql, [
      limits.sweepBatchMax,
      limits.offlineGraceSecondsDefault,
      uptime.seconds,
      uptime.graceSeconds,
    ])
    const known = due.filter((device) => !device.suspended)
    const folds = known.length === 0 ? [] : await findFolds(tx, known)
    const away = await lockAway(tx, due, folds)
    const alerts = [
      ...folds.map((fold) => siteAlert(fold)),
      ...alone(known, folds, away).map((device) => deviceAlert(device)),
    ]
    const raised = await raiseAlerts(tx, alerts)
    await mark(tx, { due, folds, away, alertOf: new Map(raised.map((r) => [r.dedupeKey, r.id])) })
    return due.length
  })
}

/** Ends the alerts of devices that are back, and of sites that are back as a whole. */
export async function endAbsences(db: Database): Promise<number> {
  return db.transaction(async (tx) => {
    if (!(await takeTurn(tx, 'absences'))) return 0
    const rows = await tx.query<{ id: string; alertId: string }>(returnedSql, [
      limits.sweepBatchMax,
    ])
    if (rows.length === 0) return 0
    await tx.query(clearSql, [plainArray(rows.map((row) => row.id))])
    await tx.query(endSql, [
      'the device is back',
      plainArray([...new Set(rows.map((row) => row.alertId))]),
    ])
    return rows.length
  })
}

/** Sites of which enough went together, with everyone who went then, due or not. */
async function findFolds(tx: Queryable, due: readonly Due[]): Promise<Fold[]> {
  const times = due.map((device) => device.since).toSorted()
  const folds = await tx.query<Fold>(foldsSql, [
    plainArray([...new Set(due.map((device) => device.orgId))]),
    plainArray([...new Set(due.map((device) => device.siteId))]),
    times[0],
    times.at(-1),
    limits.foldSeconds,
    limits.foldDevicesMin,
    limits.foldShareMin,
  ])
  // The span may hold an older fold of the same site, which is told of already.
  const ids = new Set(due.map((device) => device.deviceId))
  return folds.filter((fold) => fold.devices.some((id) => ids.has(id)))
}

/**
 * Holds those who are still away, so that none comes back before the alert is there to be ended. Devices
 * before presences, as a decommission does.
 */
async function lockAway(
  tx: Queryable,
  due: readonly Due[],
  folds: readonly Fold[],
): Promise<Set<string>> {
  const ids = new Set([
    ...due.map((device) => device.deviceId),
    ...folds.flatMap((fold) => fold.devices),
  ])
  if (ids.size === 0) return ids
  const all = plainArray([...ids])
  await tx.query(lockDevicesSql, [all])
  const rows = await tx.query<{ id: string }>(lockAwaySql, [all])
  return new Set(rows.map((row) => row.id))
}

function alone(due: readonly Due[], folds: readonly Fold[], away: ReadonlySet<string>): Due[] {
  const folded = new Set(folds.flatMap((fold) => fold.devices))
  return due.filter(({ deviceId }) => away.has(deviceId) && !folded.has(deviceId))
}

interface Judged {
  due: readonly Due[]
  folds: readonly Fold[]
  away: ReadonlySet<string>
  alertOf: ReadonlyMap<string, string>
}

/** Notes which alert tells of whom; what a device had of its own ends in the one of its site. */
async function mark(tx: Queryable, { due, folds, away, alertOf }: Judged): Promise<void> {
  const alerts = new Map<string, string | null>()
  for (const { deviceId } of due) alerts.set(deviceId, alertOf.get(deviceKey(deviceId)) ?? null)
  for (const fold of folds) {
    for (const id of fold.devices) alerts.set(id, alertOf.get(siteKey(fold.siteId)) ?? null)
  }
  const marks = [...alerts].filter(([id]) => away.has(id))
  if (marks.length === 0) return
  await tx.query(markSql, [
    plainArray(marks.map(([id]) => id)),
    plainArray(marks.map(([, alert]) => alert)),
  ])
  const folded = folds.flatMap((fold) => fold.devices).map(deviceKey)
  if (folded.length > 0) await tx.query(foldedSql, ['its whole site is away', textArray(folded)])
}

const deviceKey = (deviceId: string) => `device_offline:${deviceId}`
const siteKey = (siteId: string) => `device_offline:site:${siteId}`

function deviceAlert({ deviceId, orgId, hostname, since }: Due): NewAlert {
  return {
    kind: 'device_offline',
    severity: 'high',
    title: `${hostname} is offline`,
    message: `${hostname} is offline since ${since}.`,
    context: { since },
    dedupeKey: deviceKey(deviceId),
    deviceId,
    orgId,
  }
}

function siteAlert({ siteId, orgId, name, devices, total }: Fold): NewAlert {
  return {
    kind: 'device_offline',
    severity: 'critical',
    title: `Site ${name} is offline`,
    message: `${devices.length} of ${total} devices of ${name} went offline together.`,
    context: { siteId, devices: devices.length, total },
    dedupeKey: siteKey(siteId),
    deviceId: null,
    orgId,
    siteId,
  }
}

/**
 * $1 rows, $2 default grace in seconds, $3 seconds this hub runs, $4 its grace. Organizations with absent
 * devices are walked by the index, each with its own grace. What went before this hub began may be waiting
 * for just that, so it has the grace of a start.
 */
export const dueSql = `
with recursive o as (
  (select org_id from device_presence where absent order by org_id limit 1)
  union all
  select (select p.org_id from device_presence p where p.absent and p.org_id > o.org_id
    order by p.org_id limit 1)
  from o where o.org_id is not null
)
select p.device_id as "deviceId", p.org_id as "orgId", d.site_id as "siteId", d.hostname,
  iso(p.status_at) as since, g.status = 'suspended' as suspended
from o join organizations g on g.id = o.org_id
cross join lateral (
  select p.device_id, p.org_id, p.status_at from device_presence p
  where p.absent and p.org_id = g.id and p.status = 'offline'
    and p.status_at <= now() - make_interval(secs => coalesce((g.settings->>'offlineGraceSeconds')::int, $2))
    and ($3::float8 >= $4::float8 or p.status_at >= now() - make_interval(secs => $3::float8))
  order by p.status_at
  limit $1
) p join devices d on d.id = p.device_id
order by p.status_at
limit $1`

/**
 * $1 organizations, $2 sites, $3 and $4 first and last due absence, $5 seconds, $6 devices, $7 share. A
 * window ends with each absence; where one holds enough, all in it belong to the fold.
 */
export const foldsSql = `
with away as (
  select d.site_id, d.org_id, p.device_id, p.status_at,
    count(*) over (partition by d.site_id order by p.status_at
      range between make_interval(secs => $5::float8) preceding and current row) as together
  from device_presence p join devices d on d.id = p.device_id
  where p.org_id = any($1::uuid[]) and d.site_id = any($2::uuid[]) and p.status = 'offline'
    and (p.absent or p.offline_alert_id is not null)
    and p.status_at >= $3::timestamptz - make_interval(secs => $5::float8)
    and p.status_at <= $4::timestamptz + make_interval(secs => $5::float8 + 1)
), sites_total as (
  select site_id, device_count(site_id) as total from away group by site_id
), judged as (
  select a.*, t.total, min(a.status_at) filter (where together >= $6 and together >= $7::numeric * total)
    over (partition by a.site_id order by a.status_at range between current row and unbounded following) as folds_at
  from away a join sites_total t using (site_id)
)
select j.site_id as "siteId", j.org_id as "orgId", s.name, j.total::int as total,
  json_agg(j.device_id) as devices
from judged j join sites s on s.id = j.site_id
where j.folds_at <= j.status_at + make_interval(secs => $5::float8)
group by j.site_id, j.org_id, s.name, j.total`

const lockDevicesSql = `
select d.id from devices d where d.id = any($1::uuid[]) order by d.id for no key update`

const lockAwaySql = `
select p.device_id as id from device_presence p
where p.device_id = any($1::uuid[]) and p.status = 'offline'
  and (p.absent or p.offline_alert_id is not null)
order by p.device_id
for update`

/** $1 devices, $2 the alert that tells of each */
const markSql = `
update device_presence p set absent = false, offline_alert_id = m.alert_id
from unnest($1::uuid[], $2::uuid[]) as m(device_id, alert_id)
where p.device_id = m.device_id and p.device_id = any($1::uuid[])`

const foldedSql = resolving('a.dedupe_key = any($2::text[])')

/** $1 rows. Decommissioned ones too: a site must not wait for them. */
export const returnedSql = `
select p.device_id as id, p.offline_alert_id as "alertId" from device_presence p
where p.offline_alert_id is not null and p.status <> 'offline'
order by p.device_id
limit $1
for update skip locked`

const clearSql = `
update device_presence set offline_alert_id = null where device_id = any($1::uuid[])`

// A site's alert stays while one of its devices is still away because of it.
const endSql = resolving(`a.id = any($2::uuid[]) and a.kind = 'device_offline' and not exists (
    select from devices d join device_presence p on p.device_id = d.id
    where d.site_id = a.site_id and p.offline_alert_id = a.id and p.status = 'offline')`)
