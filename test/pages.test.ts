import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { after, before, test } from 'node:test'
import { sendReply } from '../src/http_reply.ts'
import { limits } from '../src/limits.ts'
import { uWS } from '../src/uws.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { until } from './support/until.ts'

let hub: TestHub

before(async () => {
  hub = await startHub()
})
after(() => hub.close())

const ask = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
  hub.ask(method, `{origin}${path}`, { token: undefined, headers })

const files = [
  '/accept-invite',
  '/docs',
  '/docs/swagger-ui.css',
  '/docs/swagger-ui-bundle.js',
  '/terminal/0192f0c1-2345-7abc-8def-0123456789ab',
  '/terminal/files/xterm.js',
  '/terminal/files/xterm.css',
  '/terminal/files/terminal.js',
  '/terminal/files/terminal_client.ts',
]

test('pages are open to everyone, lead nowhere else and send no address on', async () => {
  for (const path of files) {
    const { status, headers } = await ask(path)
    assert.equal(status, 200, path)
    assert.equal(headers.get('referrer-policy'), 'no-referrer')
    assert.equal(headers.get('x-content-type-options'), 'nosniff')
    const policy = headers.get('content-security-policy') ?? ''
    assert.match(policy, /^default-src 'none'; base-uri 'none'; form-action 'none'/)
    assert.match(policy, /frame-ancestors 'none'/)
    assert.doesNotMatch(policy, /unsafe|https?:|\*/)
  }
})

test('the policy of a page lets run what the page holds, and nothing besides', async () => {
  const { text, headers } = await ask('/accept-invite')
  const policy = headers.get('content-security-policy') ?? ''
  const hash = (tag: string) => {
    const content = new RegExp(`<${tag}>([^]*)</${tag}>`).exec(text)?.[1] ?? ''
    return `'sha256-${createHash('sha256').update(content).digest('base64')}'`
  }
  assert.ok(policy.includes(`script-src ${hash('script')};`))
  assert.ok(policy.includes(`style-src ${hash('style')};`))
  assert.doesNotMatch(text, /(src|href)="https?:/)
})

test('the page of an invitation tells the bounds that the hub keeps', async () => {
  const { text } = await ask('/accept-invite')
  const { passwordCharsMin: min, passwordCharsMax: max, nameCharsMax, inviteHours } = limits
  assert.ok(text.includes(`${min} to ${max} characters`))
  assert.ok(text.includes(`password.length < ${min}`) && text.includes(`password.length > ${max}`))
  assert.ok(text.includes(`maxlength="${nameCharsMax}"`))
  assert.ok(inviteHours === 72 && text.includes('three days'))
})

test('a file is kept by browsers and sent again only when it changed', async () => {
  for (const path of files) {
    const first = await ask(path)
    const etag = first.headers.get('etag') ?? ''
    assert.match(etag, /^"[\w-]{22}"$/)
    assert.equal(first.headers.get('cache-control'), 'no-cache')
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`]) {
      const again = await ask(path, { 'if-none-match': known })
      assert.deepEqual([again.status, again.text, again.headers.get('etag')], [304, '', etag])
    }
    assert.equal((await ask(path, { 'if-none-match': '"other"' })).status, 200)
    const head = await ask(path, {}, 'HEAD')
    assert.deepEqual([head.status, head.text, head.headers.get('etag')], [200, '', etag])
  }
})

test('a file is packed for who takes that, and the same for who does not', async () => {
  const fetched = async (encoding: string) => {
    const headers = { 'accept-encoding': encoding }
    const response = await fetch(`${hub.origin}/docs/swagger-ui-bundle.js`, { headers })
    assert.equal(response.headers.get('vary'), 'Accept-Encoding')
    return { packed: response.headers.get('content-encoding'), text: await response.text() }
  }
  const [packed, plain] = [await fetched('br, gzip'), await fetched('identity')]
  assert.deepEqual([packed.packed, plain.packed], ['gzip', null])
  assert.ok(plain.text.length > 1_000_000)
  assert.equal(packed.text, plain.text)
  assert.equal((await fetched('gzip;q=0')).packed, null)
})

test('what the terminal page loads of the hub is script, without types', async () => {
  for (const name of ['terminal_client', 'terminal_streams', 'terminal_frames']) {
    const { text, headers } = await ask(`/terminal/files/${name}.ts`)
    assert.match(headers.get('content-type') ?? '', /^text\/javascript/)
    assert.match(text, /^export /m)
    assert.doesNotMatch(text, /\binterface\b|: Uint8Array/)
  }
})

test('other names and methods are refused', async () => {
  for (const path of [
    'index.html',
    'package.json',
    '..%2fpackage.json',
    '%2e%2e',
    'swagger-ui.js',
  ]) {
    assert.equal((await ask(`/docs/${path}`)).status, 404, path)
  }
  assert.equal((await ask('/accept-invite', {}, 'POST')).status, 405)
})

test('who reads slowly gets every byte, and holds up nobody', async (t) => {
  // Larger than what two sockets of one machine buffer between them, so that the hub has to wait.
  const content = randomBytes(32 * 1024 * 1024)
  const app = uWS.App()
  app.get('/large', (res) => {
    res.onAborted(() => {})
    sendReply(res, { status: 200, text: { type: 'application/octet-stream', content } }, 'id')
  })
  app.get('/small', (res) => void res.end('small'))
  const port = await new Promise<number>((resolve, reject) => {
    app.listen('127.0.0.1', 0, (socket) => {
      if (socket) resolve(uWS.us_socket_local_port(socket))
      else reject(new Error('could not listen'))
    })
  })
  t.after(() => app.close())
  const socket = connect(port, '127.0.0.1')
  socket.pause()
  socket.write('GET /large HTTP/1.1\r\nHost: hub\r\n\r\n')
  for (let n = 0; n < 20; n++) {
    const small = await fetch(`http://127.0.0.1:${port}/small`)
    assert.equal(await small.text(), 'small')
  }
  const chunks: Buffer[] = []
  let bytes = 0
  socket.on('data', (chunk: Buffer) => {
    chunks.push(chunk)
    bytes += chunk.length
  })
  socket.resume()
  const headBytes = () => (chunks[0]?.indexOf('\r\n\r\n') ?? Infinity) + 4
  await until('the whole file', () => bytes >= headBytes() + content.length)
  assert.ok(Buffer.concat(chunks).subarray(headBytes()).equals(content))
  socket.destroy()
})
