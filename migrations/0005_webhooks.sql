-- minHub: 0.1.0
-- Webhooks: who is told of which events, and every telling. Level: PostgreSQL 15.

create table webhooks (
  id uuid primary key,
  org_id uuid not null references organizations,
  url text not null,
  events text[] not null,
  status text not null default 'active' check (status in ('active', 'disabled')),
  -- Sealed; the previous one signs beside it until its overlap ends.
  secret bytea not null,
  previous_secret bytea,
  previous_until timestamptz,
  -- Attempts that failed since the last one that did not, and since when.
  failures integer not null default 0,
  failing_since timestamptz,
  created_by uuid,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- Gone for everyone; its deliveries are removed in batches, then the row.
  deleted_at timestamptz
);
create index webhooks_by_org on webhooks (org_id, id);
create index webhooks_deleted on webhooks (id) where deleted_at is not null;

create table webhook_deliveries (
  id uuid primary key,
  webhook_id uuid not null references webhooks,
  event_id uuid not null,
  event_type text not null,
  -- What is sent, to the letter: a retry is the same message.
  body text not null,
  -- Asked for by a person: it goes out while the webhook is disabled, too.
  manual boolean not null default false,
  status text not null default 'pending' check (status in ('pending', 'succeeded', 'failed')),
  attempts integer not null default 0,
  -- While an attempt is under way: when another may take it for lost.
  next_attempt_at timestamptz not null default now(),
  attempted_at timestamptz,
  completed_at timestamptz,
  response_status integer,
  response text,
  error text,
  duration_ms integer,
  created_at timestamptz not null default now()
);
create index webhook_deliveries_by_webhook on webhook_deliveries (webhook_id, id);
create index webhook_deliveries_due on webhook_deliveries (webhook_id, next_attempt_at)
  where status = 'pending';

-- Up to where the outbox was turned into deliveries: one row, moved by whoever locks it.
create table webhook_cursor (
  one boolean primary key default true check (one),
  xid xid8 not null,
  id uuid not null
);
insert into webhook_cursor (xid, id)
values (pg_snapshot_xmin(pg_current_snapshot()), '00000000-0000-0000-0000-000000000000');

-- Where a statement makes the rows itself; within a millisecond in no order.
create function new_uuid7() returns uuid
  language sql volatile parallel safe
  return (left(uuid7_floor(clock_timestamp())::text, 14) || '7' || substr(gen_random_uuid()::text, 16))::uuid;

grant select, insert, update, delete on webhooks, webhook_deliveries to muster_hub;
grant select, update on webhook_cursor to muster_hub;
