// Alerts through their real doors: agents that suffer, operators who read, acknowledge and resolve.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Static } from 'typebox'
import { raiseAlerts, type NewAlert } from '../src/alerts.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { Alert } from '../src/resources/alerts.ts'
import { FakeAgent } from './support/agent.ts'
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
import { Releases } from './support/machine.ts'
import { until } from './support/until.ts'

type AlertItem = Static<typeof Alert>

const releases = new Releases()
let hub: TestHub
let orgId: string
let siteId: string
let key: string
let admin: Person

before(async () => {
  await releases.pretend('9.9.9')
  hub = await startHub({ LIMIT_FRAMES: '0', LIMIT_LOGIN: '2', ...releases.env })
  await releases.offered(hub)
  orgId = await makeOrganization(hub)
  siteId = await makeSite(hub, orgId)
  admin = await signedIn(hub, 'org_admin', { orgId })
  key = await makeKey(siteId)
})
after(async () => {
  await hub.close()
  releases.remove()
})

async function makeKey(site: string): Promise<string> {
  const answer = await hub.post(`/sites/${site}/enrollment-keys`)
  assert.equal(answer.status, 201)
  return answer.body.key
}
const enroll = (more: Record<string, unknown> = {}): Promise<Device> =>
  hub.enroll({ enrollmentSecret: key, ...more })
const ask = (path: string, { token } = admin) => call(hub, 'GET', path, { token })
const list = async (query: string, who = admin): Promise<AlertItem[]> =>
  (await ask(`/alerts?${query}`, who)).body.data
const post = (path: string, body?: unknown, { token } = admin) =>
  call(hub, 'POST', path, { token, body })
const raise = (...alerts: NewAlert[]) => hub.hub.ctx.db.transaction((tx) => raiseAlerts(tx, alerts))
const settings = async (patch: unknown, { token } = admin) => {
  const answer = await call(hub, 'PATCH', `/organizations/${orgId}`, {
    token,
    body: { settings: patch },
  })
  assert.equal(answer.status, 200)
}

/** The one alert that fits, as soon as it does. */
function one(query: string, fits: (alert: AlertItem) => boolean = () => true): Promise<AlertItem> {
  return until(`an alert with ${query}`, async () => {
    const found = await list(query)
    assert.ok(found.length <= 1, `${found.length} alerts with ${query}`)
    return found[0] !== undefined && fits(found[0]) && found[0]
  })
}

function eventsOf(alertId: string) {
  return hub.hub.ctx.db
    .query<{ type: string; siteId: string | null; orgId: string | null }>(
      `select type, site_id as "siteId", org_id as "orgId" from events
       where data->>'alertId' = $1 order by xid, id`,
      [alertId],
    )
    .then((rows) =>
      rows.map((row) => `${row.type} ${row.orgId === orgId} ${row.siteId === siteId}`),
    )
}

function sample(device: Device, more: Partial<NewAlert> = {}): NewAlert {
  return {
    kind: 'command_failed',
    severity: 'medium',
    title: 'It failed',
    message: 'It did.',
    context: { action: 'ping' },
    dedupeKey: `sample:${newId()}`,
    deviceId: device.deviceId,
    orgId: null,
    ...more,
  }
}

describe('thresholds', () => {
  test('a metric over its threshold is one alert, which resolves itself well below', async () => {
    await settings({ thresholds: { cpuPercent: 90, diskPercent: 80 } })
    const device = await enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    agent.heartbeat({ metrics: { cpuPercent: 97.25, memoryPercent: 100, diskPercent: 79 } })
    const mine = `deviceId=${device.deviceId}`
    const alert = await one(mine)
    assert.deepEqual(
      [alert.kind, alert.severity, alert.status, alert.orgId, alert.occurrences, alert.context],
      [
        'cpu_high',
        'medium',
        'active',
        orgId,
        1,
        { metric: 'cpuPercent', value: 97.25, threshold: 90 },
      ],
    )
    // Between the marks nothing changes, however often it crosses the upper one.
    for (const cpuPercent of [89, 95, 86, 99]) agent.heartbeat({ metrics: { cpuPercent } })
    agent.heartbeat({ metrics: { cpuPercent: 85, diskPercent: 80 } })
    const disk = await one(`${mine}&kind=disk_high`)
    assert.equal(disk.severity, 'high')
    const over = await one(`${mine}&kind=cpu_high`, ({ status }) => status === 'resolved')
    assert.deepEqual([over.id, over.occurrences, over.resolvedBy], [alert.id, 1, null])
    assert.deepEqual(await eventsOf(alert.id), [
      'alert.triggered true true',
      'alert.resolved true true',
    ])
    await agent.close()
  })

  test('what is open survives the socket; a threshold that is taken away ends it', async () => {
    await settings({ thresholds: { memoryPercent: 50 } })
    const device = await enroll()
    const mine = `deviceId=${device.deviceId}&kind=memory_high`
    const first = await FakeAgent.connect(device, hub.origin)
    first.heartbeat({ metrics: { memoryPercent: 60 } })
    const { id } = await one(mine)
    await first.close()
    const second = await FakeAgent.connect(device, hub.origin)
    second.heartbeat({ metrics: { memoryPercent: 61 }, seq: 1 })
    await second.frame('heartbeat_ack')
    await settings({ thresholds: { memoryPercent: null } })
    await until('the shards to know', async () => {
      second.heartbeat({ metrics: { memoryPercent: 62 } })
      const [alert] = await list(mine)
      return alert?.status === 'resolved' && alert.id === id && alert.occurrences === 1
    })
    await second.close()
  })

  test('a new threshold is in force within a second of the answer', async () => {
    const device = await enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    agent.heartbeat({ metrics: { cpuPercent: 40 }, seq: 1 })
    await agent.frame('heartbeat_ack')
    await settings({ thresholds: { cpuPercent: 30 } })
    const answeredMs = performance.now()
    await until(
      'the alert',
      async () => {
        agent.heartbeat({ metrics: { cpuPercent: 40 } })
        return (await list(`deviceId=${device.deviceId}&kind=cpu_high`)).length > 0
      },
      1000,
    )
    assert.ok(performance.now() - answeredMs < 1500)
    await settings({ thresholds: { cpuPercent: null } })
    await agent.close()
  })
})

describe('ends of commands', () => {
  test('failed ones are one alert for device and action, and count up', async () => {
    const device = await enroll({ hostname: 'db-1' })
    const agent = (await FakeAgent.connect(device, hub.origin)).obey({
      status: 'failed',
      exitCode: 3,
      stdout: 'the password is hunter2',
    })
    const run = () =>
      post(`/devices/${device.deviceId}/commands?wait=20`, {
        action: 'run_command',
        payload: { command: 'false' },
      })
    const ids = [(await run()).body.id, (await run()).body.id, (await run()).body.id]
    const alert = await one(`deviceId=${device.deviceId}`, ({ occurrences }) => occurrences === 3)
    assert.equal(alert.kind, 'command_failed')
    assert.equal(alert.title, 'run_command failed on db-1')
    assert.deepEqual(
      [
        ids.includes(alert.context['commandId']),
        alert.context['exitCode'],
        alert.context['status'],
      ],
      [true, 3, 'failed'],
    )
    assert.ok(!JSON.stringify(alert).includes('hunter2'))
    assert.equal((await eventsOf(alert.id)).length, 1)
    await agent.close()
  })

  test('upgrades and scripts of an execution have kinds of their own; what went well has none', async () => {
    const device = await enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    agent.onCommand = ({ id, action }) => {
      const failed = action !== 'ping'
      // An execution’s command says so by its row.
      void (
        action === 'run_script'
          ? hub.hub.ctx.db.query('update commands set execution_id = $2 where id = $1', [
              id,
              newId(),
            ])
          : Promise.resolve()
      ).then(() => {
        agent.send({ type: 'result', id, status: failed ? 'failed' : 'completed', exitCode: 0 })
      })
    }
    const run = (action: string, payload: unknown = {}) =>
      post(`/devices/${device.deviceId}/commands?wait=20`, { action, payload })
    await run('ping')
    await run('upgrade_agent', { version: '9.9.9' })
    await run('run_script', { language: 'sh', content: 'false' })
    const mine = `deviceId=${device.deviceId}`
    await one(`${mine}&kind=upgrade_failed`, ({ severity }) => severity === 'high')
    await one(`${mine}&kind=script_failed`, ({ context }) => context['executionId'] !== null)
    assert.equal((await list(mine)).length, 2)
    await agent.close()
  })
})

describe('an agent’s own', () => {
  test('is agent_reported under a key of its device, whatever it says, and counts up', async () => {
    const device = await enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const frame = {
      type: 'alert',
      kind: 'auth_abuse',
      severity: 'critical',
      title: 'RAID\u0000 degraded',
      dedupeKey: `cpu_high:${newId()}`,
    }
    agent.send({ ...frame, message: 'md0' })
    const mine = `deviceId=${device.deviceId}`
    const first = await one(mine)
    agent.send({ ...frame, message: 'md0 and md1', severity: 'high' })
    const alert = await one(mine, ({ occurrences }) => occurrences === 2)
    assert.deepEqual(
      [alert.id, alert.kind, alert.severity, alert.title, alert.message, alert.dedupeKey],
      [
        first.id,
        'agent_reported',
        'high',
        'RAID\ufffd degraded',
        'md0 and md1',
        `agent:${device.deviceId}:${frame.dedupeKey}`,
      ],
    )
    assert.ok(alert.lastSeenAt >= first.lastSeenAt && alert.triggeredAt === first.triggeredAt)
    await agent.close()
  })

  test('at most 20 are open; known ones go on counting, a resolved one makes room', async () => {
    const device = await enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const report = (n: number) =>
      agent.send({ type: 'alert', severity: 'low', title: `n ${n}`, dedupeKey: `n-${n}` })
    for (let n = 0; n < limits.agentAlertsMax + 15; n++) report(n)
    report(0)
    const open = `deviceId=${device.deviceId}&status=active`
    await until('the bound', async () => {
      const found = await list(open)
      return (
        found.length === limits.agentAlertsMax && found.some((alert) => alert.occurrences === 2)
      )
    })
    const [victim] = await list(open)
    assert.equal((await post(`/alerts/${victim?.id}/resolve`)).status, 200)
    report(100)
    await until('the next one', async () =>
      (await list(open)).some((alert) => alert.title === 'n 100'),
    )
    assert.equal((await list(open)).length, limits.agentAlertsMax)
    await agent.close()
  })
})

describe('identities and passwords', () => {
  test('a known machine that does not prove to be it is told of, again and again in one', async () => {
    const machineId = newId()
    await enroll({ machineId })
    assert.deepEqual(await list('kind=duplicate_identity'), [])
    const clone = await enroll({ machineId })
    const alert = await one('kind=duplicate_identity')
    assert.equal(alert.deviceId, clone.deviceId)
    await enroll({ machineId })
    await one('kind=duplicate_identity', ({ occurrences }) => occurrences === 2)
  })

  test('a machine known at another site is told of at its own, and names nobody elsewhere', async () => {
    const machineId = newId()
    const elsewhere = await makeSite(hub, orgId)
    const there = { machineId, enrollmentSecret: await makeKey(elsewhere) }
    const mine = await enroll({ machineId })
    await enroll(there)
    const clone = await enroll({ machineId })
    const about = async (site: string) =>
      (await list(`kind=duplicate_identity&siteId=${site}`)).filter(
        ({ context }) => context['machineId'] === machineId,
      )
    const here = await until('the alert of this site', async () => (await about(siteId))[0])
    assert.equal(here.deviceId, clone.deviceId)
    const reason = 'machineId'
    const own = { reason, machineId, sameMachineAs: [mine.deviceId], atOtherSites: true }
    assert.deepEqual(here.context, own)
    const [other, ...more] = await about(elsewhere)
    assert.deepEqual(other?.context, { reason, machineId, sameMachineAs: [], atOtherSites: true })
    assert.deepEqual(more, [])
    const text = JSON.stringify(
      await auditOfResource(hub, 'device.enroll', other?.deviceId ?? null),
    )
    assert.ok(!text.includes(mine.deviceId))
  })

  test('sockets that take a device from each other again and again are two agents', async () => {
    const device = await enroll()
    const mine = `deviceId=${device.deviceId}`
    const agents: FakeAgent[] = []
    for (let n = 0; n < limits.flipFlopsMax; n++) {
      agents.push(await FakeAgent.connect(device, hub.origin))
    }
    assert.deepEqual(await list(mine), [])
    agents.push(await FakeAgent.connect(device, hub.origin))
    const alert = await one(mine)
    assert.deepEqual([alert.kind, alert.context], ['duplicate_identity', { reason: 'sockets' }])
    await Promise.all(agents.map((agent) => agent.close()))
  })

  test('guessed passwords are the user’s organization’s; emails of nobody are the platform’s', async () => {
    const victim = await signedIn(hub, 'viewer', { orgId, password: 'correct horse battery' })
    const guess = (email: string) =>
      hub.post('/auth/login', { email, password: 'wrong' }, { token: undefined })
    for (let n = 0; n < 5; n++) await guess(victim.email.toUpperCase())
    assert.equal(outcome(await guess(victim.email)), '429 RATE_LIMITED')
    const alert = await one('kind=auth_abuse', ({ occurrences }) => occurrences >= 3)
    assert.equal(alert.context['userId'], victim.id)
    assert.ok(!JSON.stringify(alert).includes('wrong'))
    for (let n = 0; n < 9; n++) await guess(`nobody${n % 2}@example.org`)
    const platform = await signedIn(hub, 'platform_admin')
    const nobody = await until('the platform’s alert', async () =>
      (await list('kind=auth_abuse', platform)).find((found) => found.orgId === null),
    )
    assert.equal(outcome(await ask(`/alerts/${nobody.id}`)), '404 NOT_FOUND')
    // Whoever is narrowed to sites sees neither.
    const narrowed = await signedIn(hub, 'technician', { orgId, siteIds: [siteId] })
    assert.deepEqual(await list('kind=auth_abuse', narrowed), [])
  })
})

describe('raising', () => {
  test('in parallel makes one alert and one event, and counts every one', async () => {
    const device = await enroll()
    const alert = sample(device)
    await Promise.all(Array.from({ length: 12 }, () => raise(alert, alert)))
    const found = await one(`deviceId=${device.deviceId}`)
    assert.equal(found.occurrences, 24)
    assert.equal((await eventsOf(found.id)).length, 1)
  })

  test('after the end is a new alert; of a device that is gone there is none', async () => {
    const device = await enroll()
    const alert = sample(device)
    const [first] = await raise(alert)
    assert.ok(first)
    await post(`/alerts/${first.id}/resolve`)
    const [second] = await raise(alert)
    assert.notEqual(second?.id, first.id)
    assert.equal((await hub.delete(`/devices/${device.deviceId}`)).status, 200)
    const { status, resolvedBy, context } = (await ask(`/alerts/${second?.id}`)).body
    assert.deepEqual([status, resolvedBy], ['resolved', null])
    assert.equal(context.resolution, 'the device was decommissioned')
    assert.deepEqual(await raise(alert), [])
  })

  test('by a superseded connection writes nothing', async () => {
    const device = await enroll()
    assert.deepEqual(await raise(sample(device, { epoch: 7 })), [])
    assert.equal((await raise(sample(device, { epoch: 0 }))).length, 1)
  })
})

describe('acknowledge and resolve', () => {
  test('each once, with a note, an audit row and an event', async () => {
    const device = await enroll()
    const [{ id } = { id: '' }] = await raise(sample(device))
    const seen = await post(`/alerts/${id}/acknowledge`, { note: 'I look' })
    assert.equal(seen.status, 200)
    assert.deepEqual(
      [seen.body.status, seen.body.acknowledgedBy, seen.body.note, seen.body.resolvedAt],
      ['acknowledged', admin.id, 'I look', null],
    )
    assert.deepEqual((await post(`/alerts/${id}/acknowledge`, { note: 'again' })).body, seen.body)
    const done = await post(`/alerts/${id}/resolve`)
    assert.deepEqual(
      [done.status, done.body.status, done.body.resolvedBy, done.body.note],
      [200, 'resolved', admin.id, 'I look'],
    )
    assert.deepEqual((await post(`/alerts/${id}/resolve`, { note: 'again' })).body, done.body)
    assert.equal(outcome(await post(`/alerts/${id}/acknowledge`)), '409 ALREADY_RESOLVED')
    assert.deepEqual(await eventsOf(id), [
      'alert.triggered true true',
      'alert.acknowledged true true',
      'alert.resolved true true',
    ])
    for (const action of ['alert.acknowledge', 'alert.resolve']) {
      const rows = await auditOfResource(hub, action, id)
      assert.deepEqual(
        rows.map((row) => [row.orgId, row.actorId, row.details.after.note]),
        [[orgId, admin.id, 'I look']],
      )
    }
  })

  test('in parallel have one effect', async () => {
    const [{ id } = { id: '' }] = await raise(sample(await enroll()))
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, n) =>
        post(`/alerts/${id}/${n % 2 ? 'resolve' : 'acknowledge'}`),
      ),
    )
    for (const answer of answers) assert.match(outcome(answer), /^(200|409 ALREADY_RESOLVED)$/)
    assert.equal((await auditOfResource(hub, 'alert.resolve', id)).length, 1)
  })

  test('are refused by name, role and scope', async () => {
    const [{ id } = { id: '' }] = await raise(sample(await enroll()))
    const bad: [unknown, string][] = [
      [{ note: 'x'.repeat(limits.alertNoteCharsMax + 1) }, '/note'],
      [{ note: 7 }, '/note'],
      [{ notes: '' }, '/notes'],
    ]
    for (const [body, path] of bad) {
      const answer = await post(`/alerts/${id}/resolve`, body)
      assert.equal(outcome(answer), '400 VALIDATION_ERROR')
      assert.equal(answer.body.error.details[0].path, path)
    }
    const viewer = await signedIn(hub, 'viewer', { orgId })
    assert.equal(outcome(await post(`/alerts/${id}/resolve`, {}, viewer)), '403 FORBIDDEN')
    assert.equal((await ask(`/alerts/${id}`, viewer)).status, 200)
    const stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub) })
    for (const answer of [
      await ask(`/alerts/${id}`, stranger),
      await post(`/alerts/${id}/acknowledge`, {}, stranger),
      await post(`/alerts/${id}/resolve`, {}, stranger),
      await ask(`/alerts/${newId()}`),
    ]) {
      assert.equal(outcome(answer), '404 NOT_FOUND')
    }
    assert.equal((await ask(`/alerts/${id}`)).body.status, 'active')
  })
})

describe('the list', () => {
  test('has filters and pages, newest first, and shows nobody what is not theirs', async () => {
    const device = await enroll()
    const severities = ['high', 'low'] as const
    for (let n = 0; n < 7; n++)
      await raise(sample(device, { severity: severities[n % 2] ?? 'low' }))
    const mine = `deviceId=${device.deviceId}`
    const { items, pages } = await everyPage(hub, `/alerts?${mine}&limit=3`, admin.token)
    const ids = items.map((item) => item.id)
    assert.deepEqual([ids.length, pages, ids], [7, 3, ids.toSorted().toReversed()])
    assert.equal((await list(`${mine}&severity=low`)).length, 3)
    assert.equal((await list(`${mine}&kind=cpu_high`)).length, 0)
    await post(`/alerts/${ids[0]}/resolve`)
    await post(`/alerts/${ids[1]}/acknowledge`)
    for (const [status, count] of [
      ['active', 5],
      ['acknowledged', 1],
      ['resolved', 1],
    ] as const) {
      assert.equal((await list(`${mine}&status=${status}`)).length, count)
    }
    assert.equal((await list(`${mine}&orgId=${orgId}&siteId=${siteId}`)).length, 7)
    const stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub) })
    assert.deepEqual(await list(`${mine}&orgId=${orgId}`, stranger), [])
    const { cursor } = (await ask(`/alerts?${mine}&limit=3`)).body.pagination
    for (const query of [`${mine}&severity=low&cursor=${cursor}`, `cursor=${cursor}`]) {
      assert.equal(outcome(await ask(`/alerts?${query}`)), '400 INVALID_CURSOR')
    }
    for (const query of ['status=open', 'kind=x', 'severity=bad', 'deviceId=7', 'x=1', 'limit=0']) {
      assert.equal(outcome(await ask(`/alerts?${query}`)), '400 VALIDATION_ERROR', query)
    }
  })

  test('of a narrowed user follows the devices to their sites', async () => {
    const other = await makeSite(hub, orgId, 'Bern')
    const device = await enroll()
    const [{ id } = { id: '' }] = await raise(sample(device))
    const here = await signedIn(hub, 'technician', { orgId, siteIds: [siteId] })
    const there = await signedIn(hub, 'technician', { orgId, siteIds: [other] })
    assert.equal((await ask(`/alerts/${id}`, here)).status, 200)
    assert.equal(outcome(await post(`/alerts/${id}/resolve`, {}, there)), '404 NOT_FOUND')
    const moved = await call(hub, 'PATCH', `/devices/${device.deviceId}`, {
      token: admin.token,
      body: { siteId: other },
    })
    assert.equal(moved.status, 200)
    assert.equal(outcome(await ask(`/alerts/${id}`, here)), '404 NOT_FOUND')
    assert.equal((await list(`siteId=${other}`, there))[0]?.id, id)
    assert.equal((await post(`/alerts/${id}/acknowledge`, {}, there)).status, 200)
  })
})
