-- minHub: 0.1.0
-- The same digests and the same seals for less. A digest's JSON array is written as text at once, byte for byte what
-- it was, instead of by way of jsonb. And nothing tries any more to compress ids and hashes, which are not smaller for it.

create or replace function audit_digest(a audit) returns bytea
  language sql stable parallel safe
  return sha256(convert_to(json_build_array(
    a.id, a.org_id, extract(epoch from a.at), a.actor_type, a.actor_id, a.actor_email, a.action,
    a.resource_type, a.resource_id, a.device_id, a.result, a.ip, a.user_agent, a.request_id, a.details,
    a.xid::text)::text, 'UTF8'));

alter table audit_seals
  alter column ids set storage external,
  alter column digests set storage external;
