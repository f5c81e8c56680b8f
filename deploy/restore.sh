#!/usr/bin/env bash
# Puts a dump of backup.sh in place of the database of DATABASE_URL: `restore.sh FILE`. The database that was there
# is kept beside it under a new name. Refuses while a hub is alive. `restore.sh --drill FILE` restores into a
# database of its own, counts what is in it, and drops it: proof that a dump is good, harmless at any time.
set -euo pipefail

say() { printf 'restore: %s\n' "$*"; }
fail() {
  say "$*" >&2
  exit 1
}
usage() {
  echo 'usage: restore.sh [--drill] FILE' >&2
  exit 64
}

drill=no
if [[ ${1:-} == --drill ]]; then
  drill=yes
  shift
fi
[[ $# == 1 ]] || usage
file=$1
: "${DATABASE_URL:?set DATABASE_URL to the database that the dump is for}"
[[ -r $file ]] || fail "$file cannot be read"
pg_restore --list "$file" >/dev/null || fail "$file is no dump of backup.sh"

# The same server and user, another database: its name is the path of the address.
[[ $DATABASE_URL =~ ^(postgres(ql)?://[^/]*)/([^?]+)(\?.*)?$ ]] ||
  fail 'DATABASE_URL names no database: postgres://user@host:5432/NAME'
server=${BASH_REMATCH[1]}
database=${BASH_REMATCH[3]}
options=${BASH_REMATCH[4]:-}
[[ $database =~ ^[a-z_][a-z0-9_]*$ ]] || fail "the name of the database has characters that are not handled here: $database"
url() { printf '%s/%s%s' "$server" "$1" "$options"; }
sql() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --dbname="$(url "$1")" --command="$2"; }

stamp=$(date -u +%Y%m%d%H%M%S)
restored=${database}_restored_$stamp
kept=${database}_before_$stamp

# By their connections: a hub that ended in order keeps its lease for the sake of its devices.
living_hubs() {
  sql "$database" "select count(*) from pg_stat_activity
    where datname = current_database() and application_name like 'muster %'"
}

if [[ $drill == no ]]; then
  connections=$(living_hubs)
  [[ $connections == 0 ]] ||
    fail "hubs are connected to $database ($connections connections): stop them first, then restore"
fi

# A dump holds no roles; what it grants is granted to the hub's.
sql postgres "do \$\$ begin
  if not exists (select from pg_roles where rolname = 'muster_hub') then create role muster_hub nologin; end if;
end \$\$; grant muster_hub to current_user" 2>/dev/null || sql postgres "select 1 from pg_roles where rolname = 'muster_hub'" >/dev/null

drop_restored() { sql postgres "drop database if exists $restored" || true; }
sql postgres "create database $restored template template0 encoding 'UTF8'"
trap drop_restored EXIT
say "restoring $(basename "$file") into $restored"
pg_restore --dbname="$(url "$restored")" --exit-on-error --single-transaction "$file" ||
  fail 'pg_restore failed; the database is as it was'
sql "$restored" 'analyze'
rows=$(sql "$restored" "select (select count(*) from organizations) || ' organizations, ' || (select count(*) from devices)
  || ' devices, ' || (select count(*) from users) || ' users, ' || (select count(*) from audit) || ' audit entries'")
say "holds $rows"

if [[ $drill == yes ]]; then
  say 'the dump is good; the database was not touched'
  exit 0
fi

# Both names change in one transaction: at no moment is there no database, or half of one.
trap - EXIT
sql postgres "begin; alter database $database rename to $kept; alter database $restored rename to $database; commit" || {
  drop_restored
  fail "the database is in use: close what is connected to $database and try again"
}
say "$database is restored; what was there before is $kept (drop it when you are sure)"
