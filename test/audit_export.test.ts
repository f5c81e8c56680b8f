// Exports that are long, read slowly, left in the middle, or meet a failing database.
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, before, test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { auditOf, insertAudit } from '../src/audit.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { call, makeOrganization, outcome, signedIn, type Person } from './support/people.ts'
import { until } from './support/until.ts'

const rows = 50_000
/** In each row: together far more than `grownBytesMax`, so that an export kept in memory shows. */
const nameBytes = 2000
/** What one export may add to the resident memory, however many rows it has. */
const grownBytesMax = 50e6
const path = '/api/v1/audit/export?action=site.create&format=ndjson'

let hub: TestHub
let owner: Database
let orgId: string
let auditor: Person
let ids: string[] = []

before(async () => {
  hub = await startHub()
  owner = openDatabase({ url: hub.database.url, name: 'test', connections: 2, role: 'owner' })
  orgId = await makeOrganization(hub)
  auditor = await signedIn(hub, 'auditor', { orgId })
  ids = await add(rows)
  // As autovacuum does sooner or later: a table that nobody has counted is sorted for each batch.
  await owner.query('analyze audit')
})
after(async () => {
  await owner.close()
  await hub.close()
})

async function add(count: number): Promise<string[]> {
  const source = { ip: '192.0.2.7', userAgent: 'test', requestId: 'r' }
  const details = { after: { name: 'x'.repeat(nameBytes) } }
  const subject = { action: 'site.create', resourceType: 'site', resourceId: 's', orgId, details }
  const entries = Array.from({ length: count }, () => auditOf(source, subject))
  for (let from = 0; from < count; from += 1000) {
    // oxlint-disable-next-line no-await-in-loop -- one statement after the other is what the table takes
    await insertAudit(owner, entries.slice(from, from + 1000))
  }
  return entries.map(({ id }) => id)
}

/** An export as bytes on a socket, read only where the test reads. */
class Download {
  readonly socket: Socket
  bytes = 0
  private closed = false
  private readonly ready = new EventEmitter()

  constructor(target: string, { token }: Person) {
    this.socket = connect(hub.hub.port, '127.0.0.1')
    this.socket.on('error', () => {})
    this.socket.on('readable', () => this.ready.emit('more'))
    this.socket.on('close', () => {
      this.closed = true
      this.ready.emit('more')
    })
    this.socket.write(
      `GET ${target} HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer ${token}\r\nconnection: close\r\n\r\n`,
    )
  }

  /** The next bytes, or undefined at the end. */
  async read(): Promise<Buffer | undefined> {
    for (;;) {
      const chunk = this.socket.read() as Buffer | null
      if (chunk !== null) {
        this.bytes += chunk.length
        return chunk
      }
      if (this.closed || this.socket.readableEnded) return undefined
      await once(this.ready, 'more')
    }
  }

  /** All that is left, at once. */
  async rest(): Promise<string> {
    const chunks: Buffer[] = []
    for (let chunk = await this.read(); chunk; chunk = await this.read()) chunks.push(chunk)
    return Buffer.concat(chunks).toString()
  }
}

/** Resolves when the sockets are full: no statement and no transaction of an export is left then. */
const stalled = () =>
  until('the export to wait for its reader', async () => {
    const busy = await owner.query(
      `select from pg_stat_activity where application_name = 'muster audit'
       and datname = current_database() and (state <> 'idle' or now() - state_change < interval '300 ms')`,
    )
    return hub.hub.ctx.exports.inUse() === 1 && busy.length === 0
  })

/** The last bytes of a chunked body that is whole. */
const ending = '\r\n0\r\n\r\n'

const idPattern = /\{"id":"([0-9a-f-]{36})"/g

const free = () => until('no export', () => hub.hub.ctx.exports.inUse() === 0)

function residentBytes(): number {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as () => void
  gc()
  return process.memoryUsage.rss()
}

/** The ids of an export's lines; `step` is waited for after every so many reads. */
async function readIds(download: Download, step: (read: number) => Promise<void>) {
  const found: string[] = []
  let text = ''
  for (let read = 0; ; read++) {
    const chunk = await download.read()
    if (chunk === undefined) break
    text += chunk.toString('latin1')
    let end = 0
    for (const match of text.matchAll(idPattern)) {
      found.push(match[1] ?? '')
      end = match.index + match[0].length
    }
    text = text.slice(end)
    if (read % 100 === 0) await step(read)
  }
  assert.ok(text.endsWith(ending))
  return found
}

test('a long export read slowly is whole, needs no more memory, and delays nobody', async () => {
  // Once before, so that what is measured is what stays.
  await readIds(new Download(path, auditor), async () => {})
  await free()
  const beforeBytes = residentBytes()
  let highestBytes = 0
  const download = new Download(path, auditor)
  const found = await readIds(download, async (read) => {
    highestBytes = Math.max(highestBytes, residentBytes())
    assert.equal((await call(hub, 'GET', '/auth/me', auditor)).status, 200)
    assert.equal((await call(hub, 'GET', '/audit?limit=1', auditor)).status, 200)
    // Rows of a commit after the export began are another export's.
    if (read === 100) await add(10)
  })
  assert.deepEqual(found, ids)
  const grownBytes = highestBytes - beforeBytes
  assert.ok(download.bytes > 2 * grownBytesMax)
  assert.ok(grownBytes < grownBytesMax, `${grownBytes} of ${download.bytes} bytes stayed`)
  await free()
})

test('a reader who does not read holds one connection to PostgreSQL for no time', async () => {
  const download = new Download(path, auditor)
  await until('the export to begin', () => hub.hub.ctx.exports.inUse() === 1)
  await stalled()
  assert.equal(hub.hub.ctx.exports.inUse(), 1)
  download.socket.destroy()
  await free()
})

test('a user has one export at a time, and all users together a few', async () => {
  const others = await Promise.all(
    Array.from({ length: limits.exportsMax }, () => signedIn(hub, 'auditor', { orgId })),
  )
  const [last, ...first] = others as [Person, ...Person[]]
  const downloads = [auditor, ...first].map((person) => new Download(path, person))
  await until('exports to run', () => hub.hub.ctx.exports.inUse() === limits.exportsMax)
  const again = await call(hub, 'GET', '/audit/export', auditor)
  assert.equal(outcome(again), '429 RATE_LIMITED')
  assert.equal(again.headers.get('content-disposition'), null)
  const more = await call(hub, 'GET', '/audit/export', last)
  assert.equal(outcome(more), '503 OVERLOADED')
  assert.equal(more.headers.get('retry-after'), '10')
  // Left in the middle: everything they held is free again.
  for (const { socket } of downloads) socket.destroy()
  await free()
  assert.equal((await call(hub, 'GET', `/audit/export?actorId=${newId()}`, last)).status, 200)
  const { waiting, total, idle } = hub.hub.ctx.auditDb.counts()
  assert.deepEqual([waiting, total - idle], [0, 0])
})

test('a database that fails in the middle breaks the connection off, and no file looks whole', async () => {
  const download = new Download(path, auditor)
  await download.read()
  await owner.query('revoke select on audit from muster_hub')
  try {
    const text = await download.rest()
    assert.ok(download.bytes < rows * nameBytes)
    assert.ok(!text.endsWith(ending))
    await free()
    // Before the first row it is an ordinary refusal.
    const refused = await call(hub, 'GET', '/audit/export', auditor)
    assert.equal(outcome(refused), '500 INTERNAL_ERROR')
    assert.match(refused.headers.get('content-type') ?? '', /^application\/json/)
  } finally {
    await owner.query('grant select on audit to muster_hub')
  }
  await free()
})

test('connections that PostgreSQL drops between two batches cost an export nothing', async () => {
  const download = new Download(path.replace('ndjson', 'csv'), auditor)
  let text = (await download.read())?.toString() ?? ''
  await stalled()
  await owner.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
     where application_name = 'muster audit' and datname = current_database()`,
  )
  await until('the pool to hear of it', () => hub.hub.ctx.auditDb.counts().total === 0)
  text += await download.rest()
  assert.ok(text.endsWith(ending))
  assert.equal(text.split('"site.create"').length - 1, rows + 10)
  await free()
})
