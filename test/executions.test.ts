// Executions from the request to the last result: whom they reach, in which order, what they keep to
// themselves, and how they end.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openDatabase } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
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
import { addDevice } from './support/rows.ts'
import { until } from './support/until.ts'

let hub: TestHub
let orgId: string
let siteId: string
let admin: Person
let stranger: Person

before(async () => {
  hub = await startHub()
  // Everything else works while pg-boss makes its tables; the first execution waits for them.
  await until('the queue', async () => {
    const rows = await hub.hub.ctx.db
      .query(`select true from pgboss.queue where name = 'executions'`)
      .catch(() => [])
    return rows.length > 0
  })
  ;({ orgId, siteId } = await hub.enroll())
  admin = await signedIn(hub, 'org_admin', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
})
after(() => hub.close())

const db = () => hub.hub.ctx.db

async function makeScript(more: object = {}, { token } = admin) {
  const body = { name: 'Test', language: 'sh', content: 'echo "$PARAM_WHO"', ...more }
  const answer = await call(hub, 'POST', '/scripts', { token, body })
  assert.equal(answer.status, 201, answer.text)
  return answer.body
}

const execute = (scriptId: string, body: unknown, { token } = admin) =>
  call(hub, 'POST', `/scripts/${scriptId}/execute`, { token, body })

async function started(scriptId: string, body: unknown, person = admin) {
  const answer = await execute(scriptId, body, person)
  assert.equal(answer.status, 202, answer.text)
  return answer.body
}

async function read(id: string, { token } = admin) {
  const answer = await call(hub, 'GET', `/executions/${id}`, { token })
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

const ended = (id: string) =>
  until(`${id} to end`, async () => {
    const found = await read(id)
    return found.completedAt !== null && found
  })

/** Waits until all devices were dealt with. */
const fannedOut = (id: string) =>
  until('the fan-out', async () => {
    const [row] = await db().query<{ done: boolean }>(
      'select fanned_out_at is not null as done from executions where id = $1',
      [id],
    )
    return row?.done
  })

const results = (id: string, limit = 500) =>
  everyPage(hub, `/executions/${id}/results?limit=${limit}`, admin.token).then(
    ({ items, pages }) => ({
      items: items as unknown as { deviceId: string; commandId: string; status: string }[],
      pages,
    }),
  )

const ids = (devices: readonly Device[]) => devices.map(({ deviceId }) => deviceId)

async function enrollMany(count: number, more: object = {}): Promise<Device[]> {
  return Promise.all(Array.from({ length: count }, () => hub.enroll({ siteId, ...more })))
}

/** Devices as rows, where no agent is needed. */
async function addMany(count: number, site = siteId): Promise<string[]> {
  const made: string[] = []
  for (let n = 0; n < count; n++) made.push(await addDevice(db(), { orgId, siteId: site }))
  return made
}

describe('a run', () => {
  test('goes to every device, each agent gets the whole script, and it completes', async () => {
    const script = await makeScript({ parameters: [{ name: 'who', type: 'string' }] })
    const devices = await enrollMany(5)
    const agents = await Promise.all(devices.map((one) => FakeAgent.connect(one, hub.origin)))
    agents[4]?.obey({ status: 'completed', exitCode: 3 })
    for (const agent of agents.slice(0, 4)) agent.obey()
    const answer = await execute(script.id, { deviceIds: ids(devices), parameters: { who: 'me' } })
    assert.equal(answer.status, 202, answer.text)
    const { body } = answer
    assert.equal(answer.headers.get('location'), `/api/v1/executions/${body.id}`)
    assert.deepEqual(
      [body.scriptId, body.version, body.failed, body.counts.total],
      [script.id, 1, [], 5],
    )
    const frame = await agents[0]?.frame('command')
    assert.equal(frame?.action, 'run_script')
    const content = script.content
    assert.deepEqual(frame?.payload, { language: 'sh', content, env: { PARAM_WHO: 'me' } })
    assert.equal(frame?.timeoutSeconds, 300)
    const end = await ended(body.id)
    assert.equal(end.status, 'completed')
    const { started: count, open, completed, failed } = end.counts
    assert.deepEqual([count, open, completed, failed], [5, 0, 4, 1])
    assert.deepEqual(end.parameters, { who: 'me' })
    const { items } = await results(body.id)
    assert.deepEqual(items.map((one) => one.deviceId).toSorted(), ids(devices).toSorted())
    const command = (await hub.get(`/commands/${frame?.id}`)).body
    assert.deepEqual(command.payload, { scriptId: script.id, version: 1, language: 'sh' })
    assert.equal(command.executionId, body.id)
    assert.equal(command.createdBy, admin.id)
    for (const agent of agents) await agent.close()
  })

  test('is told by events at its begin and its end, and audited with each command', async () => {
    const script = await makeScript()
    const [device] = await enrollMany(1)
    const agent = (await FakeAgent.connect(device as Device, hub.origin)).obey()
    const { id } = await started(script.id, { deviceIds: [device?.deviceId] })
    await ended(id)
    const told = await db().query<{ type: string; siteId: string; data: object }>(
      `select type, site_id as "siteId", data from events
       where data->>'executionId' = $1 order by xid, id`,
      [id],
    )
    const about = { executionId: id, scriptId: script.id, version: 1 }
    const counts = { started: 1, completed: 1, failed: 0, timeout: 0, cancelled: 0, expired: 0 }
    assert.deepEqual(told, [
      { type: 'script.started', siteId, data: about },
      {
        type: 'script.completed',
        siteId,
        data: { ...about, ...counts, status: 'completed', error: null },
      },
    ])
    const [row] = await auditOfResource(hub, 'script.execute', script.id)
    assert.deepEqual([row?.actorId, row?.details.after.executionId], [admin.id, id])
    const [command] = (await results(id)).items
    const [entry] = await auditOfResource(hub, 'command.create', command?.commandId ?? '')
    assert.deepEqual([entry?.actorId, entry?.details.after.executionId], [admin.id, id])
    await agent.close()
  })

  test('loses no parameter, whatever its name means to JavaScript', async () => {
    const names = ['__proto__', 'constructor']
    const parameters = names.map((name) => ({ name, type: 'string', required: true }))
    const script = await makeScript({ parameters })
    assert.deepEqual(
      script.parameters.map(({ name }: { name: string }) => name),
      names,
    )
    const [device] = await enrollMany(1)
    const agent = (await FakeAgent.connect(device as Device, hub.origin)).obey()
    const given = JSON.stringify({ deviceIds: [device?.deviceId] }).slice(0, -1)
    const body = `${given},"parameters":{"__proto__":"a","constructor":"b"}}`
    const { id } = await started(script.id, body)
    const { payload } = await agent.frame('command')
    assert.deepEqual(payload['env'], { PARAM___PROTO__: 'a', PARAM_CONSTRUCTOR: 'b' })
    assert.match(
      (await call(hub, 'GET', `/executions/${id}`, { token: admin.token })).text,
      /"parameters":\{"__proto__": "a", "constructor": "b"\}/,
    )
    await ended(id)
    await agent.close()
  })

  test('wakes at once, not at the next look at the queue', async () => {
    const script = await makeScript()
    const [device] = await enrollMany(1)
    const agent = await FakeAgent.connect(device as Device, hub.origin)
    const beganMs = performance.now()
    await started(script.id, { deviceIds: [device?.deviceId] })
    await agent.frame('command')
    // Without NOTIFY it is looked for every 10 s.
    assert.ok(performance.now() - beganMs < 5000)
    await agent.close()
  })

  test('waits for nobody when many come at once', async () => {
    const script = await makeScript()
    const beganMs = performance.now()
    const body = { filter: { tag: 'none' } }
    const many = await Promise.all(Array.from({ length: 20 }, () => started(script.id, body)))
    for (const { id } of many) await ended(id)
    assert.ok(performance.now() - beganMs < 5000)
  })

  test('keeps its place among the other commands of a device', async () => {
    const script = await makeScript()
    const [device] = await enrollMany(1)
    const path = `/devices/${device?.deviceId}/commands`
    const run = { action: 'run_command', payload: { command: 'true' } }
    const first = (await hub.post(path, run)).body.id
    const execution = await started(script.id, { deviceIds: [device?.deviceId] })
    await fannedOut(execution.id)
    const last = (await hub.post(path, run)).body.id
    const [{ commandId } = { commandId: '' }] = (await results(execution.id)).items
    const agent = await FakeAgent.connect(device as Device, hub.origin)
    agent.obey()
    await ended(execution.id)
    await agent.frame('ack', last)
    const order = agent.frames.flatMap((frame) => (frame.type === 'command' ? [frame.id] : []))
    assert.deepEqual(order, [first, commandId, last])
    await agent.close()
  })

  test('goes on with its version when the script is changed or deleted', async () => {
    const script = await makeScript()
    const [device] = await enrollMany(1)
    const { id } = await started(script.id, { deviceIds: [device?.deviceId], timeoutSeconds: 7 })
    const { token } = admin
    await call(hub, 'PATCH', `/scripts/${script.id}`, { token, body: { content: 'echo new' } })
    await call(hub, 'DELETE', `/scripts/${script.id}`, { token })
    const agent = (await FakeAgent.connect(device as Device, hub.origin)).obey()
    const frame = await agent.frame('command')
    assert.deepEqual([frame.payload['content'], frame.timeoutSeconds], [script.content, 7])
    assert.deepEqual([(await ended(id)).version, (await results(id)).items.length], [1, 1])
    await agent.close()
  })

  test('of a large script is handed over in slices of time, and everyone gets it', async () => {
    const content = `# ${'x'.repeat(limits.payloadBytesMax - 2)}`
    const script = await makeScript({ content })
    const devices = await enrollMany(40)
    const agents = await Promise.all(devices.map((one) => FakeAgent.connect(one, hub.origin)))
    for (const agent of agents) agent.obey()
    const { id } = await started(script.id, { deviceIds: ids(devices) })
    assert.equal((await ended(id)).counts.completed, 40)
    for (const agent of agents) {
      assert.equal((await agent.frame('command')).payload['content'], content)
      await agent.close()
    }
  })

  test('that is cancelled while its script is being read is cancelled behind its frame', async () => {
    const script = await makeScript()
    const [device] = await enrollMany(1)
    const execution = await started(script.id, { deviceIds: [device?.deviceId] })
    await fannedOut(execution.id)
    const [{ commandId } = { commandId: '' }] = (await results(execution.id)).items
    const owner = openDatabase({
      url: hub.database.url,
      name: 'test',
      connections: 1,
      role: 'owner',
    })
    const agent = await owner.transaction(async (tx) => {
      await tx.query('lock table script_versions in access exclusive mode')
      const connected = await FakeAgent.connect(device as Device, hub.origin)
      const answer = await hub.post(`/commands/${commandId}/cancel`)
      assert.equal(answer.body.status, 'pending', answer.text)
      return connected
    })
    await owner.close()
    await until('the cancel behind the frame', () => {
      const types = agent.frames.map(({ type }) => type)
      return (
        types.indexOf('command') !== -1 && types.lastIndexOf('cancel') > types.indexOf('command')
      )
    })
    agent.send({ type: 'result', id: commandId, status: 'cancelled' })
    assert.equal((await ended(execution.id)).counts.cancelled, 1)
    await agent.close()
  })

  test('on nobody completes with nothing started', async () => {
    const script = await makeScript()
    const { id } = await started(script.id, { filter: { tag: 'nobody-has-this' } })
    const end = await ended(id)
    assert.deepEqual([end.status, end.counts.total, end.counts.started], ['completed', 0, 0])
  })

  test('ends when its commands end by other hands: cancelled, decommissioned, expired', async () => {
    const script = await makeScript()
    const [one, two, three] = await addMany(3)
    const { id } = await started(script.id, { deviceIds: [one, two, three] })
    await fannedOut(id)
    const { items } = await results(id)
    const of = (deviceId: string | undefined) =>
      items.find((item) => item.deviceId === deviceId)?.commandId
    await hub.post(`/commands/${of(one)}/cancel`)
    await hub.delete(`/devices/${two}`)
    await db().query(`update commands set expires_at = now() - interval '1 s' where id = $1`, [
      of(three),
    ])
    const { counts } = await ended(id)
    assert.deepEqual([counts.cancelled, counts.expired, counts.open], [2, 1, 0])
    const [row] = await db().query<{ open: string }>(
      'select count(*) as open from execution_ends where execution_id = $1',
      [id],
    )
    assert.equal(row?.open, '0')
  })
})

describe('whom it reaches', () => {
  test('what is named and may not run it is refused by itself, the rest runs', async () => {
    const script = await makeScript({ os: ['linux'] })
    const [good] = await enrollMany(1)
    const [windows] = await enrollMany(1, { os: 'windows' })
    const gone = await hub.enroll({ siteId })
    await hub.delete(`/devices/${gone.deviceId}`)
    const foreign = await addDevice(db(), {
      orgId: stranger.orgId as string,
      siteId: await makeSite(hub, stranger.orgId as string),
    })
    const unknown = newId()
    const named = [good?.deviceId, windows?.deviceId, gone.deviceId, foreign, unknown]
    const body = await started(script.id, { deviceIds: [...named, good?.deviceId.toUpperCase()] })
    const codes = new Map<string, string>(
      body.failed.map((one: { deviceId: string; code: string }) => [one.deviceId, one.code]),
    )
    assert.deepEqual(
      named.map((id) => codes.get(id ?? '')),
      [undefined, 'UNSUPPORTED_ACTION', 'DEVICE_DECOMMISSIONED', 'NOT_FOUND', 'NOT_FOUND'],
    )
    assert.deepEqual([body.counts.total, body.counts.refused], [1, 4])
    await fannedOut(body.id)
    assert.deepEqual(
      (await results(body.id)).items.map((one) => one.deviceId),
      [good?.deviceId],
    )
  })

  test('a filter is decided by the job: site, os, tag; what does not fit is counted', async () => {
    const site = await makeSite(hub, orgId)
    const script = await makeScript({ os: ['linux'] })
    const tagged = await addMany(3, site)
    const plain = await addMany(2, site)
    await db().query(`update devices set tags = '{web}' where id = any($1::uuid[])`, [tagged])
    await db().query(`update devices set os = 'darwin' where id = $1`, [plain[0]])
    const all = await started(script.id, { filter: { siteId: site } })
    await fannedOut(all.id)
    const { counts } = await read(all.id)
    assert.deepEqual([counts.total, counts.started, counts.skipped.unsupportedOs], [5, 4, 1])
    const web = await started(script.id, { filter: { siteId: site, tag: 'web', os: 'linux' } })
    await fannedOut(web.id)
    const { items } = await results(web.id)
    assert.deepEqual(items.map((one) => one.deviceId).toSorted(), tagged)
    const off = await started(script.id, { filter: { siteId: site, status: 'online' } })
    assert.equal((await ended(off.id)).counts.total, 0)
  })

  test('full queues and suspended organizations are counted and fail nobody else', async () => {
    const script = await makeScript({}, { ...admin, token: hub.token })
    const [full, free] = await addMany(2)
    await db().query(
      `insert into commands (id, device_id, org_id, action, payload, timeout_seconds, created_at,
         expires_at)
       select overlay(gen_random_uuid()::text placing left(uuid7_floor(now())::text, 13) from 1)::uuid,
         $1, $2, 'ping', '{}', 300, now(), now() + interval '1 h'
       from generate_series(1, $3::int)`,
      [full, orgId, limits.openCommandsMax],
    )
    const suspended = await makeOrganization(hub)
    const place = { orgId: suspended, siteId: await makeSite(hub, suspended) }
    const resting = await addDevice(db(), place)
    await db().query(`update organizations set status = 'suspended' where id = $1`, [suspended])
    const platform = { ...admin, token: hub.token }
    const { id } = await started(script.id, { deviceIds: [full, free, resting] }, platform)
    await fannedOut(id)
    const { body } = await hub.get(`/executions/${id}`)
    assert.equal(body.orgId, null)
    const { queueFull, suspended: skipped } = body.counts.skipped
    assert.deepEqual([body.counts.started, queueFull, skipped], [1, 1, 1])
    assert.equal(outcome(await call(hub, 'GET', `/executions/${id}`, admin)), '404 NOT_FOUND')
  })

  test('who is narrowed to sites reaches and sees those alone', async () => {
    const [mine, other] = [await makeSite(hub, orgId), await makeSite(hub, orgId)]
    const [[here], [there]] = [await addMany(1, mine), await addMany(1, other)]
    const narrowed = await signedIn(hub, 'technician', { orgId, siteIds: [mine] })
    const script = await makeScript()
    const body = await started(script.id, { deviceIds: [here, there] }, narrowed)
    assert.deepEqual(
      body.failed.map((one: { deviceId: string; code: string }) => [one.deviceId, one.code]),
      [[there, 'NOT_FOUND']],
    )
    const all = await started(script.id, { filter: {} }, narrowed)
    await fannedOut(all.id)
    assert.deepEqual(
      (await results(all.id)).items.map((one) => one.deviceId),
      [here],
    )
    const wide = await started(script.id, { filter: {} })
    await fannedOut(wide.id)
    const { token } = narrowed
    const hidden = await call(hub, 'GET', `/executions/${wide.id}`, { token })
    assert.equal(outcome(hidden), '404 NOT_FOUND')
    const rest = await call(hub, 'GET', `/executions/${wide.id}/results`, { token })
    assert.equal(outcome(rest), '404 NOT_FOUND')
    const { items } = await everyPage(hub, `/executions?scriptId=${script.id}`, token)
    assert.deepEqual(
      items.map(({ id }) => id),
      [all.id, body.id],
    )
  })

  test('a dry run counts by site, os and online, and runs nothing', async () => {
    const site = await makeSite(hub, orgId)
    const script = await makeScript({ os: ['linux', 'darwin'] })
    const made = await addMany(4, site)
    await db().query(`update devices set os = 'darwin' where id = $1`, [made[0]])
    await db().query(`update devices set os = 'windows' where id = $1`, [made[1]])
    await db().query(`update device_presence set status = 'online' where device_id = $1`, [made[2]])
    const { status, body } = await execute(script.id, { filter: { siteId: site }, dryRun: true })
    assert.equal(status, 200)
    assert.deepEqual(body, {
      scriptId: script.id,
      version: 1,
      counts: {
        total: 3,
        online: 1,
        offline: 2,
        unsupportedOs: 1,
        byOs: { darwin: 1, linux: 2 },
        bySite: [{ siteId: site, total: 3, online: 1 }],
        moreSites: 0,
      },
      failed: [],
    })
    const named = await execute(script.id, { deviceIds: made.slice(0, 2), dryRun: true })
    assert.equal(named.body.counts.total, 1)
    assert.deepEqual(
      named.body.failed.map((one: { deviceId: string }) => one.deviceId),
      [made[1]],
    )
    const { items } = await everyPage(hub, `/executions?scriptId=${script.id}`, admin.token)
    assert.deepEqual(items, [])
  })
})

describe('the wrong side', () => {
  test('who may not, and what is not there', async () => {
    const script = await makeScript()
    const body = { filter: {} }
    for (const role of ['viewer', 'auditor'] as const) {
      const person = await signedIn(hub, role, { orgId })
      assert.equal(outcome(await execute(script.id, body, person)), '403 FORBIDDEN')
    }
    assert.equal(outcome(await execute(script.id, body, stranger)), '404 NOT_FOUND')
    assert.equal(outcome(await execute(newId(), body)), '404 NOT_FOUND')
    const { id } = await started(script.id, { filter: { tag: 'none' } })
    const { token } = stranger
    for (const path of [`/executions/${id}`, `/executions/${id}/results`]) {
      assert.equal(outcome(await call(hub, 'GET', path, { token })), '404 NOT_FOUND')
    }
    const viewer = await signedIn(hub, 'viewer', { orgId })
    assert.equal(outcome(await call(hub, 'GET', '/executions', viewer)), '403 FORBIDDEN')
  })

  test('a request that contradicts itself or the script is refused by name', async () => {
    const script = await makeScript({
      parameters: [
        { name: 'who', type: 'string', required: true },
        { name: 'count', type: 'number' },
      ],
    })
    const filter = { tag: 'none' }
    const named = { deviceIds: [newId()] }
    const bodies: [object, string][] = [
      [{}, '/deviceIds'],
      [{ ...named, filter }, '/deviceIds'],
      [{ deviceIds: [] }, '/deviceIds'],
      [{ deviceIds: ['x'] }, '/deviceIds/0'],
      [{ filter: { color: 'red' } }, '/filter/color'],
      [{ filter }, '/parameters/who'],
      [{ filter, parameters: { who: 3 } }, '/parameters/who'],
      [{ filter, parameters: { who: 'x', count: '3' } }, '/parameters/count'],
      [{ filter, parameters: { who: 'x', Who: 'y' } }, '/parameters/Who'],
      [{ filter, parameters: { who: 'x'.repeat(25_000) } }, '/parameters'],
      [{ filter, parameters: { who: 'x' }, timeoutSeconds: 3601 }, '/timeoutSeconds'],
      [{ filter, dryRun: true }, '/parameters/who'],
    ]
    for (const [body, path] of bodies) {
      const answer = await execute(script.id, body)
      assert.equal(outcome(answer), '400 VALIDATION_ERROR', JSON.stringify(body).slice(0, 100))
      assert.equal(answer.body.error.details[0].path, path)
    }
  })
})

describe('an Idempotency-Key', () => {
  const start = (
    scriptId: string,
    key: string,
    body: unknown,
    { token }: { token: string } = admin,
  ) =>
    call(hub, 'POST', `/scripts/${scriptId}/execute`, {
      token,
      body,
      headers: { 'idempotency-key': key },
    })
  const count = async (scriptId: string) => {
    const [row] = await db().query<{ n: number }>(
      'select count(*)::int as n from executions where script_id = $1',
      [scriptId],
    )
    return row?.n
  }

  test('starts one execution, however often it is sent, and each answer tells of it', async () => {
    const parameters = [{ name: 'who', type: 'string' }]
    const script = await makeScript({ parameters })
    const [key, gone] = [newId(), newId()]
    const body = { deviceIds: [...(await addMany(2)), gone], parameters: { who: 'me' } }
    const answers = await Promise.all(Array.from({ length: 5 }, () => start(script.id, key, body)))
    answers.push(
      await start(script.id, key, { parameters: { who: 'me' }, deviceIds: body.deviceIds }),
    )
    assert.deepEqual(
      answers.map(outcome),
      answers.map(() => '202'),
    )
    assert.equal(new Set(answers.map((answer) => answer.body.id)).size, 1)
    for (const answer of answers) {
      assert.equal(answer.headers.get('location'), `/api/v1/executions/${answer.body.id}`)
      assert.deepEqual(answer.body.failed[0]?.deviceId, gone)
    }
    assert.equal(await count(script.id), 1)
    // A command under the same key is another matter.
    const command = await call(hub, 'POST', `/devices/${body.deviceIds[0]}/commands`, {
      token: admin.token,
      body: { action: 'ping' },
      headers: { 'idempotency-key': key },
    })
    assert.equal(outcome(command), '202')
  })

  test('with anything else is refused, and is anybody’s own', async () => {
    const script = await makeScript()
    const key = newId()
    const [one = '', two = ''] = await addMany(2)
    // What is refused takes no key.
    assert.equal(
      outcome(await start(script.id, key, { deviceIds: [one], parameters: { a: 1 } })),
      '400 VALIDATION_ERROR',
    )
    assert.equal(outcome(await start(script.id, key, { deviceIds: [one], dryRun: true })), '200')
    assert.equal(outcome(await start(script.id, key, { deviceIds: [one] })), '202')
    const other = await makeScript()
    for (const [id, body] of [
      [script.id, { deviceIds: [two] }],
      [script.id, { deviceIds: [one], timeoutSeconds: 5 }],
      [other.id, { deviceIds: [one] }],
    ] as const) {
      assert.equal(outcome(await start(id, key, body)), '409 IDEMPOTENCY_KEY_REUSED')
    }
    const token = hub.token
    assert.equal(outcome(await start(script.id, key, { deviceIds: [two] }, { token })), '202')
    assert.equal(await count(script.id), 2)
  })
})

test('results come in pages, newest first, also where each is large', async () => {
  const script = await makeScript()
  const devices = await addMany(25)
  const { id } = await started(script.id, { deviceIds: devices })
  await fannedOut(id)
  const { items, pages } = await results(id, 10)
  assert.deepEqual([items.length, pages], [25, 3])
  const commands = items.map(({ commandId }) => commandId)
  assert.deepEqual(commands, commands.toSorted().toReversed())
  await db().query(
    `update commands set result = jsonb_build_object('stdout', repeat('x', 1000000))
     where execution_id = $1`,
    [id],
  )
  const large = await results(id)
  assert.deepEqual(
    large.items.map(({ commandId }) => commandId),
    commands,
  )
  assert.ok(large.pages >= 3)
  const other = await started(script.id, { filter: { tag: 'none' } })
  const page = await call(hub, 'GET', `/executions/${id}/results?limit=10`, admin)
  const path = `/executions/${other.id}/results?limit=10&cursor=${page.body.pagination.cursor}`
  assert.equal(outcome(await call(hub, 'GET', path, admin)), '400 INVALID_CURSOR')
})
