// The floor of every round trip: bytes to a socket and back, on the same schedule and the same clock.
import { connect } from 'node:net'
import { Latencies } from './latency.ts'
import { tick, ticksNowMs } from './ticker.ts'

const message = Buffer.alloc(100, 'x')

/** Echoes at a fixed rate over one socket, each counted from the moment it was due. */
export async function echoRoundTrips(
  origin: string,
  perSecond: number,
  seconds: number,
): Promise<Latencies> {
  const { hostname, port } = new URL(origin)
  const latencies = new Latencies()
  const due: number[] = []
  let received = 0
  // The echo program takes any bytes once it has answered one HTTP request with 101.
  const socket = connect({ host: hostname, port: Number(port), noDelay: true })
  socket.write('GET /echo HTTP/1.1\r\n\r\n')
  await new Promise((resolve, reject) => {
    socket.once('data', resolve)
    socket.once('error', reject)
  })
  socket.on('data', (bytes) => {
    received += bytes.length
    for (; received >= message.length; received -= message.length) {
      const nowMs = ticksNowMs()
      latencies.record(due.shift() ?? nowMs, nowMs)
    }
  })
  await tick(perSecond, Math.round(perSecond * seconds), (dueMs) => {
    due.push(dueMs)
    socket.write(message)
  })
  while (due.length > 0) await new Promise((resolve) => socket.once('data', resolve))
  socket.destroy()
  return latencies
}
