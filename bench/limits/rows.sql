-- What PostgreSQL alone needs for the rows of a script on $1 devices: commands, audit and events as the hub
-- stores them, then their ends with events, in the hub's batches of 500. One statement here is one commit.
-- Statements are separated by a line of two dashes; $2 is the number of the batch, from 0.
insert into commands (id, device_id, org_id, action, payload, timeout_seconds, execution_id, created_at,
  expires_at)
select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
  d.device_id, d.org_id, 'run_script', '{"scriptId": "x", "version": 1, "language": "sh"}', 300,
  '01a00000-0000-7000-8000-000000000000', now(), now() + interval '1 day'
from (select * from device_presence order by device_id limit least(500, $1::int) offset $2::int * 500) d
--
insert into audit (id, org_id, at, actor_type, actor_email, action, resource_type, resource_id, device_id,
  result, ip, request_id, details)
select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
  d.org_id, now(), 'user', 'bench@example.com', 'command.create', 'command', d.device_id::text,
  d.device_id, 'success', '127.0.0.1', 'bench', '{"after": {"action": "run_script"}}'
from (select * from device_presence order by device_id limit least(500, $1::int) offset $2::int * 500) d
--
insert into events (id, org_id, type, at, data)
select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
  d.org_id, 'command.queued', now(), jsonb_build_object('deviceId', d.device_id, 'status', 'pending')
from (select * from device_presence order by device_id limit least(500, $1::int) offset $2::int * 500) d
--
with ended as (
  update commands c set status = 'completed', completed_at = now(), attempts = 1, sent_at = now(),
    delivered_at = now(), started_at = now(),
    result = '{"exitCode": 0, "stdout": "ok", "stderr": "", "truncated": false, "error": null}'
  from (select * from device_presence order by device_id limit least(500, $1::int) offset $2::int * 500) d
  where c.device_id = d.device_id and c.completed_at is null
  returning c.device_id, c.org_id
)
insert into events (id, org_id, type, at, data)
select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
  e.org_id, 'command.completed', now(), jsonb_build_object('deviceId', e.device_id, 'status', 'completed')
from ended e
