-- minHub: 0.1.0
-- When the token of a device was made: the hub gives it another one after some weeks. Tokens from before begin to age
-- now. The token that an enrollment replaced proves the device to another enrollment for some minutes, should the
-- answer have been lost; it opens no socket.

alter table devices
  add column token_made_at timestamptz not null default now(),
  add column replaced_token_hash bytea;
create index devices_by_replaced_token on devices (replaced_token_hash) where replaced_token_hash is not null;
