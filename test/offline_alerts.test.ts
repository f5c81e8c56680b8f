// device_offline with real sockets and real hubs: what goes, what returns, and the silence of a restart.
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { openDatabase } from '../src/db.ts'
import { FakeAgent } from './support/agent.ts'
import { SimulatedAgent } from './support/fleet.ts'
import { admin, enrollmentSecret, startHub, type Device } from './support/hub.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { createDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

test('a device that goes is told of, one whose site goes with it is not, and returns end both', async (t) => {
  const hub = await startHub({ HEARTBEAT_SECONDS: '1' })
  t.after(() => hub.close())
  const [organization] = (await hub.get('/organizations')).body.data
  const settings = { offlineGraceSeconds: 0 }
  assert.equal((await hub.patch(`/organizations/${organization.id}`, { settings })).status, 200)
  const alerts = async (query: string) =>
    (await hub.get(`/alerts?kind=device_offline&${query}`)).body.data

  const devices: Device[] = []
  for (let n = 0; n < 6; n++) devices.push(await hub.enroll({ hostname: `host-${n}` }))
  const connect = () => Promise.all(devices.map((device) => FakeAgent.connect(device, hub.origin)))
  const agents = await connect()

  await agents[0]?.close()
  const [one] = await until('its alert', async () => {
    const found = await alerts('status=active')
    return found.length > 0 && found
  })
  assert.deepEqual([one.deviceId, one.title], [devices[0]?.deviceId, 'host-0 is offline'])
  const back = await FakeAgent.connect(devices[0] as Device, hub.origin)
  await until('its end', async () => (await alerts('status=resolved')).length === 1)

  await back.close()
  await Promise.all(agents.map((agent) => agent.close()))
  const site = await until('the alert of the site', async () => {
    const found = await alerts('status=active')
    return found.length === 1 && found[0].deviceId === null && found[0]
  })
  assert.equal(site.context.siteId, devices[0]?.siteId)
  const again = await connect()
  await until('its end', async () => (await alerts('status=active')).length === 0)
  await Promise.all(again.map((agent) => agent.close()))
})

test('a hub that restarts, in order or killed, raises nothing for agents that come back', async (t) => {
  const database = await createDatabase()
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-restart-'))
  const db = openDatabase({ url: database.url, name: 'judge', connections: 1 })
  const hub = new HubProcess(await freePort(), {
    DATABASE_URL: database.url,
    DATA_DIR: dataDir,
    ADMIN_EMAIL: admin.email,
    ADMIN_PASSWORD: admin.password,
    AGENT_ENROLLMENT_SECRET: enrollmentSecret,
    JWT_SECRET: 'a test secret of more than 32 bytes',
    // The simulated agents' heartbeats come each 5 to 7.5 s.
    HEARTBEAT_SECONDS: '4',
    LIMIT_CONNECT: '0',
  })
  const agents: SimulatedAgent[] = []
  t.after(async () => {
    for (const agent of agents) agent.stop()
    await hub.kill('SIGKILL')
    await db.close()
    await database.drop()
    removeFolder(dataDir)
  })

  await hub.start()
  await db.query(`update organizations set settings = '{"offlineGraceSeconds": 0}'`)
  const devices: Device[] = []
  for (let n = 0; n < 7; n++) {
    const answer = await fetch(`${hub.origin}/api/v1/agents/enroll`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ enrollmentSecret, hostname: `h-${n}`, os: 'linux', arch: 'amd64' }),
    })
    devices.push((await answer.json()) as Device)
  }
  agents.push(...devices.map((device) => new SimulatedAgent(device, hub.origin)))
  const online = (some: SimulatedAgent[]) =>
    until('agents to be online', () => some.every((agent) => agent.online), 60_000)
  await online(agents)

  await hub.kill('SIGTERM')
  await hub.start()
  await online(agents)
  await hub.kill('SIGKILL')
  // This one alone does not come back, and its alert is the proof that absences were judged.
  agents[0]?.stop()
  await hub.start()
  await online(agents.slice(1))
  const alerts = () => db.query<{ id: string }>('select device_id as id from alerts')
  await until('the alert of the one that is gone', async () => (await alerts()).length > 0, 60_000)
  assert.deepEqual(await alerts(), [{ id: devices[0]?.deviceId }])
})
