#!/usr/bin/env bash
# Deploys this checkout: checks every setting, backs up, builds, migrates, and replaces the hubs one at a time while
# the others serve. Run again it brings what runs to this checkout; rollback is the same from the previous tag.
#   ./deploy.sh [--env FILE] [--plan]
# --env FILE  reads settings from FILE (NAME=value lines), else from the environment.
# --plan      says what would happen and changes nothing.
# Exit codes: 0 done, 1 failed (the old version serves on), 64 wrong usage, 78 wrong settings.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly project=muster
readonly required=(SERVICE_DOMAIN ACME_EMAIL POSTGRES_PASSWORD JWT_SECRET AGENT_ENROLLMENT_SECRET
  METRICS_SCRAPE_TOKEN PUBLIC_API_URL GRAFANA_ADMIN_PASSWORD)
readonly optional=(DATABASE_URL REDIS_MAXMEMORY REDIS_MAXMEMORY_POLICY HUB_REPLICAS HUB_CPUS HUB_MEMORY
  POSTGRES_CPUS POSTGRES_MEMORY POSTGRES_SHARED_BUFFERS JWT_SECRET_PREVIOUS AGENT_ENROLLMENT_SECRET_PREVIOUS
  ADMIN_EMAIL ADMIN_PASSWORD SMTP_URL LOG_LEVEL SHARDS WEBHOOK_ALLOWED_CIDRS EDGE_SUBNET BACKUP_HOUR
  BACKUP_KEEP_DAYS DEPLOY_WAIT_SECONDS PROMETHEUS_RETENTION PROMETHEUS_RETENTION_SIZE RELEASES_DIR RELEASE_KEYS_DIR)

# What a hub is started with; when one of them changes, hubs are replaced although their version stays.
readonly hub_settings=(PUBLIC_API_URL JWT_SECRET JWT_SECRET_PREVIOUS AGENT_ENROLLMENT_SECRET
  AGENT_ENROLLMENT_SECRET_PREVIOUS METRICS_SCRAPE_TOKEN ACME_EMAIL ADMIN_EMAIL ADMIN_PASSWORD DATABASE_URL
  POSTGRES_PASSWORD SMTP_URL LOG_LEVEL SHARDS EDGE_SUBNET WEBHOOK_ALLOWED_CIDRS RELEASES_DIR RELEASE_KEYS_DIR
  HUB_CPUS HUB_MEMORY)

env_file=''
plan=no
doing='reading the settings'
problems=()

say() { printf '%s\n' "$*"; }
step() {
  doing=$1
  say "==> $1"
}
die() {
  local code=$1
  shift
  printf 'deploy: %s\n' "$@" >&2
  trap - ERR
  exit "$code"
}
usage() {
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 64
}

# ---- settings --------------------------------------------------------------------------------

read_arguments() {
  while (($# > 0)); do
    case $1 in
      --env)
        (($# > 1)) || usage
        env_file=$2
        shift 2
        ;;
      --env=*)
        env_file=${1#--env=}
        shift
        ;;
      --plan)
        plan=yes
        shift
        ;;
      *) usage ;;
    esac
  done
}

# Lines are read, not run: a value may hold any character, also $ and spaces; quotes around all of it go.
read_env_file() {
  [[ -r $env_file ]] || die 78 "$env_file cannot be read"
  local name line value number=0
  # The file says it all: what the shell happens to hold does not count.
  for name in "${required[@]}" "${optional[@]}"; do unset "$name"; done
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%$'\r'}
    [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
    if ! [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]]; then
      problems+=("$env_file line $number is not NAME=value")
      continue
    fi
    name=${BASH_REMATCH[2]}
    value=${BASH_REMATCH[3]}
    if [[ $value =~ ^\"(.*)\"[[:space:]]*$ || $value =~ ^\'(.*)\'[[:space:]]*$ ]]; then value=${BASH_REMATCH[1]}; fi
    if known "$name"; then
      export "$name=$value"
    else
      problems+=("$env_file line $number: $name is no setting of this script")
    fi
  done <"$env_file"
}

known() {
  local name
  for name in "${required[@]}" "${optional[@]}"; do
    [[ $name == "$1" ]] && return 0
  done
  return 1
}

# Wants a pattern of a variable that is set; says what it should be, and never what a secret is.
expect() {
  local name=$1 pattern=$2 what=$3
  [[ -z ${!name:-} || ${!name} =~ $pattern ]] || problems+=("$name is $what")
}

check_settings() {
  local name
  for name in "${required[@]}"; do
    [[ -n ${!name:-} ]] || problems+=("$name is missing")
  done
  expect SERVICE_DOMAIN '^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]$' 'no host name such as hub.example.com'
  expect ACME_EMAIL '^[^@[:space:]]+@[^@[:space:]]+$' 'no e-mail address'
  expect ADMIN_EMAIL '^[^@[:space:]]+@[^@[:space:]]+$' 'no e-mail address'
  expect POSTGRES_PASSWORD '^[A-Za-z0-9._~-]+$' 'not made of letters, digits and . _ ~ - alone: it becomes part of an address'
  expect POSTGRES_PASSWORD '.{12,}' 'shorter than 12 characters'
  expect JWT_SECRET '.{32,}' 'shorter than 32 characters'
  expect JWT_SECRET_PREVIOUS '.{32,}' 'shorter than 32 characters'
  expect AGENT_ENROLLMENT_SECRET '.{16,}' 'shorter than 16 characters'
  expect METRICS_SCRAPE_TOKEN '^[A-Za-z0-9._~+/=-]{16,}$' 'no token of 16 or more letters, digits and . _ ~ + / = -'
  expect GRAFANA_ADMIN_PASSWORD '.{12,}' 'shorter than 12 characters'
  expect PUBLIC_API_URL '^https://[^/?#[:space:]]+(/api/v1)?/?$' 'no https address such as https://hub.example.com'
  expect DATABASE_URL '^postgres(ql)?://[^/[:space:]]+/[^/[:space:]]+$' 'no address such as postgres://user:password@host:5432/name'
  expect REDIS_MAXMEMORY '^[1-9][0-9]*([kmg]b?)?$' 'no size such as 256mb'
  expect REDIS_MAXMEMORY_POLICY '^(allkeys|volatile)-(lru|lfu|random)$|^volatile-ttl$|^noeviction$' 'no eviction policy of Redis'
  expect HUB_REPLICAS '^[1-9]$' 'no number from 1 to 9'
  expect DEPLOY_WAIT_SECONDS '^[1-9][0-9]{0,3}$' 'no number of seconds'
  expect ADMIN_PASSWORD '^.{12,256}$' 'not of 12 to 256 characters'
  expect SMTP_URL '^smtps?://[^[:space:]]+$' 'no address such as smtps://user:password@mail.example.com'
  expect LOG_LEVEL '^(trace|debug|info|warn|error|fatal|silent)$' 'none of trace, debug, info, warn, error, fatal, silent'
  expect SHARDS '^([1-9]|[1-5][0-9]|6[0-4])$' 'no number from 1 to 64'
  expect WEBHOOK_ALLOWED_CIDRS '^[0-9A-Fa-f.:/, ]+$' 'no list of networks such as 10.0.0.0/8'
  expect BACKUP_HOUR '^([0-9]|1[0-9]|2[0-3])$' 'no hour from 0 to 23'
  expect BACKUP_KEEP_DAYS '^[1-9][0-9]*$' 'no number of days'
  for name in HUB_CPUS POSTGRES_CPUS; do
    expect "$name" '^([1-9][0-9]*(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)$' 'no number of cores such as 2 or 0.5'
  done
  for name in HUB_MEMORY POSTGRES_MEMORY; do
    expect "$name" '^[1-9][0-9]*([bkmgBKMG]|[kmgKMG][bB])?$' 'no size such as 2G'
  done
  expect POSTGRES_SHARED_BUFFERS '^[1-9][0-9]*(kB|MB|GB)$' 'no size such as 512MB'
  expect PROMETHEUS_RETENTION '^([0-9]+(y|w|d|h|m|s))+$' 'no time such as 30d'
  expect PROMETHEUS_RETENTION_SIZE '^[1-9][0-9]*(B|KB|MB|GB|TB)$' 'no size such as 10GB'
  expect EDGE_SUBNET '^([0-9]{1,3}\.){3}[0-9]{1,3}/([89]|1[0-9]|2[0-9])$' 'no subnet such as 172.31.250.0/24'
  if [[ -n ${SERVICE_DOMAIN:-} && ${PUBLIC_API_URL:-} =~ ^https://([^/:?#]+) && ${BASH_REMATCH[1]} != "$SERVICE_DOMAIN" ]]; then
    problems+=("PUBLIC_API_URL is at ${BASH_REMATCH[1]}, and SERVICE_DOMAIN is $SERVICE_DOMAIN: agents would not find it")
  fi
  for name in "${required[@]}" "${optional[@]}"; do
    if [[ ${!name:-} == *$'\n'* ]]; then problems+=("$name holds more than one line"); fi
  done
  ((${#problems[@]} == 0)) || die 78 "${#problems[@]} setting(s) to put right, nothing was changed:" "${problems[@]/#/  }"
}

# ---- what is there ---------------------------------------------------------------------------

compose() { docker compose --project-name "$project" "$@"; }

check_tools() {
  local tool
  for tool in docker git curl getent; do
    command -v "$tool" >/dev/null || die 1 "$tool is not installed"
  done
  docker info >/dev/null 2>&1 || die 1 'the docker engine does not answer: is it running, and may this user use it?'
  docker compose version >/dev/null 2>&1 || die 1 'docker has no compose plugin: install docker-compose-plugin'
}

# The version that people name, and which very code it is.
name_this_version() {
  version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' package.json)
  [[ -n $version ]] || die 1 'package.json holds no version'
  MUSTER_TAG=$version-$(git rev-parse --short=12 HEAD)
  [[ -z $(git status --porcelain --untracked-files=no) ]] || MUSTER_TAG+=-changed
  export MUSTER_TAG
}

# What containers read of this checkout, as labels: a file that changed is a new container, whose mount would else be
# the old one for ever.
name_these_files() {
  CADDY_FILES=$(files_hash deploy/Caddyfile)
  PROMETHEUS_FILES=$(files_hash deploy/prometheus.yml deploy/alerts.yml)
  BACKUP_FILES=$(files_hash deploy/backup.sh deploy/restore.sh)
  export CADDY_FILES PROMETHEUS_FILES BACKUP_FILES
}

files_hash() { cat "$@" | sha256sum | cut -c 1-16; }

# The settings of the hubs as a label, which tells that they changed and not what they are.
name_these_settings() {
  local name
  MUSTER_SETTINGS=$(for name in "${hub_settings[@]}"; do printf '%s=%s\0' "$name" "${!name:-}"; done |
    sha256sum | cut -c 1-16)
  export MUSTER_SETTINGS
}

name_replicas() {
  replicas=${HUB_REPLICAS:-2}
  local number
  HUBS=''
  for ((number = 1; number <= replicas; number++)); do HUBS+="${HUBS:+ }$project-hub-$number:8080"; done
  export HUBS
}

# Without a database elsewhere ours is one of the services.
choose_services() {
  data_services=(redis)
  if [[ -z ${DATABASE_URL:-} ]]; then
    export COMPOSE_PROFILES=database
    data_services+=(postgres)
  fi
}

# The tag of a container's image, or nothing.
running_tag() { docker inspect --format '{{.Config.Image}}' "$project-hub-$1" 2>/dev/null | sed 's/^.*://' || true; }

running_settings() {
  docker inspect --format '{{index .Config.Labels "muster.settings"}}' "$project-hub-$1" 2>/dev/null || true
}

running_hubs() { docker ps --filter "name=^$project-hub-[0-9]+\$" --format '{{.Names}}' | sort; }

# One statement on the database.
ask_database() {
  compose run --rm --no-deps -T --entrypoint sh backup -c "psql --no-psqlrc -Atqc \"\$0\" \"\$DATABASE_URL\"" "$1"
}

# Nothing where there is no schema yet; fails where the database does not answer, which is not the same.
applied_migrations() {
  local schema
  schema=$(ask_database "select case when to_regclass('migration.files') is null then 'none' else 'there' end") || return 1
  [[ $schema == there ]] || return 0
  ask_database "select name from migration.files order by name"
}

pending_migrations() {
  local file name
  for file in migrations/*.sql; do
    name=$(basename "$file" .sql)
    grep -qx "$name" <<<"$applied" || printf '%s\n' "$name"
  done
}

# The highest minHub among what is pending: an older hub will not run on the new schema.
needed_hub() {
  local name
  while IFS= read -r name; do
    if [[ -n $name ]]; then sed -n '1s/^-- minHub: //p' "migrations/$name.sql"; fi
  done <<<"$pending" | sort --version-sort | tail -n 1
}

can_roll_back() {
  local needs
  needs=$(needed_hub)
  [[ -z $needs || $(printf '%s\n%s\n' "$needs" "${old_version:-$needs}" | sort --version-sort | tail -n 1) == "${old_version:-$needs}" ]]
}

look_around() {
  old_tag=''
  local name
  for name in $(running_hubs); do
    old_tag=$(running_tag "${name##*-}")
    [[ -z $old_tag ]] || break
  done
  # 1.2.3-rc.1-0123456789ab and 1.2.3-0123456789ab-changed: the version is what stands before the commit.
  old_version=$(sed -E 's/-[0-9a-f]{12}(-changed)?$//' <<<"$old_tag")
  # A plan is made before anything runs: then nothing is known of a database that is down.
  applied=$(applied_migrations 2>/dev/null || true)
  pending=$(pending_migrations)
  newest_backup=$(compose run --rm --no-deps -T backup newest 2>/dev/null || true)
}

describe_plan() {
  say "this checkout   $MUSTER_TAG"
  say "running         ${old_tag:-nothing: this is the first deployment}"
  say "replicas        $replicas, one replaced at a time"
  say "database        $([[ -n ${DATABASE_URL:-} ]] && echo 'elsewhere (DATABASE_URL)' || echo 'PostgreSQL on this server')"
  if [[ -n $pending ]]; then say "migrations      $(tr '\n' ' ' <<<"$pending")"; else say 'migrations      none pending'; fi
  say "last backup     ${newest_backup:-none}"
  if [[ -z $old_tag ]]; then
    say 'rollback        there is nothing to go back to'
  elif can_roll_back; then
    say "rollback        possible: $old_version runs on the new schema"
  else
    say "rollback        only by restoring the backup: $old_version does not run on the new schema, which needs $(needed_hub)"
  fi
}

check_dns_and_ports() {
  local addresses own address holder port
  addresses=$(getent ahosts "$SERVICE_DOMAIN" | awk '{print $1}' | sort -u) || true
  [[ -n $addresses ]] || die 1 "$SERVICE_DOMAIN has no address: make a DNS record that points here, certificates need it"
  own=$(hostname -I 2>/dev/null || true)
  for address in $addresses; do
    [[ " $own " != *" $address "* ]] || return 0
  done
  say "    $SERVICE_DOMAIN is at $(tr '\n' ' ' <<<"$addresses")which is no address of this server; fine behind NAT or a load balancer"
  for port in 80 443; do
    holder=$(docker ps --filter "publish=$port" --format '{{.Names}}' | grep -v "^$project-caddy-" || true)
    [[ -z $holder ]] || die 1 "port $port is held by the container $holder"
  done
}

# ---- the deployment --------------------------------------------------------------------------

# Waits until a container is healthy; fails with its last lines when it is not in time.
wait_healthy() {
  local container=$1 seconds=${2:-${DEPLOY_WAIT_SECONDS:-180}} state=starting
  while ((seconds-- > 0)); do
    state=$(docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' "$container" 2>/dev/null || echo gone)
    [[ $state != healthy ]] || return 0
    [[ $state != exited && $state != dead ]] || break
    sleep 1
  done
  say "    $container is $state; its last lines:" >&2
  docker logs --tail 30 "$container" >&2 || true
  return 1
}

# A hub of this tag in the place of that number.
start_hub() {
  compose up --detach --no-deps "hub-$1"
  wait_healthy "$project-hub-$1"
}

# What a hub says of itself must be this very version.
check_version() {
  local answered
  answered=$(docker exec "$project-hub-$1" node -e \
    'fetch("http://127.0.0.1:8080/health").then((r) => r.json()).then((b) => console.log(b.version))')
  [[ $answered == "$version" ]] || {
    say "    $project-hub-$1 says it is $answered, not $version" >&2
    return 1
  }
}

remove_hub() {
  # It drains by itself: readiness turns, agents move, calls are answered, and only then it ends.
  docker stop --time 90 "$project-hub-$1" >/dev/null
  docker rm "$project-hub-$1" >/dev/null
}

replace_hub() {
  local number=$1 before
  before=$(running_tag "$number")
  if [[ $before == "$MUSTER_TAG" && $(running_settings "$number") == "$MUSTER_SETTINGS" ]] &&
    wait_healthy "$project-hub-$number" 1 2>/dev/null; then
    say "    hub $number runs $MUSTER_TAG already"
    return 0
  fi
  if docker inspect "$project-hub-$number" >/dev/null 2>&1; then remove_hub "$number"; fi
  if start_hub "$number" && check_version "$number"; then
    say "    hub $number runs $MUSTER_TAG"
    # Caddy looks at hubs every 2 s, for 2 s at most: it has to see this one before the next one takes leave.
    sleep 5
    return 0
  fi
  # The old one back in its place, so that what serves is whole.
  docker rm --force "$project-hub-$number" >/dev/null 2>&1 || true
  if [[ -n $before && $before != "$MUSTER_TAG" ]]; then
    say "    putting $before back in the place of hub $number" >&2
    MUSTER_TAG=$before start_hub "$number" || say "    hub $number could not be put back" >&2
  elif [[ -n $before ]]; then
    say "    hub $number is left out: its version ran before, so look at the settings that changed" >&2
  fi
  return 1
}

replace_hubs() {
  local number name
  for ((number = 1; number <= replicas; number++)); do
    step "replacing hub $number of $replicas"
    replace_hub "$number"
  done
  for name in $(running_hubs); do
    if ((${name##*-} > replicas)); then
      step "removing ${name}: one replica less"
      remove_hub "${name##*-}"
    fi
  done
}

# A new container only where the image or its settings changed: else its sockets would be cut for nothing.
start_edge() {
  compose up --detach --no-deps caddy prometheus grafana backup
  wait_healthy "$project-caddy-1"
  compose exec -T caddy caddy reload --config /etc/caddy/Caddyfile --adapter caddyfile
}

check_from_outside() {
  local answered seconds=${DEPLOY_WAIT_SECONDS:-180}
  # The first certificate takes a while.
  while ((seconds-- > 0)); do
    answered=$(curl --silent --max-time 5 "https://$SERVICE_DOMAIN/health" | sed -n 's/.*"version":"\([^"]*\)".*/\1/p' || true)
    [[ $answered != "$version" ]] || return 0
    sleep 1
  done
  say "    https://$SERVICE_DOMAIN/health answers ${answered:-nothing} instead of $version" >&2
  return 1
}

invite_first_admin() {
  [[ -z ${ADMIN_EMAIL:-} ]] || return 0
  # Until somebody has accepted: a deployment may have broken off before it could show the link.
  local admins
  admins=$(ask_database "select count(*) from users where role = 'platform_admin' and status <> 'invited'")
  [[ $admins == 0 ]] || return 0
  step "inviting the first admin, $ACME_EMAIL"
  compose run --rm --no-deps -T hub-1 node scripts/admin.ts invite "$ACME_EMAIL"
}

failed() {
  local code=$?
  trap - ERR
  printf 'deploy: failed while %s\n' "$doing" >&2
  if [[ -n ${old_tag:-} ]]; then
    printf 'deploy: hubs of %s that were not replaced yet serve on; see what runs: docker ps --filter name=%s-\n' "$old_tag" "$project" >&2
    printf 'deploy: put right what failed and run this again, or check out the previous tag and run its deploy.sh\n' >&2
  else
    printf 'deploy: put right what failed and run this again; nothing that was made is lost\n' >&2
  fi
  exit "$((code == 0 ? 1 : code))"
}

main() {
  read_arguments "$@"
  if [[ -n $env_file ]]; then read_env_file; fi
  check_settings
  check_tools
  name_this_version
  name_these_settings
  name_these_files
  name_replicas
  choose_services
  trap failed ERR
  look_around
  describe_plan
  if [[ $plan == yes ]]; then
    say 'nothing was changed (--plan)'
    return 0
  fi
  step 'checking DNS and ports'
  check_dns_and_ports
  mkdir -p "${RELEASES_DIR:-releases}" "${RELEASE_KEYS_DIR:-release-keys}"
  step "building $MUSTER_TAG"
  compose build hub-1
  step "starting ${data_services[*]}"
  compose up --detach --wait "${data_services[@]}"
  step 'looking at the database'
  applied=$(applied_migrations)
  # Docker makes a new volume root's, and the backups are made as nobody in particular.
  compose run --rm --no-deps -T --user 0:0 --cap-add CHOWN --entrypoint chown backup 999:999 /backups
  if [[ -n $applied ]]; then
    step 'backing up the database'
    compose run --rm --no-deps -T backup once
  fi
  step 'migrating the database'
  compose run --rm --no-deps -T hub-1 node scripts/migrate.ts
  invite_first_admin
  replace_hubs
  step 'starting Caddy, Prometheus, Grafana and the backups'
  start_edge
  step 'checking from outside'
  check_from_outside
  say "Muster $version serves at https://$SERVICE_DOMAIN (dashboards at /grafana/)"
}

main "$@"
