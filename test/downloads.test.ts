// Downloads of the agent: ranges, conditions, and a thousand slow readers of a large file.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { appendFileSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { zstdDecompressSync } from 'node:zlib'
import fc from 'fast-check'
import { rssBytes } from '../bench/proc.ts'
import { selectBytes } from '../src/byte_range.ts'
import { Downloads } from '../src/downloads.ts'
import { AppError } from '../src/errors.ts'
import type { ByteSource } from '../src/http_stream.ts'
import { limits } from '../src/limits.ts'
import { openRegular, stampOf } from '../src/release_files.ts'
import type { Manifest, ReleaseFile } from '../src/release_manifest.ts'
import { FakeAgent } from './support/agent.ts'
import { removeFolder } from './support/folders.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { enrollmentSecret, startHub, type Device, type TestHub } from './support/hub.ts'
import { createDatabase } from './support/postgres.ts'
import {
  linux,
  makeKey,
  makeRelease,
  makeReleaseFolders,
  releasesOnce,
  type Folders,
} from './support/releases.ts'
import { until } from './support/until.ts'

const size = 300_000
let folders: Folders
let hub: TestHub
let file: ReleaseFile
let bytes: Buffer

before(async () => {
  folders = makeReleaseFolders()
  const { privateKey: key } = makeKey(folders.keys)
  const make = (version: string) => makeRelease(folders.releases, version, { key, size })
  const { folder, manifest } = await make('1.10.0')
  for (const version of ['1.9.0', '2.0.0-rc.1']) await make(version)
  file = fileOf(manifest)
  bytes = readFileSync(join(folder, file.name))
  hub = await startHub(folders.env)
  await releasesOnce(hub, 'three releases', ({ data }) => data.length === 3)
})
after(async () => {
  await hub.close()
  removeFolder(folders.base)
})

function fileOf({ files: [first] }: Manifest): ReleaseFile {
  return first ?? assert.fail('the release is empty')
}

async function download(path: string, headers: Record<string, string> = {}, method = 'GET') {
  const response = await fetch(`${hub.origin}/api/v1/agents/download/${path}`, { headers, method })
  const body = Buffer.from(await response.arrayBuffer())
  return { status: response.status, headers: response.headers, body }
}

test('without a version the highest that is no pre-release is sent, with all that proves it', async () => {
  const { status, headers, body } = await download('linux/amd64')
  assert.equal(status, 200)
  assert.ok(body.equals(bytes))
  assert.deepEqual(
    [
      'x-agent-version',
      'x-checksum-sha256',
      'x-signature-ed25519',
      'content-length',
      'content-disposition',
      'content-type',
      'accept-ranges',
    ].map((name) => headers.get(name)),
    [
      '1.10.0',
      createHash('sha256').update(bytes).digest('hex'),
      file.signature,
      String(size),
      'attachment; filename="muster-agent_1.10.0_linux_amd64"',
      'application/octet-stream',
      'bytes',
    ],
  )
  const named = await download('linux/amd64?version=2.0.0-rc.1')
  assert.equal(named.headers.get('x-agent-version'), '2.0.0-rc.1')
})

test('platforms have their other names too; a wrong one is 400, one without a binary 404', async () => {
  for (const path of ['linux/x64', 'linux/x86_64']) {
    assert.ok((await download(path)).body.equals(bytes), path)
  }
  const refused = async (path: string) => {
    const { status, body } = await download(path)
    return [status, JSON.parse(String(body)).error.code]
  }
  for (const path of [
    'plan9/amd64',
    'linux/mips',
    'linux/amd64?version=latest',
    'linux/amd64?format=gz',
  ]) {
    assert.deepEqual(await refused(path), [400, 'VALIDATION_ERROR'], path)
  }
  for (const path of ['macos/aarch64', 'windows/arm64', 'linux/amd64?version=1.0.0']) {
    assert.deepEqual(await refused(path), [404, 'AGENT_BINARY_NOT_FOUND'], path)
  }
  assert.equal((await download('../releases/1.10.0/manifest.json')).status, 404)
})

test('HEAD tells what GET would send', async () => {
  const head = await download('linux/amd64', {}, 'HEAD')
  const get = await download('linux/amd64')
  assert.equal(head.body.length, 0)
  for (const name of ['etag', 'content-length', 'x-checksum-sha256', 'content-type']) {
    assert.equal(head.headers.get(name), get.headers.get(name), name)
  }
  const ranged = await download('linux/amd64', { range: 'bytes=0-9' }, 'HEAD')
  assert.deepEqual([ranged.status, ranged.headers.get('content-length')], [200, String(size)])
})

test('the compressed form is a file of its own that unpacks to the signed one', async () => {
  const { headers, body } = await download('linux/amd64?format=zst')
  assert.ok(zstdDecompressSync(body).equals(bytes))
  const { zst } = file
  assert.equal(headers.get('content-length'), String(zst?.size))
  assert.equal(headers.get('x-checksum-sha256'), zst?.sha256)
  assert.equal(headers.get('etag'), `"${zst?.sha256}"`)
  assert.equal(headers.get('x-signature-ed25519'), file.signature)
  assert.match(headers.get('content-disposition') ?? '', /amd64\.zst"$/)
})

test('a download that broke off is resumed, and from the start when it became another file', async () => {
  const first = await download('linux/amd64', { range: 'bytes=0-99999' })
  assert.equal(first.status, 206)
  assert.equal(first.headers.get('content-range'), `bytes 0-99999/${size}`)
  const etag = first.headers.get('etag') ?? ''
  const rest = await download('linux/amd64', { range: 'bytes=100000-', 'if-range': etag })
  assert.equal(rest.status, 206)
  assert.ok(Buffer.concat([first.body, rest.body]).equals(bytes))
  const other = await download('linux/amd64', { range: 'bytes=100000-', 'if-range': '"older"' })
  assert.deepEqual([other.status, other.body.length], [200, size])
  const past = await download('linux/amd64', { range: `bytes=${size}-` })
  assert.deepEqual([past.status, past.headers.get('content-range')], [416, `bytes */${size}`])
})

test('who has the file already is told so', async () => {
  const etag = (await download('linux/amd64', {}, 'HEAD')).headers.get('etag') ?? ''
  for (const known of [etag, `W/${etag}`, `"x", ${etag}`, '*']) {
    const { status, body, headers } = await download('linux/amd64', { 'if-none-match': known })
    assert.deepEqual([status, body.length], [304, 0], known)
    assert.equal(headers.get('content-length'), null)
  }
  assert.equal((await download('linux/amd64', { 'if-none-match': '"x"' })).status, 200)
})

test('any range is the very slice, unsatisfiable, or ignored', () => {
  const none = { ifNoneMatch: '', ifRange: '', range: '' }
  const select = (range: string, length: number) => selectBytes({ ...none, range }, length, '"e"')
  const whole = (length: number) => ({ status: 200, begin: 0, end: length })
  for (const range of [
    'bytes=',
    'bytes=-',
    'bytes=9-3',
    'bytes=0-1,3-4',
    'lines=0-1',
    'bytes=a-b',
  ]) {
    assert.deepEqual(select(range, 10), whole(10), range)
  }
  assert.deepEqual(select('bytes=-0', 10), { status: 416 })
  assert.deepEqual(select('Bytes=9007199254740993-', 10), { status: 416 })
  assert.deepEqual(select('bytes=0-99999999999999999999', 10), { status: 206, begin: 0, end: 10 })
  assert.deepEqual(select('bytes=-99', 10), { status: 206, begin: 0, end: 10 })
  fc.assert(
    fc.property(fc.nat(2000), fc.nat(2000), fc.integer({ min: 1, max: 1000 }), (a, b, length) => {
      const found = select(`bytes=${a}-${b}`, length)
      if (b < a) assert.deepEqual(found, whole(length))
      else if (a >= length) assert.deepEqual(found, { status: 416 })
      else assert.deepEqual(found, { status: 206, begin: a, end: Math.min(b + 1, length) })
    }),
  )
})

test('a file that is written into while it is sent never looks whole', async () => {
  const { privateKey: key } = makeKey(folders.keys, 'more')
  const large = 64 * 1024 * 1024
  const { folder, manifest } = await makeRelease(folders.releases, '0.1.0', { key, size: large })
  await releasesOnce(hub, '0.1.0', ({ data }) => data.length === 4)
  const reader = new Reader(hub.hub.port, '/api/v1/agents/download/linux/amd64?version=0.1.0')
  await until('the first bytes', () => reader.bytes > 0)
  reader.socket.pause()
  appendFileSync(join(folder, fileOf(manifest).name), 'x')
  reader.socket.resume()
  await until('the end of it', () => reader.closed)
  assert.ok(reader.bytes < large, `${reader.bytes} of ${large} bytes came`)
})

test('readers of one file share it; past the bound of an address, and of all, one is told when to come back', async (t) => {
  const proved = await provedFile()
  const { path } = proved
  const downloads = new Downloads(limits.downloadBytesPerSecond)
  const begun: ByteSource[] = []
  t.after(async () => {
    await Promise.all(begun.map((one) => one.close()))
    assert.equal(downloads.running(), 0)
    assert.equal(openTimes(path), 0)
  })
  const begin = async (ip: string) => {
    const one = await downloads.start(proved, 5, 15, ip)
    begun.push(one)
    const read: Buffer[] = []
    await one.read(2, (piece) => {
      read.push(Buffer.from(piece))
      return piece.length
    })
    assert.ok(Buffer.concat(read).equals(bytes.subarray(7, 15)))
  }
  const refusal = (code: string) => (error: unknown) =>
    error instanceof AppError && error.code === code && (error.retryAfterSeconds ?? 0) > 0
  for (let n = 0; n < limits.downloadsPerAddressMax; n++) await begin('192.0.2.1')
  await assert.rejects(begin('192.0.2.1'), refusal('RATE_LIMITED'))
  for (let n = downloads.running(); n < limits.downloadsMax; n++) await begin('192.0.2.2')
  await assert.rejects(begin('192.0.2.3'), refusal('OVERLOADED'))
  assert.equal(openTimes(path), process.platform === 'linux' ? 1 : 0)
})

async function provedFile() {
  const path = join(folders.releases, '1.10.0', file.name)
  const { stats, handle } = (await openRegular(path)) ?? assert.fail('it is no file')
  await handle.close()
  return { path, stamp: stampOf(stats), size, sha256: file.sha256 }
}

test('all readers together get no more than the pace, and each as much as the others', async (t) => {
  const bytesPerSecond = 10_000_000
  const downloads = new Downloads(bytesPerSecond)
  const proved = await provedFile()
  const sources = await Promise.all(
    Array.from({ length: 40 }, () => downloads.start(proved, 0, size, '192.0.2.1')),
  )
  t.after(() => Promise.all(sources.map((one) => one.close())))
  const startedMs = performance.now()
  let sent = 0
  let most = 0
  const turns = sources.map(() => 0)
  const readOnce = async (reader: number) => {
    await sources[reader]?.read(0, (piece) => {
      sent += piece.length
      return piece.length
    })
    turns[reader] = (turns[reader] ?? 0) + 1
    most = Math.max(most, Math.max(...turns) - Math.min(...turns))
    const allowed = ((performance.now() - startedMs) * bytesPerSecond) / 1000
    const ahead = limits.downloadBuffers * limits.downloadPieceBytes
    const credit = (limits.downloadCreditMs * bytesPerSecond) / 1000
    assert.ok(sent <= allowed + ahead + credit, `${sent} bytes, where ${allowed} were due`)
  }
  const reading = sources.map(async (_, reader) => {
    for (let turn = 0; turn < 3; turn++) await readOnce(reader)
  })
  await Promise.all(reading)
  assert.equal(sent, 3 * sources.length * limits.downloadPieceBytes)
  // One whose piece is being read may be a turn behind those who had theirs, and these have the next one under way.
  assert.ok(most <= 2, `a reader was ${most} turns behind another`)
})

test('what a socket did not take, and a read that failed, cost the others nothing of the pace', async (t) => {
  const downloads = new Downloads(1_000_000)
  const source = await downloads.start(await provedFile(), 0, size, '192.0.2.1')
  t.after(() => source.close())
  // Two gigabytes at the pace of one megabyte a second would be half an hour.
  for (let n = 0; n < 3000; n++) await source.read(0, () => 0)
  for (let n = 0; n < 100; n++) {
    const failing = source.read(0, () => {
      throw new Error('the reader broke')
    })
    await assert.rejects(failing, /the reader broke/)
  }
  let taken = 0
  await source.read(0, (piece) => (taken = piece.length))
  assert.equal(taken, limits.downloadPieceBytes)
})

/** How often this process has a file open. */
function openTimes(path: string): number {
  if (process.platform !== 'linux') return 0
  return readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === path
    } catch {
      return false
    }
  }).length
}

test('a thousand slow readers of 100 MB cost the hub next to nothing, and agents do not notice', async (t) => {
  const large = makeReleaseFolders()
  const { privateKey: key } = makeKey(large.keys)
  const { manifest } = await makeRelease(large.releases, '1.0.0', { key, size: 100_000_000 })
  const { sha256 } = fileOf(manifest)
  const database = await createDatabase()
  const own = new HubProcess(await freePort(), {
    ...large.env,
    DATABASE_URL: database.url,
    DATA_DIR: join(large.base, 'data'),
    JWT_SECRET: 'a test secret of more than 32 bytes',
    AGENT_ENROLLMENT_SECRET: enrollmentSecret,
    LIMIT_FRAMES: '0',
  })
  const readers: Reader[] = []
  t.after(async () => {
    for (const { socket } of readers) socket.destroy()
    await own.kill('SIGTERM')
    await database.drop()
    removeFolder(large.base)
  })
  await own.start()
  const path = '/api/v1/agents/download/linux/amd64'
  await until('the release', async () => {
    const answer = await fetch(`${own.origin}${path}`, { method: 'HEAD' })
    return answer.status === 200
  })
  const agent = await FakeAgent.connect(await enrollAt(own.origin), own.origin)
  const empty = rssBytes(own.pid)

  const beat = beating(agent)
  for (let n = 0; n < limits.downloadsPerAddressMax; n++) {
    const reader = new Reader(own.port, path)
    reader.pausing = true
    readers.push(reader)
    // A listener takes a few hundred connections that wait to be accepted.
    if (n % 100 === 99)
      await until('the readers to begin', () => readers.every((one) => one.head !== ''))
  }
  // Every reader takes 1 MB, a chunk at a time, all of them in turn: each waits again and again.
  const share = 1_000_000
  let peak = 0
  for (let turn = 0; readers.some((one) => one.bytes < share); turn++) {
    for (const reader of readers.filter((_, index) => index % 10 === turn % 10)) {
      if (reader.bytes < share) reader.socket.resume()
    }
    await new Promise((resolve) => setImmediate(resolve))
    if (turn % 50 === 0) peak = Math.max(peak, rssBytes(own.pid))
  }
  peak = Math.max(peak, rssBytes(own.pid))
  assert.ok(
    readers.every((one) => !one.closed && one.bytes < 100_000_000),
    'all of them still download',
  )
  const grown = (peak - empty) / 1024 / 1024
  t.diagnostic(`the hub grew by ${Math.round(grown)} MB`)
  assert.ok(grown < 96, `the hub grew by ${grown} MB`)

  const refused = await fetch(`${own.origin}${path}`)
  assert.deepEqual(
    [refused.status, ((await refused.json()) as Refusal).error.code],
    [429, 'RATE_LIMITED'],
  )
  assert.ok(Number(refused.headers.get('retry-after')) > 0)

  // Three of them go on to the end, past the others that stand still.
  const fast = readers.slice(0, 3)
  for (const reader of fast) {
    reader.pausing = false
    reader.socket.resume()
  }
  await until('three whole files', () => fast.every((one) => one.closed), 60_000)
  for (const reader of fast) {
    assert.equal(reader.bytes, 100_000_000)
    assert.equal(reader.hash.digest('hex'), sha256)
  }
  const { sent, acked } = await beat()
  assert.ok(sent > 10, `only ${sent} heartbeats were sent`)
  assert.equal(acked, sent)
  assert.equal(agent.closed, undefined)
  await agent.close()
})

interface Refusal {
  error: { code: string }
}

async function enrollAt(origin: string): Promise<Device> {
  const response = await fetch(`${origin}/api/v1/agents/enroll`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ enrollmentSecret, hostname: 'host', ...linux }),
  })
  return (await response.json()) as Device
}

/** An agent that beats, each time when the last beat was acknowledged; what it returns ends that and counts. */
function beating(agent: FakeAgent): () => Promise<{ sent: number; acked: number }> {
  let sent = 0
  const stopping = new AbortController()
  const acked = () => agent.frames.filter(({ type }) => type === 'heartbeat_ack').length
  const running = (async () => {
    while (!stopping.signal.aborted) {
      agent.heartbeat({ seq: ++sent })
      await until(`heartbeat ${sent} to be acknowledged`, () => acked() === sent)
      await delay(20)
    }
  })()
  return async () => {
    stopping.abort()
    await running
    return { sent, acked: acked() }
  }
}

/** One download over a socket of its own, which a test may pause. */
class Reader {
  readonly socket: Socket
  bytes = 0
  closed = false
  /** Set: it stands still after each chunk, until it is resumed. */
  pausing = false
  head = ''
  readonly hash = createHash('sha256')

  constructor(port: number, path: string) {
    this.socket = connect(port, '127.0.0.1')
    this.socket.write(`GET ${path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n`)
    this.socket.on('data', (chunk: Buffer) => this.take(chunk))
    this.socket.on('close', () => (this.closed = true))
    this.socket.on('error', () => {})
  }

  private take(chunk: Buffer): void {
    if (this.pausing) this.socket.pause()
    if (this.head.includes('\r\n\r\n')) return this.count(chunk)
    this.head += chunk.toString('latin1')
    const end = this.head.indexOf('\r\n\r\n') + 4
    if (end === 3) return
    const body = Buffer.from(this.head.slice(end), 'latin1')
    this.head = this.head.slice(0, end)
    this.count(body)
  }

  private count(body: Buffer): void {
    this.bytes += body.length
    this.hash.update(body)
  }
}
