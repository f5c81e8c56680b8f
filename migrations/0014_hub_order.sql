-- minHub: 0.1.0
-- Transactions number events and audit rows, and the numbers of a restored database may be ahead of those of the
-- server that it was restored on. So the hub counts by functions of its own, which a start makes anew where the server
-- is behind (src/hub_order.ts). A webhook hears of what begins after it, also when the outbox is read later than
-- that; of those made before this column nothing is held back. Level: PostgreSQL 15.

create function hub_xid() returns xid8
  language sql stable
  return pg_current_xact_id();

create function hub_snapshot() returns pg_snapshot
  language sql stable parallel safe
  return pg_current_snapshot();

alter table audit alter column xid set default hub_xid();
alter table events alter column xid set default hub_xid();

alter table webhooks add column from_xid xid8 not null default '0';
alter table webhooks alter column from_xid set default hub_xid();
