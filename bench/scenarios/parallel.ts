// P12: a thousand callers who all POST commands at once, and a list that somebody reads in between. What breaks
// here in other hubs is a pool whose every connection waits for a second one.
import { setTimeout as sleep } from 'node:timers/promises'
import { commandList } from '../commands.ts'
import { requestBytes } from '../http_connection.ts'
import { failures, openLoop, refusals } from '../http_load.ts'
import type { Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { saturate, saturationSecondsMax } from '../saturation.ts'
import { clearUp } from '../settled.ts'
import type { Scenario } from '../suite.ts'

const callers = 1000
const readsPerSecond = 50
/** Until the thread of the callers has run warm, and they begin together. */
const beginSeconds = 1
/** Without work, before the next side is measured: a herd leaves 40,000 audit rows to be sealed. */
const calmSeconds = 2

export const parallel: Scenario = {
  name: 'parallel',
  about: '1,000 parallel POSTs of commands, devices offline, and a list read in between',
  rivals: ['least'],
  // A device queues 100 commands at most: 10,000 take a million.
  agents: 10_000,
  seconds: 5,
  secondsMax: saturationSecondsMax,
  warmUpSeconds: 2,
  rows: [
    {
      id: 'P12a',
      name: 'a command posted by each of 1,000 callers, p99',
      metric: 'postP99Ms',
      unit: 'ms',
      goal: { valueMost: 250 },
    },
    {
      id: 'P12b',
      name: 'commands and lists that failed',
      metric: 'failed',
      unit: 'requests',
      goal: { valueMost: 0 },
    },
    {
      id: 'P12c',
      name: 'devices page p99 in between, beside the least',
      metric: 'pageP99Ms',
      unit: 'ms',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P12d',
      name: 'commands accepted',
      metric: 'perSecond',
      unit: '/s',
      rival: 'least',
    },
    {
      id: 'P12e',
      name: 'a command posted by each of 1,000 callers, p99, beside the least',
      metric: 'postP99Ms',
      unit: 'ms',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P12f',
      name: 'devices page p99 in between : before',
      metric: 'ratio',
      unit: '×',
      rival: 'least',
    },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const devices = await lab.devices(target, agents)
    return async (seconds) => {
      const { origin } = target
      const reads = {
        origin,
        connections: 8,
        seconds,
        perSecond: readsPerSecond,
        next: await pageRequests(target),
        good: ({ status }: { status: number }) => status === 200,
      }
      const quiet = await openLoop(reads)
      const [posts, busy] = await Promise.all([
        saturate({
          origin,
          connections: callers,
          seconds,
          requests: await commandList(target, devices),
          good: { status: 202 },
          warmUpSeconds: beginSeconds,
        }),
        sleep(beginSeconds * 1000).then(() => openLoop(reads)),
      ])
      await clearUp(target, calmSeconds)
      const refused = refusals(posts) ?? refusals(busy)
      if (refused) lab.progress.note(`warning: refused: ${refused}`)
      lab.findings.latencies(side, 'devices page before', quiet.latencies)
      lab.findings.latencies(side, 'devices page among 1,000 callers', busy.latencies)
      lab.findings.latencies(side, 'commands of 1,000 callers (closed loop)', posts.latencies)
      return {
        postP99Ms: posts.latencies.ms(99),
        failed: failures(quiet) + failures(posts) + failures(busy),
        pageP99Ms: busy.latencies.ms(99),
        ratio: busy.latencies.ms(99) / quiet.latencies.ms(99),
        perSecond: posts.good / posts.seconds,
      }
    }
  },
}

async function pageRequests({ origin, credentials }: Target): Promise<() => Buffer> {
  const headers = await signIn(origin, credentials)
  const page = requestBytes(origin, { method: 'GET', path: '/api/v1/devices', headers })
  return () => page
}
