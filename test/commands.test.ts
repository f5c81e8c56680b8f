// Commands through their real doors: the API on one side, an agent's socket on the other.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { newId } from '../src/ids.ts'
import { FakeAgent } from './support/agent.ts'
import { startHub, type Device, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub

before(async () => {
  hub = await startHub()
})
after(() => hub.close())

const run = { action: 'run_command', payload: { command: 'true' } }

async function send(device: Device, body: unknown = run, path = '') {
  const answer = await hub.post(`/devices/${device.deviceId}/commands${path}`, body)
  assert.equal(answer.status, 202, answer.text)
  return answer.body
}

async function command(id: string) {
  const answer = await hub.get(`/commands/${id}`)
  assert.equal(answer.status, 200, answer.text)
  return answer.body
}

const ended = (id: string, status: string) =>
  until(`${id} to be ${status}`, async () => {
    const found = await command(id)
    return found.status === status && found
  })

describe('the way of a command', () => {
  test('pending, sent, delivered, running, completed, each with its time', async () => {
    const device = await hub.enroll()
    const accepted = await send(device)
    assert.equal(accepted.status, 'pending')
    assert.deepEqual(accepted.blockedBy, { reason: 'offline' })
    const agent = await FakeAgent.connect(device, hub.origin)
    const frame = await agent.frame('command')
    assert.deepEqual(
      { ...frame, id: undefined },
      {
        type: 'command',
        id: undefined,
        action: 'run_command',
        payload: { command: 'true' },
        attempt: 1,
        timeoutSeconds: 300,
      },
    )
    assert.ok((await ended(frame.id, 'sent')).sentAt)
    agent.send({ type: 'delivered', id: frame.id })
    assert.ok((await ended(frame.id, 'delivered')).deliveredAt)
    agent.send({ type: 'started', id: frame.id })
    assert.ok((await ended(frame.id, 'running')).startedAt)
    agent.send({ type: 'result', id: frame.id, status: 'completed', exitCode: 0, stdout: 'hi' })
    await agent.frame('ack', frame.id)
    const end = await command(frame.id)
    assert.equal(end.status, 'completed')
    assert.equal(end.result.stdout, 'hi')
    assert.equal(end.result.exitCode, 0)
    assert.equal(end.attempts, 1)
    assert.equal(end.blockedBy, null)
    await agent.close()
  })

  test('?wait answers 202 with the end, or with the present state when the time is over', async () => {
    const device = await hub.enroll()
    const agent = (await FakeAgent.connect(device, hub.origin)).obey()
    const done = await send(device, run, '?wait=20')
    assert.equal(done.status, 'completed')
    await agent.close()
    const waiting = await send(device, run, '?wait=1')
    assert.equal(waiting.status, 'pending')
  })

  test('of two who wait for one command, the one whose time is over does not silence the other', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const path = `/devices/${device.deviceId}/commands`
    const headers = { 'idempotency-key': newId() }
    const long = hub.post(`${path}?wait=20`, run, { headers })
    const { id } = await agent.frame('command')
    assert.equal((await hub.post(`${path}?wait=1`, run, { headers })).body.id, id)
    agent.send({ type: 'result', id, status: 'completed', exitCode: 0 })
    const answer = await Promise.race([
      long,
      until('the end', async () => (await ended(id, 'completed')) && sleep(5000, 'late')),
    ])
    assert.notEqual(answer, 'late')
    assert.equal((await long).body.status, 'completed')
    await agent.close()
  })

  test('a result before delivered, even before started, ends the command', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    agent.onCommand = ({ id }) =>
      agent.send({ type: 'result', id, status: 'completed', exitCode: 0 })
    const { status, deliveredAt } = await send(device, run, '?wait=20')
    assert.deepEqual({ status, deliveredAt }, { status: 'completed', deliveredAt: null })
    await agent.close()
  })

  test('a non-zero exit is failed, whatever the agent calls it', async () => {
    const device = await hub.enroll()
    const agent = (await FakeAgent.connect(device, hub.origin)).obey({
      status: 'completed',
      exitCode: 3,
    })
    const { status, result } = await send(device, run, '?wait=20')
    assert.deepEqual([status, result.exitCode], ['failed', 3])
    await agent.close()
  })

  test('commands go out one at a time in the order of acceptance', async () => {
    const device = await hub.enroll()
    const ids: string[] = []
    for (let n = 0; n < 20; n++) ids.push((await send(device)).id)
    const agent = (await FakeAgent.connect(device, hub.origin)).obey()
    await ended(ids.at(-1) ?? '', 'completed')
    const order = agent.frames.filter((frame) => frame.type === 'command').map((frame) => frame.id)
    assert.deepEqual(order, ids)
    // Each next one only after the ack of the one before: its end was committed.
    const acks = agent.frames.filter(({ type }) => type === 'command' || type === 'ack')
    for (const [index, frame] of acks.entries()) {
      assert.equal(frame.type, index % 2 === 0 ? 'command' : 'ack')
    }
    await agent.close()
  })

  test('what waits behind another command says which; concurrent actions do not wait', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const first = await send(device)
    await agent.frame('command', first.id)
    const second = await send(device)
    assert.deepEqual(second.blockedBy, { reason: 'busy', commandId: first.id })
    assert.deepEqual((await command(second.id)).blockedBy, { reason: 'busy', commandId: first.id })
    const list = await send(device, { action: 'list_processes' })
    await agent.frame('command', list.id)
    assert.equal((await command(second.id)).status, 'pending')
    await agent.close()
  })

  test('a socket lost while sent brings the command back as the next attempt', async () => {
    const device = await hub.enroll()
    const first = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await first.frame('command', id)
    await ended(id, 'sent')
    await first.close()
    await ended(id, 'pending')
    const second = await FakeAgent.connect(device, hub.origin)
    assert.equal((await second.frame('command', id)).attempt, 2)
    await second.close()
  })

  test('a socket lost while running waits for the result on the next one', async () => {
    const device = await hub.enroll()
    const first = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await first.frame('command', id)
    first.send({ type: 'delivered', id })
    first.send({ type: 'started', id })
    await ended(id, 'running')
    await first.close()
    await until(
      'offline',
      async () => (await hub.get(`/devices/${device.deviceId}`)).body.status === 'offline',
    )
    assert.equal((await command(id)).status, 'running')
    const second = await FakeAgent.connect(device, hub.origin)
    second.send({ type: 'result', id, status: 'completed', exitCode: 0, stdout: 'late but there' })
    await second.frame('ack', id)
    assert.equal((await command(id)).result.stdout, 'late but there')
    assert.ok(!second.frames.some((frame) => frame.type === 'command'), 'never sent twice')
    await second.close()
  })

  test('the first end wins: a second result is acked and changes nothing', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await agent.frame('command', id)
    agent.send({ type: 'result', id, status: 'completed', exitCode: 0, stdout: 'first' })
    await agent.frame('ack', id)
    agent.frames.length = 0
    agent.send({ type: 'result', id, status: 'failed', exitCode: 1, stdout: 'second' })
    await agent.frame('ack', id)
    const end = await until('the late result', async () => {
      const found = await command(id)
      return found.lateResult && found
    })
    assert.deepEqual([end.status, end.result.stdout], ['completed', 'first'])
    assert.equal(end.lateResult.stdout, 'second')
    await agent.close()
  })

  test('results for foreign, unknown, malformed and terminal ids are acked; the foreign one is audited', async () => {
    const [mine, other] = [await hub.enroll(), await hub.enroll()]
    const foreign = await send(other)
    const agent = await FakeAgent.connect(mine, hub.origin)
    const ids = [foreign.id, newId(), 'not-a-uuid', `term-${newId()}`]
    for (const id of ids) agent.send({ type: 'result', id, status: 'completed', exitCode: 0 })
    for (const id of ids) await agent.frame('ack', id)
    assert.equal((await command(foreign.id)).status, 'pending')
    const rows = await hub.hub.ctx.db.query(
      `select 1 as found from audit
      where result = 'denied' and action = 'command.result' and resource_id = $1 and device_id = $2`,
      [foreign.id, mine.deviceId],
    )
    assert.equal(rows.length, 1)
    await agent.close()
  })

  test('U+0000, lone surrogates and a megabyte of escapes in a result are stored, cut and flagged', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await agent.frame('command', id)
    const evil = '\\u0000a\\ud800b'
    agent.send(
      `{"type":"result","id":"${id}","status":"completed","exitCode":0,"stdout":"${evil}","stderr":"${'\\u0001'.repeat(400_000)}","data":{"k\\u0000":"v\\udfff"}}`,
    )
    await agent.frame('ack', id)
    const { status, result } = await command(id)
    assert.equal(status, 'completed')
    assert.equal(result.stdout, '\ufffda\ufffdb')
    assert.deepEqual(result.data, { 'k\ufffd': 'v\ufffd' })
    assert.equal(result.truncated, true)
    assert.ok(Buffer.byteLength(JSON.stringify(result.stderr)) - 2 <= 1024 * 1024)
    await agent.close()
  })

  test('what PostgreSQL refuses ends its own command with STORE_REJECTED and blocks nobody', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await agent.frame('command', id)
    // jsonb takes no number beyond numeric's range, JSON has no such bound.
    agent.send(
      `{"type":"result","id":"${id}","status":"completed","exitCode":0,"data":${nested(3000)}}`,
    )
    await agent.frame('ack', id)
    const { status, result } = await command(id)
    assert.ok(['completed', 'failed'].includes(status), status)
    assert.equal(typeof result.truncated, 'boolean')
    const next = await send(device)
    await agent.frame('command', next.id)
    await agent.close()
  })
})

function nested(depth: number): string {
  return '['.repeat(depth) + ']'.repeat(depth)
}

describe('ends that the hub gives', () => {
  test('a command that expires while its device is off explains itself', async () => {
    const device = await hub.enroll()
    const { id } = await send(device, { ...run, expiresInSeconds: 1 })
    const { result, completedAt } = await ended(id, 'expired')
    assert.match(result.error, /expired/)
    assert.ok(completedAt)
  })

  test('a command that expires behind another one on a connected device expires too', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const first = await send(device)
    await agent.frame('command', first.id)
    const second = await send(device, { ...run, expiresInSeconds: 1 })
    await ended(second.id, 'expired')
    await agent.close()
  })

  test('cancel ends a pending command at once, and a second cancel is 409 CONFLICT', async () => {
    const device = await hub.enroll()
    const { id } = await send(device)
    const answer = await hub.post(`/commands/${id}/cancel`)
    assert.equal(answer.status, 200)
    assert.equal(answer.body.status, 'cancelled')
    const again = await hub.post(`/commands/${id}/cancel`)
    assert.deepEqual([again.status, again.body.error.code], [409, 'CONFLICT'])
    const agent = await FakeAgent.connect(device, hub.origin)
    const next = await send(device)
    await agent.frame('command', next.id)
    assert.ok(!agent.frames.some((frame) => 'id' in frame && frame.id === id), 'never sent')
    await agent.close()
  })

  test('cancel of a command that has just gone out never shows it as waiting', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    for (let n = 0; n < 10; n++) {
      const { id } = await send(device)
      await agent.frame('command', id)
      const { body } = await hub.post(`/commands/${id}/cancel`)
      assert.deepEqual([body.status, body.attempts], ['sent', 1])
      await agent.frame('cancel', id)
      agent.send({ type: 'result', id, status: 'cancelled' })
      await agent.frame('ack', id)
    }
    await agent.close()
  })

  test('cancel ends what waits for a device whose hub went down, at once', async () => {
    const { db } = hub.hub.ctx
    const device = await hub.enroll()
    const { id } = await send(device)
    const gone = newId()
    // As a hub leaves it: its devices are on their way to others.
    await db.query(
      `insert into nodes (id, version, lease_until, about)
      values ($1, '0.1.0', now() + interval '1 hour', '{"left": true}')`,
      [gone],
    )
    await db.query(
      `update device_presence set status = 'online', node_id = $2 where device_id = $1`,
      [device.deviceId, gone],
    )
    const answer = await hub.post(`/commands/${id}/cancel`)
    assert.deepEqual([answer.status, answer.body.status], [200, 'cancelled'])
    await db.query('delete from nodes where id = $1', [gone])
  })

  test('cancel of a running command asks the agent, whose answer decides', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await agent.frame('command', id)
    agent.send({ type: 'delivered', id })
    agent.send({ type: 'started', id })
    await ended(id, 'running')
    const answer = await hub.post(`/commands/${id}/cancel`)
    assert.equal(answer.body.status, 'running')
    await agent.frame('cancel', id)
    agent.send({ type: 'result', id, status: 'cancelled' })
    await agent.frame('ack', id)
    await ended(id, 'cancelled')
    await agent.close()
  })

  test('a cancel that meets an end which is still being written comes too late: it never looks unsent', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await agent.frame('command', id)
    const { db, shards } = hub.hub.ctx
    await db.transaction(async (tx) => {
      await tx.query('select from commands where id = $1 for update', [id])
      agent.send({ type: 'result', id, status: 'completed', exitCode: 0 })
      // Before the result arrives the agent is asked to stop; then nobody is.
      await until('the actor to have the end', async () => {
        const answer = await shards.cancel(device.deviceId, id)
        assert.notEqual(answer, 'unknown')
        return answer === 'ending'
      })
    })
    await ended(id, 'completed')
    await agent.close()
  })

  test('a cancel wished for while the device was away reaches the agent when it returns', async () => {
    const device = await hub.enroll()
    const first = await FakeAgent.connect(device, hub.origin)
    const { id } = await send(device)
    await first.frame('command', id)
    first.send({ type: 'delivered', id })
    await ended(id, 'delivered')
    await first.close()
    await until(
      'offline',
      async () => (await hub.get(`/devices/${device.deviceId}`)).body.status === 'offline',
    )
    assert.equal((await hub.post(`/commands/${id}/cancel`)).status, 200)
    const second = await FakeAgent.connect(device, hub.origin)
    await second.frame('cancel', id)
    second.send({ type: 'result', id, status: 'cancelled' })
    await ended(id, 'cancelled')
    await second.close()
  })

  test('decommissioning cancels open commands, closes with 4003 and refuses the token for good', async () => {
    const device = await hub.enroll()
    const agent = await FakeAgent.connect(device, hub.origin)
    const first = await send(device)
    const second = await send(device)
    const answer = await hub.delete(`/devices/${device.deviceId}`)
    assert.deepEqual([answer.status, answer.body.status], [200, 'decommissioned'])
    assert.equal((await agent.closing()).code, 4003)
    for (const { id } of [first, second]) {
      const { status, result } = await command(id)
      assert.equal(status, 'cancelled')
      assert.match(result.error, /decommissioned/)
    }
    await assert.rejects(FakeAgent.open(device, hub.origin), /403/)
    const refused = await hub.post(`/devices/${device.deviceId}/commands`, run)
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'DEVICE_DECOMMISSIONED'])
    assert.equal((await hub.delete(`/devices/${device.deviceId}`)).status, 200)
  })
})

describe('what is refused', () => {
  test('an unknown action, an unfit payload, unfit bounds: each names what is wrong', async () => {
    const device = await hub.enroll()
    const cases: [unknown, string, RegExp][] = [
      [{ action: 'format_disk' }, 'UNSUPPORTED_ACTION', /format_disk/],
      [{ action: 'toString' }, 'UNSUPPORTED_ACTION', /toString/],
      [{ action: 'run_command' }, 'VALIDATION_ERROR', /payload\/command/],
      [{ action: 'run_command', payload: { command: 'x', more: 1 } }, 'VALIDATION_ERROR', /more/],
      [{ action: 'run_command', payload: { command: 7 } }, 'VALIDATION_ERROR', /command/],
      [{ action: 'kill_process', payload: { pid: 1 } }, 'VALIDATION_ERROR', /pid/],
      [{ action: 'upgrade_agent', payload: {} }, 'VALIDATION_ERROR', /version/],
      [{ ...run, timeoutSeconds: 0 }, 'VALIDATION_ERROR', /timeoutSeconds/],
      [{ ...run, expiresInSeconds: 31 * 86_400 }, 'VALIDATION_ERROR', /expiresInSeconds/],
      [{ ...run, extra: 1 }, 'VALIDATION_ERROR', /extra/],
      [{ ...run, payload: { command: 'a\u0000b' } }, 'VALIDATION_ERROR', /U\+0000/],
      [{}, 'VALIDATION_ERROR', /action/],
    ]
    for (const [body, code, message] of cases) {
      const { status, body: refusal } = await hub.post(`/devices/${device.deviceId}/commands`, body)
      assert.deepEqual([status, refusal.error.code], [400, code], JSON.stringify(body))
      assert.match(JSON.stringify(refusal.error), message)
    }
    const half = await hub.post(`/devices/${device.deviceId}/commands`, undefined, {
      raw: '{"action":"run_command","payload":{"command":"\\ud800"}}',
    })
    assert.equal(half.status, 400)
  })

  test('an unknown device and a malformed id', async () => {
    assert.equal((await hub.post(`/devices/${newId()}/commands`, run)).status, 404)
    assert.equal((await hub.post('/devices/nope/commands', run)).status, 400)
    assert.equal((await hub.get(`/commands/${newId()}`)).status, 404)
    assert.equal((await hub.get('/commands/nope')).status, 400)
    assert.equal((await hub.get(`/commands/term-${newId()}`)).status, 404)
    assert.equal((await hub.post(`/commands/term-${newId()}/cancel`)).status, 404)
  })

  test('the hundred-and-first open command of a device is QUEUE_FULL, one by one and all at once', async () => {
    const [slow, fast] = [await hub.enroll(), await hub.enroll()]
    for (let n = 0; n < 100; n++) await send(slow)
    const refused = await hub.post(`/devices/${slow.deviceId}/commands`, run)
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'QUEUE_FULL'])
    const answers = await Promise.all(
      Array.from({ length: 150 }, () => hub.post(`/devices/${fast.deviceId}/commands`, run)),
    )
    const accepted = answers.filter(({ status }) => status === 202).length
    // Batches in flight at the same time do not see each other: at most one more batch each.
    assert.ok(accepted >= 100 && accepted < 150, `${accepted} accepted`)
    assert.ok(answers.every(({ status }) => status === 202 || status === 409))
  })

  test('an Idempotency-Key makes a retry return the first command, and refuses another body', async () => {
    const device = await hub.enroll()
    const path = `/devices/${device.deviceId}/commands`
    const headers = { 'idempotency-key': newId() }
    const first = await hub.post(path, run, { headers })
    const again = await hub.post(path, run, { headers })
    assert.deepEqual([again.status, again.body.id], [202, first.body.id])
    const other = await hub.post(path, { action: 'ping' }, { headers })
    assert.deepEqual([other.status, other.body.error.code], [409, 'IDEMPOTENCY_KEY_REUSED'])
    const key = { 'idempotency-key': newId() }
    const parallel = await Promise.all(
      Array.from({ length: 20 }, () => hub.post(path, run, { headers: key })),
    )
    assert.equal(new Set(parallel.map(({ body }) => body.id)).size, 1)
    await hub.delete(`/devices/${device.deviceId}`)
    const later = await hub.post(path, run, { headers })
    assert.deepEqual([later.status, later.body.id], [202, first.body.id])
  })

  test('one caller’s bad row in a batch reaches nobody else', async () => {
    const device = await hub.enroll()
    const path = `/devices/${device.deviceId}/commands`
    const answers = await Promise.all([
      ...Array.from({ length: 20 }, () => hub.post(path, run)),
      hub.post(`/devices/${newId()}/commands`, run),
      // Valid JSON whose number is beyond all.
      hub.post(path, undefined, {
        raw: '{"action":"run_script","payload":{"language":"sh","content":"x","env":{"A":"b"}},"timeoutSeconds":1e400}',
      }),
    ])
    assert.equal(answers.filter(({ status }) => status === 202).length, 20)
    assert.deepEqual(
      answers.slice(20).map(({ status }) => status),
      [404, 400],
    )
  })
})

test('lists of commands page newest first and by status', async () => {
  const device = await hub.enroll()
  const ids: string[] = []
  for (let n = 0; n < 7; n++) ids.unshift((await send(device)).id)
  await hub.post(`/commands/${ids[6]}/cancel`)
  const seen: string[] = []
  let cursor = ''
  for (;;) {
    const { body } = await hub.get(
      `/devices/${device.deviceId}/commands?limit=3${cursor ? `&cursor=${cursor}` : ''}`,
    )
    seen.push(...body.data.map((item: { id: string }) => item.id))
    if (!body.pagination.hasMore) {
      assert.equal(body.pagination.cursor, null)
      break
    }
    cursor = body.pagination.cursor
  }
  assert.deepEqual(seen, ids)
  const cancelled = await hub.get(`/devices/${device.deviceId}/commands?status=cancelled`)
  assert.deepEqual(
    cancelled.body.data.map((item: { id: string }) => item.id),
    [ids[6]],
  )
  const foreign = await hub.get(
    `/devices/${device.deviceId}/commands?status=pending&cursor=${cursor}x`,
  )
  assert.equal(foreign.body.error.code, 'INVALID_CURSOR')
})
