-- minHub: 0.1.0
-- Terminal sessions and the recordings of their output. Level: PostgreSQL 15.

create table terminals (
  id uuid primary key,
  org_id uuid not null references organizations,
  device_id uuid not null references devices,
  user_id uuid,
  user_email text not null,
  -- The hub that holds the session: only there does it live.
  node_id uuid not null,
  cols integer not null,
  rows integer not null,
  started_at timestamptz not null default now(),
  ended_at timestamptz,
  end_reason text,
  exit_code integer,
  -- Known at the end, unless the hub died.
  bytes_in bigint,
  bytes_out bigint
);
create index terminals_by_device on terminals (device_id, id);
create index terminals_open on terminals (node_id) where ended_at is null;
create index terminals_by_end on terminals (org_id, ended_at) where ended_at is not null;

-- Lines of an asciicast, in pieces as they were written. Output alone: what people type may be a password.
create table terminal_recordings (
  terminal_id uuid not null references terminals on delete cascade,
  seq integer not null,
  lines text not null,
  primary key (terminal_id, seq)
);

grant select, insert, update, delete on terminals, terminal_recordings to muster_hub;
