// Roll-outs from the request to the last end: who is in which group, when the next begins, what halts one, and
// that nobody begins while it stands still.
import assert from 'node:assert/strict'
import { renameSync } from 'node:fs'
import { join } from 'node:path'
import { after, afterEach, before, describe, test } from 'node:test'
import { newId } from '../src/ids.ts'
import { removeFolder } from './support/folders.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  everyPage,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  type Person,
} from './support/people.ts'
import { makeReleases, offered, type Folders } from './support/releases.ts'
import { until } from './support/until.ts'
import { Upgrader, type Fate } from './support/upgraders.ts'

const path = '/agents/rollouts'
const version = '2.0.0'

let hub: TestHub
let folders: Folders
let orgId: string
let admin: Person
const agents: Upgrader[] = []

before(async () => {
  folders = await makeReleases([version])
  hub = await startHub(folders.env)
  await offered(hub, 1)
  // Everything else works while pg-boss makes its tables; the first roll-out waits for them.
  await until('the queue', async () => {
    const rows = await hub.hub.ctx.db
      .query(`select true from pgboss.queue where name = 'rollouts'`)
      .catch(() => [])
    return rows.length > 0
  })
  orgId = await makeOrganization(hub)
  admin = await signedIn(hub, 'org_admin', { orgId })
})
afterEach(async () => {
  for (const { agent } of agents.splice(0)) await agent.close()
})
after(async () => {
  await hub.close()
  removeFolder(folders.base)
})

const db = () => hub.hub.ctx.db

// ---- who and what ----------------------------------------------------------------------------

/** Enrolls devices at a site of their own. */
async function fleet(
  count: number,
  more: object = {},
): Promise<{ siteId: string; devices: Device[] }> {
  const siteId = await makeSite(hub, orgId)
  const devices = await Promise.all(
    Array.from({ length: count }, () => hub.enroll({ siteId, agentVersion: '1.0.0', ...more })),
  )
  return { siteId, devices }
}

async function connect(devices: readonly Device[], fate: Fate): Promise<Upgrader[]> {
  const made = await Promise.all(devices.map((one) => Upgrader.connect(one, hub.origin, fate)))
  agents.push(...made)
  return made
}

const oneGroup = [{ percent: 100, successThreshold: 100, errorThreshold: 100 }]

const create = (body: object, { token } = admin) =>
  call(hub, 'POST', path, { token, body: { version, groups: oneGroup, ...body } })

async function started(body: object) {
  const answer = await create(body)
  assert.equal(answer.status, 201, answer.text)
  assert.equal(answer.headers.get('location'), `/api/v1${path}/${answer.body.id}`)
  return answer.body
}

async function read(id: string) {
  const answer = await call(hub, 'GET', `${path}/${id}`, { token: admin.token })
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

type Verb = 'pause' | 'resume' | 'abort'
const change = (id: string, verb: Verb) =>
  call(hub, 'POST', `${path}/${id}/${verb}`, { token: admin.token })

async function changed(id: string, verb: Verb) {
  const answer = await change(id, verb)
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

type Rollout = Awaited<ReturnType<typeof read>>

/** Waits until a roll-out is as `what` says. */
const becomes = (id: string, what: string, is: (rollout: Rollout) => boolean) =>
  until(
    `the roll-out to be ${what}`,
    async () => {
      const rollout = await read(id)
      return is(rollout) && rollout
    },
    30_000,
  )
const becomesStatus = (id: string, status: string) =>
  becomes(id, status, (rollout) => rollout.status === status)
const counted = (id: string, counts: Record<string, number>) =>
  becomes(id, JSON.stringify(counts), (rollout) =>
    Object.entries(counts).every(([name, count]) => rollout.counts[name] === count),
  )

interface Member {
  deviceId: string
  group: number
  status: string
  reason: string | null
  commandId: string | null
}

async function members(id: string, query = ''): Promise<Member[]> {
  const { items } = await everyPage(hub, `${path}/${id}/devices?limit=500${query}`, admin.token)
  return items as unknown as Member[]
}

async function groupsOf(id: string): Promise<Map<string, number>> {
  return new Map((await members(id)).map(({ deviceId, group }) => [deviceId, group]))
}

async function commandOf(id: string) {
  return (await hub.get(`/commands/${id}`)).body
}

// ---- forward ---------------------------------------------------------------------------------

describe('a roll-out', () => {
  test('goes group by group, and ends with all of them', async () => {
    const { siteId, devices } = await fleet(10)
    const upgraders = await connect(devices, 'hold')
    const groups = [
      { percent: 10, successThreshold: 100, errorThreshold: 1 },
      { percent: 30, successThreshold: 100, errorThreshold: 1 },
      { percent: 60, successThreshold: 100, errorThreshold: 1 },
    ]
    const { id } = await started({ filter: { siteId }, groups })
    const places = await groupsOf(id)
    const of = (number: number) =>
      upgraders.filter(({ device }) => places.get(device.deviceId) === number)
    assert.deepEqual(
      [1, 2, 3].map((number) => of(number).length),
      [1, 3, 6],
    )
    for (const number of [1, 2, 3]) {
      for (const upgrader of of(number)) await upgrader.asks()
      const now = await read(id)
      assert.equal(now.status, 'running')
      assert.deepEqual(
        now.groups.map((group: { status: string }) => group.status),
        [1, 2, 3].map((n) => (n < number ? 'passed' : n === number ? 'running' : 'pending')),
      )
      for (const later of [1, 2, 3].filter((n) => n > number)) {
        assert.ok(of(later).every(({ asked }) => asked.size === 0))
      }
      // All but the last of a group leave the next one waiting.
      const [last, ...others] = of(number)
      for (const upgrader of others) upgrader.finish('succeed')
      if (others.length > 0) await counted(id, { running: 1 })
      last?.finish('succeed')
    }
    const end = await becomesStatus(id, 'completed')
    assert.equal(end.reason, '10 of 10 devices were upgraded to 2.0.0')
    assert.deepEqual([end.counts.completed, end.counts.total], [10, 10])
    for (const { asked } of upgraders) assert.deepEqual([...asked.values()], [version])
    const [row] = await auditOfResource(hub, 'rollout.create', id)
    assert.deepEqual([row?.actorId, row?.details.after.version], [admin.id, version])
    const [member] = await members(id, '&status=completed&group=2')
    const [entry] = await auditOfResource(hub, 'command.create', member?.commandId ?? '')
    assert.deepEqual([entry?.actorId, entry?.details.after.rolloutId], [admin.id, id])
  })

  test('goes on at the success threshold, and waits for the rest before it completes', async () => {
    const { siteId, devices } = await fleet(8)
    const upgraders = await connect(devices, 'hold')
    const group = { percent: 50, successThreshold: 75, errorThreshold: 26 }
    const { id } = await started({ filter: { siteId }, groups: [group, group] })
    const places = await groupsOf(id)
    const of = (number: number) =>
      upgraders.filter(({ device }) => places.get(device.deviceId) === number)
    for (const upgrader of of(1)) await upgrader.asks()
    for (const upgrader of of(1).slice(0, 3)) upgrader.finish('succeed')
    for (const upgrader of of(2)) {
      await upgrader.asks()
      upgrader.finish('succeed')
    }
    const late = await counted(id, { completed: 7 })
    assert.equal(late.status, 'running')
    // One of four is under the error threshold.
    of(1).at(-1)?.finish('fail')
    const end = await becomesStatus(id, 'completed')
    assert.deepEqual([end.counts.completed, end.counts.failed], [7, 1])
    assert.equal(end.reason, '7 of 8 devices were upgraded to 2.0.0')
  })

  test('skips who runs the version, who has no binary, and who was decommissioned since', async () => {
    const { siteId, devices } = await fleet(4)
    const [updated] = await Promise.all([
      hub.enroll({ siteId, agentVersion: version }),
      hub.enroll({ siteId, os: 'windows' }),
    ])
    const half = { percent: 50, successThreshold: 100, errorThreshold: 100 }
    const { id } = await started({ filter: { siteId }, groups: [half, half] })
    const of = (await members(id)).filter(({ status }) => status === 'pending')
    const inSecond = of.filter(({ group }) => group === 2).map(({ deviceId }) => deviceId)
    const [gone = '', since = ''] = inSecond
    await hub.delete(`/devices/${gone}`)
    await db().query('update devices set agent_version = $2 where id = $1', [since, version])
    await connect(
      devices.filter(({ deviceId }) => deviceId !== gone),
      'succeed',
    )
    const end = await becomesStatus(id, 'completed')
    assert.deepEqual([end.counts.completed, end.counts.skipped, end.counts.total], [2, 4, 6])
    const reasons = (await members(id, '&status=skipped')).map((one) => [one.deviceId, one.reason])
    const why = new Map(reasons as [string, string][])
    assert.deepEqual(
      [updated.deviceId, gone, since].map((device) => why.get(device)),
      ['already_installed', 'decommissioned', 'already_installed'],
    )
    assert.deepEqual([...why.values()].filter((reason) => reason === 'no_binary').length, 1)
  })

  test('of which nobody needs anything completes at once', async () => {
    const { siteId } = await fleet(3, { agentVersion: version })
    const { id } = await started({ filter: { siteId } })
    const end = await becomesStatus(id, 'completed')
    assert.deepEqual([end.counts.skipped, end.reason], [3, '0 of 0 devices were upgraded to 2.0.0'])
  })

  test('keeps to the devices there were when it was made', async () => {
    const { siteId, devices } = await fleet(2)
    const group = { percent: 50, successThreshold: 100, errorThreshold: 100 }
    const { id } = await started({ filter: { siteId }, groups: [group, group] })
    const later = await hub.enroll({ siteId, agentVersion: '1.0.0' })
    const upgraders = await connect([...devices, later], 'succeed')
    await becomesStatus(id, 'completed')
    assert.deepEqual(
      upgraders.map(({ asked }) => asked.size),
      [1, 1, 0],
    )
  })

  test('takes those that are named and fit the filter', async () => {
    const { siteId, devices } = await fleet(3)
    const [one, two] = devices
    await db().query(`update devices set tags = '{beta}' where id = $1`, [one?.deviceId])
    const deviceIds = [one?.deviceId, two?.deviceId]
    const { id, counts } = await started({ filter: { siteId, deviceIds, tag: 'beta' } })
    assert.equal(counts.total, 1)
    assert.deepEqual([...(await groupsOf(id)).keys()], [one?.deviceId])
    await changed(id, 'abort')
  })

  test('gives each group its very share, and the next roll-out begins with others', async () => {
    const { siteId } = await fleet(40)
    const group = { percent: 25, successThreshold: 100, errorThreshold: 100 }
    const places: string[] = []
    for (let n = 0; n < 2; n++) {
      const { id, groups } = await started({
        filter: { siteId },
        groups: [group, group, group, group],
      })
      assert.deepEqual(
        groups.map((one: { counts: { total: number } }) => one.counts.total),
        [10, 10, 10, 10],
      )
      const found = await members(id)
      places.push(
        found
          .map(({ deviceId, group: place }) => `${deviceId} ${place}`)
          .toSorted()
          .join(),
      )
      await changed(id, 'abort')
      await counted(id, { cancelled: 40 })
    }
    assert.notEqual(places[0], places[1])
  })
})

// ---- halts -----------------------------------------------------------------------------------

describe('a halt', () => {
  const groups = [
    { percent: 50, successThreshold: 80, errorThreshold: 40 },
    { percent: 50, successThreshold: 80, errorThreshold: 40 },
  ]

  test('comes by itself at the error threshold, is audited, and nobody begins any more', async () => {
    const { siteId, devices } = await fleet(10)
    const { id } = await started({ filter: { siteId }, groups })
    const first = new Set((await members(id, '&group=1')).map(({ deviceId }) => deviceId))
    const [a, b, c, ...away] = devices.filter(({ deviceId }) => first.has(deviceId))
    await counted(id, { running: 5 })
    const [one, two, three] = await connect([a, b, c] as Device[], 'hold')
    await three?.asks()
    one?.finish('fail')
    await counted(id, { failed: 1 })
    two?.finish('fail')
    const halted = await becomesStatus(id, 'halted')
    assert.equal(halted.reason, '2 of 5 devices of group 1 failed; its error threshold is 40 %')
    assert.deepEqual(
      halted.groups.map(({ status }: { status: string }) => status),
      ['halted', 'pending'],
    )
    const [row] = await auditOfResource(hub, 'rollout.halt', id)
    assert.deepEqual([row?.actorId, row?.details.after.reason], [null, halted.reason])
    // Two were away: their commands are taken back, and they get none when they return.
    await counted(id, { pending: 7, running: 1, failed: 2 })
    const back = await connect(away, 'succeed')
    assert.ok(back.every(({ asked }) => asked.size === 0))
    // Who is at it ends as it does.
    three?.finish('succeed')
    await counted(id, { completed: 1, running: 0 })
    assert.equal((await read(id)).status, 'halted')
  })

  test('is overruled by a resume: it goes on despite that group, the next one is judged', async () => {
    const { siteId, devices } = await fleet(10)
    const upgraders = await connect(devices, 'fail')
    const { id } = await started({ filter: { siteId }, groups })
    const halted = await becomesStatus(id, 'halted')
    assert.equal(halted.groups[1].counts.pending, 5)
    const places = await groupsOf(id)
    const second = upgraders.filter(({ device }) => places.get(device.deviceId) === 2)
    const resumed = await changed(id, 'resume')
    assert.deepEqual(
      [resumed.status, resumed.reason],
      ['running', `resumed despite its errors by ${admin.email}`],
    )
    const again = await becomesStatus(id, 'halted')
    assert.match(again.reason, /of group 2 failed/)
    assert.ok(second.some(({ asked }) => asked.size > 0))
    assert.equal((await changed(id, 'resume')).status, 'running')
    const end = await becomesStatus(id, 'completed')
    assert.equal(end.counts.failed, 10)
    assert.ok(
      upgraders.every(({ asked }) => asked.size === 1),
      'nobody is asked again',
    )
  })

  test('comes when the success threshold is out of reach', async () => {
    const { siteId, devices } = await fleet(4)
    const [one] = await connect(devices, 'hold')
    const { id } = await started({
      filter: { siteId },
      groups: [{ percent: 100, successThreshold: 100, errorThreshold: 100 }],
    })
    await one?.asks()
    one?.finish('fail')
    const { reason } = await becomesStatus(id, 'halted')
    assert.equal(
      reason,
      '1 of 4 devices of group 1 failed; its success threshold of 100 % is out of reach',
    )
  })

  test('comes from stragglers of an earlier group, too', async () => {
    const { siteId, devices } = await fleet(8)
    const upgraders = await connect(devices, 'hold')
    const group = { percent: 50, successThreshold: 50, errorThreshold: 50 }
    const { id } = await started({ filter: { siteId }, groups: [group, group] })
    const places = await groupsOf(id)
    const [a, b, c, d] = upgraders.filter(({ device }) => places.get(device.deviceId) === 1)
    for (const upgrader of [a, b, c, d]) await upgrader?.asks()
    a?.finish('succeed')
    b?.finish('succeed')
    await becomes(
      id,
      'at its second group',
      ({ groups: [, second] }) => second.status === 'running',
    )
    c?.finish('fail')
    d?.finish('fail')
    const { reason } = await becomesStatus(id, 'halted')
    assert.equal(reason, '2 of 4 devices of group 1 failed; its error threshold is 50 %')
  })

  test('counts no device that was never there: expired is no error, but no proof either', async () => {
    const { siteId, devices } = await fleet(4)
    const [one] = await connect(devices.slice(0, 1), 'succeed')
    const group = { percent: 100, successThreshold: 100, errorThreshold: 1 }
    const { id } = await started({ filter: { siteId }, groups: [group] })
    await one?.asks()
    await counted(id, { running: 3, completed: 1 })
    await expire(id)
    const end = await becomesStatus(id, 'completed')
    assert.deepEqual([end.counts.expired, end.counts.completed], [3, 1])
    const none = await fleet(2)
    const lonely = await started({ filter: { siteId: none.siteId }, groups: [group] })
    await counted(lonely.id, { running: 2 })
    await expire(lonely.id)
    const { reason } = await becomesStatus(lonely.id, 'halted')
    assert.equal(
      reason,
      'no device of group 1 was reached before its command expired or was cancelled',
    )
  })
})

/** Lets the open commands of a roll-out expire. */
async function expire(id: string): Promise<void> {
  await db().query(
    `update commands set expires_at = now() - interval '1 s' where completed_at is null and id in (
       select command_id from rollout_devices where rollout_id = $1)`,
    [id],
  )
}

// ---- standing still --------------------------------------------------------------------------

describe('a pause', () => {
  test('takes back what nobody confirmed, and a resume asks anew', async () => {
    const { siteId, devices } = await fleet(4)
    const [busy, there, ...away] = devices
    const [holder] = await connect([there] as Device[], 'hold')
    // Waits in its actor, behind another command.
    const [blocked] = await connect([busy] as Device[], 'hold')
    const other = await hub.post(`/devices/${busy?.deviceId}/commands`, {
      action: 'run_command',
      payload: { command: 'true' },
    })
    await blocked?.agent.frame('command', other.body.id)
    blocked?.agent.send({ type: 'delivered', id: other.body.id })
    const { id } = await started({ filter: { siteId } })
    await counted(id, { running: 4 })
    await holder?.asks()
    await until('the command to be with its agent', async () => {
      const [command] = [...(holder?.asked.keys() ?? [])]
      return (await commandOf(command ?? '')).status === 'running'
    })
    const given = (await members(id)).map(({ commandId }) => commandId ?? '')
    const paused = await changed(id, 'pause')
    assert.deepEqual([paused.status, paused.reason], ['paused', `paused by ${admin.email}`])
    await counted(id, { pending: 3, running: 1 })
    const taken = (await members(id, '&status=pending')).map((one) => [one.commandId, one.deviceId])
    assert.deepEqual(
      taken.filter(([command]) => command !== null),
      [],
    )
    const statuses: string[] = await Promise.all(
      given.map(async (command) => (await commandOf(command)).status),
    )
    assert.deepEqual(statuses.toSorted(), ['cancelled', 'cancelled', 'cancelled', 'running'])
    // The busy one is free again, and still gets nothing.
    blocked?.agent.send({ type: 'result', id: other.body.id, status: 'completed' })
    await blocked?.agent.frame('ack', other.body.id)
    const back = await connect(away, 'succeed')
    assert.deepEqual(
      [blocked, ...back].map((one) => one?.asked.size),
      [0, 0, 0],
    )
    holder?.finish('succeed')
    await counted(id, { completed: 1 })
    if (blocked) blocked.fate = 'succeed'
    await changed(id, 'resume')
    const end = await becomesStatus(id, 'completed')
    assert.equal(end.counts.completed, 4)
    assert.deepEqual(
      [holder, blocked, ...back].map((one) => one?.asked.size),
      [1, 1, 1, 1],
    )
  })

  test('holds the next group back, whatever ends meanwhile', async () => {
    const { siteId, devices } = await fleet(4)
    const upgraders = await connect(devices, 'hold')
    const half = { percent: 50, successThreshold: 100, errorThreshold: 100 }
    const { id } = await started({ filter: { siteId }, groups: [half, half] })
    const places = await groupsOf(id)
    const of = (number: number) =>
      upgraders.filter(({ device }) => places.get(device.deviceId) === number)
    for (const upgrader of of(1)) await upgrader.asks()
    await changed(id, 'pause')
    for (const upgrader of of(1)) upgrader.finish('succeed')
    const still = await counted(id, { completed: 2 })
    assert.deepEqual([still.status, still.groups[1].status], ['paused', 'pending'])
    for (const upgrader of of(2)) upgrader.fate = 'succeed'
    await changed(id, 'resume')
    await becomesStatus(id, 'completed')
  })

  test('of a version that was withdrawn since is not resumed', async () => {
    const { siteId } = await fleet(1)
    const { id } = await started({ filter: { siteId } })
    await changed(id, 'pause')
    const [there, aside] = [join(folders.releases, version), join(folders.base, version)]
    renameSync(there, aside)
    await offered(hub, 0)
    assert.equal(outcome(await change(id, 'resume')), '404 AGENT_BINARY_NOT_FOUND')
    assert.equal((await read(id)).status, 'paused')
    renameSync(aside, there)
    await offered(hub, 1)
    assert.equal((await changed(id, 'resume')).status, 'running')
    await changed(id, 'abort')
  })

  test('twice is as good as once, and what has ended is neither paused nor resumed', async () => {
    const { siteId } = await fleet(1)
    const { id } = await started({ filter: { siteId } })
    const first = await changed(id, 'pause')
    assert.equal((await changed(id, 'pause')).updatedAt, first.updatedAt)
    assert.equal((await auditOfResource(hub, 'rollout.pause', id)).length, 1)
    await changed(id, 'resume')
    await changed(id, 'resume')
    assert.equal((await auditOfResource(hub, 'rollout.resume', id)).length, 1)
    await changed(id, 'abort')
    await changed(id, 'abort')
    assert.equal((await auditOfResource(hub, 'rollout.abort', id)).length, 1)
    for (const verb of ['pause', 'resume'] as const) {
      assert.equal(outcome(await change(id, verb)), '409 CONFLICT')
    }
    const done = await fleet(1, { agentVersion: version })
    const other = await started({ filter: { siteId: done.siteId } })
    await becomesStatus(other.id, 'completed')
    for (const verb of ['pause', 'resume', 'abort'] as const) {
      assert.equal(outcome(await change(other.id, verb)), '409 CONFLICT')
    }
  })
})

test('an abort cancels what nobody confirmed; who is at it ends as it does', async () => {
  const { siteId, devices } = await fleet(6)
  const half = { percent: 50, successThreshold: 100, errorThreshold: 100 }
  const { id } = await started({ filter: { siteId }, groups: [half, half] })
  const first = new Set((await members(id, '&group=1')).map(({ deviceId }) => deviceId))
  const there = devices.find(({ deviceId }) => first.has(deviceId))
  const [holder] = await connect([there] as Device[], 'hold')
  await holder?.asks()
  await until('the command to be with its agent', async () => {
    const [command] = [...(holder?.asked.keys() ?? [])]
    return (await commandOf(command ?? '')).status === 'running'
  })
  const aborted = await changed(id, 'abort')
  assert.deepEqual([aborted.status, aborted.reason], ['aborted', `aborted by ${admin.email}`])
  await counted(id, { cancelled: 5, running: 1, pending: 0 })
  // The others are free for the next one, with the one device there only after its end.
  assert.equal(outcome(await create({ filter: { siteId } })), '409 CONFLICT')
  holder?.finish('succeed')
  const end = await counted(id, { completed: 1, running: 0 })
  assert.equal(end.status, 'aborted')
  const next = await started({ filter: { siteId } })
  assert.equal(next.counts.skipped + next.counts.pending, 6)
  await changed(next.id, 'abort')
})

// ---- at the door -----------------------------------------------------------------------------

describe('a request', () => {
  test('is refused with what to do instead', async () => {
    const { siteId } = await fleet(1)
    const group = (percent: number) => ({ percent, successThreshold: 90, errorThreshold: 10 })
    const sum = await create({ filter: { siteId }, groups: [group(50), group(60)] })
    assert.match(sum.body.error.message, /^\/groups have shares that add up to 110 percent/)
    const nobody = await create({ filter: { siteId: newId() } })
    assert.equal(nobody.body.error.message, '/filter finds no device that you see')
    const unknown = await create({ filter: { siteId }, version: '0.0.9' })
    assert.equal(outcome(unknown), '404 AGENT_BINARY_NOT_FOUND')
    for (const wrong of [
      { version: 'latest' },
      { groups: [] },
      { groups: Array.from({ length: 21 }, () => group(5)) },
      { groups: [{ ...group(100), percent: 0 }] },
      { groups: [{ percent: 100, successThreshold: 90 }] },
      { filter: { colour: 'red' } },
      { filter: { deviceIds: [] } },
    ]) {
      assert.equal(outcome(await create(wrong)), '400 VALIDATION_ERROR', JSON.stringify(wrong))
    }
  })

  test('for a device in an open roll-out is refused, and names that one', async () => {
    const { siteId, devices } = await fleet(3)
    const { id } = await started({ filter: { siteId } })
    const again = await create({ filter: { deviceIds: [devices[0]?.deviceId] } })
    assert.equal(outcome(again), '409 CONFLICT')
    assert.ok(again.body.error.message.includes(id), again.text)
    await changed(id, 'abort')
    await counted(id, { cancelled: 3 })
    // Two at once: one of them gets the devices.
    const both = await Promise.all([create({ filter: { siteId } }), create({ filter: { siteId } })])
    assert.deepEqual(both.map(outcome).toSorted(), ['201', '409 CONFLICT'])
    const made = both.find(({ status }) => status === 201)
    await changed(made?.body.id, 'abort')
  })

  test('as a dry run counts, and starts nothing', async () => {
    const { siteId, devices } = await fleet(5)
    await connect(devices.slice(0, 2), 'hold')
    await hub.enroll({ siteId, agentVersion: version })
    await hub.enroll({ siteId, os: 'windows', agentVersion: '1.0.0' })
    const groups = [
      { percent: 20, successThreshold: 90, errorThreshold: 10 },
      { percent: 80, successThreshold: 90, errorThreshold: 10 },
    ]
    const answer = await create({ filter: { siteId }, groups, dryRun: true })
    assert.equal(answer.status, 200, answer.text)
    assert.deepEqual(answer.body, {
      version,
      counts: {
        total: 7,
        upgraded: 5,
        online: 2,
        alreadyInstalled: 1,
        noBinary: 1,
        inOpenRollout: 0,
      },
      groups: [
        { number: 1, devices: 1 },
        { number: 2, devices: 4 },
      ],
      byPlatform: [
        { os: 'linux', arch: 'amd64', total: 6, hasBinary: true },
        { os: 'windows', arch: 'amd64', total: 1, hasBinary: false },
      ],
      byVersion: [
        { agentVersion: '1.0.0', total: 6 },
        { agentVersion: version, total: 1 },
      ],
    })
    const { items } = await everyPage(hub, `${path}?limit=500`, admin.token)
    const rows = items as unknown as { filter: { siteId?: string } }[]
    assert.ok(rows.every(({ filter }) => filter.siteId !== siteId))
  })
})

test('the platform rolls out over organizations; what is in it is nobody else’s to see', async () => {
  const { siteId } = await fleet(1)
  const elsewhere = await makeOrganization(hub, 'Other')
  const there = await makeSite(hub, elsewhere)
  const device = await hub.enroll({ siteId: there, agentVersion: '1.0.0' })
  const one = (
    await db().query<{ id: string }>('select id from devices where site_id = $1', [siteId])
  )[0]
  const deviceIds = [device.deviceId, one?.id]
  const platform = await signedIn(hub, 'platform_admin')
  const made = await create({ filter: { deviceIds } }, platform)
  assert.equal(made.status, 201, made.text)
  assert.deepEqual([made.body.orgId, made.body.counts.total], [null, 2])
  assert.equal(outcome(await change(made.body.id, 'pause')), '404 NOT_FOUND')
  const taken = await create({ filter: { siteId } })
  assert.equal(outcome(taken), '409 CONFLICT')
  assert.ok(!taken.text.includes(made.body.id), taken.text)
  const { token } = platform
  assert.equal((await call(hub, 'POST', `${path}/${made.body.id}/abort`, { token })).status, 200)
  const own = await create(
    { orgId: elsewhere, filter: { status: 'offline' }, dryRun: true },
    platform,
  )
  assert.equal(own.body.counts.total, 1)
  assert.equal(outcome(await create({ orgId: elsewhere, filter: {} })), '404 NOT_FOUND')
  // A fleet is never meant by leaving something out.
  assert.equal(outcome(await create({}, platform)), '400 VALIDATION_ERROR')
})
