import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, test } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { destinations } from '../src/destinations.ts'
import { limits } from '../src/limits.ts'
import { sender, type Resolve } from '../workers/webhook_sender.ts'
import { makeCertificate } from './support/certificate.ts'
import { removeFolder } from './support/folders.ts'
import { Receiver } from './support/receiver.ts'

let receiver: Receiver
const never = new AbortController().signal
const loopback = destinations(['127.0.0.0/8'])

before(async () => {
  receiver = await Receiver.start()
})
beforeEach(() => {
  receiver.hits.length = 0
  receiver.answer = undefined
})
after(() => receiver.close())

const message = (url: string) => ({ url, headers: { 'x-test': 'yes' }, body: '{"a":1}' })

/** Sends with a DNS that answers what a test says. */
function send(url: string, resolve: Resolve, where = loopback) {
  return sender({ destinations: where, resolve })(message(url), never)
}

const noDns: Resolve = async (host) => {
  throw new Error(`nobody should ask for ${host}`)
}

test('an attempt posts the message and keeps status and the begin of the answer', async () => {
  receiver.answer = (response) => response.writeHead(201).end('Danke \u0000 🙂')
  const outcome = await send(`${receiver.url}?x=1`, noDns)
  assert.deepEqual(
    { ...outcome, durationMs: 0 },
    { ok: true, status: 201, response: 'Danke \ufffd 🙂', error: null, durationMs: 0 },
  )
  const [hit] = receiver.hits
  assert.deepEqual([hit?.method, hit?.path, hit?.body], ['POST', '/hook?x=1', '{"a":1}'])
  assert.deepEqual([hit?.headers['x-test'], hit?.headers['content-length']], ['yes', '7'])
})

test('it connects to the address that was judged, whatever DNS says afterwards', async (t) => {
  const trap = await Receiver.start('127.0.0.2', receiver.port)
  t.after(() => trap.close())
  let asked = 0
  const flips: Resolve = async () => [asked++ === 0 ? '127.0.0.1' : '127.0.0.2']
  const only = destinations(['127.0.0.1'])
  const url = `http://rebind.example:${receiver.port}/hook`
  assert.equal((await send(url, flips, only)).ok, true)
  assert.deepEqual([asked, receiver.hits.length, trap.hits.length], [1, 1, 0])
  assert.equal(receiver.hits[0]?.headers.host, `rebind.example:${receiver.port}`)
  // From now on it points to what may not be reached, and no connection is made.
  const outcome = await send(url, flips, only)
  assert.match(outcome.error ?? '', /may not reach/)
  assert.deepEqual([asked, receiver.hits.length, trap.hits.length], [2, 1, 0])
})

test('of several addresses only those that may be reached are tried', async () => {
  const url = `http://mixed.example:${receiver.port}/hook`
  const mixed: Resolve = async () => ['10.0.0.1', '169.254.169.254', '::1', '127.0.0.1']
  assert.equal((await send(url, mixed, destinations(['127.0.0.1']))).ok, true)
  for (const address of ['10.0.0.1', '::ffff:127.0.0.1', 'fe80::1', 'nonsense']) {
    const outcome = await send(url, async () => [address], destinations([]))
    assert.match(outcome.error ?? '', /may not reach/, address)
  }
  assert.match((await send(receiver.url, noDns, destinations([]))).error ?? '', /may not reach/)
  assert.equal(receiver.hits.length, 1)
})

test('a redirect is a failure and is not followed', async () => {
  receiver.answer = (response) => response.writeHead(302, { location: '/elsewhere' }).end()
  const { ok, status, error } = await send(receiver.url, noDns)
  assert.deepEqual([ok, status], [false, 302])
  assert.match(error ?? '', /not followed/)
  assert.equal(receiver.hits.length, 1)
})

test('who changes the protocol has answered', async () => {
  receiver.answer = (response) => {
    response.socket?.write(
      'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n',
    )
  }
  const { ok, status, error } = await send(receiver.url, noDns)
  assert.deepEqual([ok, status, error], [false, 101, 'answered 101'])
})

test('an answer without end is cut at the bound', async () => {
  receiver.answer = (response) => {
    response.writeHead(500)
    const pour = () => {
      while (!response.destroyed && response.write('x'.repeat(1000)));
    }
    response.on('drain', pour)
    pour()
  }
  const outcome = await send(receiver.url, noDns)
  assert.deepEqual([outcome.ok, outcome.status], [false, 500])
  assert.equal(outcome.response, 'x'.repeat(limits.webhookAnswerBytesMax))
})

test('headers without end are an error, not memory', async () => {
  receiver.answer = (response) => {
    response.socket?.write(`HTTP/1.1 200 OK\r\nx: ${'y'.repeat(100_000)}`)
  }
  assert.match((await send(receiver.url, noDns)).error ?? '', /overflow/i)
})

test('who refuses, breaks off or can not be found is told apart', async () => {
  receiver.answer = (response) => response.destroy()
  assert.match((await send(receiver.url, noDns)).error ?? '', /socket hang up|ECONNRESET/)
  const closed = createServer().listen(0, '127.0.0.1')
  await once(closed, 'listening')
  const { port } = closed.address() as AddressInfo
  closed.close()
  const refused = await send(`http://127.0.0.1:${port}/`, noDns)
  assert.match(refused.error ?? '', /ECONNREFUSED/)
  const lost = await send('http://nowhere.example/', async () => {
    throw new Error('nowhere.example has no address')
  })
  assert.equal(lost.error, 'nowhere.example has no address')
  // Plain HTTP where TLS is expected.
  assert.ok((await send(`https://127.0.0.1:${receiver.port}/`, noDns)).error)
})

test('over TLS it reaches who proves the name of the URL to a CA that is trusted, and nobody else', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'muster-tls-'))
  const certificate = makeCertificate(folder, 'hooks.example')
  removeFolder(folder)
  const secure = await Receiver.start('127.0.0.1', 0, certificate)
  t.after(() => secure.close())
  const there: Resolve = async () => ['127.0.0.1']
  const url = `https://hooks.example:${secure.port}/hook`
  const untrusted = await send(url, there)
  assert.match(untrusted.error ?? '', /self-signed certificate/)
  const trusted = getCACertificates('default')
  t.after(() => setDefaultCACertificates(trusted))
  setDefaultCACertificates([...trusted, certificate.cert])
  const outcome = await send(url, there)
  assert.deepEqual([outcome.ok, outcome.status, outcome.error], [true, 204, null])
  const [hit] = secure.hits
  assert.deepEqual([hit?.method, hit?.path, hit?.body], ['POST', '/hook', '{"a":1}'])
  assert.equal(hit?.headers.host, `hooks.example:${secure.port}`)
  const other = await send(`https://other.example:${secure.port}/hook`, there)
  assert.match(other.error ?? '', /not in the cert's altnames/)
  assert.equal(secure.hits.length, 1)
})

test('who does not answer is given up in time', { timeout: 30_000 }, async () => {
  receiver.answer = () => {}
  const outcome = await send(receiver.url, noDns)
  assert.match(outcome.error ?? '', /no answer within/)
  assert.ok(outcome.durationMs >= limits.webhookAttemptMsMax)
  assert.ok(outcome.durationMs < limits.webhookAttemptMsMax + 2000)
})

test('a stop cuts an attempt, of which nothing is known then', async () => {
  receiver.answer = () => {}
  const stop = new AbortController()
  const sending = sender({ destinations: loopback })(message(receiver.url), stop.signal)
  await receiver.hit('the request')
  stop.abort()
  await assert.rejects(sending, { name: 'AbortError' })
})
