// Terminals through their real doors, with the real agent and a real shell: what is typed and shown, what is lost
// on the way and comes again, who gets in, and what is written down.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { after, afterEach, before, describe, test } from 'node:test'
import fc from 'fast-check'
import { newId } from '../src/ids.ts'
import { closeCodes } from '../src/protocol.ts'
import {
  decodeFrame,
  decodeText,
  encodeFrame,
  encodeSize,
  frameKinds,
  type FrameKind,
  type TerminalFrame,
} from '../src/terminal_frames.ts'
import type { TerminalTable } from '../src/terminal_table.ts'
import { FakeAgent } from './support/agent.ts'
import { metricsToken, startHub, type Device, type TestHub } from './support/hub.ts'
import { makeOrganization, makeSite, signedIn, type Person } from './support/people.ts'
import { breakAgent, startAgentOf, type RunningAgent } from './support/real_agent.ts'
import { endAll, openSocket, openTicket, Operator, type OpenTicket } from './support/terminal.ts'
import { until } from './support/until.ts'

let hub: TestHub
let agent: RunningAgent

before(async () => {
  hub = await startHub()
  agent = await startAgentOf(hub)
})
after(async () => {
  await agent.stop()
  await hub.close()
})

afterEach(endAll)

const terminals = () => hub.get(`/devices/${agent.deviceId}/terminals?limit=500`)
const terminal = async (id: string) =>
  until(`${id} in the list`, async () =>
    (await terminals()).body.data.find((one: { id: string }) => one.id === id),
  )
const endOf = (id: string) =>
  until(`the end of ${id}`, async () => {
    const found = await terminal(id)
    return found.endedAt !== null && found
  })
const trail = (action: string, resourceId: string) =>
  hub.hub.ctx.db.query<{
    actorType: string
    actorId: string
    orgId: string
    // oxlint-disable-next-line typescript/no-explicit-any -- tests reach into data of every shape
    details: any
  }>(
    `select actor_type as "actorType", actor_id as "actorId", org_id as "orgId", details
     from audit where action = $1 and resource_id = $2`,
    [action, resourceId],
  )

async function metric(line: string): Promise<number> {
  const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
  const found = text.split('\n').find((candidate) => candidate.startsWith(line))
  return Number(found?.split(' ').at(-1) ?? 0)
}

/** Output that is known byte by byte: lines with their numbers. */
const linesOf = (count: number) => Array.from({ length: count }, (_, n) => `${n + 1}\r\n`).join('')

describe('a shell', () => {
  test('shows what it is told to, in the size of the window, and tells its exit code', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('echo $((6*7)) $TERM\n')
    await operator.shows('42 xterm-256color')
    operator.type('stty size\n')
    await operator.shows('24 80')
    operator.client.resize({ cols: 111, rows: 33 })
    operator.type('stty size\n')
    await operator.shows('33 111')
    operator.type('exit 7\n')
    assert.equal(await operator.ended(), 'the shell has ended')
    assert.deepEqual(operator.exit, { exitCode: 7, signal: '' })
    assert.equal(await until('its socket to close', () => operator.closed?.code), 1000)
    const row = await endOf(operator.id)
    assert.deepEqual(
      [row.endReason, row.exitCode, row.userEmail],
      ['exited', 7, 'admin@example.com'],
    )
    assert.ok(row.bytesIn > 40 && row.bytesOut === operator.text.length)
  })

  test('takes a paste of 100 KB whole', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    const lines = Array.from({ length: 1600 }, (_, n) => `${n} ${'x'.repeat(60)}\n`).join('')
    assert.ok(lines.length > 100_000)
    operator.type(`stty -echo; head -c ${lines.length} | sha256sum; echo done\n`)
    await operator.shows(/-echo[^]*\n/)
    operator.type(lines)
    await operator.shows(createHash('sha256').update(lines).digest('hex'))
    operator.client.end()
    await operator.ended()
  })

  test('gets none of the agent’s own settings', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('env | grep -c "^MUSTER_\\|^BUN_\\|^NODE_"; tty; echo $0-$-\n')
    await operator.shows(/\b0\r\n\/dev\/pts\/\d+\r\n/)
    operator.client.end()
    assert.equal(await operator.ended(), 'the session was closed')
  })

  test('that ignores the hang-up is killed', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type("trap '' HUP; echo pid=$$.\n")
    await operator.shows(/pid=\d+\./)
    const pid = Number(/pid=(\d+)\./.exec(operator.text)?.[1])
    operator.client.end()
    await operator.ended()
    await until('the shell to be gone', () => !isThere(pid))
  })
})

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

describe('what is lost on the way comes again, once', () => {
  test('the operator’s socket breaks in mid-output, again and again', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('stty -echo -onlcr; seq 1 900000; stty echo; echo ready\n')
    const expected = linesOf(900_000).replaceAll('\r', '')
    for (let n = 1; n <= 5; n++) {
      const bytes = operator.text.length
      await until('more output', () => operator.text.length > bytes + 30_000)
      operator.drop()
      operator.type(`# typed while away ${n}\n`)
      await operator.reconnect()
    }
    await operator.shows('ready\n')
    assert.ok(operator.text.includes(expected), 'every line once and in order')
    for (let n = 1; n <= 5; n++) await operator.shows(`typed while away ${n}`)
    assert.equal(operator.text.split('typed while away 3').length, 2)
    operator.client.end()
    await operator.ended()
  })

  test('the agent’s socket breaks in mid-output, again and again', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('stty -echo -onlcr; seq 1 900000; stty echo; echo ready\n')
    const expected = linesOf(900_000).replaceAll('\r', '')
    for (let n = 1; n <= 3; n++) {
      const bytes = operator.text.length
      const opened = operator.opened
      await until('more output', () => operator.text.length > bytes + 30_000)
      breakAgent(hub, agent.deviceId)
      operator.type(`# typed while away ${n}\n`)
      await until('the agent to be back', () => operator.opened > opened)
    }
    await operator.shows('ready\n')
    assert.ok(operator.text.includes(expected), 'every line once and in order')
    for (let n = 1; n <= 3; n++) await operator.shows(`typed while away ${n}`)
    operator.client.end()
    await operator.ended()
  })

  test('who does not read makes the program wait, and misses nothing', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.read(false)
    // A prompt that came before is confirmed already: the window lies behind it.
    const full = operator.text.length + 256 * 1024
    operator.type('stty -echo -onlcr; seq 1 100000; exit 3\n')
    await until('a full window', () => operator.text.length >= full)
    await hub.get('/devices')
    assert.equal(operator.text.length, full)
    operator.read(true)
    await operator.ended()
    assert.ok(operator.text.includes(linesOf(100_000).replaceAll('\r', '')))
    assert.equal(operator.exit?.exitCode, 3)
  })

  test('a page opened anew goes on where the other one stopped reading, and types', async () => {
    const first = await Operator.open(hub, agent.deviceId)
    first.type('echo one-$((1+1))\n')
    await first.shows('one-2')
    const second = await first.again()
    await until('the first to give way', () => first.closed)
    assert.equal(first.closed?.code, 4002)
    second.type('echo two-$((1+2))\n')
    await second.shows('two-3')
    second.client.end()
    await second.ended()
  })

  test('an agent that was restarted says so', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    await agent.restart()
    assert.match(await operator.ended(), /restarted and the shell is gone/)
    assert.equal((await endOf(operator.id)).endReason, 'agent_refused')
  })
})

describe('who gets in', () => {
  test('with a ticket that is good once, for this session, with both subprotocols', async () => {
    const ticket = await openTicket(hub, agent.deviceId)
    const url = ticket.websocketUrl
    assert.match(ticket.id, /^term-[0-9a-f-]{36}$/)
    assert.ok(Date.parse(ticket.expiresAt) - Date.now() <= 30_000)
    const other = await openTicket(hub, agent.deviceId)
    const use = (value: string, of = url) => openSocket({ websocketUrl: of, ticket: value })
    await assert.rejects(use('wrong'), /401/)
    await assert.rejects(use(other.ticket), /401/)
    await assert.rejects(use(ticket.ticket, url.replace(/term-[^/]*/, `term-${newId()}`)), /401/)
    await assert.rejects(openSocket(ticket, [`ticket.${ticket.ticket}`]), /400/)
    await assert.rejects(openSocket(ticket, ['muster-terminal.v1']), /401/)
    const socket = await use(ticket.ticket)
    assert.equal(socket.protocol, 'muster-terminal.v1')
    await assert.rejects(use(ticket.ticket), /401/)
    const plain = await hub.get(`/terminals/${ticket.id}/ws`, { token: undefined })
    assert.deepEqual([plain.status, plain.body.error.code], [426, 'UPGRADE_REQUIRED'])
    assert.equal((await hub.post(`/terminals/${ticket.id}/ws`)).status, 405)
    for (const one of [ticket, other]) await endOver(one)
  })

  test('its own user alone gets another ticket', async () => {
    const ticket = await openTicket(hub, agent.deviceId)
    const stranger = await signedIn(hub, 'platform_admin')
    const foreign = await signedIn(hub, 'technician', { orgId: await makeOrganization(hub) })
    const ask = (token: string) => hub.post(`/terminals/${ticket.id}/tickets`, {}, { token })
    assert.equal((await ask(stranger.token)).body.error.code, 'FORBIDDEN')
    assert.equal((await ask(foreign.token)).body.error.code, 'NOT_FOUND')
    const again = await ask(hub.token)
    assert.equal(again.status, 201)
    await endOver(again.body)
    assert.equal((await ask(hub.token)).body.error.code, 'CONFLICT')
  })

  test('a device that is offline has none, a connected one three, also when asked for at once', async () => {
    const off = await hub.enroll()
    const refused = await hub.post(`/devices/${off.deviceId}/terminals`, { cols: 80, rows: 24 })
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'DEVICE_OFFLINE'])
    await hub.hub.ctx.db.query(
      `update device_presence set status = 'online', node_id = gen_random_uuid() where device_id = $1`,
      [off.deviceId],
    )
    const elsewhere = await hub.post(`/devices/${off.deviceId}/terminals`, { cols: 80, rows: 24 })
    assert.deepEqual([elsewhere.status, elsewhere.body.error.code], [503, 'UNAVAILABLE'])
    const answers = await Promise.all(
      Array.from({ length: 6 }, () =>
        hub.post(`/devices/${agent.deviceId}/terminals`, { cols: 80, rows: 24 }),
      ),
    )
    const codes = answers.map(({ status, body }) => `${status} ${body.error?.code ?? ''}`)
    assert.equal(codes.filter((code) => code === '201 ').length, 3)
    assert.equal(codes.filter((code) => code === '409 SESSION_LIMIT').length, 3)
    for (const { status, body } of answers) if (status === 201) await endOver(body)
    for (const size of [{ cols: 0, rows: 24 }, { cols: 80, rows: 1001 }, { cols: 80 }, {}]) {
      assert.equal((await hub.post(`/devices/${agent.deviceId}/terminals`, size)).status, 400)
    }
  })

  for (const [what, change] of [
    ['signs out', (person: Person) => hub.post('/auth/logout', {}, { token: person.token })],
    ['is disabled', (person: Person) => hub.patch(`/users/${person.id}`, { status: 'disabled' })],
    ['becomes a viewer', (person: Person) => hub.patch(`/users/${person.id}`, { role: 'viewer' })],
    ['is narrowed to another site', narrow],
  ] as const) {
    test(`who ${what} loses the terminal at once`, async () => {
      const person = await technician()
      const operator = await Operator.open(hub, agent.deviceId, person.token)
      const answer = await change(person)
      assert.ok(answer.status < 300, answer.text)
      assert.equal(await operator.ended(), 'you may not use this terminal any more')
      assert.equal((await endOf(operator.id)).endReason, 'access_ended')
    })
  }

  test('a device that moves where its operator does not see it ends the terminal', async () => {
    const { body: device } = await hub.get(`/devices/${agent.deviceId}`)
    const person = await technician([device.siteId])
    const operator = await Operator.open(hub, agent.deviceId, person.token)
    const siteId = await makeSite(hub, device.orgId)
    assert.equal((await hub.patch(`/devices/${agent.deviceId}`, { siteId })).status, 200)
    await operator.ended()
    await hub.patch(`/devices/${agent.deviceId}`, { siteId: device.siteId })
  })

  for (const [what, change, code, sentence] of [
    [
      'a decommissioned device',
      ({ deviceId }: Device) => hub.delete(`/devices/${deviceId}`),
      closeCodes.decommissioned,
      'the device was taken out of service',
    ],
    [
      'a suspended organization',
      ({ orgId }: Device) => hub.patch(`/organizations/${orgId}`, { status: 'suspended' }),
      closeCodes.organizationSuspended,
      'the organization of the device is suspended',
    ],
  ] as const) {
    test(`${what} ends the terminal, and says that it was this`, async () => {
      const siteId = await makeSite(hub, await makeOrganization(hub))
      const { body: key } = await hub.post(`/sites/${siteId}/enrollment-keys`, { maxUses: 1 })
      const device = await hub.enroll({ enrollmentSecret: key.key })
      const fake = await FakeAgent.connect(device, hub.origin)
      const ticket = await openTicket(hub, device.deviceId)
      const socket = await openSocket(ticket)
      const said: string[] = []
      socket.on('message', (data) => {
        const frame = decodeFrame(data as Buffer)
        if (frame?.kind === 'close') said.push(decodeText(frame.body))
      })
      const closed = once(socket, 'close')
      assert.equal((await change(device)).status, 200)
      assert.equal((await fake.closing()).code, code)
      assert.equal((await closed)[0], code)
      assert.deepEqual(said, [sentence])
      await until('the end', async () => {
        const { body } = await hub.get(`/devices/${device.deviceId}/terminals`)
        return body.data[0].id === ticket.id && body.data[0].endReason === 'device_refused'
      })
    })
  }
})

async function technician(siteIds?: string[]): Promise<Person> {
  const { body } = await hub.get(`/devices/${agent.deviceId}`)
  return signedIn(hub, 'technician', { orgId: body.orgId, ...(siteIds ? { siteIds } : {}) })
}

async function narrow(person: Person) {
  const siteId = await makeSite(hub, person.orgId ?? '')
  return hub.patch(`/users/${person.id}`, { siteIds: [siteId] })
}

/** Ends a session that was only opened. */
async function endOver(ticket: OpenTicket): Promise<void> {
  const fresh = await hub.post(`/terminals/${ticket.id}/tickets`)
  const socket = await openSocket(fresh.body)
  socket.send(encodeFrame('close', ticket.id, 0))
  await new Promise((resolve) => socket.once('close', resolve))
}

describe('frames of others', () => {
  test('an agent that writes to another device’s session is refused and audited once', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    const device = await hub.enroll()
    const fake = await FakeAgent.connect(device, hub.origin)
    const earlier = await metric('muster_terminal_frames_dropped_total{reason="foreign"}')
    for (const kind of ['data', 'opened', 'exit', 'close', 'ack'] as const) {
      for (let n = 0; n < 10; n++) {
        fake.socket.send(encodeFrame(kind, operator.id, 0, Buffer.from('ForeignWords0000')))
      }
    }
    await until('all frames to be dropped', async () => {
      return (
        (await metric('muster_terminal_frames_dropped_total{reason="foreign"}')) === earlier + 50
      )
    })
    operator.type('echo still-$((1+1))\n')
    await operator.shows('still-2')
    assert.ok(!operator.text.includes('Foreign'))
    const rows = await until('the audit row', async () => {
      const found = await trail('terminal.foreign_frame', operator.id)
      return found.length > 0 && found
    })
    assert.deepEqual(
      rows.map(({ actorType, actorId, orgId }) => ({ actorType, actorId, orgId })),
      [{ actorType: 'agent', actorId: device.deviceId, orgId: device.orgId }],
    )
    await fake.close()
  })

  test('an operator who writes to another’s session is refused and audited once', async () => {
    const victim = await Operator.open(hub, agent.deviceId)
    const person = await technician()
    const other = await Operator.open(hub, agent.deviceId, person.token)
    for (let n = 0; n < 20; n++) {
      other.socket?.send(encodeFrame('data', victim.id, 0, Buffer.from('echo foreign\n')))
      other.socket?.send(encodeFrame('close', victim.id, 0))
    }
    other.type('echo mine-$((1+1))\n')
    await other.shows('mine-2')
    victim.type('echo still-$((1+1))\n')
    await victim.shows('still-2')
    assert.ok(!victim.text.includes('foreign'))
    const rows = await trail('terminal.foreign_frame', victim.id)
    assert.deepEqual(
      rows.map(({ actorId }) => actorId),
      [person.id],
    )
  })

  test('a session that nobody knows is answered with a close, and costs the agent its frames', async () => {
    const device = await hub.enroll()
    const fake = await FakeAgent.connect(device, hub.origin)
    const answered: Buffer[] = []
    fake.socket.on('message', (data, isBinary) => {
      if (isBinary) answered.push(data as Buffer)
    })
    const id = `term-${newId()}`
    fake.socket.send(encodeFrame('data', id, 0, Buffer.from('x')))
    const frame = decodeFrame(await until('the answer', () => answered[0]))
    assert.deepEqual([frame?.kind, frame?.id], ['close', id])
    for (let n = 0; n < 1500; n++) fake.socket.send(encodeFrame('close', id, n))
    assert.equal((await fake.closing()).code, 4029)
  })

  test('an agent whose output has a gap is asked to begin again where it was confirmed', async () => {
    const device = await hub.enroll()
    const fake = await FakeAgent.connect(device, hub.origin)
    const asked: TerminalFrame[] = []
    fake.socket.on('message', (data, isBinary) => {
      const frame = isBinary ? decodeFrame(Buffer.from(data as Buffer)) : undefined
      if (frame?.kind === 'open') asked.push(frame)
    })
    const ticket = await openTicket(hub, device.deviceId)
    const socket = await openSocket(ticket)
    const shown: string[] = []
    socket.on('message', (data: Buffer) => {
      const frame = decodeFrame(Buffer.from(data))
      if (frame?.kind === 'data') shown.push(decodeText(frame.body))
    })
    socket.send(encodeFrame('open', ticket.id, 0, encodeSize({ cols: 80, rows: 24 }, false)))
    await until('the first open', () => asked.length > 0)
    const begun = asked.length
    const say = (kind: FrameKind, seq: number, body: Uint8Array) =>
      fake.socket.send(encodeFrame(kind, ticket.id, seq, body))
    say('opened', 0, new Uint8Array(8))
    say('data', 0, Buffer.from('one'))
    say('data', 6, Buffer.from('three'))
    const again = await until('another open', () => asked.slice(begun).at(0))
    assert.equal(again.seq, 0)
    say('data', 0, Buffer.from('one'))
    say('data', 3, Buffer.from('two'))
    say('data', 6, Buffer.from('three'))
    await until('all of it', () => shown.includes('three'))
    assert.equal(shown.at(-1), 'three')
    socket.close()
    await fake.close()
  })

  test('more output than the window, gaps and impossible numbers go nowhere', async () => {
    const device = await hub.enroll()
    const fake = await FakeAgent.connect(device, hub.origin)
    const ticket = await openTicket(hub, device.deviceId)
    const socket = await openSocket(ticket)
    const got: TerminalFrame[] = []
    socket.on('message', (data: Buffer) => {
      const frame = decodeFrame(Buffer.from(data))
      if (frame) got.push(frame)
    })
    const say = (kind: FrameKind, seq: number, body?: Uint8Array) =>
      fake.socket.send(encodeFrame(kind, ticket.id, seq, body))
    say('opened', 5, new Uint8Array(8))
    say('data', 1, Buffer.from('gap'))
    say('ack', 1_000_000)
    const piece = Buffer.alloc(32 * 1024, 'a')
    for (let n = 0; n < 12; n++) say('data', n * piece.length, piece)
    say('exit', 0, Buffer.from([0, 0, 0, 9]))
    await until('the last frame', () => got.find(({ kind }) => kind === 'exit'))
    const data = got.filter(({ kind }) => kind === 'data')
    assert.equal(data.length, 8)
    assert.deepEqual(
      got.map(({ kind }) => kind).filter((kind) => kind !== 'data'),
      ['opened', 'exit'],
    )
    // And the operator's own window: what is not acknowledged is bounded, or the socket is closed.
    for (let n = 0; n < 9; n++) {
      socket.send(encodeFrame('data', ticket.id, n * piece.length, piece))
    }
    const [code] = await once(socket, 'close')
    assert.equal(code, 4029)
    await fake.close()
  })
})

test('nonsense from either end harms nobody and reaches nobody else', async () => {
  const victim = await Operator.open(hub, agent.deviceId)
  victim.type('stty -echo\n')
  await victim.shows('stty -echo')
  const device = await hub.enroll()
  const fake = await FakeAgent.connect(device, hub.origin)
  const kinds = Object.keys(frameKinds) as FrameKind[]
  const noise = fc.record({
    kind: fc.constantFrom(...kinds),
    own: fc.boolean(),
    seq: fc.oneof(fc.maxSafeNat(), fc.nat({ max: 300_000 })),
    body: fc.uint8Array({ maxLength: 300 }),
    cut: fc.nat({ max: 400 }),
    flip: fc.nat({ max: 60 }),
  })
  const nonsense = (own: string) =>
    fc.sample(noise, 300).map(({ kind, own: isOwn, seq, body, cut, flip }) => {
      // Its own session is not closed on purpose: the rest would meet nothing.
      const id = isOwn ? own : victim.id
      const frame = encodeFrame(kind === 'close' && isOwn ? 'data' : kind, id, seq, body)
      if (flip < 50) frame[flip] = (frame[flip] ?? 0) ^ (1 + (cut % 255))
      return cut < 100 ? frame.subarray(0, cut) : frame
    })
  for (let round = 0; round < 4; round++) {
    const ticket = await openTicket(hub, device.deviceId)
    const socket = await openSocket(ticket)
    const mine = nonsense(ticket.id)
    const theirs = nonsense(ticket.id)
    for (const [n, bytes] of mine.entries()) {
      socket.send(bytes)
      // Strays take from the frames an agent may send.
      if (round === 0) fake.socket.send(theirs[n] ?? bytes)
    }
    socket.send('a text')
    // Whatever the hub thought of it: by now the socket is closed, or this closes it.
    socket.send(encodeFrame('data', ticket.id, 2 ** 40))
    await until('the socket to close', () => socket.readyState === socket.CLOSED)
    const { status } = await hub.post(`/terminals/${ticket.id}/tickets`)
    if (status === 201) await endOver(ticket)
  }
  victim.type('echo still-$((1+1))\n')
  await victim.shows('still-2')
  assert.match(victim.text, /^[^]*stty -echo\r\n[^]{0,200}still-2/)
  assert.equal((await hub.get('{origin}/health/ready')).status, 200)
  await fake.close()
})

describe('what is written down', () => {
  test('start and end with bytes, in audit and events; nothing in the commands', async () => {
    const commands = await hub.hub.ctx.db.query('select id from commands')
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('echo done-$((1+1))\n')
    await operator.shows('done-2')
    operator.client.end()
    await operator.ended()
    const row = await endOf(operator.id)
    const [start] = await trail('terminal.start', operator.id)
    const [end] = await trail('terminal.end', operator.id)
    assert.deepEqual(start?.details, { cols: 80, rows: 24 })
    const { bytesIn, bytesOut } = row
    assert.deepEqual(end?.details, {
      reason: 'closed',
      exitCode: null,
      bytesIn,
      bytesOut,
      recordingComplete: true,
    })
    assert.equal(row.recordingComplete, true)
    assert.deepEqual(
      [end?.actorType, end?.actorId, start?.actorId],
      ['user', row.userId, row.userId],
    )
    assert.equal(bytesIn, 'echo done-$((1+1))\n'.length)
    const events = await hub.hub.ctx.db.query<{ type: string }>(
      `select type from events where data->>'terminalId' = $1 order by xid, id`,
      [operator.id],
    )
    assert.deepEqual(
      events.map(({ type }) => type),
      ['terminal.started', 'terminal.ended'],
    )
    assert.deepEqual(await hub.hub.ctx.db.query('select id from commands'), commands)
    assert.equal((await hub.get(`/commands/${operator.id}`)).body.error.code, 'NOT_FOUND')
  })

  test('a recording is an asciicast of the output, without what was typed unseen', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type(
      'stty -echo; printf "\\303"; sleep 0.2; printf "\\251\\0\\n"; read x; stty echo\n',
    )
    await operator.shows('\u00c3\u00a9')
    operator.type('secret-word\n')
    operator.client.resize({ cols: 100, rows: 30 })
    operator.type('exit\n')
    await operator.ended()
    await endOf(operator.id)
    const answer = await hub.get(`/terminals/${operator.id}/recording`)
    assert.match(answer.headers.get('content-type') ?? '', /^application\/x-asciicast/)
    const [head, ...lines] = answer.text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    assert.deepEqual([head.version, head.width, head.height], [2, 80, 24])
    const events = lines as [number, string, string][]
    const output = events.filter(([, kind]) => kind === 'o').map(([, , text]) => text)
    assert.equal(Buffer.from(output.join('')).toString('latin1'), operator.text)
    assert.ok(output.join('').includes('é\u0000'))
    assert.ok(!answer.text.includes('secret-word'))
    assert.deepEqual(events.find(([, kind]) => kind === 'r')?.[2], '100x30')
    const times = events.map(([seconds]) => seconds)
    assert.deepEqual(
      times,
      times.toSorted((a, b) => a - b),
    )
    const viewer = await signedIn(hub, 'viewer', {
      orgId: (await hub.get(`/devices/${agent.deviceId}`)).body.orgId,
    })
    const refused = await hub.get(`/terminals/${operator.id}/recording`, { token: viewer.token })
    assert.equal(refused.status, 403)
  })

  test('a flood is recorded whole', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    operator.type('stty -echo -onlcr; seq 1 1700000; exit\n')
    await operator.ended()
    assert.ok(operator.text.length > 12_000_000)
    const row = await endOf(operator.id)
    const { text, marks } = await recordingOf(operator.id)
    assert.deepEqual([text.length, marks], [operator.text.length, []])
    assert.ok(text === operator.text, 'the same, byte by byte')
    assert.deepEqual([row.endReason, row.recordingComplete], ['exited', true])
  })

  test('the device waits while recordings can’t be written, and nothing is missing', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    const { promise: held, resolve: letGo } = Promise.withResolvers<void>()
    const { promise: isLocked, resolve: locked } = Promise.withResolvers<void>()
    const lock = hub.hub.ctx.db.transaction(async (tx) => {
      await tx.query('lock table terminal_recordings in share mode')
      locked()
      await held
    })
    await isLocked
    operator.type('stty -echo -onlcr; seq 1 900000; exit\n')
    const sessions = Reflect.get(hub.hub.ctx.terminals, 'sessions') as TerminalTable
    const session = sessions.get(operator.id)
    // All that the operator has and the agent may send on top of it; then there is no more.
    await until('the recording to be full', () => session?.recording?.hasRoom === false)

    await hub.get('/devices')
    assert.ok(operator.text.length < 2 * 1024 * 1024, `${operator.text.length} bytes were shown`)
    letGo()
    await lock
    await operator.ended()
    assert.equal((await endOf(operator.id)).recordingComplete, true)
    assert.ok((await recordingOf(operator.id)).text === operator.text, 'the same, byte by byte')
  })

  test('typing and output cost no statement but those of the recording', async () => {
    const operator = await Operator.open(hub, agent.deviceId)
    // Waits until what came with the opening is written.
    await operator.shows(/[#$] /)
    const watched = watchHub()
    operator.type('stty -echo; seq 1 20000; echo $((6*7))-done\n')
    await operator.shows('42-done')
    for (let n = 0; n < 100; n++) operator.type(`echo ${n}\n`)
    await operator.shows('\n99\r\n')
    operator.client.resize({ cols: 90, rows: 20 })
    const recorded = (text: string) => text.includes('insert into terminal_recordings')
    await until('the recording', () => watched.statements.some(recorded))
    watched.stop()
    // The hub's own clocks go on meanwhile; what a frame costs would be there a hundred times.
    const others = watched.statements.filter((text) => !recorded(text))
    assert.ok(others.length < 50, others.join('\n'))
    assert.deepEqual(
      others.filter((text) => text.includes('terminal')),
      [],
    )
    assert.ok(watched.statements.filter(recorded).length < 20, 'a statement for many frames')
    assert.ok(watched.toShards.every((text) => text.includes('"heartbeat"')))
  })
})

/** What a recording says was shown, and what it says about itself. */
async function recordingOf(id: string): Promise<{ text: string; marks: string[] }> {
  const { text } = await hub.get(`/terminals/${id}/recording`)
  const [, ...lines] = text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as [number, string, string])
  const of = (kind: string) => lines.filter((line) => line[1] === kind).map((line) => line[2])
  return { text: Buffer.from(of('o').join('')).toString('latin1'), marks: of('m') }
}

/** Everything that the front asks of PostgreSQL and of its shards. */
function watchHub() {
  const { db, commandDb, connectDb, auditDb, shards } = hub.hub.ctx
  const statements: string[] = []
  const toShards: string[] = []
  const restore: (() => void)[] = []
  for (const pool of [db, commandDb, connectDb, auditDb]) {
    const query = pool.query.bind(pool)
    const transaction = pool.transaction.bind(pool)
    pool.query = (text, values) => {
      statements.push(text)
      return query(text, values)
    }
    pool.transaction = (work) => {
      statements.push('a transaction')
      return transaction(work)
    }
    restore.push(() => Object.assign(pool, { query, transaction }))
  }
  const frame = shards.frame.bind(shards)
  shards.frame = (shard, conn, text, canWait) => {
    toShards.push(text)
    frame(shard, conn, text, canWait)
  }
  restore.push(() => (shards.frame = frame))
  return { statements, toShards, stop: () => restore.forEach((undo) => undo()) }
}

describe('without one of its ends', () => {
  let impatient: TestHub
  let patient: RunningAgent
  before(async () => {
    impatient = await startHub({ TERMINAL_ABSENCE_SECONDS: '1' })
    patient = await startAgentOf(impatient)
  })
  after(async () => {
    await patient.stop()
    await impatient.close()
  })
  const ended = async (id: string, deviceId: string) =>
    until('the end', async () => {
      const { body } = await impatient.get(`/devices/${deviceId}/terminals`)
      return body.data.find((one: { id: string; endReason: string }) => one.id === id).endReason
    })

  test('an operator who stays away ends the shell', async () => {
    const operator = await Operator.open(impatient, patient.deviceId)
    operator.type('echo pid=$$.\n')
    await operator.shows(/pid=\d+\./)
    operator.drop()
    assert.equal(await ended(operator.id, patient.deviceId), 'operator_lost')
    const pid = Number(/pid=(\d+)\./.exec(operator.text)?.[1])
    await until('the shell to be gone', () => !isThere(pid))
  })

  test('a terminal that nobody came to ends, too', async () => {
    const { id } = await openTicket(impatient, patient.deviceId)
    assert.equal(await ended(id, patient.deviceId), 'operator_lost')
  })

  test('a device that stays away ends the session', async () => {
    const device = await impatient.enroll()
    const fake = await FakeAgent.connect(device, impatient.origin)
    const ticket = await openTicket(impatient, device.deviceId)
    const socket = await openSocket(ticket)
    await fake.close()
    const [code] = await once(socket, 'close')
    assert.equal(code, 1000)
    assert.equal(await ended(ticket.id, device.deviceId), 'agent_lost')
  })

  test('a hub that stops says so, and writes the end', async () => {
    const operator = await Operator.open(impatient, patient.deviceId)
    operator.type('echo done-$((1+1))\n')
    await operator.shows('done-2')
    await impatient.hub.ctx.terminals.close()
    assert.equal(await operator.ended(), 'the hub restarts')
    assert.equal(await ended(operator.id, patient.deviceId), 'hub_stopped')
    await until('the socket to close', () => operator.closed)
    assert.equal(operator.closed?.code, 1012)
  })

  test('a session whose hub is gone is ended by the next one', async () => {
    const { db } = impatient.hub.ctx
    const id = newId()
    await db.query(
      `insert into terminals (id, org_id, device_id, user_email, node_id, cols, rows)
       select $1, org_id, id, 'x', gen_random_uuid(), 80, 24 from devices where id = $2`,
      [id, patient.deviceId],
    )
    await until(
      'the sweep',
      async () => {
        const [row] = await db.query('select end_reason from terminals where id = $1', [id])
        return row?.['end_reason'] === 'interrupted'
      },
      40_000,
    )
  })
})
