// Where links lead: to the port that a hub got, or to the address that it was told; and the file that tells
// `npm run admin` of the first.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { originFile } from '../src/config.ts'
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

/** What `npm run admin -- invite` prints for a hub of this environment. */
async function invite({ env }: TestHub, more: Record<string, string> = {}): Promise<string> {
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['scripts/admin.ts', 'invite', 'root@example.org'],
    { cwd: root, env: { PATH: process.env['PATH'] ?? '', ...env, ...more } },
  )
  return stdout
}

test('on port 0 links name the port it got, which DATA_DIR keeps for the admin tool', async () => {
  const DATA_DIR = join(folder(), 'not', 'there', 'yet')
  const hub = await hubWith({ DATA_DIR })
  assert.notEqual(hub.hub.port, 0)
  const file = originFile(DATA_DIR)
  assert.equal(readFileSync(file, 'utf8'), `http://127.0.0.1:${hub.hub.port}\n`)
  assert.equal(statSync(file).mode & 0o777, 0o600)
  const { body } = await hub.post('/users/invite', {
    email: 'a@example.org',
    role: 'platform_admin',
  })
  assert.match(body.inviteUrl, new RegExp(`^${hub.origin}/accept-invite#token=`))
  const document = (await hub.get('/openapi.json', { token: undefined })).body
  assert.deepEqual(document.servers, [{ url: `${hub.origin}/api/v1` }])
  const { websocketUrl } = await hub.enroll()
  assert.ok(websocketUrl.startsWith(`ws://127.0.0.1:${hub.hub.port}/api/v1/agents/`), websocketUrl)
  assert.ok((await invite(hub)).includes(`${hub.origin}/accept-invite#token=`))
})

test('in production they lead to PUBLIC_API_URL, whatever the port, and no address is kept', async () => {
  const DATA_DIR = folder()
  for (const given of ['https://mdm.example.org', 'https://mdm.example.org/api/v1']) {
    const hub = await hubWith({ DATA_DIR, NODE_ENV: 'production', PUBLIC_API_URL: given })
    const body = { email: 'a@example.org', role: 'platform_admin' }
    const { inviteUrl } = (await hub.post('/users/invite', body)).body
    assert.match(inviteUrl, /^https:\/\/mdm\.example\.org\/accept-invite#token=/)
    const { websocketUrl } = await hub.enroll()
    assert.match(websocketUrl, /^wss:\/\/mdm\.example\.org\/api\/v1\/agents\//)
    assert.match(await invite(hub), /https:\/\/mdm\.example\.org\/accept-invite#token=/)
    assert.equal(existsSync(originFile(DATA_DIR)), false)
  }
})
