-- minHub: 0.1.0
-- Indexes for the list of users: by the begin of an email, by role, by status. Users are few and change
-- rarely, so each costs next to nothing; without them a rare role is found by reading every user.
create index users_by_email_prefix on users (org_id, lower(email) text_pattern_ops);
create index users_by_all_email_prefix on users (lower(email) text_pattern_ops);
create index users_by_role on users (role, id);
create index users_by_status on users (status, id);
