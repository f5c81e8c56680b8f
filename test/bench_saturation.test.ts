// What autocannon counts for the bench, against a server that counts too: good answers, bad ones, and those that
// never came, of which autocannon itself says nothing.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import type { Request } from '../bench/http_connection.ts'
import { failures } from '../bench/http_load.ts'
import { Latencies } from '../bench/latency.ts'
import { saturate } from '../bench/saturation.ts'

const connections = 4
const open: Server[] = []
after(() => {
  for (const server of open) {
    server.close()
    server.closeAllConnections()
  }
})

interface Seen {
  origin: string
  /** How often each path was asked for, and with what body. */
  paths: Map<string, number>
  bodies: Set<string>
}

/** A server that hands each request to `answer` and remembers it. */
async function listen(
  answer: (request: IncomingMessage, response: ServerResponse, n: number) => void,
): Promise<Seen> {
  const paths = new Map<string, number>()
  const bodies = new Set<string>()
  let n = 0
  const server = createServer((request, response) => {
    const { url = '' } = request
    paths.set(url, (paths.get(url) ?? 0) + 1)
    let body = ''
    request.on('data', (chunk: Buffer) => (body += String(chunk)))
    request.once('end', () => {
      bodies.add(`${request.headers['content-type'] ?? ''} ${body}`)
      answer(request, response, ++n)
    })
  })
  open.push(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return { origin: `http://127.0.0.1:${port}`, paths, bodies }
}

const requests: Request[] = Array.from({ length: 10 }, (_, index) => ({
  method: 'POST',
  path: `/${index}`,
  headers: { Authorization: 'Bearer t' },
  body: { index },
}))
const asked = ({ paths }: Seen) => [...paths.values()].reduce((sum, count) => sum + count, 0)

test('every request is one of those given, and every answer is counted', async () => {
  const seen = await listen((_, response) => response.writeHead(202).end('{"status":"completed"}'))
  const load = await saturate({
    origin: seen.origin,
    connections,
    seconds: 0.5,
    requests,
    good: { status: 202, holds: '"completed"' },
  })
  assert.deepEqual(load.bad, {})
  assert.ok(load.good > 0)
  assert.equal(load.latencies.count, load.good)
  // What was under way at the end counts neither way: one request of each connection.
  const rest = asked(seen) - load.good
  assert.ok(rest >= 0 && rest <= connections, `${asked(seen)} asked, ${load.good} answered`)
  assert.deepEqual([...seen.paths.keys()].toSorted(), requests.map(({ path }) => path).toSorted())
  assert.deepEqual(
    [...seen.bodies].toSorted(),
    requests.map(({ body }) => `application/json ${JSON.stringify(body)}`).toSorted(),
  )
})

test('another status, a body without its end and a lost connection are failures of their own', async () => {
  const counts = { refused: 0, pending: 0, lost: 0 }
  const seen = await listen((request, response, n) => {
    if (n % 10 === 3) {
      counts.refused++
      response.writeHead(503).end()
    } else if (n % 10 === 6) {
      counts.pending++
      response.writeHead(202).end('{"status":"pending"}')
    } else if (n === 15) {
      counts.lost++
      request.socket.end()
    } else response.writeHead(202).end('{"status":"completed"}')
  })
  const { good, bad } = await saturate({
    origin: seen.origin,
    connections,
    seconds: 0.5,
    requests,
    good: { status: 202, holds: '"completed"' },
  })
  assert.equal(counts.lost, 1, 'the load was too short to lose anything')
  assert.equal(bad['lost'], 1)
  // The last answers may have come too late to be counted.
  for (const [key, count] of [
    ['503', counts.refused],
    ['202 without its end', counts.pending],
  ] as const) {
    const told = bad[key] ?? 0
    assert.ok(told <= count && told >= count - connections, `${key}: ${told} of ${count}`)
  }
  const rest = asked(seen) - good - failures({ bad })
  assert.ok(rest >= 0 && rest <= connections, `${rest} neither good nor bad`)
})

test('more connections than requests share them', async () => {
  const seen = await listen((_, response) => response.writeHead(200).end())
  const [only] = requests
  const load = await saturate({
    origin: seen.origin,
    connections: 3,
    seconds: 0.1,
    requests: [only!],
    good: { status: 200 },
  })
  assert.ok(load.good >= 3)
  assert.deepEqual([...seen.paths.keys()], ['/0'])
})

test('latencies come through a thread as they were recorded', () => {
  const one = new Latencies()
  for (let n = 0; n < 300; n++) one.record(n * 10, n * 10 + 1 + (n % 50))
  const other = Latencies.of(one.portable())
  assert.equal(other.count, one.count)
  const seconds = (of: Latencies) =>
    of.timeline(100).map(({ atSeconds, count }) => [atSeconds, count])
  assert.deepEqual(seconds(other), seconds(one))
  // A histogram in transit keeps three digits of each value, and no exact largest one.
  for (const percentile of [1, 50, 99, 100]) {
    const [got, expected] = [other.ms(percentile), one.ms(percentile)]
    assert.ok(Math.abs(got - expected) <= expected / 1000, `${got}, not ${expected}`)
  }
  assert.equal(Latencies.of(new Latencies().portable()).count, 0)
})
