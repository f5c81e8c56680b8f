-- minHub: 0.1.0
-- Alerts, and what finds their causes: absences of devices, and failed ends of commands.

create table alerts (
  id uuid primary key,
  -- Null: the platform's own, such as guessed passwords of nobody known.
  org_id uuid,
  -- Where it shows for users narrowed to sites: the device's site, kept when the device moves.
  site_id uuid,
  device_id uuid,
  kind text not null check (kind in ('device_offline', 'cpu_high', 'memory_high', 'disk_high',
    'command_failed', 'script_failed', 'upgrade_failed', 'agent_reported', 'duplicate_identity', 'auth_abuse')),
  severity text not null check (severity in ('critical', 'high', 'medium', 'low', 'info')),
  status text not null default 'active' check (status in ('active', 'acknowledged', 'resolved')),
  title text not null,
  message text not null,
  context jsonb not null,
  dedupe_key text not null,
  occurrences bigint not null,
  triggered_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  acknowledged_at timestamptz,
  acknowledged_by uuid,
  resolved_at timestamptz,
  -- Null on a resolved one: it resolved itself.
  resolved_by uuid,
  note text
) with (fillfactor = 80);
-- One open alert per key. A key names its device, site or user, so it is one organization's.
create unique index alerts_by_key on alerts (dedupe_key) where status <> 'resolved';
create index alerts_by_org on alerts (org_id, id);
create index alerts_by_site on alerts (site_id, id) where site_id is not null;
create index alerts_by_device on alerts (device_id, id) where device_id is not null;
-- Every order again for what is open: few among many.
create index alerts_open on alerts (id) where status <> 'resolved';
create index alerts_open_by_org on alerts (org_id, id) where status <> 'resolved';
create index alerts_open_by_site on alerts (site_id, id) where status <> 'resolved';
create index alerts_open_by_device on alerts (device_id, kind) where status <> 'resolved';
create index alerts_by_end on alerts (resolved_at) where resolved_at is not null;

-- `absent`: it went offline, and nobody has judged yet whether that is an alert. `offline_alert_id`: the alert
-- that tells of its absence, its own or its site's, until the device is back.
alter table device_presence
  add column absent boolean not null default false,
  add column offline_alert_id uuid;
create index device_presence_absent on device_presence (org_id, status_at) where absent;
create index device_presence_alerted on device_presence (org_id, status_at)
  where offline_alert_id is not null and status = 'offline';
create index device_presence_returned on device_presence (device_id)
  where offline_alert_id is not null and status <> 'offline';

-- How far the ends of commands have been read for alerts, in the order of the outbox.
create table alert_cursors (
  name text primary key,
  xid xid8 not null,
  id uuid not null
);
insert into alert_cursors (name, xid, id)
values ('failed_ends', pg_current_xact_id(), '00000000-0000-0000-0000-000000000000');
create index events_of_failed_ends on events (xid, id) where type in ('command.failed', 'command.timeout');

grant select, insert, update, delete on alerts, alert_cursors to muster_hub;
