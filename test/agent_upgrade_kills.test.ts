// The agent is killed at every step of an upgrade, alone and with all its processes. Started again as a service
// manager does, it is the old version or the new one, whole, and the command says which.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { startHub, type TestHub } from './support/hub.ts'
import { Machine, Releases } from './support/machine.ts'
import { until } from './support/until.ts'

const releases = new Releases()
let hub: TestHub
let machine: Machine

before(async () => {
  const first = await releases.build('1.0.0', 'faults')
  await releases.build('2.0.0', 'faults')
  await releases.build('3.0.0', 'crashes')
  hub = await startHub(releases.env)
  await releases.offered(hub)
  machine = await Machine.enrolled(first, hub.origin)
})
after(async () => {
  // Set up in this order, so the earlier ones are there when a later one is.
  await (machine as Machine | undefined)?.remove()
  await (hub as TestHub | undefined)?.close()
  releases.remove()
})

/** In their order; of the old version's agent, its supervisor, the new version's agent. */
const onTheWay = [
  'download.begun',
  'download.done',
  'verify.bytes',
  'verify.placed',
  'verify.started',
  'record.trial',
  'old.left',
  'trial.chosen',
  'trial.spawned',
  'trial.noted',
  'trial.begun',
  'trial.connected',
  'trial.acked',
  'commit.written',
  'trial.passed',
  'install.unlinked',
  'install.kept',
  'install.renamed',
  'install.done',
  'result.known',
  'result.kept',
  'record.cleared',
]
const onTheWayBack = [
  'rollback.begun',
  'rollback.noted',
  'rollback.discarded',
  'result.known',
  'result.kept',
  'record.cleared',
]

for (const whom of ['self', 'tree'] as const) {
  describe(whom === 'self' ? 'one process is killed' : 'all processes are killed at once', () => {
    for (const point of onTheWay) test(`at ${point}`, () => survives(point, whom, 'way'))
    for (const point of onTheWayBack) {
      test(`at ${point} of a roll-back`, () => survives(point, whom, 'back'))
    }
  })
}

async function survives(point: string, whom: 'self' | 'tree', where: 'way' | 'back') {
  try {
    await killed(point, whom, where)
  } finally {
    await machine.stop()
  }
}

async function killed(point: string, whom: 'self' | 'tree', where: 'way' | 'back') {
  const from = await machine.installedVersion()
  const to = where === 'back' ? '3.0.0' : from === '1.0.0' ? '2.0.0' : '1.0.0'
  const marker = join(machine.folder, `${where}-${whom}-${point}`)
  machine.start({ MUSTER_AGENT_FAULT: `${point}:${whom}:${marker}` })
  using _ = machine.keptUp()
  const body = { action: 'upgrade_agent', payload: { version: to } }
  const answer = await hub.post(`/devices/${machine.deviceId}/commands`, body)
  assert.equal(answer.status, 202, answer.text)
  const { id } = answer.body

  const command = await until(`the end of the upgrade killed at ${point}`, async () => {
    const { body: now } = await hub.get(`/commands/${id}`)
    return now.completedAt !== null && now
  })
  // Its supervisor may look a moment after the hub has heard of the end.
  await until(`a kill at ${point}`, () => existsSync(marker))
  const expected = command.status === 'completed' ? to : from
  if (where === 'back') assert.equal(command.status, 'failed')
  if (command.status !== 'completed') {
    const { error, data } = command.result
    assert.ok(error === 'interrupted' || ['interrupted', 'crashed'].includes(data.reason), error)
  }
  await until(`version ${expected} to be all there is`, async () => {
    const { body: device } = await hub.get(`/devices/${machine.deviceId}`)
    return (
      device.status === 'online' &&
      device.agentVersion === expected &&
      device.upgrade === null &&
      machine.read('upgrade.json') === undefined &&
      !existsSync(join(machine.folder, '.muster-agent.new'))
    )
  })
  assert.equal(await machine.installedVersion(), expected)
  // And it does what it is told.
  const ping = await hub.post(`/devices/${machine.deviceId}/commands?wait=20`, { action: 'ping' })
  assert.equal(ping.body.status, 'completed', JSON.stringify(ping.body))
  assert.equal(ping.body.result.data.agentVersion, expected)
}
