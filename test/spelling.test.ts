// UUIDs in capitals are the same UUIDs: whatever compares them as texts behind the door must not see them.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { FakeAgent } from './support/agent.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { call, makeOrganization, makeSite, signedIn, type Person } from './support/people.ts'
import { until } from './support/until.ts'

let hub: TestHub
let orgId: string
let siteId: string
let admin: Person

before(async () => {
  hub = await startHub()
  orgId = await makeOrganization(hub)
  siteId = await makeSite(hub, orgId)
  admin = await signedIn(hub, 'org_admin', { orgId })
})
after(() => hub.close())

const capitals = (id: string) => id.toUpperCase()
const run = { action: 'run_command', payload: { command: 'true' } }

async function device() {
  const { key } = (await hub.post(`/sites/${siteId}/enrollment-keys`, {})).body
  return hub.enroll({ enrollmentSecret: key })
}

test('a role that is taken away is gone at once', async () => {
  const other = await signedIn(hub, 'org_admin', { orgId })
  assert.equal((await call(hub, 'GET', '/users', { token: other.token })).status, 200)
  const answer = await call(hub, 'PATCH', `/users/${capitals(other.id)}`, {
    token: admin.token,
    body: { role: 'viewer' },
  })
  assert.equal(answer.status, 200, answer.text)
  assert.equal((await call(hub, 'GET', '/users', { token: other.token })).status, 403)
})

test('a command is cancelled at its actor', async () => {
  const one = await device()
  const agent = await FakeAgent.connect(one, hub.origin)
  const send = async () =>
    (await hub.post(`/devices/${capitals(one.deviceId)}/commands`, run)).body.id as string
  const [first, second] = [await send(), await send()]
  await agent.frame('command', first)
  const cancelled = await hub.post(`/commands/${capitals(second)}/cancel`)
  assert.equal(cancelled.body.status, 'cancelled')
  assert.equal((await hub.post(`/commands/${capitals(first)}/cancel`)).status, 200)
  await agent.frame('cancel', first)
  agent.send({ type: 'result', id: first, status: 'cancelled' })
  await agent.frame('ack', first)
  agent.heartbeat({ seq: 1 })
  await agent.frame('heartbeat_ack')
  assert.equal(agent.frames.filter((frame) => 'id' in frame && frame.id === second).length, 0)
  await agent.close()
})

test('a result ends its command, however its agent spells the id', async () => {
  const one = await device()
  const agent = await FakeAgent.connect(one, hub.origin)
  const { id } = (await hub.post(`/devices/${one.deviceId}/commands`, run)).body
  await agent.frame('command', id)
  for (const type of ['delivered', 'started'] as const) agent.send({ type, id: capitals(id) })
  agent.send({ type: 'result', id: capitals(id), status: 'completed', exitCode: 0, stdout: 'up' })
  await agent.frame('ack', id)
  const { body } = await hub.get(`/commands/${id}`)
  assert.deepEqual([body.status, body.result.stdout, body.attempts], ['completed', 'up', 1])
  await agent.close()
})

test('a decommissioned device loses its socket with 4003, and the audit finds it', async () => {
  const one = await device()
  const agent = await FakeAgent.connect(one, hub.origin)
  assert.equal((await hub.delete(`/devices/${capitals(one.deviceId)}`)).status, 200)
  assert.equal((await agent.closing()).code, 4003)
  for (const id of [one.deviceId, capitals(one.deviceId)]) {
    const { body } = await hub.get(`/audit?resourceId=${id}&action=device.decommission`)
    assert.equal(body.data.length, 1, id)
    assert.equal(body.data[0].resourceId, one.deviceId)
  }
})

test('an execution on one site is seen by nobody of another', async () => {
  await device()
  const script = await call(hub, 'POST', '/scripts', {
    token: admin.token,
    body: { name: 'x', language: 'bash', content: 'true', os: ['linux'], parameters: [] },
  })
  assert.equal(script.status, 201, script.text)
  const technician = await signedIn(hub, 'technician', { orgId, siteIds: [siteId] })
  const elsewhere = await signedIn(hub, 'technician', {
    orgId,
    siteIds: [await makeSite(hub, orgId, 'Bern')],
  })
  const started = await call(hub, 'POST', `/scripts/${script.body.id}/execute`, {
    token: technician.token,
    body: { filter: { siteId: capitals(siteId) } },
  })
  assert.equal(started.status, 202, started.text)
  const seen = (token: string) => call(hub, 'GET', `/executions/${started.body.id}`, { token })
  assert.equal((await seen(elsewhere.token)).status, 404)
  await until('it is fanned out', async () => (await seen(technician.token)).body.counts.total > 0)
})
