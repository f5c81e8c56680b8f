// Where links lead: to the port that a hub got, or to the address that it was told; and how `npm run admin` knows
// of either from the database.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { removeFolder } from './support/folders.ts'
import { startHub, type TestHub } from './support/hub.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const undo: (() => unknown)[] = []

afterEach(async () => {
  for (const step of undo.splice(0).toReversed()) await step()
})

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'muster-links-'))
  undo.push(() => removeFolder(path))
  return path
}

async function hubWith(env: Record<string, string>): Promise<TestHub> {
  const hub = await startHub(env)
  undo.push(() => hub.close())
  return hub
}

/** What `npm run admin -- invite` prints where nothing is set but the database and `more`. */
async function invite({ env }: TestHub, more: Record<string, string> = {}): Promise<string> {
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['scripts/admin.ts', 'invite', 'root@example.org'],
    {
      cwd: root,
      env: {
        PATH: process.env['PATH'] ?? '',
        DATA_DIR: folder(),
        DATABASE_URL: env['DATABASE_URL'] ?? '',
        ...more,
      },
    },
  )
  return stdout
}

test('on port 0 links name the port it got, which the admin tool finds', async () => {
  const hub = await hubWith({})
  assert.notEqual(hub.hub.port, 0)
  const { body } = await hub.post('/users/invite', {
    email: 'a@example.org',
    role: 'platform_admin',
  })
  assert.match(body.inviteUrl, new RegExp(`^${hub.origin}/accept-invite#token=`))
  const document = (await hub.get('/openapi.json', { token: undefined })).body
  assert.deepEqual(document.servers, [{ url: `${hub.origin}/api/v1` }])
  const { websocketUrl } = await hub.enroll()
  assert.ok(websocketUrl.startsWith(`ws://127.0.0.1:${hub.hub.port}/api/v1/agents/`), websocketUrl)
  assert.ok((await invite(hub)).startsWith(`${hub.origin}/accept-invite#token=`))
})

test('in production they lead to PUBLIC_API_URL, whatever the port, the admin tool’s too', async () => {
  for (const given of ['https://mdm.example.org', 'https://mdm.example.org/api/v1']) {
    const hub = await hubWith({ NODE_ENV: 'production', PUBLIC_API_URL: given })
    const body = { email: 'a@example.org', role: 'platform_admin' }
    const { inviteUrl } = (await hub.post('/users/invite', body)).body
    assert.match(inviteUrl, /^https:\/\/mdm\.example\.org\/accept-invite#token=/)
    const { websocketUrl } = await hub.enroll()
    assert.match(websocketUrl, /^wss:\/\/mdm\.example\.org\/api\/v1\/agents\//)
    assert.match(await invite(hub), /^https:\/\/mdm\.example\.org\/accept-invite#token=/)
    const told = await invite(hub, { PUBLIC_API_URL: 'https://elsewhere.example.org/api/v1' })
    assert.match(told, /^https:\/\/elsewhere\.example\.org\/accept-invite#token=/)
  }
})

test('the admin tool prefers a hub that lives to one that left, and invents no address', async () => {
  const hub = await hubWith({ PUBLIC_API_URL: 'https://first.example.org' })
  const next = await startHub({
    DATABASE_URL: hub.env['DATABASE_URL'] ?? '',
    PUBLIC_API_URL: 'https://next.example.org',
  })
  await next.close()
  assert.match(await invite(hub), /^https:\/\/first\.example\.org\//)
  await hub.hub.ctx.db.query(`update nodes set about = about || '{"left": true}'`)
  assert.match(await invite(hub), /^https:\/\/\w+\.example\.org\//)
  await hub.hub.ctx.db.query('update nodes set about = null')
  await assert.rejects(invite(hub), {
    code: 1,
    stderr:
      /^No hub has told where it is reached: start it, or set PUBLIC_API_URL to its address\.\n$/,
  })
})
