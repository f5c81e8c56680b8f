-- minHub: 0.1.0
-- What a hub tells the others of this database about itself: where it runs, whether it has Redis, and marks of its
-- secrets, which only who has the secrets can make. Null for hubs of before. Level: PostgreSQL 15.

alter table nodes add column about jsonb;
