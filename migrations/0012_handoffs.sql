-- minHub: 0.1.0
-- Several hubs. What one has to look at because another one changed it: rows live until that hub takes them, for
-- milliseconds while Redis carries the hint. Level: PostgreSQL 15.

create table handoffs (
  node_id uuid not null,
  id bigint generated always as identity,
  device_id uuid not null,
  -- Null: the device itself changed.
  command_id uuid,
  -- The hub whose request waits for the command's end.
  origin uuid,
  primary key (node_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

grant select, insert, delete on handoffs to muster_hub;

-- A device that comes to another hub than the one its terminal lives on is found by these few.
create index terminals_open_by_device on terminals (device_id) where ended_at is null;
