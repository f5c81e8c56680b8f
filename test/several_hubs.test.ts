// Hubs that share a database: every request works on every hub, whichever holds the device; with Redis at once, and
// without it after a sweep.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { closeCodes } from '../src/protocol.ts'
import { FakeAgent } from './support/agent.ts'
import { SimulatedAgent } from './support/fleet.ts'
import { metricsToken, startHub, type Answer, type Device, type TestHub } from './support/hub.ts'
import { makeOrganization, makeSite } from './support/people.ts'
import { startRedis, withoutRedis, type TestRedis } from './support/redis.ts'
import { until } from './support/until.ts'

const ended = (hub: TestHub, id: string) =>
  until(`the end of ${id}`, async () => {
    const { body } = await hub.get(`/commands/${id}`)
    return body.completedAt !== null && body
  })

/** A counter of the metrics, by its name and labels as they are written. */
async function counted(hub: TestHub, series: string): Promise<number> {
  const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
  const line = text.split('\n').find((one) => one.startsWith(`${series} `))
  return line === undefined ? 0 : Number(line.slice(series.length + 1))
}

const waits = async (hub: TestHub) => {
  const [row] = await hub.hub.ctx.db.query<{ waiting: number }>(
    'select count(*)::int as waiting from handoffs',
  )
  return row?.waiting
}

/** Everything that must work with a device on `there` and a request to `here`. */
function works(name: string, hubs: () => { here: TestHub; there: TestHub }): void {
  test(`${name}: a command arrives, and its end is seen`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const agent = (await FakeAgent.connect(device, there.origin)).obey()
    const { status, body } = await here.post(`/devices/${device.deviceId}/commands`, {
      action: 'ping',
    })
    assert.equal(status, 202)
    assert.equal(body.blockedBy, null)
    assert.equal((await ended(here, body.id)).status, 'completed')
    assert.equal(agent.runs.get(body.id), 1)
    await agent.close()
  })

  test(`${name}: what is accepted here and then where the device is runs in that order`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const agent = (await FakeAgent.connect(device, there.origin)).obey()
    const path = `/devices/${device.deviceId}/commands`
    const accepted: string[] = []
    for (let round = 0; round < 5; round++) {
      for (const hub of [here, here, there]) {
        const { body } = await hub.post(path, { action: 'ping' })
        accepted.push(body.id)
      }
    }
    for (const id of accepted) assert.equal((await ended(here, id)).status, 'completed')
    assert.deepEqual([...agent.runs.keys()], accepted)
    await agent.close()
  })

  test(`${name}: a request waits for the end`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const agent = (await FakeAgent.connect(device, there.origin)).obey()
    const { body } = await here.post(`/devices/${device.deviceId}/commands?wait=30`, {
      action: 'ping',
    })
    assert.equal(body.status, 'completed')
    await agent.close()
  })

  test(`${name}: what was not sent is cancelled, what runs is asked to stop`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const agent = await FakeAgent.connect(device, there.origin)
    const path = `/devices/${device.deviceId}/commands`
    const first = await there.post(path, { action: 'ping' })
    const second = await there.post(path, { action: 'ping' })
    agent.send({ type: 'started', id: (await agent.frame('command', first.body.id)).id })
    const cancelled = await here.post(`/commands/${second.body.id}/cancel`)
    assert.equal(cancelled.body.status, 'cancelled')
    assert.match(cancelled.body.result.error, /before the device confirmed it/)
    assert.equal((await here.post(`/commands/${first.body.id}/cancel`)).status, 200)
    await agent.frame('cancel', first.body.id)
    agent.send({ type: 'result', id: first.body.id, status: 'cancelled' })
    assert.equal((await ended(here, first.body.id)).status, 'cancelled')
    await agent.close()
  })

  test(`${name}: a device that is decommissioned loses its socket, its waiting command its wait`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const agent = await FakeAgent.connect(device, there.origin)
    const path = `/devices/${device.deviceId}/commands`
    const waiting = there.post(`${path}?wait=30`, { action: 'ping' })
    await agent.frame('command')
    assert.equal((await here.delete(`/devices/${device.deviceId}`)).status, 200)
    assert.equal((await agent.closing()).code, closeCodes.decommissioned)
    assert.equal((await waiting).body.status, 'cancelled')
  })

  test(`${name}: a device that comes to another hub is let go of by the first`, async () => {
    const { here, there } = hubs()
    const device = await here.enroll()
    const first = await FakeAgent.connect(device, there.origin)
    const { body } = await there.post(`/devices/${device.deviceId}/commands`, { action: 'ping' })
    await first.frame('command', body.id)
    const second = (await FakeAgent.connect(device, here.origin)).obey()
    assert.equal((await first.closing()).code, closeCodes.superseded)
    assert.equal((await ended(there, body.id)).status, 'completed')
    await second.close()
  })

  test(`${name}: a script reaches devices on both`, async () => {
    const { here, there } = hubs()
    const { orgId, agents } = await two(here, there)
    const script = { name: newId(), language: 'sh', content: 'true' }
    const { body } = await here.post('/scripts', script)
    const execution = await until('the execution', async () => {
      const answer = await here.post(`/scripts/${body.id}/execute`, { filter: { orgId } })
      return answer.status === 202 && answer.body
    })
    const done = await until('its end', async () => {
      const answer = await there.get(`/executions/${execution.id}`)
      return answer.body.completedAt !== null && answer.body
    })
    assert.equal(done.counts.completed, 2, JSON.stringify(done))
    for (const agent of agents) assert.deepEqual([...agent.runs.values()], [1])
    for (const agent of agents) await agent.close()
  })

  test(`${name}: nothing is left behind`, async () => {
    await until('no row to wait', async () => (await waits(hubs().here)) === 0)
  })
}

/** An organization with a device on each hub. */
async function two(here: TestHub, there: TestHub) {
  const orgId = await makeOrganization(here)
  const siteId = await makeSite(here, orgId)
  const { body } = await here.post(`/sites/${siteId}/enrollment-keys`, { maxUses: 2 })
  const agents: FakeAgent[] = []
  for (const hub of [here, there]) {
    const device = await here.enroll({ enrollmentSecret: body.key })
    agents.push((await FakeAgent.connect(device, hub.origin)).obey())
  }
  return { orgId, agents }
}

describe('with Redis', { skip: withoutRedis }, () => {
  let redis: TestRedis
  let here: TestHub
  let there: TestHub
  /** Sees what other connections wait for. */
  let owner: Database

  before(async () => {
    redis = await startRedis()
    here = await startHub({ REDIS_URL: redis.url })
    there = await startHub({ REDIS_URL: redis.url, DATABASE_URL: here.database.url })
    await reach('ok')
    owner = openDatabase({ url: here.database.url, name: 'owner', connections: 1, role: 'owner' })
  })
  after(async () => {
    await owner.close()
    await there.close()
    await here.close()
    await redis.close()
  })

  const reach = (word: 'ok' | 'down') =>
    until(`Redis to be ${word}`, async () => {
      const answers = await Promise.all(
        [here, there].map((hub) => hub.get('{origin}/health/ready', { token: undefined })),
      )
      return answers.every(({ body }) => body.checks.redis === word)
    })

  /** Whether a connection waits for what another one holds. */
  const isLocked = async () => {
    const rows = await owner.query(
      `select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
    )
    return rows.length > 0
  }

  works('Redis', () => ({ here, there }))

  test('what is handed over is found by the hint, and costs one hub’s own devices nothing', async () => {
    const [mine, other] = [await here.enroll(), await here.enroll()]
    const agents = [
      (await FakeAgent.connect(mine, here.origin)).obey(),
      (await FakeAgent.connect(other, there.origin)).obey(),
    ]
    const hints = await counted(there, 'muster_handoffs_total{found="hint"}')
    for (let n = 0; n < 5; n++) {
      const { body } = await here.post(`/devices/${other.deviceId}/commands?wait=30`, {
        action: 'ping',
      })
      assert.equal(body.status, 'completed')
    }
    assert.ok((await counted(there, 'muster_handoffs_total{found="hint"}')) > hints)
    const sent = await counted(here, 'muster_bus_messages_total{kind="handed",outcome="sent"}')
    const { body } = await here.post(`/devices/${mine.deviceId}/commands?wait=30`, {
      action: 'ping',
    })
    assert.equal(body.status, 'completed')
    const later = await counted(here, 'muster_bus_messages_total{kind="handed",outcome="sent"}')
    assert.equal(later, sent)
    for (const agent of agents) await agent.close()
  })

  test('whoever is about to claim a device waits for who commits a command for it', async () => {
    const device = await here.enroll()
    const id = newId()
    const held = Promise.withResolvers<void>()
    const locked = Promise.withResolvers<void>()
    // As `accept` does it: the presence is locked, the command not committed.
    const accepting = here.hub.ctx.db.transaction(async (tx) => {
      await tx.query('select from device_presence where device_id = $1 for share', [
        device.deviceId,
      ])
      await tx.query(
        `insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_at, expires_at)
         values ($1, $2, $3, 'ping', '{}', 30, now(), now() + interval '1 hour')`,
        [id, device.deviceId, device.orgId],
      )
      locked.resolve()
      await held.promise
    })
    await locked.promise
    const agent = await FakeAgent.open(device, there.origin)
    agent.obey()
    try {
      await until('the claim to wait', isLocked)
      assert.deepEqual(agent.frames, [])
    } finally {
      held.resolve()
      await accepting
    }
    // It was committed before the claim, told to nobody, and is there with the claim.
    assert.equal((await ended(here, id)).status, 'completed')
    await agent.close()
  })

  test('an end that is being written here while its device is claimed there holds up nothing', async () => {
    const device = await here.enroll()
    const path = `/devices/${device.deviceId}/commands`
    const first = await FakeAgent.connect(device, here.origin)
    const { id } = (await here.post(path, { action: 'ping', timeoutSeconds: 300 })).body
    first.send({ type: 'started', id })
    await until('it to be shown as running', async () => {
      return (await here.get(`/commands/${id}`)).body.status === 'running'
    })
    const held = Promise.withResolvers<void>()
    const locked = Promise.withResolvers<void>()
    const holding = here.hub.ctx.db.transaction(async (tx) => {
      await tx.query('select from commands where id = $1 for update', [id])
      locked.resolve()
      await held.promise
    })
    await locked.promise
    first.send({ type: 'result', id, status: 'completed' })
    let second: FakeAgent
    try {
      await until('its end to wait', isLocked)
      second = await FakeAgent.connect(device, there.origin)
    } finally {
      held.resolve()
      await holding
    }
    // It was loaded as running, and has ended since; the agent, whose result was acknowledged, has no word for it.
    assert.equal((await ended(here, id)).status, 'completed')
    second.obey()
    assert.equal((await there.post(`${path}?wait=30`, { action: 'ping' })).body.status, 'completed')
    await second.close()
    await first.close()
  })

  test('two hubs wait for one command on a third: both are told of its end', async () => {
    const far = await startHub({ REDIS_URL: redis.url, DATABASE_URL: here.database.url })
    try {
      await until('Redis to reach it', async () => {
        const { body } = await far.get('{origin}/health/ready', { token: undefined })
        return body.checks.redis === 'ok'
      })
      const device = await here.enroll()
      const agent = await FakeAgent.connect(device, there.origin)
      const ends = 'muster_bus_messages_total{kind="ended",outcome="sent"}'
      const told = await counted(there, ends)
      const taken = async () =>
        (await counted(there, 'muster_handoffs_total{found="hint"}')) +
        (await counted(there, 'muster_handoffs_total{found="sweep"}'))
      const known = await taken()
      const ask = (hub: TestHub) =>
        hub.post(
          `/devices/${device.deviceId}/commands?wait=30`,
          { action: 'ping' },
          { headers: { 'idempotency-key': device.deviceId } },
        )
      const first = ask(here)
      const { id } = await agent.frame('command')
      const second = ask(far)
      await until('both to wait', () =>
        [here, far].every((hub) => hub.hub.ctx.commands.awaited().includes(id)),
      )
      await until('both to be known', async () => (await taken()) - known === 2)
      agent.send({ type: 'result', id, status: 'completed' })
      for (const answer of await Promise.all([first, second])) {
        assert.deepEqual([answer.body.id, answer.body.status], [id, 'completed'])
      }
      assert.equal((await counted(there, ends)) - told, 2)
      await agent.close()
    } finally {
      await far.close()
    }
  })

  test('forged, repeated and foreign messages change nothing', async () => {
    const { nodeId } = there.hub.ctx
    const dropped = (why: string) =>
      counted(there, `muster_bus_messages_total{kind="any",outcome="${why}"}`)
    const earlier = await dropped('sealed_otherwise')
    await redis.command('PUBLISH', `muster:node:${nodeId}`, 'anything')
    await redis.command('PUBLISH', `muster:node:${nodeId}`, 'x'.repeat(4096))
    await until(
      'both to be dropped',
      async () => (await dropped('sealed_otherwise')) === earlier + 2,
    )
  })

  test('a Redis that is emptied under load: nothing fails, nothing is late', async (t) => {
    const device = await here.enroll()
    const agent = (await FakeAgent.connect(device, there.origin)).obey()
    // Nothing is swept: what a hint does not bring would be late.
    const { handoffs } = there.hub.ctx
    const take = handoffs.take.bind(handoffs)
    t.mock.method(handoffs, 'take', async (found: 'hint' | 'sweep') => {
      if (found === 'hint') await take(found)
    })
    await take('hint')
    const sweeps = await counted(there, 'muster_handoffs_total{found="sweep"}')
    const path = `/devices/${device.deviceId}/commands?wait=30`
    for (let n = 0; n < 20; n++) {
      if (n % 5 === 0) await redis.command('FLUSHALL')
      assert.equal((await here.post(path, { action: 'ping' })).body.status, 'completed')
    }
    assert.equal(await counted(there, 'muster_handoffs_total{found="sweep"}'), sweeps)
    await agent.close()
  })

  test('a fleet that hops from hub to hub: each command one end and one run', async () => {
    const devices: Device[] = []
    for (let n = 0; n < 12; n++) devices.push(await here.enroll())
    const fleet = devices.map((device, n) => {
      const hub = n % 2 === 0 ? here : there
      return new SimulatedAgent(device, hub.origin)
    })
    await until('all to be online', () => fleet.every((agent) => agent.online))
    const ids: string[] = []
    for (let round = 0; round < 25; round++) {
      const hub = round % 2 === 0 ? there : here
      const answers = await Promise.all(
        devices.map(({ deviceId }) =>
          hub.post(`/devices/${deviceId}/commands`, { action: 'ping' }),
        ),
      )
      ids.push(
        ...answers.map(({ status, text, body }) => (assert.equal(status, 202, text), body.id)),
      )
      // Some move, with the command on its way to where they were.
      for (const [n, agent] of fleet.entries()) {
        if ((n + round) % 3 === 0) agent.moveTo((round + n) % 2 === 0 ? here.origin : there.origin)
      }
    }
    const open = () =>
      here.hub.ctx.db.query<{ id: string }>(
        'select id from commands where id = any($1::uuid[]) and completed_at is null',
        [ids],
      )
    await until('all to end', async () => (await open()).length === 0)
    const rows = await here.hub.ctx.db.query<{ status: string; count: number }>(
      'select status, count(*)::int as count from commands where id = any($1::uuid[]) group by status',
      [ids],
    )
    assert.deepEqual(rows, [{ status: 'completed', count: ids.length }])
    for (const id of ids) {
      const runs = fleet.map((agent) => agent.runs.get(id) ?? 0)
      assert.equal(
        runs.reduce((all, one) => all + one, 0),
        1,
      )
    }
    for (const agent of fleet) agent.stop()
  })

  describe('that was killed', () => {
    before(async () => {
      await redis.kill()
      await reach('down')
    })
    after(async () => {
      await redis.start()
      await reach('ok')
    })
    works('Redis down', () => ({ here, there }))
  })

  test('and is there again', async () => {
    const hints = await counted(there, 'muster_handoffs_total{found="hint"}')
    const device = await here.enroll()
    const agent = (await FakeAgent.connect(device, there.origin)).obey()
    const path = `/devices/${device.deviceId}/commands?wait=30`
    assert.equal((await here.post(path, { action: 'ping' })).body.status, 'completed')
    assert.ok((await counted(there, 'muster_handoffs_total{found="hint"}')) > hints)
    await agent.close()
  })
})

describe('with Redis, and no sweep', { skip: withoutRedis }, () => {
  let redis: TestRedis
  const hubs: TestHub[] = []

  before(async () => {
    redis = await startRedis()
    const env = { REDIS_URL: redis.url }
    const first = await startHub(env)
    const more = { ...env, DATABASE_URL: first.database.url }
    hubs.push(first, await startHub(more), await startHub(more))
    await until('Redis to reach all', async () => {
      const answers = await Promise.all(
        hubs.map((hub) => hub.get('{origin}/health/ready', { token: undefined })),
      )
      return answers.every(({ body }) => body.checks.redis === 'ok')
    })
    // What is not told is not found.
    for (const { hub } of hubs) (Reflect.get(hub.ctx.handoffs, 'stop') as AbortController).abort()
  })
  after(async () => {
    for (const hub of hubs.toReversed()) await hub.close()
    await redis.close()
  })

  /** A request to `far` that waits, for as long as one may, for a ping of the device. */
  async function waitOn(far: TestHub, { deviceId }: Device) {
    let answer: Answer | undefined
    const path = `/devices/${deviceId}/commands?wait=60`
    const waiting = far.post(path, { action: 'ping' }).then((found) => (answer = found))
    const id = await until('it to wait', () => far.hub.ctx.commands.awaited()[0])
    return {
      id,
      /** Given up long before it would end by itself. */
      async answered() {
        await until('the answer', () => answer, 25_000)
        return (await waiting).body
      },
    }
  }

  test('who waits on a third hub hears of a decommission', async () => {
    const [here, there, far] = hubs as [TestHub, TestHub, TestHub]
    const device = await here.enroll()
    const agent = await FakeAgent.connect(device, there.origin)
    const waiting = await waitOn(far, device)
    await agent.frame('command', waiting.id)
    assert.equal((await here.delete(`/devices/${device.deviceId}`)).status, 200)
    assert.equal((await waiting.answered()).status, 'cancelled')
    await agent.closing()
  })

  test('who waits on a third hub hears of a cancel, of one that nobody holds and of two at once', async () => {
    const [here, there, far] = hubs as [TestHub, TestHub, TestHub]
    const device = await here.enroll()
    const offline = await waitOn(far, device)
    assert.equal((await here.post(`/commands/${offline.id}/cancel`)).status, 200)
    assert.equal((await offline.answered()).status, 'cancelled')
    const agent = await FakeAgent.connect(device, there.origin)
    const { body: first } = await there.post(`/devices/${device.deviceId}/commands`, {
      action: 'ping',
    })
    await agent.frame('command', first.id)
    const queued = await waitOn(far, device)
    const answers = await Promise.all(hubs.map((hub) => hub.post(`/commands/${queued.id}/cancel`)))
    // Those that came after the end are told so.
    for (const { status, text } of answers) assert.ok(status === 200 || status === 409, text)
    assert.ok(answers.some(({ status }) => status === 200))
    assert.equal((await queued.answered()).status, 'cancelled')
    await agent.close()
  })

  for (const [what, from] of [
    ['moves from one hub to another', 1],
    ['comes from the hub that waits', 2],
    ['was off', undefined],
  ] as const) {
    test(`who waits hears of the end on a device that ${what}`, async () => {
      const [here, , far] = hubs as [TestHub, TestHub, TestHub]
      const device = await here.enroll()
      const earlier =
        from === undefined
          ? undefined
          : await FakeAgent.connect(device, (hubs[from] as TestHub).origin)
      const waiting = await waitOn(far, device)
      await earlier?.frame('command', waiting.id)
      const agent = (await FakeAgent.connect(device, here.origin)).obey()
      assert.equal((await waiting.answered()).status, 'completed')
      await agent.close()
      await earlier?.close()
    })
  }
})

describe('without Redis', () => {
  let here: TestHub
  let there: TestHub
  before(async () => {
    here = await startHub()
    there = await startHub({ DATABASE_URL: here.database.url })
  })
  after(async () => {
    await there.close()
    await here.close()
  })

  works('no Redis', () => ({ here, there }))

  test('readiness calls Redis off', async () => {
    const { body } = await here.get('{origin}/health/ready', { token: undefined })
    assert.equal(body.checks.redis, 'off')
  })

  test('a request that waited for a device which moved away hears of its end', async () => {
    const device = await here.enroll()
    const agent = await FakeAgent.connect(device, there.origin)
    const waiting = there.post(`/devices/${device.deviceId}/commands?wait=50`, { action: 'ping' })
    await agent.frame('command')
    const moved = (await FakeAgent.connect(device, here.origin)).obey()
    assert.equal((await waiting).body.status, 'completed')
    await moved.close()
  })
})
