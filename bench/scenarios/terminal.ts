// P9: the echo of a key: operator's socket → hub → agent's socket and back, beside a relay that does nothing
// else. Both ends are ours and the same for both sides; a shell would only add its own time.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import type { Device } from '../sim_agent.ts'
import type { Scenario } from '../suite.ts'
import { openEcho, startEchoAgent } from '../terminal_load.ts'

/** A fast typist, and some to spare: enough samples in a few seconds. */
const perSecond = 100
const onlineMsMax = 10_000

export const terminal: Scenario = {
  name: 'terminal',
  about: 'echo of a key through a terminal, beside a bare relay of two sockets',
  rivals: ['relay'],
  agents: 1,
  seconds: 10,
  warmUpSeconds: 3,
  rate: { of: 'keys', most: 1 },
  rows: [
    {
      id: 'P9a',
      name: 'terminal echo, p50',
      metric: 'p50Ms',
      unit: 'ms',
      rival: 'relay',
      goal: { ratioMost: 1.5 },
    },
    { id: 'P9b', name: 'terminal echo, p99', metric: 'p99Ms', unit: 'ms', rival: 'relay' },
  ],
  async enter(side, lab) {
    const target = await lab.start(side)
    const [device] = side === 'relay' ? [anyDevice] : await lab.devices(target, 1)
    if (!device) throw new Error('no device was enrolled')
    lab.defer(await startEchoAgent(target.origin, device))
    const { id, ticket } = side === 'relay' ? anySession() : await openSession(target, device)
    const echo = await openEcho(target.origin, id, ticket)
    lab.defer(() => echo.close())
    return async (seconds) => {
      const latencies = await echo.measure(lab.options.rates?.[0] ?? perSecond, seconds)
      lab.findings.latencies(side, 'terminal echo', latencies)
      return { p50Ms: latencies.ms(50), p99Ms: latencies.ms(99) }
    }
  },
}

const anyDevice: Device = { id: randomUUID(), token: 'none' }
const anySession = () => ({ id: `term-${randomUUID()}`, ticket: 'none' })

/** Opens a terminal as soon as the hub has welcomed the device. */
async function openSession(
  { origin, credentials }: Target,
  device: Device,
): Promise<{ id: string; ticket: string }> {
  const headers = { ...(await signIn(origin, credentials)), 'Content-Type': 'application/json' }
  const body = JSON.stringify({ cols: 80, rows: 24 })
  const url = `${origin}/api/v1/devices/${device.id}/terminals`
  for (const giveUpMs = performance.now() + onlineMsMax; ; await sleep(50)) {
    const answer = await fetch(url, { method: 'POST', headers, body })
    if (answer.status === 201) return (await answer.json()) as { id: string; ticket: string }
    const text = await answer.text()
    if (performance.now() > giveUpMs) throw new Error(`no terminal: ${answer.status} ${text}`)
  }
}
