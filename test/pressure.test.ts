// A shard that is behind. For a moment: nobody notices. Because PostgreSQL keeps it waiting: its store fills, then
// what waits before it, heartbeats are dropped, who sends more is asked to come back later, nobody's deadline runs
// out meanwhile, and nothing is lost once the writes go on.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import pg from 'pg'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { FakeAgent } from './support/agent.ts'
import { metricsToken, startHub, type Device, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub
let blocker: pg.Client

before(async () => {
  hub = await startHub({
    SHARDS: '1',
    HEARTBEAT_SECONDS: '3',
    LIMIT_FRAMES: '0',
    LIMIT_ENROLL: '0',
    LIMIT_API: '0',
  })
  blocker = new pg.Client({ connectionString: hub.database.url })
  await blocker.connect()
})
after(async () => {
  await blocker.end()
  await hub.close()
})

async function dropped(): Promise<number> {
  const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
  return Number(/^muster_frames_dropped_total\{reason="overloaded"\} (\d+)/m.exec(text)?.[1] ?? 0)
}

test('a shard that stands still for a moment loses nothing and closes nobody', async () => {
  const device = await hub.enroll()
  const agent = await FakeAgent.connect(device, hub.origin)
  const { shards } = hub.hub.ctx
  const [socket] = shards['sockets']!.openOf(0)
  assert.ok(socket)
  // Work for a good while, as a message of its own; the front knows nothing of it.
  const inventory = JSON.stringify({ type: 'inventory', software: 'x'.repeat(1_000_000) })
  const mail = Array.from({ length: 200 }, () => [socket.conn, inventory]).flat()
  shards.threads()[0]!.postMessage({ atMs: Date.now(), mail })
  const ids = Array.from({ length: 4 * limits.shardBatchesMax }, () => newId())
  for (const id of ids) {
    agent.send({ type: 'result', id, status: 'completed' })
    // A turn of the front each: what came in one would be one batch.
    await new Promise(setImmediate)
  }
  for (const id of ids) await agent.frame('ack', id)
  assert.equal(agent.closed, undefined)
  await agent.close()
})

test('a cancel waits for what a device that has left said before', async () => {
  const [first, second] = [await hub.enroll(), await hub.enroll()]
  const blocking = await FakeAgent.connect(first, hub.origin)
  const leaving = await FakeAgent.connect(second, hub.origin)
  const ask = async ({ deviceId }: Device) =>
    (await hub.post(`/devices/${deviceId}/commands`, { action: 'ping' })).body.id as string
  const blocked = await ask(first)
  await blocking.frame('command', blocked)
  await blocker.query('begin')
  let cancelled: ReturnType<typeof hub.post>
  let id: string
  try {
    // The statement with its end waits, and all that the shard writes of commands after it.
    await blocker.query('select from commands where id = $1 for update', [blocked])
    blocking.send({ type: 'result', id: blocked, status: 'completed' })
    await until('the statement to wait', async () => {
      const { rows } = await blocker.query(
        `select from pg_stat_activity where wait_event_type = 'Lock'
         and application_name = 'muster shard-0' and datname = current_database()`,
      )
      return rows.length > 0
    })
    id = await ask(second)
    await leaving.frame('command', id)
    leaving.send({ type: 'result', id, status: 'completed' })
    leaving.heartbeat({ seq: 1 })
    await leaving.frame('heartbeat_ack')
    await leaving.close()
    await until('it to be offline', async () => {
      return (await hub.get(`/devices/${second.deviceId}`)).body.status === 'offline'
    })
    cancelled = hub.post(`/commands/${id}/cancel`)
    await until('the cancel to be asked for', async () => {
      const { rows } = await blocker.query(
        'select from commands where id = $1 and cancel_requested_at is not null',
        [id],
      )
      return rows.length > 0
    })
    // Nothing is decided before the other one is written.
    assert.equal((await hub.get(`/commands/${id}`)).body.status, 'pending')
  } finally {
    await blocker.query('rollback')
  }
  assert.equal((await cancelled).status, 200)
  const { status, lateResult } = (await hub.get(`/commands/${id}`)).body
  assert.deepEqual([status, lateResult], ['completed', null])
  await blocking.close()
})

test('a store that is full drops heartbeats without ending anyone for their silence', async (t) => {
  const output = 'x'.repeat(limits.outputBytesMax - 1024)
  const count = Math.ceil(limits.storeBytesMax / (2 * output.length)) + 2
  const agents: FakeAgent[] = []
  const ids: string[] = []
  // From the first one on: the last comes seconds later.
  const beats = setInterval(() => {
    for (const agent of agents) if (agent.closed === undefined) agent.heartbeat()
  }, 100)
  t.after(() => {
    clearInterval(beats)
    for (const agent of agents) agent.socket.terminate()
  })
  for (let n = 0; n < count; n++) {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    agents.push(agent)
    const body = { action: 'run_command', payload: { command: 'true' } }
    const { id } = (await hub.post(`/devices/${device.deviceId}/commands`, body)).body
    ids.push(id)
    await agent.frame('command', id)
  }
  try {
    await blocker.query('begin; lock table commands in access exclusive mode')
    for (const [n, agent] of agents.entries()) {
      const result = { type: 'result', id: ids[n], status: 'completed', exitCode: 0 }
      const text = JSON.stringify({ ...result, stdout: output, stderr: output })
      agent.send(text)
      // One at a time: what piles up before the shard, instead of in its store, is refused.
      const seq = n + 1
      agent.heartbeat({ seq })
      const taken = () => agent.frames.some((frame) => 'seq' in frame && frame.seq === seq)
      await until('the result to be taken', async () => taken() || (await dropped()) > 0)
    }
    // What comes now piles up before the shard: results of no command, as large as they may be.
    const more = (agent: FakeAgent) => {
      const result = { type: 'result', id: newId(), status: 'completed', exitCode: 0 }
      agent.send(JSON.stringify({ ...result, stdout: output, stderr: output }))
    }
    const flood = setInterval(() => more(agents.at(-1)!), 50)
    t.after(() => clearInterval(flood))
    await until('heartbeats to be dropped', async () => (await dropped()) > 0, 60_000)
    clearInterval(flood)
    // More than the deadline of 7.5 s in heartbeats that nobody hears.
    const many = (await dropped()) + count * 100
    await until('many heartbeats to be dropped', async () => (await dropped()) > many, 60_000)
    assert.deepEqual(
      agents.map((agent) => agent.closed),
      agents.map(() => undefined),
    )

    // Whoever sends more than heartbeats now is told to come back, instead of being queued without end.
    const [loud] = agents as [FakeAgent]
    const asking = setInterval(() => more(loud), 50)
    t.after(() => clearInterval(asking))
    assert.equal((await loud.closing()).code, 1013)
    clearInterval(asking)
  } finally {
    await blocker.query('rollback')
  }
  // The one that was closed has its result in its outbox still; the others get their acks.
  for (const [n, agent] of agents.entries()) if (n > 0) await agent.frame('ack', ids[n])
  for (const id of ids.slice(1)) {
    const { status, result } = (await hub.get(`/commands/${id}`)).body
    assert.deepEqual([status, result.stdout.length], ['completed', output.length])
  }
})
