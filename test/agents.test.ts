// Agents through their real doors: enrollment, the upgrade, frames of every kind, and how sockets end.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { FakeAgent } from './support/agent.ts'
import {
  enrollmentSecret,
  metricsToken,
  startHub,
  type Device,
  type TestHub,
} from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub

before(async () => {
  hub = await startHub({ LIMIT_FRAMES: '0', HEARTBEAT_SECONDS: '1', LIMIT_ENROLL_FAILURES: '0' })
})
after(() => hub.close())

const facts = { hostname: 'box', os: 'linux', arch: 'amd64' }
const enroll = (body: unknown, headers: Record<string, string> = {}) =>
  hub.post('/agents/enroll', body, { token: undefined, headers })
const device = async (id: string) => (await hub.get(`/devices/${id}`)).body
const status = (id: string, wanted: string, deadlineMs?: number) =>
  until(
    `${id} to be ${wanted}`,
    async () => {
      const found = await device(id)
      return found.status === wanted && found
    },
    deadlineMs,
  )

async function metric(line: string): Promise<number> {
  const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
  const found = text.split('\n').find((candidate) => candidate.startsWith(line))
  return Number(found?.split(' ').at(-1) ?? 0)
}

describe('enrollment', () => {
  test('with the global secret in body or header, into the default site', async () => {
    const one = await enroll({ ...facts, enrollmentSecret })
    assert.equal(one.status, 201)
    assert.match(one.body.agentToken, /^mst_[\w-]{43}$/)
    assert.match(one.body.websocketUrl, /^ws:\/\/127\.0\.0\.1:\d+\/api\/v1\/agents\/.*\/ws$/)
    assert.equal(one.body.heartbeatIntervalSeconds, 1)
    const two = await enroll(
      { ...facts, os: 'macos', arch: 'aarch64' },
      { 'x-enrollment-secret': enrollmentSecret },
    )
    assert.equal(two.body.siteId, one.body.siteId)
    const { os, arch, status: state, lastSeenAt } = await device(two.body.deviceId)
    assert.deepEqual([os, arch, state, lastSeenAt], ['darwin', 'arm64', 'offline', null])
  })

  test('a wrong or missing secret is 401 and makes nothing', async () => {
    const newest = (await hub.get('/devices?limit=1')).body.data[0].id
    for (const body of [
      { ...facts },
      { ...facts, enrollmentSecret: 'wrong' },
      { ...facts, enrollmentSecret: '' },
    ]) {
      const answer = await enroll(body)
      assert.deepEqual([answer.status, answer.body.error.code], [401, 'INVALID_ENROLLMENT_SECRET'])
      assert.ok(answer.headers.get('www-authenticate'))
    }
    assert.equal((await hub.get('/devices?limit=1')).body.data[0].id, newest)
  })

  test('SQL and header injection in its fields are only texts', async () => {
    const hostname = `x'); drop table devices; --\r\nSet-Cookie: a=b`
    const answer = await enroll({ ...facts, hostname, enrollmentSecret })
    assert.equal(answer.status, 201)
    assert.equal(answer.headers.get('set-cookie'), null)
    assert.equal((await device(answer.body.deviceId)).hostname, hostname)
  })

  test('a repeat with its Idempotency-Key is the same device with a new token, until it connected', async () => {
    const headers = { 'idempotency-key': newId() }
    const first = await enroll({ ...facts, enrollmentSecret }, headers)
    const again = await enroll({ ...facts, enrollmentSecret }, headers)
    assert.equal(again.body.deviceId, first.body.deviceId)
    assert.notEqual(again.body.agentToken, first.body.agentToken)
    await assert.rejects(FakeAgent.open(first.body, hub.origin), /401/)
    const agent = await FakeAgent.connect(again.body, hub.origin)
    const later = await enroll({ ...facts, enrollmentSecret }, headers)
    assert.notEqual(later.body.deviceId, first.body.deviceId)
    await agent.close()
  })

  test('parallel repeats make one device', async () => {
    const headers = { 'idempotency-key': newId() }
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => enroll({ ...facts, enrollmentSecret }, headers)),
    )
    assert.equal(new Set(answers.map(({ body }) => body.deviceId)).size, 1)
  })

  test('the old token proves the device; a known machine without it is a new one', async () => {
    const machineId = newId()
    const first = (await enroll({ ...facts, machineId, enrollmentSecret })).body
    const proved = await enroll(
      { ...facts, hostname: 'renamed', machineId, enrollmentSecret },
      { authorization: `Bearer ${first.agentToken}` },
    )
    assert.equal(proved.body.deviceId, first.deviceId)
    assert.equal((await device(first.deviceId)).hostname, 'renamed')
    const clone = await enroll({ ...facts, machineId, enrollmentSecret })
    assert.notEqual(clone.body.deviceId, first.deviceId)
  })

  test('a site key leads to its site, is used up, and is not burnt by a refusal', async () => {
    const orgId = (await hub.get('/organizations')).body.data[0].id
    const site = (await hub.post('/sites', { orgId, name: 'Branch' })).body
    const key = (await hub.post(`/sites/${site.id}/enrollment-keys`, { maxUses: 1 })).body.key
    const wrongSite = await enroll({ ...facts, enrollmentSecret: key, siteId: newId() })
    assert.equal(wrongSite.status, 400)
    const malformed = await enroll({ ...facts, os: 'beos', enrollmentSecret: key })
    assert.equal(malformed.status, 400)
    const first = await enroll({ ...facts, enrollmentSecret: key })
    assert.equal(first.body.siteId, site.id)
    assert.equal((await enroll({ ...facts, enrollmentSecret: key })).status, 401)
  })

  test('a hundred parallel uses of a key for ten make ten devices', async () => {
    const orgId = (await hub.get('/organizations')).body.data[0].id
    const site = (await hub.post('/sites', { orgId, name: 'Ten' })).body
    const key = (await hub.post(`/sites/${site.id}/enrollment-keys`, { maxUses: 10 })).body.key
    const answers = await Promise.all(
      Array.from({ length: 100 }, () => enroll({ ...facts, enrollmentSecret: key })),
    )
    assert.equal(answers.filter(({ status: code }) => code === 201).length, 10)
    assert.equal((await hub.get(`/sites/${site.id}`)).body.deviceCount, 10)
  })
})

describe('the upgrade', () => {
  test('is refused with a reason that the same address tells without an upgrade', async () => {
    const one = await hub.enroll()
    const path = `/agents/${one.deviceId}/ws`
    const plain = (token: string | undefined, id = one.deviceId) =>
      hub.get(`/agents/${id}/ws`, { token })
    assert.deepEqual((await plain(one.agentToken)).body.error.code, 'UPGRADE_REQUIRED')
    assert.equal((await plain(undefined)).body.error.code, 'UNAUTHENTICATED')
    assert.equal((await plain('mst_wrong')).body.error.code, 'INVALID_TOKEN')
    assert.equal((await plain(one.agentToken, newId())).body.error.code, 'INVALID_TOKEN')
    assert.equal((await plain(one.agentToken, 'nope')).body.error.code, 'INVALID_TOKEN')
    const other = await hub.enroll()
    assert.equal((await plain(other.agentToken)).body.error.code, 'INVALID_TOKEN')
    assert.equal((await hub.post(path, {}, { token: one.agentToken })).status, 405)
    await assert.rejects(FakeAgent.open({ ...one, agentToken: 'mst_x' }, hub.origin), /401/)
    await assert.rejects(FakeAgent.open(one, hub.origin, 'other.v9'), /400/)
    await assert.rejects(FakeAgent.open(one, hub.origin, ''), /400/)
  })

  test('of a suspended organization is 403, its open sockets close with 4004', async () => {
    const org = (await hub.post('/organizations', { name: 'Late payer' })).body
    const site = (await hub.post('/sites', { orgId: org.id, name: 'HQ' })).body
    const one = await hub.enroll({ siteId: site.id })
    const agent = await FakeAgent.connect(one, hub.origin)
    assert.equal((await hub.patch(`/organizations/${org.id}`, { status: 'suspended' })).status, 200)
    assert.equal((await agent.closing()).code, 4004)
    const refused = await hub.get(`/agents/${one.deviceId}/ws`, { token: one.agentToken })
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'ORGANIZATION_SUSPENDED'])
    const waiting = await hub.post(`/devices/${one.deviceId}/commands`, { action: 'ping' })
    assert.deepEqual(waiting.body.blockedBy, { reason: 'suspended' })
    await hub.patch(`/organizations/${org.id}`, { status: 'active' })
    const back = await FakeAgent.connect(one, hub.origin)
    await back.frame('command', waiting.body.id)
    await back.close()
  })
})

describe('presence', () => {
  test('online with the socket, offline the moment it closes, with the heartbeat’s metrics', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    await status(one.deviceId, 'online')
    agent.heartbeat({
      seq: 7,
      agentVersion: '9.9.9',
      metrics: { cpuPercent: 12.5, loud: 'x', over: Infinity },
    })
    assert.equal((await agent.frame('heartbeat_ack')).seq, 7)
    await agent.close()
    await status(one.deviceId, 'offline')
  })

  test('offline also when its shard dies before it could write that', async () => {
    const enrolled = await hub.enroll()
    const agent = await FakeAgent.connect(enrolled, hub.origin)
    const { deviceId } = enrolled
    // Sent, and not yet in the agent's inbox: with the socket it goes back into the queue.
    const { id } = (await hub.post(`/devices/${deviceId}/commands`, { action: 'ping' })).body
    const command = async () => (await hub.get(`/commands/${id}`)).body
    await until('the command to be sent', async () => (await command()).status === 'sent')
    const owner = openDatabase({
      url: hub.database.url,
      name: 'owner',
      connections: 2,
      role: 'owner',
    })
    await owner.transaction(async (tx) => {
      await tx.query('select from device_presence where device_id = $1 for update', [deviceId])
      await agent.close()
      const pid = await until('the shard to write that it is offline', async () => {
        const [row] = await owner.query<{ pid: number }>(
          `select pid from pg_stat_activity where wait_event_type = 'Lock'
             and application_name like 'muster shard-%' and datname = current_database()`,
        )
        return row?.pid
      })
      const { shards } = hub.hub.ctx
      await shards.threads()[shards.of(deviceId)]?.terminate()
      await owner.query('select pg_terminate_backend($1)', [pid])
    })
    await owner.close()
    await status(deviceId, 'offline')
    assert.equal((await command()).status, 'pending')
  })

  test('offline also when a claim ran again after it was given up, and raised its epoch', async () => {
    const [gone, stays] = [await hub.enroll(), await hub.enroll()]
    const ids = [gone.deviceId, stays.deviceId]
    const owner = openDatabase({
      url: hub.database.url,
      name: 'owner',
      connections: 2,
      role: 'owner',
    })
    const opening = await owner.transaction(async (tx) => {
      await tx.query('select from device_presence where device_id = any($1::uuid[]) for update', [
        ids,
      ])
      const agents = Promise.all([gone, stays].map((one) => FakeAgent.connect(one, hub.origin)))
      // The claims wait for the rows; their connections break, and nobody hears what becomes of them.
      const shards = new Set(ids.map((id) => hub.hub.ctx.shards.of(id)))
      const pids = await until('the claims to wait', async () => {
        const rows = await owner.query<{ pid: number }>(
          `select pid from pg_stat_activity where wait_event_type = 'Lock'
             and application_name like 'muster shard-%' and datname = current_database()`,
        )
        return rows.length === shards.size && rows.map(({ pid }) => pid)
      })
      await owner.query('select pg_terminate_backend(pid) from unnest($1::int[]) as pid', [pids])
      return { agents }
    })
    const [leaver, stayer] = await opening.agents
    const beat = setInterval(() => [leaver, stayer].map((agent) => agent?.heartbeat()), 300)
    // What the first try does, when it runs after the second.
    const raise = 'update device_presence set epoch = epoch + 1 where device_id = any($1::uuid[])'
    await owner.query(raise, [ids])
    const epoch = async () => {
      const [row] = await owner.query<{ epoch: string }>(
        'select epoch::text as epoch from device_presence where device_id = $1',
        [stays.deviceId],
      )
      return Number(row?.epoch)
    }
    const raised = await epoch()
    await leaver?.close()
    await status(gone.deviceId, 'offline', 30_000)
    // Unless what it wrote has told before that its epoch is over.
    await until('a claim anew', async () => (await epoch()) > raised || stayer?.closed, 30_000)
    if (!stayer?.closed) {
      const command = await hub.post(`/devices/${stays.deviceId}/commands`, { action: 'ping' })
      await stayer?.frame('command', command.body.id)
      await stayer?.close()
    }
    clearInterval(beat)
    await owner.close()
    await status(stays.deviceId, 'offline')
  })

  test('a half-open socket, which says nothing more, is offline after 2.5 intervals: 4008', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    await status(one.deviceId, 'online')
    // Frames other than heartbeats do not count.
    const chatter = setInterval(() => agent.send({ type: 'started', id: newId() }), 200)
    assert.equal((await agent.closing()).code, 4008)
    clearInterval(chatter)
    await status(one.deviceId, 'offline')
  })

  test('a newer socket supersedes the older one, which closes with 4002, and stays online', async () => {
    const one = await hub.enroll()
    const older = await FakeAgent.connect(one, hub.origin)
    const beat = setInterval(() => newer?.heartbeat(), 300)
    const newer = await FakeAgent.connect(one, hub.origin)
    assert.equal((await older.closing()).code, 4002)
    await status(one.deviceId, 'online')
    const command = (await hub.post(`/devices/${one.deviceId}/commands`, { action: 'ping' })).body
    await newer.frame('command', command.id)
    assert.equal((await device(one.deviceId)).status, 'online')
    clearInterval(beat)
    await newer.close()
    await status(one.deviceId, 'offline')
  })

  test('a flood of reconnects of one device ends with one socket and its right status', async () => {
    const one = await hub.enroll()
    const opened = await Promise.all(
      Array.from({ length: 20 }, () => FakeAgent.open(one, hub.origin)),
    )
    await until(
      'all but one to be closed',
      () => opened.filter(({ closed }) => !closed).length === 1,
    )
    const last = opened.find(({ closed }) => !closed)
    await last?.frame('welcome')
    await status(one.deviceId, 'online')
    await last?.close()
    await status(one.deviceId, 'offline')
  })
})

describe('frames', () => {
  let one: Device
  let agent: FakeAgent
  let beat: NodeJS.Timeout

  before(async () => {
    one = await hub.enroll()
    agent = await FakeAgent.connect(one, hub.origin)
    beat = setInterval(() => agent.heartbeat(), 300)
  })
  after(async () => {
    clearInterval(beat)
    await agent.close()
  })

  test('malformed ones are answered with an error and cost nobody the socket', async () => {
    const evil = [
      '{',
      'null',
      '[]',
      '"x"',
      '7',
      '{"type":"result"}',
      '{"type":"result","id":5,"status":"completed"}',
      '{"type":"result","id":"x","status":"great"}',
      '{"type":"delivered"}',
      '{"type":"alert"}',
      `{"type":"delivered","id":"${'x'.repeat(10_000)}"}`,
      '{"__proto__":{"type":"heartbeat"}}',
    ]
    for (const text of evil) agent.send(text)
    await until(
      'an error per fault',
      () => agent.frames.filter(({ type }) => type === 'error').length >= 10,
    )
    agent.heartbeat({ seq: 1 })
    await agent.frame('heartbeat_ack')
    assert.equal(agent.closed, undefined)
  })

  test('unknown types are counted and dropped without an answer, as are binary ones', async () => {
    const [unknown, binary] = [
      'muster_frames_dropped_total{reason="unknown"}',
      'muster_frames_dropped_total{reason="binary"}',
    ]
    const unknownBefore = await metric(unknown)
    const binaryBefore = await metric(binary)
    for (let n = 0; n < 5; n++) agent.send({ type: 'weather', sunny: true })
    agent.socket.send(Buffer.from([1, 2, 3]))
    await until('the count', async () => (await metric(unknown)) >= unknownBefore + 5)
    await until('the count', async () => (await metric(binary)) >= binaryBefore + 1)
    assert.equal(agent.closed, undefined)
  })

  test('nesting of any depth, in inventories and in results, breaks nothing', async () => {
    const deep = '['.repeat(100_000) + ']'.repeat(100_000)
    agent.send(`{"type":"inventory","os":${deep}}`)
    agent.send(`{"type":"result","id":"${newId()}","status":"failed","data":${deep}}`)
    agent.send(
      `{"type":"heartbeat","seq":4242,"metrics":${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}}`,
    )
    await until('the ack of a heartbeat after them', () =>
      agent.frames.some((frame) => frame.type === 'heartbeat_ack' && frame.seq === 4242),
    )
  })

  test('an inventory is kept and shown; one that is too large is refused in words', async () => {
    agent.send({ type: 'inventory', os: { name: 'Debian' }, software: [{ name: 'a\u0000b' }] })
    const found = await until('the inventory', async () => {
      const { inventory } = await device(one.deviceId)
      return inventory?.software && inventory
    })
    assert.deepEqual(found, { os: { name: 'Debian' }, software: [{ name: 'a\ufffdb' }] })
    agent.frames.length = 0
    agent.send({ type: 'inventory', software: 'x'.repeat(300_000) })
    assert.match((await agent.frame('error')).message, /262144/)
    agent.frames.length = 0
    const levels = 60_000
    agent.send(`{"type":"inventory","os":${'['.repeat(levels)}${']'.repeat(levels)}}`)
    assert.match((await agent.frame('error')).message, /nested too deeply/)
  })

  test('an inventory as deep as allowed is kept whole, a deeper one refused, whatever it is written with', async () => {
    for (const inner of ['"a"', '"\\u0061"']) {
      const inventory = (levels: number) =>
        `{"type":"inventory","hardware":${'['.repeat(levels)}${inner}${']'.repeat(levels)}}`
      // The frame is a level of its own.
      const levels = limits.jsonDepthMax - 1
      agent.send({ type: 'inventory', os: { name: inner } })
      agent.send(inventory(levels))
      const kept = await until(
        'the deep one',
        async () => (await device(one.deviceId)).inventory.hardware,
      )
      assert.equal(JSON.stringify(kept), `${'['.repeat(levels)}"a"${']'.repeat(levels)}`)
      agent.frames.length = 0
      agent.send(inventory(levels + 1))
      assert.match((await agent.frame('error')).message, /nested too deeply: at most 64 levels/)
    }
  })

  test('a version that is cut in the middle of a character holds no half of it', async () => {
    const another = await hub.enroll()
    const other = await FakeAgent.connect(another, hub.origin)
    other.send({ type: 'heartbeat', agentVersion: `${'v'.repeat(63)}\u{1f600}` })
    const cut = `${'v'.repeat(63)}\ufffd`
    await until('the version', async () => (await device(another.deviceId)).agentVersion === cut)
    await other.close()
  })
})

describe('sockets that harm', () => {
  test('a frame over 4 MiB closes with 1009', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    agent.send(`{"type":"heartbeat","x":"${'x'.repeat(5 * 1024 * 1024)}"}`)
    assert.equal((await agent.closing()).code, 1009)
  })

  test('a result of nearly 4 MiB is taken', async () => {
    const one = await hub.enroll()
    const agent = await FakeAgent.connect(one, hub.origin)
    const { id } = (await hub.post(`/devices/${one.deviceId}/commands`, { action: 'ping' })).body
    await agent.frame('command', id)
    const text = 'y'.repeat(1024 * 1024)
    agent.send({ type: 'result', id, status: 'completed', exitCode: 0, stdout: text, stderr: text })
    await agent.frame('ack', id)
    assert.equal((await hub.get(`/commands/${id}`)).body.result.stdout.length, text.length)
    await agent.close()
  })

  test('a slow reader is closed at the bound, and nobody else notices', async (t) => {
    const [slow, fine] = [await hub.enroll(), await hub.enroll()]
    const agent = await FakeAgent.connect(slow, hub.origin)
    const other = await FakeAgent.connect(fine, hub.origin)
    const beat = setInterval(() => {
      agent.heartbeat()
      other.heartbeat()
    }, 300)
    agent.socket.pause()
    // Every broken frame is answered; what is not read piles up in the hub, up to the bound.
    let sent = 0
    const flood = setInterval(() => {
      if (sent++ < 400 && agent.socket.bufferedAmount < 1e6)
        for (let n = 0; n < 2000; n++) agent.send('{')
    }, 5)
    t.after(() => {
      clearInterval(beat)
      clearInterval(flood)
      agent.socket.terminate()
    })
    // Some 150,000 answers, made on whatever the machine has left.
    await status(slow.deviceId, 'offline', 60_000)
    clearInterval(flood)
    const { id } = (await hub.post(`/devices/${fine.deviceId}/commands`, { action: 'ping' })).body
    await other.frame('command', id)
    await other.close()
  })
})

test('an agent over its frame rate is closed with 4029', async (t) => {
  const strict = await startHub({ LIMIT_FRAMES: '60', LIMIT_FRAMES_BURST: '50' })
  t.after(() => strict.close())
  const one = await strict.enroll()
  const agent = await FakeAgent.connect(one, strict.origin)
  for (let n = 0; n < 200; n++) agent.heartbeat()
  assert.equal((await agent.closing()).code, 4029)
})

test('a new socket does not bring new frames', async (t) => {
  const strict = await startHub({ LIMIT_FRAMES: '1', LIMIT_FRAMES_BURST: '5' })
  t.after(() => strict.close())
  const one = await strict.enroll()
  const first = await FakeAgent.connect(one, strict.origin)
  for (let n = 1; n <= 5; n++) first.heartbeat({ seq: n })
  await until(
    'all five are heard',
    () => first.frames.filter((f) => f.type === 'heartbeat_ack').length === 5,
  )
  await first.close()
  const second = await FakeAgent.connect(one, strict.origin)
  second.heartbeat()
  assert.equal((await second.closing()).code, 4029)
})

describe('the token of an agent', () => {
  const age = (id: string, days: number) =>
    hub.hub.ctx.db.query(
      'update devices set token_made_at = now() - make_interval(days => $2) where id = $1',
      [id, days],
    )
  const tokenFrames = ({ frames }: FakeAgent) => frames.filter(({ type }) => type === 'token')

  test('is replaced when it is old; both serve until the new one was used', async () => {
    const one = await hub.enroll()
    await age(one.deviceId, 31)
    const agent = await FakeAgent.connect(one, hub.origin)
    const { agentToken } = await agent.frame('token')
    assert.match(agentToken, /^mst_[\w-]{43}$/)
    assert.notEqual(agentToken, one.agentToken)
    // The frame was lost, as far as the hub knows: the old token still opens, and brings another one.
    const again = await FakeAgent.connect(one, hub.origin)
    const { agentToken: third } = await again.frame('token')
    await assert.rejects(FakeAgent.open({ ...one, agentToken }, hub.origin), /401/)
    const renewed = await FakeAgent.connect({ ...one, agentToken: third }, hub.origin)
    await assert.rejects(FakeAgent.open(one, hub.origin), /401/)
    renewed.heartbeat({ seq: 1 })
    await renewed.frame('heartbeat_ack')
    await renewed.close()
    const last = await FakeAgent.connect({ ...one, agentToken: third }, hub.origin)
    last.heartbeat({ seq: 1 })
    await last.frame('heartbeat_ack')
    assert.deepEqual([tokenFrames(renewed), tokenFrames(last)], [[], []])
    await last.close()
  })

  test('stays while it is young', async () => {
    const one = await hub.enroll()
    await age(one.deviceId, 29)
    const agent = await FakeAgent.connect(one, hub.origin)
    agent.heartbeat({ seq: 1 })
    await agent.frame('heartbeat_ack')
    assert.deepEqual(tokenFrames(agent), [])
    await agent.close()
  })
})

test('connects are limited per device, and the accept budget sheds with Retry-After', async () => {
  const strict = await startHub({ LIMIT_CONNECT: '3', LIMIT_ACCEPT: '1' })
  const one = await strict.enroll()
  const outcomes: string[] = []
  for (let n = 0; n < 12; n++) {
    const answer = await FakeAgent.open(one, strict.origin).then(
      async (agent) => {
        await agent.close()
        return 'open'
      },
      (error: Error) => error.message,
    )
    outcomes.push(answer)
  }
  assert.ok(outcomes.includes('refused with 503'), outcomes.join())
  assert.ok(outcomes.filter((outcome) => outcome === 'open').length <= 4, outcomes.join())
  await strict.close()
})

test('a frame that comes late for a socket that is gone reaches no other device', async () => {
  const [one, other] = [await hub.enroll(), await hub.enroll()]
  const { shards } = hub.hub.ctx
  const sockets = shards['sockets']!
  const late: (() => boolean)[] = []
  const answered = Promise.withResolvers<void>()
  shards.attach({
    ...sockets,
    sendCommand(conn, text) {
      late.push(
        () => sockets.sendCommand(conn, text),
        () => (sockets.close(conn, 4002, 'late'), true),
      )
      answered.resolve()
      return false
    },
  })
  try {
    const agent = await FakeAgent.connect(one, hub.origin)
    const { id } = (await hub.post(`/devices/${one.deviceId}/commands`, { action: 'ping' })).body
    await answered.promise
    await agent.close()
    await status(one.deviceId, 'offline')
    shards.attach(sockets)
    // The front is free to give the number of the socket that is gone to the next one.
    const stranger = await FakeAgent.connect(other, hub.origin)
    const [send, close] = late
    assert.equal(send?.(), false)
    close?.()
    const again = (await FakeAgent.connect(one, hub.origin)).obey()
    await until(
      'the command to end',
      async () => (await hub.get(`/commands/${id}`)).body.status === 'completed',
    )
    stranger.heartbeat({ seq: 7 })
    await stranger.frame('heartbeat_ack')
    assert.deepEqual(
      stranger.frames.filter(({ type }) => type === 'command'),
      [],
    )
    assert.equal(stranger.closed, undefined)
    await stranger.close()
    await again.close()
  } finally {
    shards.attach(sockets)
  }
})
