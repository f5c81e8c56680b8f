// Upgrades as the hub shows and judges them: agents of bare sockets say what they like, the hub believes what
// their heartbeats prove. Real binaries are upgraded in agent_upgrade_binaries.test.ts.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { raiseFailures } from '../workers/failures.ts'
import { endTimedOut } from '../workers/sweeps.ts'
import { FakeAgent } from './support/agent.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { Releases } from './support/machine.ts'
import { until } from './support/until.ts'

const releases = new Releases()
let hub: TestHub

before(async () => {
  await releases.pretend('2.0.0')
  hub = await startHub(releases.env)
  await releases.offered(hub)
})
after(async () => {
  await hub.close()
  releases.remove()
})

const version = '2.0.0'

async function enroll(): Promise<Device> {
  return hub.enroll({ agentVersion: '1.0.0' })
}

async function upgrade(device: Device, more = {}): Promise<string> {
  const body = { action: 'upgrade_agent', payload: { version }, ...more }
  const answer = await hub.post(`/devices/${device.deviceId}/commands`, body)
  assert.equal(answer.status, 202, answer.text)
  return answer.body.id
}

const shown = async (device: Device) => (await hub.get(`/devices/${device.deviceId}`)).body

const ended = (id: string) =>
  until(`the end of ${id}`, async () => {
    const { body } = await hub.get(`/commands/${id}`)
    return body.completedAt !== null && body
  })

async function told(device: Device): Promise<{ type: string; reason: string | undefined }[]> {
  return hub.hub.ctx.db.query(
    `select type, data->>'reason' as reason from events
    where data->>'deviceId' = $1 and type like 'agent.upgrade.%' order by xid, id`,
    [device.deviceId],
  )
}

/** An agent whose heartbeat names a version and that has begun the upgrade. */
async function begun(device: Device, agentVersion: string) {
  const id = await upgrade(device)
  const agent = await FakeAgent.connect(device, hub.origin)
  agent.heartbeat({ seq: 1, agentVersion })
  await agent.frame('heartbeat_ack')
  await agent.frame('command', id)
  agent.send({ type: 'delivered', id })
  agent.send({ type: 'started', id })
  // States before the end are written late; of a socket that a newer one replaced meanwhile, not at all.
  await until('it to run', async () => (await hub.get(`/commands/${id}`)).body.status === 'running')
  return { id, agent }
}

describe('the device', () => {
  test('shows its upgrade from the waiting to the end: pending, starting, what the agent says, null', async () => {
    const device = await enroll()
    assert.equal((await shown(device)).upgrade, null)
    const waiting = await upgrade(device)
    assert.deepEqual((await shown(device)).upgrade, {
      commandId: waiting,
      version,
      phase: 'pending',
    })
    const audit = (await hub.get(`/audit?resourceId=${waiting}&action=command.create`)).body
    assert.equal(audit.data[0].details.after.version, version, 'the audit says to what')
    await hub.post(`/commands/${waiting}/cancel`)
    assert.equal((await shown(device)).upgrade, null)

    const { id, agent } = await begun(device, '1.0.0')
    const phase = (name: string) =>
      until(`phase ${name}`, async () => (await shown(device)).upgrade?.phase === name)
    await phase('starting')
    for (const [seq, data] of ['downloading', 'verifying', 'trial'].entries()) {
      agent.send({ type: 'progress', id, seq, stream: 'phase', data })
      await phase(data)
    }
    const list = await hub.get('/devices?limit=500')
    const listed = list.body.data.find(({ id: one }: { id: string }) => one === device.deviceId)
    assert.deepEqual(listed.upgrade, { commandId: id, version, phase: 'trial' })
    agent.send({ type: 'result', id, status: 'failed', data: { reason: 'crashed' } })
    await ended(id)
    assert.equal((await shown(device)).upgrade, null)
    await agent.close()
  })

  test('shows no phase that is none, none of another command and none of a superseded socket', async () => {
    const device = await enroll()
    const { id, agent } = await begun(device, '1.0.0')
    const phase = (more: object) =>
      agent.send({ type: 'progress', id, seq: 0, stream: 'phase', data: 'trial', ...more })
    phase({ data: 'flying' })
    phase({ id: 'another' })
    phase({ data: { phase: 'trial' } })
    phase({ data: 'verifying' })
    await until('the one', async () => (await shown(device)).upgrade.phase === 'verifying')
    agent.send({ type: 'result', id, status: 'failed' })
    await ended(id)
    // Of an upgrade that ended nothing is left to the next one.
    const next = await begun(device, '1.0.0')
    await until('the next one', async () => (await shown(device)).upgrade.phase === 'starting')
    await agent.closing()
    await next.agent.close()
  })
})

describe('completed', () => {
  test('is stored when the heartbeat of this connection named the version, and the device has it', async () => {
    const device = await enroll()
    const { id, agent } = await begun(device, '1.0.0')
    await agent.close()
    const next = await FakeAgent.connect(device, hub.origin)
    next.heartbeat({ agentVersion: version })
    next.send({ type: 'result', id, status: 'completed', data: { from: '1.0.0', to: version } })
    await next.frame('ack', id)
    assert.equal((await ended(id)).status, 'completed')
    assert.equal((await shown(device)).agentVersion, version)
    assert.deepEqual(await told(device), [
      { type: 'agent.upgrade.started', reason: null },
      { type: 'agent.upgrade.succeeded', reason: null },
    ])
    await next.close()
  })

  test('of an agent that reports another version is failed: version_not_confirmed', async () => {
    const device = await enroll()
    const { id, agent } = await begun(device, '1.0.0')
    agent.send({ type: 'result', id, status: 'completed' })
    await agent.frame('ack', id)
    const command = await ended(id)
    assert.equal(command.status, 'failed')
    assert.match(command.result.error, /2\.0\.0 completed but reports version 1\.0\.0/)
    assert.equal(command.result.data.reason, 'version_not_confirmed')
    await until('1.0.0', async () => (await shown(device)).agentVersion === '1.0.0')
    assert.deepEqual((await told(device)).at(-1), {
      type: 'agent.upgrade.rolled_back',
      reason: 'version_not_confirmed',
    })
    await agent.close()
  })

  test('is not heard before a heartbeat of this connection, whatever an earlier one said', async () => {
    const device = await enroll()
    // The right version, but of a connection that is gone.
    const { id, agent } = await begun(device, version)
    const status = async () => (await hub.get(`/commands/${id}`)).body.status
    await until('its start to be written', async () => (await status()) === 'running')
    await agent.close()
    const next = await FakeAgent.connect(device, hub.origin)
    next.onCommand = (frame) => next.send({ type: 'result', id: frame.id, status: 'completed' })
    next.send({ type: 'result', id, status: 'completed' })
    next.heartbeat({ seq: 7 }) // which names none
    await next.frame('heartbeat_ack')
    // Ends are written at once, so one would have been by now.
    await hub.post(`/devices/${device.deviceId}/commands?wait=10`, { action: 'list_processes' })
    assert.equal(await status(), 'running')
    next.heartbeat({ agentVersion: '1.5.0' })
    await next.frame('ack', id)
    assert.equal((await ended(id)).result.data.reason, 'version_not_confirmed')
    await next.close()
  })
})

describe('a failed upgrade', () => {
  test('leaves the version on the device that its agent reports, not the one that was tried', async () => {
    const device = await enroll()
    const { id, agent } = await begun(device, version)
    await agent.close() // with what its heartbeats said
    await until('the tried one', async () => (await shown(device)).agentVersion === version)
    const next = await FakeAgent.connect(device, hub.origin)
    next.send({ type: 'result', id, status: 'failed', data: { reason: 'crashed' } })
    await ended(id)
    next.heartbeat({ agentVersion: '1.0.0' })
    await until('the old one', async () => (await shown(device)).agentVersion === '1.0.0')
    await next.close()
  })

  test('names its reason on the command, the event and the alert; a repeat counts up', async () => {
    const device = await enroll()
    for (const reason of ['crashed', 'hub_unreachable']) {
      const { id, agent } = await begun(device, '1.0.0')
      const error = 'the new version ended'
      agent.send({ type: 'result', id, status: 'failed', error, data: { reason } })
      assert.equal((await ended(id)).result.data.reason, reason)
      await agent.close()
    }
    const reasons = (await told(device)).map(({ type, reason }) => reason ?? type)
    assert.deepEqual(reasons, [
      'agent.upgrade.started',
      'crashed',
      'agent.upgrade.started',
      'hub_unreachable',
    ])
    const alert = await until('the alert', async () => {
      const { body } = await hub.get(`/alerts?kind=upgrade_failed&deviceId=${device.deviceId}`)
      return body.data[0]?.occurrences === 2 && body.data[0]
    })
    assert.match(alert.title, /^upgrade_agent failed on host: hub_unreachable$/)
    assert.match(alert.message, /^upgrade_agent to 2\.0\.0 failed on host: hub_unreachable; /)
    assert.equal(alert.context.reason, 'hub_unreachable')
    assert.equal(alert.context.version, '2.0.0')
  })

  test('gives no room to an agent that puts prose into the reason', async () => {
    const device = await enroll()
    const { id, agent } = await begun(device, '1.0.0')
    const reason = '<b>call 555-0199</b>'
    agent.send({ type: 'result', id, status: 'failed', data: { reason } })
    await ended(id)
    assert.equal((await told(device)).at(-1)?.reason, 'failed')
    await agent.close()
  })

  test('that never began is no roll-back; one that the sweep ends, and one of a decommissioned device, is', async () => {
    const idle = await enroll()
    const id = await upgrade(idle)
    await hub.post(`/commands/${id}/cancel`)
    assert.deepEqual(await told(idle), [])

    const silent = await enroll()
    const late = await begun(silent, '1.0.0')
    await until('the start', async () => (await told(silent)).length === 1)
    await late.agent.close()
    await until('offline', async () => (await shown(silent)).status === 'offline')
    const { db } = hub.hub.ctx
    await db.query(
      `update commands set started_at = now() - interval '1 hour', delivered_at = now() - interval '1 hour'
      where id = $1`,
      [late.id],
    )
    await until('the sweep', async () => {
      await endTimedOut(db, 31)
      return (await told(silent)).length === 2
    })
    assert.deepEqual(
      (await told(silent)).map(({ reason }) => reason),
      ['timeout', null].toReversed(),
    )

    const gone = await enroll()
    const last = await begun(gone, '1.0.0')
    await until('the start', async () => (await told(gone)).length === 1)
    await hub.delete(`/devices/${gone.deviceId}`)
    assert.deepEqual((await told(gone)).at(-1), {
      type: 'agent.upgrade.rolled_back',
      reason: 'decommissioned',
    })
    await last.agent.closing()
    await raiseFailures(db)
  })
})
