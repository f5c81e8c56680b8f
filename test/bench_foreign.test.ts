// The bench against a hub given by its address, from outside: plain, and behind TLS of a private authority.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync } from 'node:fs'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { createServer, type Server } from 'node:tls'
import type { Report } from '../bench/report.ts'
import { bench, benching } from './support/bench.ts'
import { makeCertificate } from './support/certificate.ts'
import { removeFolder } from './support/folders.ts'
import { admin, enrollmentSecret, startHub, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

const folder = mkdtempSync(join(tmpdir(), 'muster-bench-foreign-'))
const secrets = {
  BENCH_EMAIL: admin.email,
  BENCH_PASSWORD: admin.password,
  BENCH_ENROLLMENT_SECRET: enrollmentSecret,
}
const tiny = ['--agents', '4', '--seconds', '1', '--rounds', '1', '--generators', '1']
let hub: TestHub
let front: Front

before(async () => {
  hub = await startHub({ LIMIT_ENROLL: '0', LIMIT_FRAMES: '0', LIMIT_ACCEPT: '0' })
  front = await startFront(hub.origin)
})
after(async () => {
  front.close()
  await hub.close()
  removeFolder(folder)
})

test('a hub behind a private authority is measured over TLS, and left without devices', async () => {
  const json = join(folder, 'tls.json')
  const flags = ['--url', front.origin, '--ca', join(folder, 'localhost.crt'), '--rate', '20']
  const { status, stderr } = await bench(['roundtrip', ...flags, ...tiny, '--json', json], secrets)
  assert.equal(status, 0, stderr)
  const { rows } = JSON.parse(readFileSync(json, 'utf8')) as Report
  assert.deepEqual(
    rows.map(({ id, limit }) => [id, limit]),
    [
      ['P5b', null],
      ['P5c', null],
      ['P5d', null],
    ],
  )
  assert.ok(rows.every(({ value }) => value !== null && value > 0))
  assert.ok(front.sockets() > 4, 'agents and operators came through TLS')
  const { body } = await hub.get('/devices')
  const left = (body as { data: { status: string }[] }).data.map(({ status: state }) => state)
  assert.deepEqual(left, ['decommissioned', 'decommissioned', 'decommissioned', 'decommissioned'])
})

test('a certificate that nobody vouches for is refused', async () => {
  const { status, stderr } = await bench(['accept', '--url', front.origin, ...tiny], secrets)
  assert.equal(status, 1)
  assert.match(stderr, /accept failed: .*certificate/)
})

test('without a hub at the address the scenario fails, and nothing is made up', async () => {
  const json = join(folder, 'nobody.json')
  const flags = ['--url', 'http://127.0.0.1:1', ...tiny, '--json', json]
  const { status } = await bench(['accept', ...flags], secrets)
  assert.equal(status, 1)
  const { rows } = JSON.parse(readFileSync(json, 'utf8')) as Report
  assert.ok(rows.length > 0 && rows.every(({ value }) => value === null))
})

test('who could not take back what is enrolled, or write what is measured, begins nothing', async () => {
  const { body: devices } = await hub.get('/devices')
  const flags = ['heartbeats', '--url', hub.origin, ...tiny]
  const stranger = await bench(flags, { ...secrets, BENCH_PASSWORD: 'wrong' })
  assert.equal(stranger.status, 1)
  assert.match(stranger.stderr, /nothing was measured: no sign-in at .* 401 .*--password/)
  const nowhere = await bench([...flags, '--json', folder], secrets)
  assert.equal(nowhere.status, 64)
  assert.match(nowhere.stderr, /^--json .* can't be written/)
  assert.deepEqual((await hub.get('/devices')).body, devices)
})

test('what was enrolled when an interrupt came is taken back', async () => {
  const run = benching(['heartbeats', '--url', hub.origin, ...tiny, '--agents', '3000'], secrets)
  const enrolled = async () =>
    ((await hub.get('/devices?status=offline&limit=200')).body as { data: unknown[] }).data.length
  await until('some to be enrolled', async () => (await enrolled()) > 20)
  run.child.kill('SIGINT')
  const { status, stderr } = await run.ended
  assert.equal(status, 130, stderr)
  assert.equal(await enrolled(), 0)
})

interface Front {
  origin: string
  /** Connections it took so far. */
  sockets(): number
  close(): void
}

/** TLS in front of a hub, as a proxy would do it. */
async function startFront(origin: string): Promise<Front> {
  const { hostname, port } = new URL(origin)
  const open = new Set<Socket>()
  let count = 0
  const server: Server = createServer(makeCertificate(folder, 'localhost'), (client) => {
    count++
    const inner = connect(Number(port), hostname)
    for (const [one, other] of [
      [client, inner],
      [inner, client],
    ] as const) {
      open.add(one)
      one.pipe(other)
      one.on('error', () => other.destroy())
      one.on('close', () => {
        open.delete(one)
        other.destroy()
      })
    }
  })
  await new Promise<void>((resolve) => server.listen(0, resolve))
  return {
    origin: `https://localhost:${(server.address() as AddressInfo).port}`,
    sockets: () => count,
    close() {
      server.close()
      for (const socket of open) socket.destroy()
    },
  }
}
