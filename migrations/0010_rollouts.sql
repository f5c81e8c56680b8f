-- minHub: 0.1.0
-- Roll-outs of an agent version: which devices, in which groups, and how far each has come.

create table rollouts (
  id uuid primary key,
  -- Null: the platform's, over devices of several organizations.
  org_id uuid references organizations,
  version text not null,
  filter jsonb not null,
  status text not null default 'running'
    check (status in ('running', 'paused', 'halted', 'completed', 'aborted')),
  -- Why it has this status, in words.
  reason text,
  -- os/arch of the binaries that there were when it was made.
  platforms text[] not null,
  -- The group at work; those before it are passed.
  group_number smallint not null default 1,
  timeout_seconds integer not null,
  expires_in_seconds integer not null,
  created_by uuid,
  created_email text,
  ip text,
  user_agent text,
  request_id text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  completed_at timestamptz,
  -- When it is next to be looked at; null: when something happens.
  due_at timestamptz default now(),
  -- The lowest command id of a batch that is committed and perhaps not told; null: all are told.
  batch_floor uuid
) with (fillfactor = 80);
create index rollouts_by_org on rollouts (org_id, id);
create index rollouts_due on rollouts (due_at) where due_at is not null;
create index rollouts_by_end on rollouts (completed_at) where completed_at is not null;

-- A group with its counts: what is in none of them is pending. They change with the rows they count.
create table rollout_groups (
  rollout_id uuid not null references rollouts on delete cascade,
  number smallint not null,
  percent smallint not null,
  success_threshold smallint not null,
  error_threshold smallint not null,
  devices integer not null,
  running integer not null default 0,
  completed integer not null default 0,
  failed integer not null default 0,
  timeout integer not null default 0,
  expired integer not null default 0,
  cancelled integer not null default 0,
  skipped integer not null default 0,
  -- It halted the roll-out, which was resumed all the same: its thresholds halt it no more.
  despite boolean not null default false,
  started_at timestamptz,
  completed_at timestamptz,
  primary key (rollout_id, number)
) with (fillfactor = 60);

create table rollout_devices (
  rollout_id uuid not null references rollouts on delete cascade,
  group_number smallint not null,
  device_id uuid not null,
  status text not null check (status in
    ('pending', 'running', 'completed', 'failed', 'timeout', 'expired', 'cancelled', 'skipped')),
  -- Why it was skipped.
  reason text,
  command_id uuid,
  -- The roll-out asked for its command back, and when last.
  withdrawn_at timestamptz,
  ended_at timestamptz,
  primary key (rollout_id, group_number, device_id)
) with (fillfactor = 80);
create index rollout_devices_by_status on rollout_devices (rollout_id, status, group_number, device_id);
create unique index rollout_devices_by_command on rollout_devices (command_id) where command_id is not null;
-- A device is in one open roll-out at a time.
create unique index rollout_devices_open on rollout_devices (device_id) where status in ('pending', 'running');

-- How far the ends of upgrades have been read, in the order of the outbox.
insert into alert_cursors (name, xid, id)
values ('upgrade_ends', pg_current_xact_id(), '00000000-0000-0000-0000-000000000000');
create index events_of_upgrade_ends on events (xid, id)
  where type in ('command.completed', 'command.failed', 'command.timeout', 'command.expired', 'command.cancelled')
    and data->>'action' = 'upgrade_agent';

grant select, insert, update, delete on rollouts, rollout_groups, rollout_devices to muster_hub;
