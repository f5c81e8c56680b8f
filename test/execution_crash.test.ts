// A fan-out that is cut off half-way: by the death of its thread while a batch is being committed. Every
// device gets its command once, and the agents of the batch that was never told of hear of it too.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { FakeAgent } from './support/agent.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub
/** May see what other connections wait for. */
let owner: Database

before(async () => {
  hub = await startHub()
  owner = openDatabase({ url: hub.database.url, name: 'test', connections: 1, role: 'owner' })
})
after(async () => {
  await owner.close()
  await hub.close()
})

const db = () => hub.hub.ctx.db

async function makeScript(): Promise<string> {
  const body = { name: 'Test', language: 'sh', content: 'true' }
  const answer = await hub.post('/scripts', body)
  assert.equal(answer.status, 201, answer.text)
  return answer.body.id
}

/** Many devices as rows, between those that have agents. */
async function addDevices({ orgId, siteId }: Device, count: number): Promise<void> {
  await db().query(
    `with made as (
      insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
      select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
        $1, $2, 'host', 'linux', 'amd64', sha256(gen_random_uuid()::text::bytea)
      from generate_series(1, $3::int) returning id, org_id
    )
    insert into device_presence (device_id, org_id) select id, org_id from made`,
    [orgId, siteId, count],
  )
}

async function commandsOf(executionId: string) {
  const [row] = await db().query<{ commands: number; devices: number }>(
    `select count(*)::int as commands, count(distinct device_id)::int as devices from commands
     where execution_id = $1`,
    [executionId],
  )
  return row
}

test('a thread that dies in the middle of a fan-out: nobody twice, nobody forgotten', async () => {
  const scriptId = await makeScript()
  const first = await hub.enroll()
  await addDevices(first, limits.executionBatchMax + 100)
  const last = await hub.enroll()
  const total = limits.executionBatchMax + 102
  const agents = [
    (await FakeAgent.connect(first, hub.origin)).obey(),
    (await FakeAgent.connect(last, hub.origin)).obey(),
  ]
  const held = Promise.withResolvers<void>()
  // The second batch waits for the device that this transaction holds.
  const holder = db().transaction(async (tx) => {
    await tx.query('select from device_presence where device_id = $1 for update', [last.deviceId])
    await held.promise
  })
  const execute = { filter: { orgId: first.orgId } }
  const { id } = await until('the execution', async () => {
    const answer = await hub.post(`/scripts/${scriptId}/execute`, execute)
    return answer.status === 202 && answer.body
  })
  await until('the second batch to wait', async () => {
    const [row] = await owner.query<{ waits: boolean }>(
      `select exists (select from pg_stat_activity where wait_event_type = 'Lock'
         and application_name = 'muster fan-out' and datname = current_database()) as waits`,
    )
    return row?.waits
  })
  assert.deepEqual(await commandsOf(id), {
    commands: limits.executionBatchMax,
    devices: limits.executionBatchMax,
  })
  // Its connection waits on in PostgreSQL, and commits a batch that nobody is told of.
  await hub.hub.jobs.current().terminate()
  held.resolve()
  await holder
  const done = await until(
    'the fan-out to end',
    async () => {
      const { body } = await hub.get(`/executions/${id}`)
      return body.counts.completed === 2 && body
    },
    40_000,
  )
  assert.deepEqual([done.counts.total, done.counts.started], [total, total])
  const { values } = await hub.hub.ctx.metrics.jobsRestarts.get()
  assert.equal(values[0]?.value, 1)
  assert.deepEqual(await commandsOf(id), { commands: total, devices: total })
  for (const agent of agents) {
    assert.deepEqual([...agent.runs.values()], [1])
    await agent.close()
  }
})

test('an execution that was sent twice reaches every device once', async () => {
  const scriptId = await makeScript()
  const device = await hub.enroll()
  await addDevices(device, 2 * limits.executionBatchMax)
  const answer = await hub.post(`/scripts/${scriptId}/execute`, {
    filter: { siteId: device.siteId },
  })
  assert.equal(answer.status, 202, answer.text)
  const { id } = answer.body
  await db().query(
    `insert into pgboss.job (name, data) select 'executions', $1::jsonb from generate_series(1, 3)`,
    [JSON.stringify({ id })],
  )
  await until('the fan-out', async () => {
    const [row] = await db().query<{ done: boolean }>(
      'select fanned_out_at is not null as done from executions where id = $1',
      [id],
    )
    return row?.done
  })
  const count = await commandsOf(id)
  assert.equal(count?.commands, count?.devices)
  assert.equal((await hub.get(`/executions/${id}`)).body.counts.started, count?.commands)
})

test('one that expired before it was carried out fails and says so', async () => {
  const scriptId = await makeScript()
  const device = await hub.enroll()
  const { orgId, siteId } = device
  const [row] = await db().query<{ id: string }>(
    `insert into executions (id, org_id, script_id, version, filter, timeout_seconds, expires_at,
       touched_at)
     values (gen_random_uuid(), $1, $2, 1, $3, 60, now() - interval '1 s', now() - interval '1 h')
     returning id`,
    [orgId, scriptId, JSON.stringify({ siteId })],
  )
  const end = await until('its end', async () => {
    const { body } = await hub.get(`/executions/${row?.id}`)
    return body.completedAt !== null && body
  })
  assert.equal(end.status, 'failed')
  assert.equal(end.error, 'it expired before all devices were dealt with')
  assert.equal(end.counts.started, 0)
})
