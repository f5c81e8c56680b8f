// Both ends of a terminal, for its echo: an agent that sends back what it gets, and an operator who types a key
// at a time. The frames are the real ones, acknowledgements included, whatever stands between the two.
import { WebSocket } from 'ws'
import { TerminalClient } from '../src/terminal_client.ts'
import {
  decodeFrame,
  encodeBase,
  encodeFrame,
  terminalSubprotocol,
  ticketSubprotocol,
} from '../src/terminal_frames.ts'
import { Incoming, Outgoing } from '../src/terminal_streams.ts'
import { Latencies } from './latency.ts'
import { tick, ticksNowMs } from './ticker.ts'
import type { Device } from './sim_agent.ts'

const size = { cols: 80, rows: 24 }
const heartbeatMs = 10_000

/** Connects as a device; echoes the input of every session. Returns what closes it. */
export async function startEchoAgent(origin: string, { id, token }: Device): Promise<() => void> {
  const socket = await openSocket(`${wsOf(origin)}/api/v1/agents/${id}/ws`, ['muster.v1'], {
    authorization: `Bearer ${token}`,
  })
  const sessions = new Map<string, { input: Incoming; output: Outgoing }>()
  socket.on('message', (data: Buffer, isBinary) => {
    const frame = isBinary ? decodeFrame(data) : undefined
    if (frame === undefined) return
    const session = sessions.get(frame.id) ?? { input: new Incoming(), output: new Outgoing() }
    sessions.set(frame.id, session)
    const { input, output } = session
    if (frame.kind === 'ack') output.ack(frame.seq)
    if (frame.kind === 'open') {
      const base = output.resume(frame.seq)
      socket.send(encodeFrame('opened', frame.id, input.at, encodeBase(base)))
    }
    const fresh = frame.kind === 'data' ? input.take(frame.seq, frame.body) : undefined
    if (fresh === undefined) return
    output.push(fresh)
    for (let next = output.next(); next; next = output.next()) {
      socket.send(encodeFrame('data', frame.id, next.seq, next.body))
    }
    socket.send(encodeFrame('ack', frame.id, input.at))
  })
  socket.send('{"type":"heartbeat"}')
  const beat = setInterval(() => socket.send('{"type":"heartbeat"}'), heartbeatMs)
  return () => {
    clearInterval(beat)
    socket.terminate()
  }
}

export interface Echo {
  /** Keys at a fixed rate, each from the moment it was due to its echo. */
  measure(perSecond: number, seconds: number): Promise<Latencies>
  close(): void
}

/** Connects as the operator of a session and waits for the agent's answer. */
export async function openEcho(origin: string, id: string, ticket: string): Promise<Echo> {
  const protocols = [terminalSubprotocol, `${ticketSubprotocol}${ticket}`]
  const socket = await openSocket(`${wsOf(origin)}/api/v1/terminals/${id}/ws`, protocols)
  const { promise: opened, resolve: open } = Promise.withResolvers<void>()
  const due: number[] = []
  let latencies = new Latencies()
  let last: (() => void) | undefined
  const client = new TerminalClient(id, size, {
    output(bytes, done) {
      const nowMs = ticksNowMs()
      for (let n = 0; n < bytes.length; n++) {
        latencies.record(due.shift() ?? nowMs, nowMs)
      }
      done()
      if (due.length === 0) last?.()
    },
    opened: open,
    exit() {},
    closed() {},
  })
  socket.on('message', (data: Buffer) => client.receive(data))
  client.connected((frame) => socket.send(frame))
  await opened
  return {
    async measure(perSecond, seconds) {
      latencies = new Latencies()
      const key = Buffer.from('x')
      await tick(perSecond, Math.round(perSecond * seconds), (dueMs) => {
        due.push(dueMs)
        client.type(key)
      })
      if (due.length > 0) await new Promise<void>((resolve) => (last = resolve))
      return latencies
    },
    close: () => socket.terminate(),
  }
}

function openSocket(
  url: string,
  protocols: string[],
  headers: Record<string, string> = {},
): Promise<WebSocket> {
  const socket = new WebSocket(url, protocols, { headers, perMessageDeflate: false })
  return new Promise((resolve, reject) => {
    socket.once('open', () => resolve(socket))
    socket.once('error', reject)
  })
}

function wsOf(origin: string): string {
  return origin.replace(/^http/, 'ws')
}
