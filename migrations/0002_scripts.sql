-- minHub: 0.1.0
-- The library of scripts with their versions, the executions that run them on devices, and the keys under
-- which secret parameters are sealed. Level: PostgreSQL 15.

-- Keys of our own, each wrapped by a key derived from JWT_SECRET and wrapped anew when that is rotated.
create table data_keys (
  id uuid primary key,
  wrapped bytea not null,
  created_at timestamptz not null default now()
);

create table scripts (
  id uuid primary key,
  -- Null: the platform's, read by every organization.
  org_id uuid references organizations,
  name text not null,
  description text,
  version integer not null default 1,
  created_by uuid,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  deleted_at timestamptz
);
create index scripts_by_org on scripts (org_id, id) where deleted_at is null;
create index scripts_listed on scripts (id) where deleted_at is null;

-- What runs. A version stays as long as an execution names it, and is never changed.
create table script_versions (
  script_id uuid not null references scripts,
  version integer not null,
  language text not null
    check (language in ('bash', 'sh', 'powershell', 'cmd', 'python', 'node')),
  content text not null,
  -- So that a page of scripts is cut to a size without reading what is past it.
  content_bytes integer not null,
  os text[] not null,
  parameters jsonb not null default '[]',
  timeout_seconds integer not null,
  sha256 text not null,
  created_by uuid,
  created_at timestamptz not null default now(),
  primary key (script_id, version)
);

create table executions (
  id uuid primary key,
  -- Null: started by the platform for devices of several organizations.
  org_id uuid references organizations,
  script_id uuid not null,
  version integer not null,
  status text not null default 'pending' check (status in ('pending', 'running', 'completed', 'failed')),
  -- Why it failed.
  error text,
  -- Whom it may reach: the scope of who started it. Null: all.
  scope_org_id uuid,
  scope_site_ids uuid[],
  -- The sites it concerns, for readers who are narrowed to sites. Null: any.
  site_ids uuid[],
  -- One of the two: sorted ids, or the filter of a device list.
  device_ids uuid[],
  filter jsonb,
  -- Secret ones are in `secrets` alone, sealed under a data key, and gone with the end.
  parameters jsonb not null default '{}',
  env jsonb not null default '{}',
  secrets bytea,
  timeout_seconds integer not null,
  expires_at timestamptz not null,
  created_by uuid,
  created_email text,
  ip text,
  user_agent text,
  request_id text,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  completed_at timestamptz,
  -- The fan-out goes over devices in order of id; this is the last one dealt with. It moves in the
  -- statement that adds the commands of a batch, so that a batch is done once or not at all.
  device_cursor uuid,
  -- The lowest command id of the last batch, which may be committed and not told yet.
  batch_floor uuid,
  touched_at timestamptz not null default now(),
  -- All devices were dealt with.
  fanned_out_at timestamptz,
  refused integer not null default 0,
  total integer not null default 0,
  started integer not null default 0,
  skipped_suspended integer not null default 0,
  skipped_decommissioned integer not null default 0,
  skipped_queue_full integer not null default 0,
  skipped_os integer not null default 0,
  skipped_gone integer not null default 0,
  -- How its commands ended, once all have; until then they are counted in execution_ends.
  completed integer not null default 0,
  failed integer not null default 0,
  timeout integer not null default 0,
  cancelled integer not null default 0,
  expired integer not null default 0,
  foreign key (script_id, version) references script_versions
);
create index executions_by_org on executions (org_id, id);
create index executions_by_script on executions (script_id, id);
create index executions_by_version on executions (script_id, version);
create index executions_unfinished on executions (touched_at) where fanned_out_at is null;

-- Ends of an execution's commands, added up by the statement that ends them: in 16 slots, so that shards
-- and sweeps rarely meet in one row. Without a foreign key, whose check would wait for the fan-out's lock.
create table execution_ends (
  execution_id uuid not null,
  slot smallint not null,
  completed integer not null default 0,
  failed integer not null default 0,
  timeout integer not null default 0,
  cancelled integer not null default 0,
  expired integer not null default 0,
  -- Changed since the sweep last asked whether the execution is complete.
  fresh boolean not null default true,
  primary key (execution_id, slot)
) with (fillfactor = 60);
create index execution_ends_fresh on execution_ends (execution_id) where fresh;

grant select, insert, update, delete
  on data_keys, scripts, script_versions, executions, execution_ends to muster_hub;
