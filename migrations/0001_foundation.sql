-- minHub: 0.1.0
-- Organizations, sites, users, devices, commands, audit and events. Level: PostgreSQL 15.
-- Commands, audit and events are partitioned by month of their UUIDv7 id, so that the id alone is the
-- key, a look-up by id touches one partition, and retention is a dropped partition.

-- ISO-8601 UTC with milliseconds, the one form of a time in answers. Inlined by the planner.
create function iso(t timestamptz) returns text
  language sql stable parallel safe
  return to_char(t at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- The lowest UUIDv7 of a point in time: bounds of partitions, and of scans that can't be older.
create function uuid7_floor(t timestamptz) returns uuid
  language sql immutable parallel safe
  return (lpad(to_hex(greatest(0, floor(extract(epoch from t) * 1000)::bigint)), 12, '0') || '00000000000000000000')::uuid;

create table organizations (
  id uuid primary key,
  name text not null,
  slug text not null unique,
  status text not null default 'active' check (status in ('active', 'suspended')),
  settings jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

create table sites (
  id uuid primary key,
  org_id uuid not null references organizations,
  name text not null,
  timezone text,
  address text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index sites_by_org on sites (org_id, id);

create table enrollment_keys (
  id uuid primary key,
  org_id uuid not null references organizations,
  site_id uuid not null references sites,
  name text,
  key_hash bytea not null unique,
  uses integer not null default 0,
  max_uses integer,
  expires_at timestamptz,
  revoked_at timestamptz,
  created_by uuid,
  created_at timestamptz not null default now()
);
create index enrollment_keys_by_site on enrollment_keys (site_id, id);

create table users (
  id uuid primary key,
  org_id uuid references organizations,
  email text not null,
  name text,
  role text not null
    check (role in ('platform_admin', 'org_admin', 'technician', 'viewer', 'auditor')),
  site_ids uuid[],
  status text not null default 'active' check (status in ('active', 'invited', 'disabled')),
  password_hash text,
  invite_hash bytea unique,
  invite_expires_at timestamptz,
  last_login_at timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check ((role = 'platform_admin') = (org_id is null))
);
create unique index users_by_email on users (lower(email));
create index users_by_org on users (org_id, id);

-- One row per sign-in: the family of its refresh tokens, and the `sid` of its access tokens.
create table sessions (
  id uuid primary key,
  user_id uuid not null references users on delete cascade,
  ip inet,
  user_agent text,
  created_at timestamptz not null default now(),
  ends_at timestamptz not null,
  revoked_at timestamptz
);
create index sessions_by_user on sessions (user_id);
create index sessions_by_end on sessions (ends_at);

create table refresh_tokens (
  token_hash bytea primary key,
  session_id uuid not null references sessions on delete cascade,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  rotated_at timestamptz,
  -- The successor, sealed under a key that only the presented token yields.
  successor bytea,
  successor_hash bytea
);
create index refresh_tokens_by_session on refresh_tokens (session_id);

create table devices (
  id uuid primary key,
  org_id uuid not null references organizations,
  site_id uuid not null references sites,
  hostname text not null,
  display_name text,
  os text not null check (os in ('linux', 'darwin', 'windows')),
  os_version text,
  arch text not null check (arch in ('amd64', 'arm64')),
  agent_version text,
  machine_id text,
  tags text[] not null default '{}',
  token_hash bytea not null,
  -- A rotated token counts beside the old one until it was used.
  next_token_hash bytea,
  upgrade jsonb,
  -- The Idempotency-Key of its enrollment (hashed with the secret): a repeat finds this row.
  enroll_key_hash bytea,
  enrolled_at timestamptz not null default now(),
  decommissioned_at timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index devices_by_org on devices (org_id, id);
create index devices_by_site on devices (site_id, id);
create index devices_by_hostname on devices (org_id, lower(hostname) text_pattern_ops, id);
create index devices_by_display_name on devices (org_id, lower(display_name) text_pattern_ops, id)
  where display_name is not null;
create index devices_by_all_hostnames on devices (lower(hostname) text_pattern_ops, id);
create index devices_by_tag on devices using gin (tags);
create index devices_by_machine on devices (org_id, machine_id) where machine_id is not null;
create unique index devices_by_token on devices (token_hash);
create index devices_by_enroll_key on devices (enroll_key_hash) where enroll_key_hash is not null;

-- All that changes while an agent talks, apart from `devices` so that a reconnect storm rewrites narrow
-- rows in two small indexes. A flush of last_seen_at and metrics touches no index at all.
create table device_presence (
  device_id uuid primary key references devices on delete cascade,
  org_id uuid not null,
  status text not null default 'offline' check (status in ('online', 'offline', 'decommissioned')),
  status_at timestamptz not null default now(),
  epoch bigint not null default 0,
  node_id uuid,
  last_seen_at timestamptz,
  ip_address text,
  metrics jsonb
) with (fillfactor = 60);
create index device_presence_by_status on device_presence (org_id, status, device_id);

create table device_inventory (
  device_id uuid primary key references devices on delete cascade,
  inventory jsonb not null,
  updated_at timestamptz not null default now()
);

-- Devices per organization and site, kept by trigger in 16 slots so that parallel enrollments rarely
-- meet in one row; a count is the sum of at most 16 rows at any size of fleet.
create table device_counts (
  scope_id uuid not null,
  slot smallint not null,
  devices bigint not null,
  primary key (scope_id, slot)
) with (fillfactor = 60);

create function count_device() returns trigger language plpgsql security definer set search_path from current as $$
declare
  here smallint := pg_backend_pid() % 16;
begin
  if tg_op = 'UPDATE' and old.site_id = new.site_id
    and (old.decommissioned_at is null) = (new.decommissioned_at is null) then
    return null;
  end if;
  insert into device_counts as c (scope_id, slot, devices)
  select scope, here, sum(delta) from (
    select old.org_id as scope, -1 as delta where tg_op <> 'INSERT' and old.decommissioned_at is null
    union all select old.site_id, -1 where tg_op <> 'INSERT' and old.decommissioned_at is null
    union all select new.org_id, 1 where tg_op <> 'DELETE' and new.decommissioned_at is null
    union all select new.site_id, 1 where tg_op <> 'DELETE' and new.decommissioned_at is null
  ) as change
  group by scope having sum(delta) <> 0
  order by scope
  on conflict (scope_id, slot) do update set devices = c.devices + excluded.devices;
  return null;
end $$;
create trigger count_device after insert or delete or update of site_id, decommissioned_at on devices
  for each row execute function count_device();

create function device_count(scope uuid) returns bigint
  language sql stable parallel safe
  return coalesce((select sum(devices) from device_counts where scope_id = scope), 0)::bigint;

create table commands (
  id uuid not null,
  device_id uuid not null,
  org_id uuid not null,
  action text not null,
  payload jsonb not null,
  status text not null default 'pending' check (status in
    ('pending', 'sent', 'delivered', 'running', 'completed', 'failed', 'timeout', 'cancelled', 'expired')),
  result jsonb,
  -- What arrived after the end, kept for the curious; the first end stands.
  late_result jsonb,
  attempts integer not null default 0,
  timeout_seconds integer not null,
  created_by uuid,
  execution_id uuid,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  sent_at timestamptz,
  delivered_at timestamptz,
  started_at timestamptz,
  -- Set with the end and only then: the one test of "open" that keeps updates before it off the indexes.
  completed_at timestamptz,
  cancel_requested_at timestamptz,
  primary key (id)
) partition by range (id);
create index commands_by_device on commands (device_id, id);
create index commands_open on commands (device_id, id) where completed_at is null;
create index commands_by_expiry on commands (expires_at) where completed_at is null;
-- The few whose run outlived their device's socket; a quick command never enters this index.
create index commands_delivered on commands ((coalesce(started_at, delivered_at)))
  where completed_at is null and delivered_at is not null;
create index commands_by_execution on commands (execution_id, id) where execution_id is not null;

create table idempotency_keys (
  user_id uuid not null,
  key text not null,
  body_hash bytea not null,
  command_id uuid not null,
  created_at timestamptz not null default now(),
  primary key (user_id, key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

create table audit (
  id uuid not null,
  org_id uuid,
  at timestamptz not null,
  actor_type text not null check (actor_type in ('user', 'agent', 'system')),
  actor_id uuid,
  actor_email text,
  action text not null,
  resource_type text,
  resource_id text,
  device_id uuid,
  result text not null check (result in ('success', 'failure', 'denied')),
  ip text,
  user_agent text,
  request_id text,
  details jsonb,
  xid xid8 not null default pg_current_xact_id(),
  primary key (id)
) partition by range (id);
create index audit_by_org on audit (org_id, id);

create table events (
  id uuid not null,
  org_id uuid,
  type text not null,
  at timestamptz not null,
  -- For subscribers who are narrowed to sites.
  site_id uuid,
  data jsonb not null,
  xid xid8 not null default pg_current_xact_id()
) partition by range (id);
create index events_in_order on events (xid, id);

create table nodes (
  id uuid primary key,
  version text not null,
  started_at timestamptz not null default now(),
  lease_until timestamptz not null
);

-- Makes the partition of a month, attached without a lock that would stop writers.
create function make_partition(parent text, month date) returns void language plpgsql security definer
  set search_path from current as $$
declare
  child text := format('%s_%s', parent, to_char(month, 'YYYYMM'));
  low uuid := uuid7_floor(month::timestamp at time zone 'UTC');
  high uuid := uuid7_floor((month + interval '1 month')::timestamp at time zone 'UTC');
begin
  if parent not in ('commands', 'audit', 'events') then
    raise exception 'no partitioned table %', parent;
  end if;
  perform pg_advisory_xact_lock(hashtext('muster.partitions'));
  if to_regclass(child) is not null then
    return;
  end if;
  execute format('create table %I (like %I including defaults including constraints)', child, parent);
  if parent = 'commands' then
    execute format('alter table %I set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)', child);
  end if;
  execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, child, low, high);
end $$;

-- Partitions from the month before `from_day` to `ahead` months after it.
create function make_partitions(from_day date, ahead integer) returns void language sql security definer
  set search_path from current as $$
  select make_partition(parent, (date_trunc('month', from_day) + make_interval(months => n))::date)
  from unnest(array['commands', 'audit', 'events']) as parent, generate_series(-1, ahead) as n
$$;
select make_partitions((now() at time zone 'UTC')::date, 3);

-- The role of every pool of the hub: it may read and add audit rows, never change or remove one.
-- A cluster has one set of roles for all its databases, so another database may have made it already.
do $$ begin
  create role muster_hub nologin;
exception when duplicate_object or unique_violation then null;
end $$;
do $$ begin
  execute format('grant muster_hub to %I', current_user);
end $$;
grant usage on schema public to muster_hub;
grant select, insert, update, delete on all tables in schema public to muster_hub;
revoke update, delete, truncate on audit from muster_hub;
revoke execute on function make_partition(text, date), make_partitions(date, integer) from public;
grant execute on function make_partitions(date, integer) to muster_hub;
