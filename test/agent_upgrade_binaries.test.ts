// The whole way with built programs: the API asks for a version, the agent brings it, tries it, and is either
// the new one or the old one again, with the reason wherever somebody would look.
import assert from 'node:assert/strict'
import { createHash, generateKeyPairSync } from 'node:crypto'
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { signFile, signManifest, type Manifest } from '../src/release_manifest.ts'

import { startHub, type TestHub } from './support/hub.ts'
import { elfHeader, Machine, Releases } from './support/machine.ts'
import { sendFile, startReleaseFront, type Bent } from './support/release_front.ts'
import { until } from './support/until.ts'

const releases = new Releases()
const passing: Bent['answer'] = () => false
const bent: Bent = { answer: passing }
let hub: TestHub
let front: Awaited<ReturnType<typeof startReleaseFront>>
let machine: Machine

before(async () => {
  const first = await releases.build('1.0.0', 'faults')
  await releases.build('2.0.0', 'faults')
  await releases.build('3.0.0', 'crashes')
  await releases.build('4.0.0', 'hangs')
  await releases.build('5.0.0', 'deaf')
  // Of a key that the hub knows and the agent does not pin.
  const another = generateKeyPairSync('ed25519').privateKey
  releases.trust(another)
  await releases.pretend('6.0.0', another)
  await releases.pretend('7.0.0')
  await releases.pretend('8.0.0')
  hub = await startHub(releases.env)
  await releases.offered(hub)
  front = await startReleaseFront(hub.origin, bent)
  machine = await Machine.enrolled(first, front.origin)
  machine.start()
})
after(async () => {
  await (machine as Machine | undefined)?.remove()
  await (front as typeof front | undefined)?.close()
  await (hub as TestHub | undefined)?.close()
  releases.remove()
})

async function upgrade(version: string, more = {}) {
  const body = { action: 'upgrade_agent', payload: { version }, ...more }
  const answer = await hub.post(`/devices/${machine.deviceId}/commands?wait=60`, body)
  assert.equal(answer.status, 202, answer.text)
  return answer.body
}

const device = async () => (await hub.get(`/devices/${machine.deviceId}`)).body

async function lastEvent(): Promise<{ type: string; reason: string | null; version: string }> {
  const [last] = await hub.hub.ctx.db.query<{ type: string; reason: string; version: string }>(
    `select type, data->>'reason' as reason, data->>'version' as version from events
    where data->>'deviceId' = $1 and type like 'agent.upgrade.%' order by xid desc, id desc limit 1`,
    [machine.deviceId],
  )
  assert.ok(last)
  return last
}

/** After the end of an upgrade: one program, nothing beside it but the one before, and it works. */
async function runs(version: string): Promise<void> {
  await until(`version ${version} to run`, async () => {
    const { status, agentVersion, upgrade: open } = await device()
    const settled = machine.read('upgrade.json') === undefined
    return status === 'online' && agentVersion === version && open === null && settled
  })
  assert.equal(await machine.installedVersion(), version)
  const names = readdirSync(machine.folder).toSorted()
  assert.deepEqual(names, ['.muster-agent.old', 'muster-agent', 'state'])
  const ping = await hub.post(`/devices/${machine.deviceId}/commands?wait=20`, { action: 'ping' })
  assert.equal(ping.body.result.data.agentVersion, version)
}

/** Asks for a version that must fail, and looks at everything that names the reason. */
async function fails(version: string, reason: string, error: RegExp): Promise<void> {
  const command = await upgrade(version)
  assert.equal(command.status, 'failed')
  assert.equal(command.result.data.reason, reason)
  assert.match(command.result.error, error)
  await runs('2.0.0')
  assert.deepEqual(await lastEvent(), { type: 'agent.upgrade.rolled_back', reason, version })
  await until(`an alert that says ${reason}`, async () => {
    const { body } = await hub.get(`/alerts?kind=upgrade_failed&deviceId=${machine.deviceId}`)
    return body.data[0]?.title.endsWith(`: ${reason}`) && body.data[0].context.reason === reason
  })
}

test('1 becomes 2, over a connection that breaks: resumed where it broke, shown, told, and kept', async () => {
  await until('online', async () => (await device()).status === 'online')
  const ranges: (string | undefined)[] = []
  const program = releases.program('2.0.0')
  const { size } = statSync(program)
  bent.answer = (asked, incoming, response) => {
    if (!asked.pathname.startsWith('/api/v1/agents/download/')) return false
    const whole = ranges.push(incoming.headers.range) > 2
    if (!whole) sendFile(program, size, incoming, response, 40_000_000)
    return !whole
  }
  const command = await upgrade('2.0.0')
  bent.answer = passing
  assert.equal(command.status, 'completed', JSON.stringify(command.result))
  assert.deepEqual(command.result.data, { from: '1.0.0', to: '2.0.0' })
  // In the statement of its end, so nobody sees it completed and the old version.
  assert.equal((await device()).agentVersion, '2.0.0')
  assert.equal(ranges[0], undefined)
  const begins = ranges.slice(1).map((range) => Number(/^bytes=(\d+)-$/.exec(range ?? '')?.[1]))
  assert.ok(begins.length >= 2 && begins.every((begin) => begin > 0), `resumed at ${begins.join()}`)
  await runs('2.0.0')
  assert.equal((await lastEvent()).type, 'agent.upgrade.succeeded')
  assert.ok(
    readFileSync(join(machine.folder, '.muster-agent.old')).equals(
      readFileSync(releases.program('1.0.0')),
    ),
  )
})

test('to the version it runs already it is completed at once', async () => {
  const command = await upgrade('2.0.0')
  assert.deepEqual(command.result.data, { from: '2.0.0', to: '2.0.0' })
})

test('3 crashes at start: 2 is back, and what 3 printed is in the command', () =>
  fails('3.0.0', 'crashed', /exit code 1.*this build crashes at start.*version 2\.0\.0 is back/s))

test('4 hangs: 2 is back', () => fails('4.0.0', 'hung', /no sign of life for 2 s/))

test('5 cannot connect: 2 is back', () =>
  fails('5.0.0', 'hub_unreachable', /within 10 s: the hub could not be reached; version 2/))

test('6 is signed by a key that the hub knows and the agent does not: nothing of it is fetched', () =>
  fails('6.0.0', 'bad_signature', /does not trust/))

test('7 is another file on the way, properly signed, for another processor: it never runs', async () => {
  const other = elfHeader(0xb7)
  bent.answer = (asked, _incoming, response) => {
    if (asked.pathname === '/api/v1/agents/releases') {
      return sendJson(response, { data: [swapped('7.0.0', other)], refused: [], keyList: null })
    }
    if (!asked.pathname.startsWith('/api/v1/agents/download/')) return false
    response.writeHead(200, { 'content-length': other.length }).end(other)
    return true
  }
  await fails('7.0.0', 'wrong_platform', /for linux\/arm64, this is linux\/amd64/)
  bent.answer = passing
})

test('8 arrives with other bytes: it never runs', async () => {
  bent.answer = (asked, _incoming, response) => {
    if (!asked.pathname.startsWith('/api/v1/agents/download/')) return false
    response.end(Buffer.alloc(elfHeader(0x3e).length, 1))
    return true
  }
  await fails('8.0.0', 'bad_checksum', /other bytes than were signed/)
  bent.answer = passing
})

test('8 is right, but does not start: found before anything is swapped', () =>
  fails('8.0.0', 'cannot_start', /does not start/))

test('a release that is below the lowest allowed is refused, even when that was seen only once', async () => {
  bent.answer = (asked, _incoming, response) => {
    if (asked.pathname !== '/api/v1/agents/releases') return false
    const data = [swapped('7.0.0', elfHeader(0x3e), '1.5.0'), manifest('1.0.0')]
    return sendJson(response, { data, refused: [], keyList: null })
  }
  await fails('1.0.0', 'below_minimum', /below 1\.5\.0/)
  bent.answer = passing
  await fails('1.0.0', 'below_minimum', /below 1\.5\.0/)
})

test('a trial in which the device goes down is given up; the next start has the version before', async () => {
  const answering = hub.post(`/devices/${machine.deviceId}/commands`, {
    action: 'upgrade_agent',
    payload: { version: '5.0.0' },
  })
  const { id } = (await answering).body
  await until('the trial', async () => (await device()).upgrade?.phase === 'trial')
  await until('its process', () => (machine.read('upgrade.json') as { process: unknown })?.process)
  await machine.stop()
  machine.start()
  const command = await until('the end', async () => {
    const { body } = await hub.get(`/commands/${id}`)
    return body.completedAt !== null && body
  })
  assert.equal(command.result.data.reason, 'interrupted')
  await runs('2.0.0')
})

test('without a supervisor it says that it needs one', async () => {
  await machine.stop()
  machine.startAlone()
  await until('online', async () => (await device()).status === 'online')
  const command = await upgrade('1.0.0')
  assert.equal(command.result.data.reason, 'not_supervised')
  assert.match(command.result.error, /run --supervised/)
  await machine.stop()
  assert.ok(existsSync(machine.program))
})

function manifest(version: string): Manifest {
  return JSON.parse(readFileSync(join(releases.at(version), 'manifest.json'), 'utf8')) as Manifest
}

/** The manifest of a version as the release's own key would sign it for other bytes. */
function swapped(version: string, bytes: Buffer, minimumVersion: string | null = null): Manifest {
  const { signature: _, ...rest } = manifest(version)
  const files = rest.files.map((file) => {
    const facts = {
      ...file,
      size: bytes.length,
      sha256: createHash('sha256').update(bytes).digest('hex'),
      zst: null,
    }
    return { ...facts, signature: signFile(version, facts, releases.key) }
  })
  return signManifest({ ...rest, minimumVersion, files }, releases.key)
}

function sendJson(response: ServerResponse, body: unknown): true {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body))
  return true
}
