// Secret parameters: only the agent ever reads them. They are sealed at rest, under a key that outlives a
// rotation of JWT_SECRET, and are gone with the end of their execution.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { DataKeys, wrappingKeys } from '../src/data_keys.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { run, type Hub } from '../src/main.ts'
import { FakeAgent } from './support/agent.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

const secret = 'hunter2-but-longer'

let hub: TestHub
let db: Database
let scriptId: string

before(async () => {
  hub = await startHub()
  db = openDatabase({ url: hub.database.url, name: 'test', connections: 1, role: 'owner' })
  const body = {
    name: 'Test',
    language: 'sh',
    content: 'true',
    parameters: [
      { name: 'token', type: 'string', secret: true, required: true },
      { name: 'where', type: 'string' },
    ],
  }
  scriptId = (await hub.post('/scripts', body)).body.id
})
after(async () => {
  await db.close()
  await hub.close()
})

/** Every table of the hub and of pg-boss that holds the text, plain, in hex or in base64. */
async function tablesWith(text: string): Promise<string[]> {
  const tables = await db.query<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name from pg_tables
     where schemaname not in ('pg_catalog', 'information_schema')`,
  )
  const bytes = Buffer.from(text)
  // Without the last characters, which depend on what follows in the same text.
  const spellings = [text, bytes.toString('hex'), bytes.toString('base64').slice(0, 20)]
  const found: string[] = []
  for (const { name } of tables) {
    for (const spelling of spellings) {
      const rows = await db.query(
        `select true as found from ${name} t where strpos(t::text, $1) > 0 limit 1`,
        [spelling],
      )
      if (rows.length > 0) found.push(`${name} (${spelling})`)
    }
  }
  return found
}

async function execute(device: Device) {
  const answer = await until('the queue', async () => {
    const { deviceId } = device
    const parameters = { token: secret, where: 'plain-to-see' }
    const body = { deviceIds: [deviceId], parameters }
    const one = await hub.post(`/scripts/${scriptId}/execute`, body)
    return one.status !== 503 && one
  })
  assert.equal(answer.status, 202, answer.text)
  assert.ok(!answer.text.includes(secret))
  return answer.body.id as string
}

const env = { PARAM_TOKEN: secret, PARAM_WHERE: 'plain-to-see' }

test('the agent reads it, and no table, answer or event ever holds it', async () => {
  const device = await hub.enroll()
  const id = await execute(device)
  const agent = await FakeAgent.connect(device, hub.origin)
  const frame = await agent.frame('command')
  assert.deepEqual(frame.payload['env'], env)
  // Sealed means that it is there while it is needed.
  const [sealed] = await db.query<{ secrets: Buffer }>(
    'select secrets from executions where id = $1',
    [id],
  )
  assert.ok((sealed?.secrets.length ?? 0) > secret.length)
  assert.deepEqual(await tablesWith(secret), [])
  // The search itself works.
  assert.ok((await tablesWith('plain-to-see')).length > 0)
  for (const path of [`/executions/${id}`, `/executions/${id}/results`, `/commands/${frame.id}`]) {
    const { status, text } = await hub.get(path)
    assert.equal(status, 200)
    assert.ok(!text.includes(secret), path)
  }
  agent.obey()
  await until('the end', async () => (await hub.get(`/executions/${id}`)).body.completedAt)
  const rows = await db.query('select secrets from executions where id = $1', [id])
  assert.deepEqual(rows, [{ secrets: null }])
  assert.deepEqual(await tablesWith(secret), [])
  await agent.close()
})

test('what is wrong with a secret is told without it', async () => {
  const body = { filter: { tag: 'none' }, parameters: { token: 'x'.repeat(25_000), where: 3 } }
  const answer = await hub.post(`/scripts/${scriptId}/execute`, body)
  assert.equal(answer.status, 400)
  assert.ok(!answer.text.includes('xxx'))
})

/** Another hub on the same database, with these secrets. */
function restarted(secrets: Record<string, string>): Promise<Hub> {
  return run({ env: { ...hub.env, ...secrets } })
}

test('it outlives a rotation of JWT_SECRET, and without the old one the command says so', async () => {
  const devices = [await hub.enroll(), await hub.enroll(), await hub.enroll()]
  for (const device of devices) {
    const id = await execute(device)
    await until('its command', async () => (await hub.get(`/executions/${id}`)).body.counts.started)
  }
  const [before_] = await db.query<{ wrapped: Buffer }>('select wrapped from data_keys')
  const next = 'another test secret of more than 32 bytes'
  const rotated = await restarted({
    JWT_SECRET: next,
    JWT_SECRET_PREVIOUS: hub.env['JWT_SECRET'] ?? '',
  })
  const keys = await db.query<{ wrapped: Buffer }>('select wrapped from data_keys')
  assert.equal(keys.length, 1)
  assert.notDeepEqual(keys[0]?.wrapped, before_?.wrapped)
  const one = await FakeAgent.connect(devices[0] as Device, rotated.origin)
  assert.deepEqual((await one.frame('command')).payload['env'], env)
  await one.close()
  await rotated.close()

  const later = await restarted({ JWT_SECRET: next })
  const two = await FakeAgent.connect(devices[1] as Device, later.origin)
  assert.deepEqual((await two.frame('command')).payload['env'], env)
  await two.close()
  await later.close()

  const lost = await restarted({ JWT_SECRET: 'a third test secret of more than 32 bytes' })
  const strange = new DataKeys(lost.ctx.db, wrappingKeys('a fourth secret', undefined))
  // Two agents took their commands and ended none, one has not come yet. Of two keys one seals nothing.
  assert.deepEqual(await strange.prepare(), { lost: 2, executions: 3 })
  const three = await FakeAgent.connect(devices[2] as Device, lost.origin)
  const [command] = await until('the end', async () => {
    const rows = await db.query<{ status: string; result: { error: string } }>(
      'select status, result from commands where device_id = $1 and completed_at is not null',
      [devices[2]?.deviceId],
    )
    return rows.length > 0 && rows
  })
  assert.equal(command?.status, 'failed')
  assert.match(command.result.error, /secret parameters can’t be opened/)
  assert.deepEqual(
    three.frames.filter(({ type }) => type === 'command'),
    [],
  )
  await three.close()
  await lost.close()
})

test('keys: two hubs that begin at once share one, and what is sealed under it opens for both', async () => {
  await db.query('delete from data_keys')
  const hubDb = openDatabase({ url: hub.database.url, name: 'keys', connections: 2 })
  const wrapping = wrappingKeys('one secret', undefined)
  const [a, b] = [new DataKeys(hubDb, wrapping), new DataKeys(hubDb, wrapping)]
  await Promise.all([a.prepare(), b.prepare()])
  const sealed = a.seal('plain')
  assert.equal((await b.opener(sealed))?.(), 'plain')
  assert.equal((await db.query('select id from data_keys')).length, 1)
  // A shard asks for a key that it has never seen.
  assert.equal((await new DataKeys(hubDb, wrapping).opener(sealed))?.(), 'plain')
  const stranger = new DataKeys(hubDb, wrappingKeys('another', undefined))
  assert.deepEqual(await stranger.prepare(), { lost: 1, executions: 0 })
  assert.equal(await stranger.opener(sealed), null)
  await hubDb.close()
})
