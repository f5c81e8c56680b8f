// Roll-outs of a size, and cut off half-way: by the death of the jobs thread while a batch is being committed.
// Every device gets its command once, and the agents of a batch that was never told of hear of it too.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { limits } from '../src/limits.ts'
import { advance } from '../workers/rollouts.ts'
import { removeFolder } from './support/folders.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { makeReleases, offered, type Folders } from './support/releases.ts'
import { until } from './support/until.ts'
import { Upgrader } from './support/upgraders.ts'

const version = '2.0.0'

let hub: TestHub
let folders: Folders
/** May see what other connections wait for. */
let owner: Database

before(async () => {
  folders = await makeReleases([version])
  hub = await startHub({ LIMIT_ENROLL: '0', ...folders.env })
  await offered(hub, 1)
  owner = openDatabase({ url: hub.database.url, name: 'test', connections: 1, role: 'owner' })
})
after(async () => {
  await owner.close()
  await hub.close()
  removeFolder(folders.base)
})

async function enrollMany(count: number): Promise<Device[]> {
  const devices: Device[] = []
  let left = count
  const enroll = async () => {
    while (left-- > 0) devices.push(await hub.enroll({ agentVersion: '1.0.0' }))
  }
  await Promise.all(Array.from({ length: 20 }, enroll))
  return devices
}

async function connectMany(devices: readonly Device[]): Promise<Upgrader[]> {
  const upgraders: Upgrader[] = []
  for (let at = 0; at < devices.length; at += 100) {
    const some = devices.slice(at, at + 100)
    const connected = some.map((one) => Upgrader.connect(one, hub.origin, 'succeed'))
    upgraders.push(...(await Promise.all(connected)))
  }
  return upgraders
}

const start = (body: object) =>
  until('the roll-out', async () => {
    const answer = await hub.post('/agents/rollouts', { version, ...body })
    if (answer.status === 503) return false
    assert.equal(answer.status, 201, answer.text)
    return answer.body
  })

const completed = (id: string) =>
  until(
    'the roll-out to complete',
    async () => {
      const { body } = await hub.get(`/agents/rollouts/${id}`)
      assert.notEqual(body.status, 'halted', body.reason)
      return body.status === 'completed' && body
    },
    90_000,
  )

async function commandsOf(id: string) {
  const [row] = await hub.hub.ctx.db.query<{ commands: number; devices: number }>(
    `select count(*)::int as commands, count(distinct device_id)::int as devices from commands
     where action = 'upgrade_agent' and device_id in (
       select device_id from rollout_devices where rollout_id = $1)`,
    [id],
  )
  return row
}

test('a thread that dies in the middle of a batch: nobody twice, nobody forgotten', async () => {
  const devices = await enrollMany(limits.executionBatchMax + 50)
  const groups = [{ percent: 100, successThreshold: 100, errorThreshold: 1 }]
  // The second batch waits for its last device, which this transaction holds.
  const held = Promise.withResolvers<void>()
  const last = devices
    .map(({ deviceId }) => deviceId)
    .toSorted()
    .at(-1)
  const holder = hub.hub.ctx.db.transaction(async (tx) => {
    await tx.query('select from device_presence where device_id = $1 for update', [last])
    await held.promise
  })
  const upgraders = await connectMany(devices.filter(({ deviceId }) => deviceId !== last))
  const { id } = await start({ filter: {}, groups })
  await until('the second batch to wait', async () => {
    const [row] = await owner.query<{ waits: boolean }>(
      `select exists (select from pg_stat_activity where wait_event_type = 'Lock'
         and application_name = 'muster fan-out' and datname = current_database()) as waits`,
    )
    return row?.waits
  })
  const batch = { commands: limits.executionBatchMax, devices: limits.executionBatchMax }
  assert.deepEqual(await commandsOf(id), batch)
  // Its connection waits on in PostgreSQL, and may commit a batch that nobody is told of.
  await hub.hub.jobs.current().terminate()
  held.resolve()
  await holder
  const late = devices.find(({ deviceId }) => deviceId === last) as Device
  upgraders.push(...(await connectMany([late])))
  const done = await completed(id)
  assert.equal(done.counts.completed, devices.length)
  assert.deepEqual(await commandsOf(id), { commands: devices.length, devices: devices.length })
  for (const { asked, agent } of upgraders) {
    assert.equal(asked.size, 1)
    await agent.close()
  }
})

test('a batch that was committed and never told of is told by whoever comes next', async () => {
  const [device] = await enrollMany(1)
  const upgrader = await Upgrader.connect(device as Device, hub.origin, 'succeed')
  const groups = [{ percent: 100, successThreshold: 100, errorThreshold: 1 }]
  const jobs = openDatabase({ url: hub.database.url, name: 'other', connections: 1 })
  // While the thread is away this process does its work, and dies between the commit and its message.
  await hub.hub.jobs.current().terminate()
  const { id } = await start({ filter: { deviceIds: [device?.deviceId] }, groups })
  const tell = () => assert.fail('it dies here')
  const signal = new AbortController().signal
  await assert.rejects(
    advance(id, { db: jobs, tell, nodeId: hub.hub.ctx.nodeId, signal }),
    /it dies here/,
  )
  await jobs.close()
  assert.deepEqual(await commandsOf(id), { commands: 1, devices: 1 })
  assert.equal((await completed(id)).counts.completed, 1)
  assert.equal(upgrader.asked.size, 1)
  await upgrader.agent.close()
})

test('2,000 connected agents, in three groups: each is asked once, and all run it', async () => {
  const devices = await enrollMany(2000)
  const upgraders = await connectMany(devices)
  const share = { successThreshold: 95, errorThreshold: 2 }
  const groups = [1, 9, 90].map((percent) => ({ percent, ...share }))
  const deviceIds = devices.map(({ deviceId }) => deviceId)
  const { id, counts } = await start({ filter: { deviceIds }, groups })
  assert.equal(counts.total, 2000)
  const done = await completed(id)
  assert.deepEqual(
    done.groups.map((group: { counts: { completed: number } }) => group.counts.completed),
    [20, 180, 1800],
  )
  assert.deepEqual(await commandsOf(id), { commands: 2000, devices: 2000 })
  for (const { asked, agent } of upgraders) {
    assert.deepEqual([...asked.values()], [version])
    agent.socket.terminate()
  }
})
