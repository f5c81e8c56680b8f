// What the load says to NATS and Mosquitto and understands of them: by value, and against the real servers.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import * as fc from 'fast-check'
import { readArgs } from '../bench/args.ts'
import { findBroker } from '../bench/brokers.ts'
import type { Fleet } from '../bench/fleet.ts'
import { closedLoop, openLoop } from '../bench/http_load.ts'
import { cpuMs, heartbeatsHandled, Lab, type Target } from '../bench/lab.ts'
import { PeerClient } from '../bench/peer_client.ts'
import { brokerLoad } from '../bench/peer_operator.ts'
import { Progress } from '../bench/progress.ts'
import type { Device } from '../bench/sim_agent.ts'
import { describeMissing } from '../bench/side_by_side.ts'
import { topicsOf, wires, type Broker, type Wire, type WireListener } from '../bench/wires.ts'
import { without } from './support/tools.ts'
import { until } from './support/until.ts'

type Told = [string, ...string[]]

/** Reads `bytes` in pieces of `cut` and returns what the wire told of them, in order. */
function readInPieces(wire: Wire, bytes: Buffer, cut: number): Told[] {
  const told: Told[] = []
  const listener: WireListener = {
    ready: () => told.push(['ready']),
    message: (topic, payload) => told.push(['message', topic, payload.toString('latin1')]),
    asked: (answer) => told.push(['asked', answer.toString('latin1')]),
    pong: () => told.push(['pong']),
    refused: (reason) => told.push(['refused', reason]),
  }
  let rest: Buffer = Buffer.alloc(0)
  for (let at = 0; at < bytes.length; at += cut) {
    rest = wire.read(Buffer.concat([rest, bytes.subarray(at, at + cut)]), listener)
  }
  assert.equal(rest.length, 0)
  return told
}

const payloads = fc.array(
  fc.oneof(
    fc.uint8Array({ maxLength: 200 }),
    // Around the bounds of the ways to write a length, and what looks like the end of a line.
    fc.constantFrom(0, 1, 100, 127, 128, 16_383, 16_384).map((length) => new Uint8Array(length)),
    fc.constant(Buffer.from('PING\r\nMSG a 1 3\r\n')),
  ),
  { maxLength: 6 },
)
const cuts = fc.integer({ min: 1, max: 40_000 })

test('NATS: what a server sends is read whole however the bytes were cut', () => {
  fc.assert(
    fc.property(payloads, cuts, fc.boolean(), (all, cut, replies) => {
      const sent = all.map((payload, index) => {
        const reply = replies ? ' _INBOX.1' : ''
        const head = `MSG beat.${index} 7${reply} ${payload.length}\r\n`
        return Buffer.concat([Buffer.from(head), payload, Buffer.from('\r\n')])
      })
      const bytes = Buffer.concat([Buffer.from('INFO {}\r\nPONG\r\n'), ...sent, nats('PING')])
      assert.deepEqual(readInPieces(wires.nats, bytes, cut), [
        ['ready'],
        ['pong'],
        ...all.map((payload, index) => ['message', `beat.${index}`, latin1(payload)]),
        ['asked', 'PONG\r\n'],
      ])
    }),
    { numRuns: 50 },
  )
})

test('MQTT: what is published is read whole however the bytes were cut', () => {
  fc.assert(
    fc.property(payloads, cuts, (all, cut) => {
      const sent = all.map((payload, index) =>
        wires.mosquitto.publish(`beat/${index}`, Buffer.from(payload)),
      )
      const opened = Buffer.from([0x20, 2, 0, 0, 0x90, 3, 0, 1, 0])
      const bytes = Buffer.concat([opened, ...sent, Buffer.from([0xd0, 0])])
      assert.deepEqual(readInPieces(wires.mosquitto, bytes, cut), [
        ['ready'],
        ...all.map((payload, index) => ['message', `beat/${index}`, latin1(payload)]),
        ['pong'],
      ])
    }),
    { numRuns: 50 },
  )
})

test('a refusal is told, and what is no packet is an error', () => {
  const { nats: wire, mosquitto } = wires
  assert.deepEqual(readInPieces(wire, nats("-ERR 'Authorization Violation'"), 99), [
    ['refused', "'Authorization Violation'"],
  ])
  assert.deepEqual(readInPieces(mosquitto, Buffer.from([0x20, 2, 0, 5]), 99), [
    ['refused', 'CONNACK 5'],
  ])
  assert.deepEqual(readInPieces(mosquitto, Buffer.from([0x90, 3, 0, 1, 0x80]), 99), [
    ['refused', 'SUBACK 128'],
  ])
  assert.throws(() => readInPieces(wire, nats('HTTP/1.1 400 Bad Request'), 99), /HTTP\/1\.1 400/)
  assert.throws(() => readInPieces(wire, nats('MSG a'), 99), /no message/)
  assert.throws(() => readInPieces(mosquitto, Buffer.from([0x10, 0]), 99), /type 1/)
  assert.throws(() => readInPieces(mosquitto, Buffer.alloc(5, 0xff), 99), /256 MiB/)
})

test('what is not installed is named with its Debian package', () => {
  assert.deepEqual(findBroker('nats', []), { missing: 'nats-server' })
  assert.deepEqual(findBroker('mosquitto', ['/nowhere']), { missing: 'mosquitto' })
  assert.equal(
    describeMissing([{ side: 'nats', debian: 'nats-server' }]),
    'not installed and left out: nats (Debian: apt install nats-server)',
  )
})

const agents = 20
const tools: [Broker, string | false][] = [
  ['nats', without('nats-server')],
  ['mosquitto', without('mosquitto')],
]
for (const [broker, skip] of tools) {
  describe(`${broker} itself`, { skip }, () => {
    const wire = wires[broker]
    const topics = topicsOf(wire)
    const lab = new Lab(
      readArgs(['x', '--generators', '1'], ['x']),
      new Progress({ write: () => undefined }),
    )
    let target: Target
    let devices: Device[]
    let fleet: Fleet
    before(async () => {
      target = await lab.start(broker)
      devices = await lab.devices(target, agents)
      fleet = await lab.fleet(target, devices)
    })
    after(() => lab.close())

    test('tells its version', () => {
      const found = findBroker(broker)
      assert.ok('version' in found && /^\d+\.\d+\.\d+$/.test(found.version))
    })

    test('every agent is subscribed when it counts as connected', async () => {
      assert.equal((await fleet.connect({ to: 7 })).open, 7)
      const { open, welcomes, refused } = await fleet.connect({ from: 7 })
      assert.deepEqual([open, welcomes, refused], [agents, agents, {}])
    })

    test('every heartbeat of 100 bytes reaches the one who subscribed to all', async () => {
      const sizes = new Set<number>()
      const listener = await PeerClient.open(target.origin, wire, {
        name: 'sizes',
        topics: [topics.heartbeats],
        onMessage: (_, payload) => sizes.add(payload.length),
      })
      const earlier = (await heartbeatsHandled(target)) ?? 0
      await fleet.pace(400)
      await until('200 heartbeats', async () => (await fleet.counts()).heartbeats >= 200)
      const { heartbeats } = await fleet.pace(0)
      await until(
        'all to be heard',
        async () => (await heartbeatsHandled(target)) === earlier + heartbeats,
      )
      await listener.flushed()
      assert.deepEqual([...sizes], [100])
      listener.close()
    })

    test('each command runs once and comes back to who sent it', async () => {
      const load = { origin: target.origin, connections: 4, ...brokerLoad(wire, devices) }
      const timed = await openLoop({ ...load, seconds: 0.5, perSecond: 100 })
      assert.deepEqual([timed.good, timed.bad, timed.latencies.count], [50, {}, 50])
      const many = await closedLoop({ ...load, seconds: 0.2 })
      assert.deepEqual(many.bad, {})
      const { commands, duplicates } = await fleet.counts()
      assert.deepEqual([commands, duplicates], [50 + many.good, 0])
    })

    test('its CPU is counted, and nothing is PostgreSQL', () => {
      const used = cpuMs(target)
      assert.ok(used && used.program > 0)
      assert.equal(used.postgres, 0)
    })

    test('what it drops and what it refuses is counted', async () => {
      assert.equal((await fleet.disconnect()).open, 0)
      await fleet.connect()
      await target.kill()
      await until('all to be gone', async () => (await fleet.counts()).open === 0)
      const { closed } = await fleet.counts()
      assert.equal(
        Object.values(closed).reduce((sum, count) => sum + count, 0),
        agents,
      )
      const { refused } = await fleet.connect()
      assert.deepEqual(refused, { ECONNREFUSED: agents })
      await assert.rejects(
        PeerClient.open(target.origin, wire, { name: 'x', topics: ['x'], onMessage: () => 0 }),
        /ECONNREFUSED/,
      )
    })
  })
}

function nats(line: string): Buffer {
  return Buffer.from(`${line}\r\n`)
}

function latin1(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('latin1')
}
