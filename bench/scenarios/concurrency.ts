// Throughput against concurrency: callers who ask again as soon as they are answered, a few at first, then many.
// It shows where the hub is full, and whether more callers than that cost more than their own waiting.
import { commandList, completed } from '../commands.ts'
import type { Line } from '../findings.ts'
import { standingFleet } from '../fleet_phases.ts'
import { failures, refusals, type LoadResult } from '../http_load.ts'
import type { Request } from '../http_connection.ts'
import type { Lab, Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { saturate, saturationSecondsMax } from '../saturation.ts'
import type { Device } from '../sim_agent.ts'
import type { Scenario } from '../suite.ts'

const callers = [1, 4, 16, 64, 256, 1000]
/** Half of what a device may queue. */
const openPerDeviceMax = 50
const waitSeconds = 30

export const concurrency: Scenario = {
  name: 'concurrency',
  about: 'commands run and pages read by 1 to 1,000 callers at a time',
  rivals: [],
  agents: 1000,
  seconds: 5,
  secondsMax: saturationSecondsMax,
  warmUpSeconds: 1,
  rows: [
    { id: 'C1', name: 'commands run, at best', metric: 'commandsMost', unit: '/s' },
    { id: 'C2', name: 'commands run, by most callers', metric: 'commandsLast', unit: '/s' },
    { id: 'C3', name: 'pages of 50 devices, at best', metric: 'pagesMost', unit: '/s' },
    { id: 'C4', name: 'pages, by most callers', metric: 'pagesLast', unit: '/s' },
    {
      id: 'C5',
      name: 'requests that failed',
      metric: 'failed',
      unit: 'requests',
      goal: { valueMost: 0 },
    },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const { devices } = await standingFleet(lab, target, agents)
    return async (seconds) => {
      const commands = await measureKind(lab, target, devices, seconds, 'commands')
      const pages = await measureKind(lab, target, devices, seconds, 'pages')
      plot(lab, [
        { name: 'commands run', steps: commands },
        { name: 'pages of devices', steps: pages },
      ])
      const rate = ({ load }: Step) => load.good / load.seconds
      return {
        commandsMost: Math.max(...commands.map(rate)),
        commandsLast: rate(commands.at(-1)!),
        pagesMost: Math.max(...pages.map(rate)),
        pagesLast: rate(pages.at(-1)!),
        failed: [...commands, ...pages].reduce((sum, { load }) => sum + failures(load), 0),
      }
    }
  },
}

interface Step {
  connections: number
  load: LoadResult
}

async function measureKind(
  lab: Lab,
  target: Target,
  devices: readonly Device[],
  seconds: number,
  kind: 'commands' | 'pages',
): Promise<Step[]> {
  const { origin } = target
  const steps: Step[] = []
  for (const connections of callers) {
    if (connections > devices.length * openPerDeviceMax) continue
    lab.progress.figure(`${kind}, ${connections} callers`)
    const load = await saturate({
      origin,
      connections,
      seconds,
      ...(kind === 'commands'
        ? { requests: await commandList(target, devices, waitSeconds), good: completed }
        : { requests: await pageRequests(target), good: { status: 200 } }),
    })
    const refused = refusals(load)
    if (refused) lab.progress.note(`warning: ${kind} by ${connections} callers: ${refused}`)
    steps.push({ connections, load })
  }
  return steps
}

async function pageRequests({ origin, credentials }: Target): Promise<Request[]> {
  const headers = await signIn(origin, credentials)
  return [{ method: 'GET', path: '/api/v1/devices', headers }]
}

function plot(lab: Lab, kinds: readonly { name: string; steps: readonly Step[] }[]): void {
  const lines = (value: (load: LoadResult) => number): Line[] =>
    kinds.map(({ name, steps }) => ({
      name,
      points: steps
        .filter(({ load }) => load.latencies.count > 0)
        .map(({ connections, load }) => [connections, value(load)]),
    }))
  const x = { name: 'callers at a time', unit: '', log: true }
  lab.findings.chart({
    title: 'Throughput against concurrency',
    x,
    y: { name: 'throughput', unit: '/s' },
    lines: lines((load) => load.good / load.seconds),
  })
  lab.findings.chart({
    title: 'Latency against concurrency (closed loop)',
    x,
    y: { name: 'p99', unit: 'ms', log: true },
    lines: lines((load) => load.latencies.ms(99)),
  })
}
