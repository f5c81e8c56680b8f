// P3: a connect storm, as after a restart of the hub. Every token is checked in PostgreSQL and every
// queue loaded; it is over when the last status row is committed, not when the last socket is open. Beside a program
// that upgrades anybody, and one that looks at tokens and stores the same rows.
import { setTimeout as sleep } from 'node:timers/promises'
import { countStatements, type BenchDatabase } from '../database.ts'
import { connectAll } from '../fleet_phases.ts'
import type { Fleet } from '../fleet.ts'
import { cpuMs } from '../lab.ts'
import { clearUp } from '../settled.ts'
import type { Scenario } from '../suite.ts'

const statusMsMax = 60_000

export const connect: Scenario = {
  name: 'connect',
  about: 'connect storm of 15,000 agents with token check, until the last status row commits',
  rivals: ['bare', 'online'],
  guests: ['baseline', 'nats', 'mosquitto'],
  figures: [
    { metric: 'perSecond', name: 'connects', unit: '/s', better: 'higher' },
    { metric: 'cpuUs', name: 'CPU per connect', unit: 'µs', better: 'lower' },
    { metric: 'postgresUs', name: 'PostgreSQL', unit: 'µs', better: 'lower' },
  ],
  agents: 15_000,
  seconds: 1,
  warmUpSeconds: 1,
  turns: 3,
  rate: { of: 'connects; without it as fast as they go', most: 1 },
  rows: [
    {
      id: 'P3a',
      name: 'agents connected, beside bare uWebSockets.js upgrades',
      metric: 'perSecond',
      unit: '/s',
      rival: 'bare',
    },
    {
      id: 'P3b',
      name: 'PostgreSQL statements per connected agent',
      metric: 'statementsPerAgent',
      unit: 'statements',
      goal: { valueMost: 1 / 50 },
    },
    { id: 'P3c', name: 'CPU per connect', metric: 'cpuUs', unit: 'µs', rival: 'bare' },
    { id: 'P3d', name: 'PostgreSQL CPU per connect', metric: 'postgresUs', unit: 'µs' },
    {
      id: 'P3e',
      name: 'agents connected, beside the least that stores who is online',
      metric: 'perSecond',
      unit: '/s',
      rival: 'online',
      goal: { ratioLeast: 0.75 },
    },
    {
      id: 'P3f',
      name: 'CPU with PostgreSQL per connect, beside the same',
      metric: 'allUs',
      unit: 'µs',
      rival: 'online',
      goal: { ratioMost: 2 },
    },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side, { statements: true })
    const fleet = await lab.fleet(target, await lab.devices(target, agents))
    return async () => {
      await clearUp(target)
      const statementsBefore = target.database && (await countStatements(target.database))
      const cpuBefore = cpuMs(target)
      const { welcomes } = await fleet.counts()
      const startedMs = performance.now()
      await connectAll(fleet, lab.progress, { perSecond: lab.options.rates?.[0] ?? 0 })
      // Where who is online is stored, that is the end; the last that others show of a connect is its welcome.
      const presence = side === 'hub' || side === 'online' ? target.database : undefined
      if (presence) await waitForOnline(presence, agents)
      else if (side !== 'bare') await waitForWelcomes(fleet, welcomes + agents)
      const seconds = (performance.now() - startedMs) / 1000
      const cpuAfter = cpuMs(target)
      const statements = target.database && (await countStatements(target.database))
      await fleet.disconnect()
      // The next storm starts from a hub that knows nobody online, as this one did.
      if (presence) await waitForOnline(presence, 0)

      const sample: Record<string, number> = { perSecond: agents / seconds }
      if (cpuBefore && cpuAfter) {
        sample['cpuUs'] = ((cpuAfter.program - cpuBefore.program) * 1000) / agents
        sample['postgresUs'] = ((cpuAfter.postgres - cpuBefore.postgres) * 1000) / agents
        sample['allUs'] = sample['cpuUs'] + sample['postgresUs']
      }
      if (statements !== undefined && statementsBefore !== undefined) {
        sample['statementsPerAgent'] = (statements - statementsBefore) / agents
      }
      return sample
    }
  },
}

async function waitForOnline(database: BenchDatabase, expected: number): Promise<void> {
  const endMs = performance.now() + statusMsMax
  for (;;) {
    const [row] = await database.read(
      `select count(*)::int as online from device_presence where status = 'online'`,
    )
    const online = Number(row?.['online'])
    if (online === expected) return
    if (performance.now() > endMs) {
      throw new Error(`${online} devices are stored as online, not ${expected}`)
    }
    await sleep(10)
  }
}

/** Of a foreign hub, whose database is not ours to read, and of programs that keep no presence there. */
async function waitForWelcomes(fleet: Fleet, expected: number): Promise<void> {
  const endMs = performance.now() + statusMsMax
  while ((await fleet.counts()).welcomes < expected) {
    if (performance.now() > endMs) throw new Error('not every agent was welcomed')
    await sleep(10)
  }
}
