// P4: durable commands accepted for devices that are offline. The hub commits the command, its audit
// entry and its outbox event before it answers 202; the baseline commits the one command row.
import { commandRequests } from '../commands.ts'
import { closedLoop, refusals } from '../http_load.ts'
import { cpuMs } from '../lab.ts'
import type { Scenario } from '../suite.ts'

const connections = 32

export const accept: Scenario = {
  name: 'accept',
  about: 'durable commands accepted, devices offline, 32 connections',
  rivals: ['baseline'],
  // A device queues 100 commands at most: 10,000 take a million, some 20 s of this load in all.
  agents: 10_000,
  seconds: 5,
  warmUpSeconds: 4,
  rows: [
    {
      id: 'P4a',
      name: 'CPU of hub and PostgreSQL per accepted command',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'baseline',
      goal: { ratioMost: 0.25 },
    },
    {
      id: 'P4b',
      name: 'commands accepted',
      metric: 'perSecond',
      unit: '/s',
      rival: 'baseline',
      goal: { ratioLeast: 3 },
    },
    {
      id: 'P4c',
      name: 'PostgreSQL CPU alone per accepted command',
      metric: 'postgresUs',
      unit: 'µs',
      rival: 'baseline',
    },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    const devices = await lab.devices(target, agents)
    return async (seconds) => {
      const next = await commandRequests(target, devices)
      const cpuBefore = cpuMs(target)
      const load = await closedLoop({
        origin: target.origin,
        connections,
        seconds,
        next,
        good: ({ status }) => status === 202,
      })
      const cpuAfter = cpuMs(target)
      const refused = refusals(load)
      if (refused) throw new Error(`${side} did not accept every command: ${refused}`)
      const { good } = load
      const perSecond = good / load.seconds
      if (!cpuBefore || !cpuAfter) return { perSecond }
      const programUs = ((cpuAfter.program - cpuBefore.program) * 1000) / good
      const postgresUs = ((cpuAfter.postgres - cpuBefore.postgres) * 1000) / good
      return { cpuUs: programUs + postgresUs, programUs, postgresUs, perSecond }
    }
  },
}
