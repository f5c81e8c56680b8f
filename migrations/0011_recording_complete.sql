-- minHub: 0.1.0
-- Whether everything that a terminal showed is in its recording; known at the end. Level: PostgreSQL 15.

alter table terminals add column recording_complete boolean;
