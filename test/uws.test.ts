import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { Worker } from 'node:worker_threads'
import { WebSocket } from 'ws'
import { limits } from '../src/limits.ts'
import { fitted, fittedCopy, fittedHashes, uWS } from '../src/uws.ts'
import { privateFolder } from '../src/private_folder.js'
import { removeFolder } from './support/folders.ts'

const addons = dirname(createRequire(import.meta.url).resolve('uWebSockets.js'))
const x64 = join(addons, 'uws_linux_x64_137.node')

test('the addon serves HTTP, takes headers up to the bound, and echoes over a WebSocket', async (t) => {
  const app = uWS
    .App()
    .get('/hello', (res) => void res.end('hello'))
    .ws('/echo', { message: (socket, message, isBinary) => void socket.send(message, isBinary) })
  t.after(() => app.close())
  const port = await new Promise<number>((resolve) => {
    app.listen('127.0.0.1', 0, (token) => {
      assert.ok(token, 'a free port')
      resolve(uWS.us_socket_local_port(token))
    })
  })
  const response = await fetch(`http://127.0.0.1:${port}/hello`)
  assert.equal(await response.text(), 'hello')
  const sized = (bytes: number) =>
    fetch(`http://127.0.0.1:${port}/hello?${'x'.repeat(bytes)}`).then(({ status }) => status)
  assert.deepEqual(
    [await sized(limits.headerBytesMax - 1024), await sized(limits.headerBytesMax)],
    [200, 431],
  )

  const socket = new WebSocket(`ws://127.0.0.1:${port}/echo`)
  t.after(() => socket.terminate())
  socket.on('open', () => socket.send('there and back'))
  const echoed = await new Promise<string>((resolve, reject) => {
    socket.on('message', (data: Buffer) => resolve(data.toString('utf8')))
    socket.on('error', reject)
  })
  assert.equal(echoed, 'there and back')
})

test('each known addon is fitted to the bytes in the table, twice to the same', async () => {
  for (const arch of ['x64', 'arm64']) {
    const binary = await readFile(join(addons, `uws_linux_${arch}_137.node`))
    const once = fitted(binary)
    assert.equal(sha256(once), fittedHashes[sha256(binary)], arch)
    assert.ok(fitted(once).equals(once), arch)
    assert.equal(once.length, binary.length)
  }
})

test('what is not an ELF file of ours is not fitted', () => {
  assert.throws(() => fitted(Buffer.alloc(64)), /not a 64-bit little-endian ELF file/)
})

test('an addon nobody has checked is refused, and the message says what to do', async (t) => {
  const folder = await folderOfOurs(t)
  const unknown = join(folder, 'unknown.node')
  await writeFile(unknown, Buffer.concat([await readFile(x64), Buffer.from([0])]))
  assert.throws(() => fittedCopy(unknown, folder), /SHA-256 [0-9a-f]{64}.*npm ci.*glibc 2\.38/s)
  assert.deepEqual(await readdir(folder), ['unknown.node'])
})

test('a tampered copy is made again, and a link in its place is replaced', async (t) => {
  const folder = await folderOfOurs(t)
  const copy = fittedCopy(x64, folder)
  const bytes = await readFile(copy)
  await writeFile(copy, 'tampered')
  assert.equal(fittedCopy(x64, folder), copy)
  assert.ok((await readFile(copy)).equals(bytes))

  const elsewhere = join(folder, 'elsewhere')
  await writeFile(elsewhere, bytes)
  await rm(copy)
  await symlink(elsewhere, copy)
  fittedCopy(x64, folder)
  await writeFile(elsewhere, 'tampered')
  assert.ok((await readFile(copy)).equals(bytes))
  assert.equal((await readdir(folder)).length, 2, 'no draft is left')
})

test('a folder that another user could change is not used', async (t) => {
  const folder = await folderOfOurs(t)
  const ours = join(folder, 'ours')
  assert.equal(privateFolder(ours), ours)

  const link = join(folder, 'link')
  await symlink(ours, link)
  assert.equal(privateFolder(link), undefined)

  await chmod(ours, 0o770)
  assert.equal(privateFolder(ours), undefined)

  const open = join(folder, 'open')
  await mkdir(open)
  await chmod(open, 0o777)
  assert.equal(privateFolder(join(open, 'inside')), undefined)

  await writeFile(join(folder, 'file'), '')
  assert.equal(privateFolder(join(folder, 'file')), undefined)
  assert.equal(privateFolder('/proc/nobody/makes/this'), undefined)
})

test('in a worker thread importing it does nothing and using it is refused', async () => {
  const worker = new Worker(new URL('./support/uws_worker.ts', import.meta.url))
  const said = await new Promise((resolve, reject) => {
    worker.on('message', resolve)
    worker.on('error', reject)
  })
  assert.equal(said, 'uWebSockets.js may be used on the main thread only')
})

async function folderOfOurs(t: { after(done: () => void): void }): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'muster-test-'))
  t.after(() => removeFolder(folder))
  return folder
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}
