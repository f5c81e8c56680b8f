// The door of agents' sockets: what it looks at and in which order, what asking costs, and that nothing an
// agent said last is lost when its socket closes.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { FakeAgent } from './support/agent.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub

before(async () => {
  hub = await startHub()
})
after(() => hub.close())

const ask = (where: TestHub, { deviceId, agentToken }: Device) =>
  where.get(`/agents/${deviceId}/ws`, { token: agentToken })
const device = async (id: string) => (await hub.get(`/devices/${id}`)).body

describe('asking without an upgrade', () => {
  test('tells of the rate of connects, and takes nothing of it', async () => {
    const strict = await startHub({ LIMIT_CONNECT: '2' })
    const one = await strict.enroll()
    for (let n = 0; n < 5; n++) assert.equal((await ask(strict, one)).status, 426)
    for (let n = 0; n < 2; n++) await (await FakeAgent.open(one, strict.origin)).close()
    await assert.rejects(FakeAgent.open(one, strict.origin), /429/)
    const refused = await ask(strict, one)
    assert.deepEqual([refused.status, refused.body.error.code], [429, 'RATE_LIMITED'])
    assert.ok(Number(refused.headers.get('retry-after')) > 0)
    await strict.close()
  })

  test('tells of the accept budget, and takes nothing of it', async () => {
    const strict = await startHub({ LIMIT_ACCEPT: '1' })
    const one = await strict.enroll()
    // The budget is a socket a second and begins empty.
    await until('room for a socket', async () => (await ask(strict, one)).status === 426)
    for (let n = 0; n < 5; n++) assert.equal((await ask(strict, one)).status, 426)
    const agent = await FakeAgent.open(one, strict.origin)
    const refused = await ask(strict, one)
    assert.deepEqual([refused.status, refused.body.error.code], [503, 'OVERLOADED'])
    await agent.close()
    await strict.close()
  })
})

test('whoever brings a wrong token is told to wait, each for a time of its own', async () => {
  const one = await hub.enroll()
  const told = new Set<number>()
  for (let n = 0; n < 20; n++) {
    const { status, body, headers } = await ask(hub, { ...one, agentToken: 'mst_wrong' })
    assert.deepEqual([status, body.error.code], [401, 'INVALID_TOKEN'])
    told.add(Number(headers.get('retry-after')))
  }
  const most = limits.acceptRetrySecondsMax
  for (const seconds of told) assert.ok(seconds >= most * 0.8 && seconds <= most, String(seconds))
  assert.ok(told.size > 1, [...told].join())
})

test('the token is judged before the subprotocol', async () => {
  const one = await hub.enroll()
  const stranger = { ...one, agentToken: 'mst_wrong' }
  for (const protocol of ['', 'other.v9']) {
    await assert.rejects(FakeAgent.open(stranger, hub.origin, protocol), /401/)
    await assert.rejects(FakeAgent.open(one, hub.origin, protocol), /400/)
  }
})

test('agents of a suspended organization are spread when they are told to come back', async () => {
  const org = (await hub.post('/organizations', { name: 'Late payer' })).body
  const site = (await hub.post('/sites', { orgId: org.id, name: 'HQ' })).body
  const one = await hub.enroll({ siteId: site.id })
  await hub.patch(`/organizations/${org.id}`, { status: 'suspended' })
  const told = new Set<number>()
  for (let n = 0; n < 20; n++) {
    const answer = await ask(hub, one)
    assert.equal(answer.body.error.code, 'ORGANIZATION_SUSPENDED')
    told.add(Number(answer.headers.get('retry-after')))
  }
  assert.ok(told.size > 5, [...told].join())
  const { suspendedRetrySeconds: least } = limits
  for (const seconds of told) assert.ok(seconds >= least && seconds <= least * 1.2, String(seconds))
})

describe('what an agent said last', () => {
  test('is there soon after its first heartbeat, while it is online', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    agent.heartbeat({ agentVersion: '9.9.9', metrics: { cpuPercent: 12.5 } })
    // Well within the time after which all that was heard is written.
    const found = await until(
      'its metrics',
      async () => {
        const row = await device(one.deviceId)
        return row.metrics && row
      },
      limits.presenceFlushMs / 4,
    )
    assert.deepEqual(
      [found.status, found.metrics, found.agentVersion],
      ['online', { cpuPercent: 12.5 }, '9.9.9'],
    )
    await agent.close()
  })

  test('is there once it is offline: time, metrics and version', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    const { lastSeenAt: connectedAt } = await device(one.deviceId)
    agent.heartbeat({ seq: 1, agentVersion: '9.9.9', metrics: { cpuPercent: 12.5 } })
    await agent.frame('heartbeat_ack')
    await agent.close()
    const found = await until('the device to be offline', async () => {
      const row = await device(one.deviceId)
      return row.status === 'offline' && row
    })
    assert.deepEqual([found.metrics, found.agentVersion], [{ cpuPercent: 12.5 }, '9.9.9'])
    assert.ok(found.lastSeenAt > connectedAt, `${found.lastSeenAt}, connected ${connectedAt}`)
  })

  test('is written with the newer socket that took its place', async () => {
    const one = await hub.enroll()
    const older = await FakeAgent.connect(one, hub.origin)
    older.heartbeat({ seq: 1, metrics: { cpuPercent: 33 } })
    await older.frame('heartbeat_ack')
    const newer = await FakeAgent.connect(one, hub.origin)
    await older.closing()
    await newer.close()
    const metrics = await until('the metrics', async () => (await device(one.deviceId)).metrics)
    assert.deepEqual(metrics, { cpuPercent: 33 })
  })
})

test('an exit code that is none, or a time before the start, is stored as null', async () => {
  const one = await hub.enroll()
  const agent = await FakeAgent.connect(one, hub.origin)
  const end = async (more: object) => {
    const path = `/devices/${one.deviceId}/commands`
    const { id } = (await hub.post(path, { action: 'ping' })).body
    await agent.frame('command', id)
    agent.send({ type: 'result', id, status: 'completed', ...more })
    await agent.frame('ack', id)
    const { exitCode, durationMs } = (await hub.get(`/commands/${id}`)).body.result
    return [exitCode, durationMs]
  }
  for (const more of [
    { exitCode: 2 ** 32, durationMs: -1 },
    { exitCode: -(2 ** 31) - 1, durationMs: 1e300 },
    { exitCode: 1.5, durationMs: 'long' },
    { exitCode: '0', durationMs: null },
  ]) {
    assert.deepEqual(await end(more), [null, null], JSON.stringify(more))
  }
  assert.deepEqual(await end({ exitCode: 2 ** 32 - 1, durationMs: 0 }), [2 ** 32 - 1, 0])
  assert.deepEqual(await end({ exitCode: -(2 ** 31), durationMs: 1.5 }), [-(2 ** 31), 1.5])
  agent.send({ type: 'result', id: newId(), status: 'failed', durationMs: -5 })
  await agent.close()
})
