import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, beforeEach, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { bootstrap, introduce, type BootstrapOptions } from '../src/bootstrap.ts'
import { sha256 } from '../src/auth.ts'
import { hubVersion } from '../src/config.ts'
import { migrationsDirectory } from '../src/database.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { startEmbedded } from '../src/embedded.ts'
import { migrate } from '../src/migrate.ts'
import { passwords } from '../src/passwords.ts'
import { createDatabase } from './support/postgres.ts'
import { removeFolder } from './support/folders.ts'

const publicOrigin = 'https://hub.example.org'
const hasher = passwords({ threads: 1 })
const dataDir = mkdtempSync(join(tmpdir(), 'muster-bootstrap-'))
let database: Awaited<ReturnType<typeof createDatabase>>
let db: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 8 })
})
after(async () => {
  await Promise.all([hasher.close(), db.close()])
  await database.drop()
  removeFolder(dataDir)
})
beforeEach(async () => {
  await db.query('delete from users')
  await db.query('delete from sites')
  await db.query('delete from organizations')
})

function start(
  config: Partial<BootstrapOptions['config']> = {},
  inviteEmail?: string,
): ReturnType<typeof bootstrap> {
  const defaults = { production: false, dataDir, adminEmail: undefined, adminPassword: undefined }
  const options = { db, passwords: hasher, publicOrigin, inviteEmail }
  return bootstrap({ ...options, config: { ...defaults, ...config } })
}

const users = () =>
  db.query<{ email: string; role: string; status: string; password_hash: string | null }>(
    'select email, role, status, password_hash from users',
  )

test('an empty database gets one organization and one site, both named Default', async () => {
  await start()
  await start()
  const rows = await db.query(
    'select o.name, o.slug, s.name as site from organizations o join sites s on s.org_id = o.id',
  )
  assert.deepEqual(rows, [{ name: 'Default', slug: 'default', site: 'Default' }])
})

test('without any wish the first admin gets a password that stays in the data folder', async () => {
  const admin = await start()
  assert.ok(admin?.generated)
  assert.equal(admin.email, 'admin@localhost')
  const { password, file } = admin.generated
  assert.equal(readFileSync(file, 'utf8').trim(), password)
  assert.equal(statSync(file).mode & 0o777, 0o600)
  assert.ok(password.length >= 40)
  const [user] = await users()
  assert.equal(user?.role, 'platform_admin')
  assert.equal(await hasher.verify(password, user?.password_hash ?? null), true)
  assert.ok(introduce(admin).join('\n').includes(password))
  // Told once.
  assert.equal(await start(), undefined)
})

test('ADMIN_EMAIL and ADMIN_PASSWORD make the first admin, and the password is not told', async () => {
  const wish = { adminEmail: 'root@example.org', adminPassword: 'a wish of twelve' }
  const admin = await start({ ...wish, production: true }, 'acme@example.org')
  assert.deepEqual(admin, { email: 'root@example.org' })
  assert.ok(!introduce(admin).join().includes(wish.adminPassword))
  const [user] = await users()
  assert.equal(await hasher.verify(wish.adminPassword, user?.password_hash ?? null), true)
})

test('in production without ADMIN_PASSWORD the admin is invited, by a link that is not stored', async () => {
  const admin = await start({ production: true }, 'acme@example.org')
  assert.match(
    admin?.inviteUrl ?? '',
    /^https:\/\/hub\.example\.org\/accept-invite#token=min_[\w-]{43}$/,
  )
  const [user] = await db.query<{ email: string; status: string; hash: Buffer; hours: number }>(
    `select email, status, invite_hash as hash,
       round(extract(epoch from invite_expires_at - now()) / 3600)::int as hours from users`,
  )
  assert.deepEqual([user?.email, user?.status], ['acme@example.org', 'invited'])
  assert.deepEqual(user?.hash, sha256(admin?.inviteUrl?.split('=')[1] ?? ''))
  assert.equal(user?.hours, 72)
  const [event] = await db.query(
    `select data ->> 'email' as email from events where type = 'user.invited'`,
  )
  assert.deepEqual(event, { email: 'acme@example.org' })
})

test('in production nobody is made up when nobody is named', async () => {
  assert.equal(await start({ production: true }), undefined)
  assert.deepEqual(await users(), [])
})

test('hubs that start together make one of each, and one of them tells', async () => {
  const admins = await Promise.all(
    [1, 2, 3, 4].map(() => start({ production: true }, 'a@example.org')),
  )
  assert.equal(admins.filter(Boolean).length, 1)
  assert.equal((await users()).length, 1)
  assert.equal((await db.query('select from organizations')).length, 1)
})

// ---- npm run admin ---------------------------------------------------------------------------

const script = fileURLToPath(new URL('../scripts/admin.ts', import.meta.url))

async function runAdmin(args: string[], env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [script, ...args], {
    env: { PATH: process.env['PATH'], DATABASE_URL: database.url, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const [out, err, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ])
  return { out, err, code: code as number }
}

test('an invitation by hand is made, and repeated with a new link until it is accepted', async () => {
  const first = await runAdmin(['invite', 'New@example.org'], {
    PUBLIC_API_URL: `${publicOrigin}/api/v1`,
  })
  assert.equal(first.code, 0, first.err)
  assert.match(first.out, /^https:\/\/hub\.example\.org\/accept-invite#token=min_[\w-]{43}\n$/)
  const elsewhere = { PUBLIC_API_URL: 'https://elsewhere.example.org' }
  const second = await runAdmin(['invite', 'new@example.org'], elsewhere)
  assert.equal(second.code, 0, second.err)
  assert.match(second.out, /^https:\/\/elsewhere\.example\.org\/accept-invite#token=min_/)
  assert.notEqual(second.out.split('=')[1], first.out.split('=')[1])
  const [user] = await db.query<{ hash: Buffer }>('select invite_hash as hash from users')
  assert.deepEqual(user?.hash, sha256(second.out.trim().split('=')[1] ?? ''))

  await db.query(`update users set status = 'active', invite_hash = null`)
  const third = await runAdmin(['invite', 'new@example.org'], elsewhere)
  assert.deepEqual([third.code, third.out], [1, ''])
  assert.match(third.err, /accepted an invitation before and is active/)
})

test('beside a running hub the invitation finds its embedded database', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'muster-admin-'))
  const server = await startEmbedded({ dataDir: join(folder, 'postgres'), log: () => {} })
  const own = openDatabase({ url: server.url, name: 'test', connections: 1 })
  const env = { DATABASE_URL: '', DATA_DIR: folder }
  try {
    const empty = await runAdmin(['invite', 'a@example.org'], env)
    assert.equal(empty.code, 1)
    assert.match(empty.err, /no tables yet.*npm run migrate/)
    await migrate({
      connectionString: server.url,
      hubVersion,
      directory: migrationsDirectory,
    })
    const early = await runAdmin(['invite', 'a@example.org'], env)
    assert.equal(early.code, 1)
    assert.match(early.err, /^No hub has told where it is reached.*PUBLIC_API_URL/)
    assert.deepEqual(await own.query('select from users'), [])
    await own.query(
      `insert into nodes (id, version, lease_until, about)
       values (gen_random_uuid(), '1.0.0', now(), '{"publicOrigin": "http://127.0.0.1:9999"}')`,
    )
    const invited = await runAdmin(['invite', 'a@example.org'], env)
    assert.equal(invited.code, 0, invited.err)
    assert.match(invited.out, /^http:\/\/127\.0\.0\.1:9999\/accept-invite#token=/)
    const [user] = await own.query<{ hash: Buffer }>('select invite_hash as hash from users')
    assert.deepEqual(user?.hash, sha256(invited.out.trim().split('=')[1] ?? ''))
    assert.deepEqual(readdirSync(folder), ['postgres'], 'the command made secrets')
  } finally {
    await own.close()
    await server.stop()
    removeFolder(folder)
  }
})

test('what can not be done by hand is said in a sentence', async () => {
  for (const args of [
    [],
    ['invite'],
    ['invite', 'a@b', 'c@d'],
    ['remove', 'a@b'],
    ['invite', 'x'],
  ]) {
    const { code, out, err } = await runAdmin(args)
    assert.deepEqual([code, out], [2, ''], args.join(' '))
    assert.match(err, /Usage|no e-mail address/)
  }
  const nowhere = await runAdmin(['invite', 'a@b'], { DATABASE_URL: '', DATA_DIR: dataDir })
  assert.equal(nowhere.code, 1)
  assert.match(nowhere.err, /No hub runs on .*npm start.*DATABASE_URL/)
  const away = await runAdmin(['invite', 'a@b'], {
    DATABASE_URL: 'postgres://me:hidden@127.0.0.1:1/none',
  })
  assert.equal(away.code, 1)
  assert.match(away.err, /does not answer/)
  assert.ok(!away.err.includes('hidden') && !away.err.includes('    at '), away.err)
})
