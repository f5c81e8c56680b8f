// A day on which the database is lost: dump, proof that the dump is good, damage, restore, and the hub goes on.
// Needs PostgreSQL's own tools in the version of the server, so it runs on Debian's PostgreSQL alone.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import pg from 'pg'
import { FakeAgent } from '../support/agent.ts'
import { removeFolder } from '../support/folders.ts'
import { admin, enrollmentSecret, type Device } from '../support/hub.ts'
import { freePort, HubProcess } from '../support/hub_process.ts'
import { createDatabase, type TestDatabase } from '../support/postgres.ts'

const deploy = join(import.meta.dirname, '..', '..', 'deploy')

let database: TestDatabase
let folder: string
let backups: string
let hub: HubProcess

describe('backup and restore', { skip: await unfit() }, () => {
  before(async () => {
    database = await createDatabase()
    // It came from a server that was far ahead of this one: what the hub makes of that is dumped, too.
    await onDatabase(
      `insert into events (id, type, at, data, xid)
       values (new_uuid7(), 'device.online', now(), '{}', '5000000000')`,
    )
    folder = mkdtempSync(join(tmpdir(), 'muster-backup-'))
    backups = mkdtempSync(join(folder, 'backups-'))
    hub = new HubProcess(await freePort(), {
      DATABASE_URL: database.url,
      DATA_DIR: join(folder, 'data'),
      JWT_SECRET: 'a test secret of more than 32 bytes',
      AGENT_ENROLLMENT_SECRET: enrollmentSecret,
      ADMIN_EMAIL: admin.email,
      ADMIN_PASSWORD: admin.password,
    })
    await hub.start()
  })
  after(async () => {
    await hub.kill('SIGKILL')
    for (const name of await databasesBeside()) await onServer(`drop database "${name}"`)
    await database.drop()
    removeFolder(folder)
  })

  let device: Device
  let dump: string

  test('a dump is made while the hub runs, and a drill proves it without touching anything', async () => {
    device = await enroll()
    const said = await script('backup.sh', ['once'])
    const [name = ''] = readdirSync(backups)
    assert.match(name, /^muster-\d{8}T\d{6}Z\.dump$/)
    assert.match(said.output, new RegExp(`wrote ${name}`))
    dump = join(backups, name)
    assert.equal(statSync(dump).mode & 0o077, 0, 'nobody else reads it')
    const drill = await script('restore.sh', ['--drill', dump])
    assert.equal(drill.code, 0, drill.output)
    assert.match(drill.output, /holds 1 organizations, 1 devices, 1 users/)
    assert.deepEqual(await databasesBeside(), [])
    assert.equal((await script('backup.sh', ['check'])).code, 0)
  })

  test('while a hub runs nothing is restored', async () => {
    const refused = await script('restore.sh', [dump])
    assert.equal(refused.code, 1)
    assert.match(refused.output, /hubs are connected to .*: stop them first/)
  })

  test('what is no dump changes nothing', async () => {
    const broken = join(folder, 'broken.dump')
    writeFileSync(broken, 'not a dump')
    const refused = await script('restore.sh', [broken])
    assert.deepEqual([refused.code, /no dump/.test(refused.output)], [1, true], refused.output)
  })

  test('devices that were lost are back after a restore, and their tokens are good', async () => {
    await enroll()
    await onDatabase('delete from device_presence; delete from devices')
    await hub.kill('SIGTERM')
    const restored = await script('restore.sh', [dump])
    assert.equal(restored.code, 0, restored.output)
    assert.equal((await databasesBeside()).length, 1, 'what was there before is kept')
    await hub.start()
    const agent = await FakeAgent.connect(device, hub.origin)
    await agent.close()
    const token = await signIn()
    const { data } = await get('/devices', token)
    assert.deepEqual(
      data.map(({ id }) => id),
      [device.deviceId],
    )
    assert.equal((await get('/audit/verify', token)).ok, true)
    const [row] = await onDatabase<{ ahead: boolean }>(`select hub_xid() > '5000000000' as ahead`)
    assert.equal(row?.ahead, true)
  })

  test('old dumps go once a new one is there, and not before', async () => {
    const old = join(backups, 'muster-20200101T000000Z.dump')
    writeFileSync(old, 'x')
    const longAgo = new Date(Date.now() - 30 * 86_400_000)
    utimesSync(old, longAgo, longAgo)
    const failed = await script('backup.sh', ['once'], {
      DATABASE_URL: database.url.replace(/\/[^/?]+(\?|$)/, '/nowhere$1'),
    })
    assert.equal(failed.code, 1)
    assert.match(failed.output, /the dumps before are as they were/)
    assert.ok(readdirSync(backups).includes('muster-20200101T000000Z.dump'))
    assert.equal((await script('backup.sh', ['once'])).code, 0)
    assert.ok(!readdirSync(backups).includes('muster-20200101T000000Z.dump'))
    assert.deepEqual(
      readdirSync(backups).filter((name) => name.endsWith('.part')),
      [],
    )
  })

  test('a missing backup is noticed', async () => {
    const empty = mkdtempSync(join(folder, 'empty-'))
    const noticed = await script('backup.sh', ['check'], { BACKUP_DIR: empty })
    assert.equal(noticed.code, 1)
    assert.match(noticed.output, /older than 26 hours/)
  })

  test('a wrong setting is named', async () => {
    const hour = await script('backup.sh', ['once'], { BACKUP_HOUR: '24' })
    assert.deepEqual([hour.code, /BACKUP_HOUR/.test(hour.output)], [1, true])
    const days = await script('backup.sh', ['once'], { BACKUP_KEEP_DAYS: '0' })
    assert.deepEqual([days.code, /BACKUP_KEEP_DAYS/.test(days.output)], [1, true])
    assert.equal((await script('backup.sh', [])).code, 64)
    assert.equal((await script('restore.sh', [])).code, 64)
  })
})

/** Why this can't run here: the tools must be there, and of the server's version. */
async function unfit(): Promise<string | false> {
  let tools: string
  try {
    tools = execFileSync('pg_dump', ['--version'], { encoding: 'utf8' })
  } catch {
    return 'needs pg_dump: apt-get install postgresql-15'
  }
  const major = /(\d+)\.\d+/.exec(tools)?.[1]
  const server = await createDatabase({ migrated: false })
  try {
    const client = new pg.Client(server.url)
    await client.connect()
    const { rows } = await client.query<{ version: string }>(
      `select (current_setting('server_version_num')::int / 10000)::text as version`,
    )
    await client.end()
    const version = rows[0]?.version
    return version === major ? false : `pg_dump is ${major}, the server is ${version}`
  } finally {
    await server.drop()
  }
}

function script(
  name: string,
  args: string[],
  env: Record<string, string> = {},
): Promise<{ code: number; output: string }> {
  const all = {
    PATH: process.env['PATH'] ?? '',
    DATABASE_URL: database.url,
    BACKUP_DIR: backups,
    ...env,
  }
  return new Promise((resolve) => {
    execFile(join(deploy, name), args, { env: all }, (error, stdout, stderr) => {
      const code = typeof error?.code === 'number' ? error.code : error ? 1 : 0
      resolve({ code, output: stdout + stderr })
    })
  })
}

async function enroll(): Promise<Device> {
  const answer = await fetch(`${hub.origin}/api/v1/agents/enroll`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ enrollmentSecret, hostname: 'kept', os: 'linux', arch: 'amd64' }),
  })
  assert.equal(answer.status, 201)
  return (await answer.json()) as Device
}

async function signIn(): Promise<string> {
  const answer = await fetch(`${hub.origin}/api/v1/auth/login`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(admin),
  })
  return ((await answer.json()) as { accessToken: string }).accessToken
}

async function get(path: string, token: string): Promise<{ ok: boolean; data: { id: string }[] }> {
  const headers = { authorization: `Bearer ${token}` }
  const answer = await fetch(`${hub.origin}/api/v1${path}`, { headers })
  assert.equal(answer.status, 200)
  return (await answer.json()) as { ok: boolean; data: { id: string }[] }
}

async function onDatabase<T extends pg.QueryResultRow>(text: string): Promise<T[]> {
  const client = new pg.Client(database.url)
  await client.connect()
  try {
    return (await client.query<T>(text)).rows
  } finally {
    await client.end()
  }
}

const onServer = onDatabase

/** What a restore made beside the database. */
async function databasesBeside(): Promise<string[]> {
  const rows = await onServer<{ datname: string }>(
    `select datname from pg_database
     where starts_with(datname, current_database() || '_restored_')
       or starts_with(datname, current_database() || '_before_')`,
  )
  return rows.map(({ datname }) => datname)
}
