// Caddy itself, with the Caddyfile of deploy/, between clients and two hubs: TLS, addresses, sockets, streams,
// and a hub that dies.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import pg from 'pg'
import { WebSocket } from 'ws'
import { TestCaddy, type CaddyAsk } from '../support/caddy.ts'
import { removeFolder } from '../support/folders.ts'
import { SimulatedAgent } from '../support/fleet.ts'
import { admin, enrollmentSecret, metricsToken, type Device } from '../support/hub.ts'
import { freePort, HubProcess } from '../support/hub_process.ts'
import { createDatabase, type TestDatabase } from '../support/postgres.ts'
import { without } from '../support/tools.ts'
import { until } from '../support/until.ts'

let database: TestDatabase
let hubs: HubProcess[]
let caddy: TestCaddy
let folder: string
let port: number

describe('behind Caddy', { skip: without('caddy') }, () => {
  before(async () => {
    database = await createDatabase()
    folder = mkdtempSync(join(tmpdir(), 'muster-caddy-'))
    port = await freePort()
    hubs = [await hub('one'), await hub('two')]
    await Promise.all(hubs.map((one) => one.start()))
    const addresses = hubs.map((one) => new URL(one.origin).host)
    caddy = await TestCaddy.start({ folder, port, hubs: addresses })
  })
  after(async () => {
    await caddy?.kill()
    await Promise.all(hubs.map((one) => one.kill('SIGKILL')))
    await database.drop()
    removeFolder(folder)
  })

  test('it speaks TLS alone, asks browsers to, and says nothing of itself', async () => {
    const answer = await caddy.ask('GET', '/health')
    assert.equal(answer.status, 200)
    assert.match(String(answer.headers['strict-transport-security']), /^max-age=31536000/)
    assert.equal(answer.headers['server'], undefined)
    await assert.rejects(fetch(`http://localhost:${port}/health`).then((one) => one.json()))
  })

  test('an address is the one that came, whatever the caller claims', async () => {
    const headers = { 'x-forwarded-for': '203.0.113.9', 'x-real-ip': '203.0.113.9' }
    const token = await signIn({ headers, localAddress: '127.0.0.2' })
    const query = '/api/v1/audit?action=user.login&limit=1'
    const { body } = await caddy.ask('GET', query, { headers: bearer(token) })
    assert.equal(body.data[0].ip, '127.0.0.2')
  })

  test('metrics are for Prometheus, which asks the hubs themselves', async () => {
    const headers = bearer(metricsToken)
    assert.equal((await caddy.ask('GET', '/metrics', { headers })).status, 404)
    const direct = await fetch(`${hubs[0]?.origin}/metrics`, { headers })
    assert.equal(direct.status, 200)
  })

  test('events come as they happen, not when the stream ends', async () => {
    const token = await signIn()
    const stream = await caddy.open('GET', '/api/v1/events', { headers: bearer(token) })
    assert.equal(stream.statusCode, 200)
    let text = ''
    stream.on('data', (chunk) => (text += String(chunk)))
    const { deviceId, agent } = await connectAgent()
    await until('the event', () => text.includes('device.online') && text.includes(deviceId))
    stream.destroy()
    agent.close()
  })

  test('a hub goes in order: no request fails, and no agent is without a socket for a moment', async (t) => {
    const token = await signIn()
    const devices = await Promise.all(Array.from({ length: 30 }, enroll))
    const agents = devices.map((device) => new SimulatedAgent(device, caddy.origin, caddy.ca))
    t.after(() => agents.forEach((agent) => agent.stop()))
    await until('all to be online', () => agents.every(({ online }) => online))
    const organizations = await caddy.ask('GET', '/api/v1/organizations', {
      headers: bearer(token),
    })
    const orgId = organizations.body.data[0].id as string
    const statuses = new Map<string, number>()
    const asking = new AbortController()
    const load = Array.from({ length: 4 }, async (_, n) => {
      while (!asking.signal.aborted) {
        const body = { name: `Site ${n} ${Math.random()}`, orgId }
        const { status } =
          n % 2
            ? await caddy.ask('GET', '/api/v1/devices', { headers: bearer(token) })
            : await caddy.ask('POST', '/api/v1/sites', { headers: bearer(token), body })
        statuses.set(`${n % 2} ${status}`, (statuses.get(`${n % 2} ${status}`) ?? 0) + 1)
      }
    })
    assert.equal(await hubs[1]?.kill('SIGTERM'), 0)
    await hubs[1]?.start()
    asking.abort()
    await Promise.all(load)
    assert.deepEqual([...statuses.keys()].toSorted(), ['0 201', '1 200'])
    assert.deepEqual(
      agents.flatMap(({ losses }) => losses),
      [],
    )
    assert.ok(
      agents.some(({ moves }) => moves > 0),
      'nobody was asked to move',
    )
    const db = new pg.Client(database.url)
    await db.connect()
    const { rows } = await db.query(
      `select type from events where type = 'device.offline' and data->>'deviceId' = any($1)`,
      [devices.map(({ deviceId }) => deviceId)],
    )
    await db.end()
    assert.deepEqual(rows, [], 'somebody was told that a device is offline')
  })

  test('a hub dies: what is asked from then on is answered by the other one', async () => {
    const token = await signIn()
    const statuses = new Set<number>()
    for (let n = 0; n < 60; n++) {
      if (n === 10) await hubs[0]?.kill('SIGKILL')
      const { status } = await caddy.ask('GET', '/api/v1/devices', { headers: bearer(token) })
      statuses.add(status)
    }
    assert.deepEqual([...statuses], [200])
    const { deviceId, agent } = await connectAgent()
    const path = `/api/v1/devices/${deviceId}/commands?wait=20`
    const answer = await caddy.ask('POST', path, {
      headers: bearer(token),
      body: { action: 'ping' },
    })
    assert.deepEqual([answer.status, answer.body.status], [202, 'completed'])
    agent.close()
  })
})

async function hub(name: string): Promise<HubProcess> {
  return new HubProcess(await freePort(), {
    DATABASE_URL: database.url,
    DATA_DIR: join(folder, name),
    JWT_SECRET: 'a test secret of more than 32 bytes',
    AGENT_ENROLLMENT_SECRET: enrollmentSecret,
    METRICS_SCRAPE_TOKEN: metricsToken,
    ADMIN_EMAIL: admin.email,
    ADMIN_PASSWORD: admin.password,
    PUBLIC_API_URL: `https://localhost:${port}`,
    TRUSTED_PROXIES: '127.0.0.1/32',
    DRAIN_SECONDS: '5',
    LIMIT_API: '0',
    LIMIT_LOGIN: '0',
  })
}

async function signIn(options: CaddyAsk = {}): Promise<string> {
  const answer = await caddy.ask('POST', '/api/v1/auth/login', { ...options, body: admin })
  assert.equal(answer.status, 200)
  return answer.body.accessToken as string
}

const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

async function enroll(): Promise<Device> {
  const body = { enrollmentSecret, hostname: 'behind', os: 'linux', arch: 'amd64' }
  const enrolled = await caddy.ask('POST', '/api/v1/agents/enroll', { body })
  assert.equal(enrolled.status, 201)
  return enrolled.body as Device
}

/** Enrolls a device and connects it, by way of Caddy; it completes whatever it is told to do. */
async function connectAgent(): Promise<{ deviceId: string; agent: WebSocket }> {
  const { deviceId, agentToken, websocketUrl } = await enroll()
  assert.equal(websocketUrl, `wss://localhost:${port}/api/v1/agents/${deviceId}/ws`)
  const agent = new WebSocket(websocketUrl, ['muster.v1'], {
    ca: caddy.ca,
    headers: bearer(agentToken),
  })
  let welcomed = false
  agent.on('message', (data: Buffer) => {
    const frame = JSON.parse(data.toString()) as { type: string; id?: string }
    if (frame.type === 'welcome') welcomed = true
    if (frame.type !== 'command') return
    const result = { type: 'result', id: frame.id, status: 'completed', exitCode: 0 }
    agent.send(JSON.stringify(result))
  })
  await once(agent, 'open')
  await until('the welcome', () => welcomed)
  return { deviceId, agent }
}
