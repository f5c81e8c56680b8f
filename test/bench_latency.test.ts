// How the bench counts time: from when a request was due, in HDR histograms that other tools can read.
import assert from 'node:assert/strict'
import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { decodeFromCompressedBase64 } from 'hdr-histogram-js'
import { Findings } from '../bench/findings.ts'
import { HttpConnection, requestBytes } from '../bench/http_connection.ts'
import { openLoop } from '../bench/http_load.ts'
import { Latencies } from '../bench/latency.ts'
import { Progress } from '../bench/progress.ts'
import { until } from './support/until.ts'

test('percentiles are those of the values, to three digits', () => {
  const ms = fc.array(fc.double({ min: 0.002, max: 50_000, noNaN: true }), {
    minLength: 1,
    maxLength: 200,
  })
  fc.assert(
    fc.property(ms, fc.constantFrom(50, 90, 99, 100), (took, percentile) => {
      const latencies = new Latencies()
      for (const one of took) latencies.record(1000, 1000 + one)
      const exact = took.toSorted((a, b) => a - b)[Math.ceil((took.length * percentile) / 100) - 1]!
      const got = latencies.ms(percentile)
      assert.ok(got <= latencies.summary().maxMs)
      assert.ok(Math.abs(got - exact) <= exact * 0.002 + 0.001, `${got} for ${exact}`)
    }),
  )
})

test('what was never answered has no latency, not a perfect one', () => {
  assert.throws(() => new Latencies().ms(99), /nothing was answered/)
})

test('the exported histogram is HdrHistogram V2 and holds every value', () => {
  const latencies = new Latencies()
  for (let n = 1; n <= 1000; n++) latencies.record(0, n)
  const summary = latencies.summary()
  const read = decodeFromCompressedBase64(summary.hdr)
  assert.equal(read.totalCount, 1000)
  assert.equal(read.getValueAtPercentile(90) / 1000, summary.p90Ms)
  assert.deepEqual([summary.count, Math.round(summary.maxMs)], [1000, 1000])
})

test('a stall shows in the seconds in which requests were due, whenever they ended', () => {
  const latencies = new Latencies()
  for (let due = 0; due < 3000; due += 100) latencies.record(due, due < 1000 ? due + 1 : 3000)
  const stretches = latencies.timeline(10)
  assert.deepEqual(
    stretches.map(({ atSeconds, count, maxMs }) => [atSeconds, count, Math.round(maxMs)]),
    [
      [0.5, 10, 1],
      [1.5, 10, 2000],
      [2.5, 10, 1000],
    ],
  )
  const coarse = latencies.timeline(2)
  assert.deepEqual(
    coarse.map(({ count }) => count),
    [20, 10],
  )
})

test('rounds add up in the findings, and leave a round as it was measured', () => {
  const findings = new Findings('x')
  const rounds = [1, 3].map((took) => {
    const latencies = new Latencies()
    for (const dueMs of [0, 1500]) latencies.record(dueMs, dueMs + took)
    findings.latencies('hub', 'echo', latencies)
    return latencies
  })
  assert.deepEqual(
    rounds.map(({ count }) => count),
    [2, 2],
  )
  const [summary] = findings.summaries
  assert.deepEqual([summary?.count, summary?.scenario, summary?.side], [4, 'x', 'hub'])
  assert.equal(findings.charts.length, 1)
  const found = findings.take()
  assert.deepEqual([findings.charts, findings.summaries], [[], []])
  findings.latencies('hub', 'echo', rounds[0]!)
  findings.fault({ atSeconds: 1, name: 'blow', unreadySeconds: 0, heard: {} })
  findings.add(found)
  assert.deepEqual([findings.summaries[0]?.count, findings.charts.length], [6, 1])
  findings.add(findings.take())
  assert.deepEqual(
    [findings.summaries[0]?.count, findings.faults.map(({ name }) => name)],
    [6, ['blow']],
  )
})

test('a server that answers nobody for a while delays every request that was due meanwhile', async () => {
  // One connection, so that all wait behind the one that is held: a closed loop would ask once.
  const [perSecond, count, heldMs] = [40, 20, 600]
  let asked = 0
  const server = await serve((answer) => {
    asked++
    // Longer than the last of them is due after the first.
    if (asked === 1) setTimeout(answer, heldMs)
    else answer()
  })
  const load = { ...loadOf(server.origin), connections: 1, seconds: count / perSecond, perSecond }
  const { good, bad, latencies } = await openLoop(load)
  server.close()
  assert.deepEqual([good, bad, asked, latencies.count], [count, {}, count, count])
  // Half of them were due in the first half of the schedule, and answered after the hold at the earliest.
  // A timer may end a moment before its time.
  const leastMs = heldMs - ((count / 2) * 1000) / perSecond - 10
  assert.ok(latencies.ms(50) >= leastMs, `median ${latencies.ms(50)} ms, at least ${leastMs}`)
})

test('a lost connection costs its own request; the next ones are asked on a new one', async () => {
  let asked = 0
  const server = await serve((answer, cut) => (++asked === 3 ? cut() : answer()))
  const load = { ...loadOf(server.origin), connections: 1, seconds: 0.2, perSecond: 50 }
  const { good, bad, latencies } = await openLoop(load)
  server.close()
  assert.deepEqual([good, bad, latencies.count], [9, { lost: 1 }, 9])
})

test('a connection knows that it was closed while nobody asked, and takes no request', async () => {
  const sockets = new Set<Socket>()
  const server = await serve((answer) => answer(), sockets)
  const connection = await HttpConnection.open(server.origin)
  const request = requestBytes(server.origin, { method: 'GET', path: '/' })
  assert.equal((await connection.send(request)).status, 200)
  assert.equal(connection.closed, false)
  for (const socket of sockets) socket.end()
  await until('the connection to be closed', () => connection.closed)
  await assert.rejects(connection.send(request), /closed the connection/)
  server.close()
})

test('progress is one live line on a terminal, and lines that stay elsewhere', () => {
  const shown = (isTTY: boolean) => {
    let text = ''
    const progress = new Progress({ isTTY, columns: 20, write: (part) => (text += part) })
    progress.step('enrolling')
    progress.count(1, 2)
    progress.figure('a figure that is much too long for it')
    progress.note('done')
    progress.clear()
    return text
  }
  assert.equal(shown(false), 'enrolling\ndone\n')
  const lines = shown(true).split('\r\u001b[2K').slice(1)
  assert.deepEqual(lines, ['enrolling', 'enrolling 1/2', 'enrolling, 0 s: a …', 'done\n', ''])
})

interface Served {
  origin: string
  close(): void
}

/** A server whose answers the test gives, or cuts. */
async function serve(
  take: (answer: () => void, cut: () => void) => void,
  sockets = new Set<Socket>(),
): Promise<Served> {
  const server: Server = createServer((request, response) => {
    take(
      () => response.setHeader('content-length', '0').end(),
      () => request.socket.destroy(),
    )
  })
  server.on('connection', (socket: Socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

function loadOf(origin: string) {
  const request = requestBytes(origin, { method: 'GET', path: '/' })
  return { origin, next: () => request, good: ({ status }: { status: number }) => status === 200 }
}
