-- minHub: 0.1.0
-- Indexes in the orders in which lists are read, so that a page costs the same at any depth. Devices are
-- enrolled rarely, and a heartbeat changes none of these columns.

-- "C" finds prefixes and gives the order as well, which text_pattern_ops does not.
drop index devices_by_hostname, devices_by_all_hostnames;
create index devices_by_hostname on devices (org_id, (lower(hostname) collate "C"), id);
create index devices_by_all_hostnames on devices ((lower(hostname) collate "C"), id);
create index devices_by_site_hostname on devices (site_id, (lower(hostname) collate "C"), id);
create index devices_by_os on devices (org_id, os, id);
create index devices_by_all_os on devices (os, id);
-- A change of status enters one index more, beside the primary key and the organization's.
create index device_presence_by_any_status on device_presence (status, device_id);
-- How most commands don't end; what completes never enters it, so a quick command pays nothing.
create index commands_by_other_end on commands (device_id, status, id)
  where completed_at is not null and status <> 'completed';
-- An alert is made once for many repeats, and these columns never change.
create index alerts_by_kind on alerts (org_id, kind, id);
create index alerts_by_all_kinds on alerts (kind, id);
create index alerts_by_severity on alerts (org_id, severity, id);
create index alerts_by_all_severities on alerts (severity, id);
