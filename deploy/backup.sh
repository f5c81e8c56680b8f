#!/usr/bin/env bash
# Dumps the database: `backup.sh once` now, `backup.sh daily` each day at BACKUP_HOUR (UTC) and at once when there
# is none of the last day, `backup.sh check` fails when the newest is older than 26 hours.
# DATABASE_URL names it, BACKUP_DIR is where dumps go, BACKUP_KEEP_DAYS how long they stay (the newest always).
set -euo pipefail

: "${BACKUP_DIR:?set BACKUP_DIR to the folder for dumps}"
keep_days=${BACKUP_KEEP_DAYS:-14}
hour=${BACKUP_HOUR:-3}

say() { printf 'backup: %s\n' "$*"; }
fail() {
  say "$*" >&2
  exit 1
}

[[ $keep_days =~ ^[1-9][0-9]*$ ]] || fail "BACKUP_KEEP_DAYS is no number of days: $keep_days"
[[ $hour =~ ^([0-9]|1[0-9]|2[0-3])$ ]] || fail "BACKUP_HOUR is no hour from 0 to 23: $hour"

# Dumps are named by their time in UTC, so the last name is the newest.
newest() { find "$BACKUP_DIR" -maxdepth 1 -name 'muster-*.dump' -printf '%f\n' | sort | tail -n 1; }

fresh() {
  [[ -n $(find "$BACKUP_DIR" -maxdepth 1 -name 'muster-*.dump' -mmin "-$1" -print -quit) ]]
}

# A dump counts once it is whole, on the disk, and its table of contents can be read.
backup() {
  : "${DATABASE_URL:?set DATABASE_URL to the database to dump}"
  local name file
  name=muster-$(date -u +%Y%m%dT%H%M%SZ).dump
  file=$BACKUP_DIR/$name
  [[ ! -e $file ]] || fail "$file is there already"
  find "$BACKUP_DIR" -maxdepth 1 -name '*.dump.part' -mmin +1440 -delete
  say "dumping to $name"
  if ! (umask 077 && pg_dump --dbname="$DATABASE_URL" --format=custom --compress=6 --file="$file.part"); then
    rm -f "$file.part"
    fail 'pg_dump failed; the dumps before are as they were'
  fi
  if ! pg_restore --list "$file.part" >/dev/null; then
    rm -f "$file.part"
    fail 'the dump cannot be read back; the dumps before are as they were'
  fi
  sync "$file.part"
  mv "$file.part" "$file"
  sync "$BACKUP_DIR"
  say "wrote $name, $(du -h "$file" | cut -f1)"
  prune "$name"
}

# Only after a good one, and never that one.
prune() {
  local old
  while IFS= read -r old; do
    [[ $old != "$1" ]] || continue
    rm -f "${BACKUP_DIR:?}/$old"
    say "removed $old, older than $keep_days days"
  done < <(find "$BACKUP_DIR" -maxdepth 1 -name 'muster-*.dump' -mtime "+$keep_days" -printf '%f\n')
}

seconds_to_hour() {
  local now next
  now=$(date -u +%s)
  next=$(date -u -d "today $hour:00" +%s)
  ((next > now)) || next=$((next + 86400))
  echo $((next - now))
}

daily() {
  trap 'exit 0' TERM INT
  while true; do
    # A day without a dump is made up for at once; a failure is tried again after ten minutes.
    if ! fresh 1500; then
      (backup) || {
        sleep 600 &
        wait $!
        continue
      }
    fi
    sleep "$(seconds_to_hour)" &
    wait $!
    until (backup); do
      sleep 600 &
      wait $!
    done
  done
}

case ${1:-} in
  once) backup ;;
  daily) daily ;;
  check) fresh 1560 || fail "the newest dump is older than 26 hours: $(newest)" ;;
  newest) newest ;;
  *)
    echo 'usage: backup.sh once | daily | check | newest' >&2
    exit 64
    ;;
esac
