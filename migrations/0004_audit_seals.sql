-- minHub: 0.1.0
-- Reading, exporting and sealing the audit.

-- Each command adds an audit row, so an index over all rows costs every command about 2 µs. Over all rows are
-- only the two that are asked about commands too; the others leave out `command.create`, which is most of the
-- table, and cost nothing there. What is not selective needs none: the rows of an organization in the order of
-- their ids, by `audit_by_org`, find it soon. `from` and `to` are ranges of ids.
create index audit_by_device on audit (device_id, id) where device_id is not null;
create index audit_by_actor on audit (actor_id, id);
-- For the sealer, which must find what became visible late. Rows of one commit share an entry.
create index audit_by_xid on audit (xid);
-- "C" finds prefixes as well.
create index audit_by_action on audit (action collate "C", id) where action <> 'command.create';
create index audit_by_resource_type on audit (resource_type, id) where action <> 'command.create';
-- The row of a command's creation is found by the time in the command's id instead.
create index audit_by_resource on audit (resource_id, id) where action <> 'command.create';
create index audit_by_result on audit (result, id) where result <> 'success';

-- A cell of CSV (RFC 4180). What a spreadsheet would run as a formula gets an apostrophe in front; full-width
-- signs are formulas to some, and leading blanks are skipped.
create function csv_cell(value text) returns text
  language sql immutable parallel safe
  return coalesce('"' || replace(
    case when value ~ '^\s*[-=+@＝＋－＠\t\r\n]' then '''' || value else value end,
    '"', '""') || '"', '');

-- The seals: per organization a chain, each link over the rows that came since the one before. The zero id is
-- the chain of rows without an organization. Never updated; retention, as the owner, removes a chain's begin
-- after it appended a checkpoint that says so.
create table audit_seals (
  chain uuid not null,
  position bigint not null check (position > 0),
  sealed_at timestamptz not null,
  -- The last row of the link in the order of sealing; every row up to the highest of all links is sealed.
  through_xid xid8 not null,
  through_id uuid not null,
  ids uuid[] not null,
  digests bytea[] not null,
  -- Of a checkpoint: rows with a lower id are gone, and the chain begins after this position and hash.
  dropped_before uuid,
  base_position bigint,
  base_hash bytea,
  previous bytea not null,
  hash bytea not null,
  -- Two hubs that would seal the same rows want the same position.
  primary key (chain, position),
  check (cardinality(ids) = cardinality(digests)),
  check ((dropped_before is null) = (base_position is null)
    and (dropped_before is null) = (base_hash is null))
);
create index audit_seals_in_order on audit_seals (through_xid, through_id);
create index audit_checkpoints on audit_seals (chain, position) where dropped_before is not null;

-- The bytes of an audit row, unambiguous and independent of any setting: a JSON array of every column.
create function audit_digest(a audit) returns bytea
  language sql stable parallel safe
  return sha256(convert_to(jsonb_build_array(
    a.id, a.org_id, extract(epoch from a.at), a.actor_type, a.actor_id, a.actor_email, a.action,
    a.resource_type, a.resource_id, a.device_id, a.result, a.ip, a.user_agent, a.request_id, a.details,
    a.xid::text)::text, 'UTF8'));

-- The hash of a link, over the hash before it and every other column.
create function audit_seal_hash(
  chain uuid, seal_position bigint, sealed_at timestamptz, through_xid xid8, through_id uuid, ids uuid[],
  digests bytea[], dropped_before uuid, base_position bigint, base_hash bytea, previous bytea
) returns bytea
  language sql stable parallel safe
  return sha256(
    convert_to(jsonb_build_array(
      chain, seal_position, extract(epoch from sealed_at), through_xid::text, through_id, ids,
      dropped_before, base_position, encode(base_hash, 'hex'), encode(previous, 'hex'))::text, 'UTF8')
    || coalesce((select string_agg(digest, ''::bytea order by n)
        from unnest(digests) with ordinality as d (digest, n)), ''));

grant select, insert on audit_seals to muster_hub;
