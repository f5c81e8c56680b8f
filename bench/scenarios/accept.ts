// P4: durable commands accepted for devices that are offline. The hub commits the command, its audit
// entry and its outbox event before it answers 202; the baseline commits the one command row. The limits are the
// hub's rows behind a server that does nothing else, and the rows alone. Why the goals are what they are: ADR 0021.
import { limits } from '../../src/limits.ts'
import { commandList } from '../commands.ts'
import { refusals } from '../http_load.ts'
import { fillHubTables } from '../hub_tables.ts'
import { cpuMs, type Lab } from '../lab.ts'
import { storeAlone } from '../limits/rows_alone.ts'
import { treeCpuMs } from '../proc.ts'
import { saturate, saturationSecondsMax } from '../saturation.ts'
import { clearUp } from '../settled.ts'
import type { Measure, Scenario } from '../suite.ts'

const connections = 32

export const accept: Scenario = {
  name: 'accept',
  about: 'durable commands accepted, devices offline, 32 connections',
  rivals: ['baseline', 'least'],
  guests: ['rows'],
  figures: [
    { metric: 'cpuUs', name: 'CPU per command', unit: 'µs', better: 'lower' },
    { metric: 'postgresUs', name: 'of it PostgreSQL', unit: 'µs', better: 'lower' },
    { metric: 'perSecond', name: 'accepted', unit: '/s', better: 'higher' },
  ],
  secondsMax: saturationSecondsMax,
  // A device queues 100 commands at most: 10,000 take a million, some 20 s of this load in all.
  agents: 10_000,
  seconds: 5,
  // As long as the compiler may be at work on the hub, though its turns show no trend after 4 either.
  warmUpSeconds: 15,
  turns: 2,
  rows: [
    {
      id: 'P4a',
      name: 'CPU of hub and PostgreSQL per accepted command',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'baseline',
      goal: { ratioMost: 1 },
    },
    {
      id: 'P4b',
      name: 'commands accepted',
      metric: 'perSecond',
      unit: '/s',
      rival: 'baseline',
    },
    {
      id: 'P4c',
      name: 'PostgreSQL CPU alone per accepted command',
      metric: 'postgresUs',
      unit: 'µs',
      rival: 'baseline',
    },
    {
      id: 'P4d',
      name: 'CPU per accepted command, beside the least that commits the same rows',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'least',
      goal: { ratioMost: 2 },
    },
    {
      id: 'P4e',
      name: 'commands accepted, beside the least',
      metric: 'perSecond',
      unit: '/s',
      rival: 'least',
      goal: { ratioLeast: 0.5 },
    },
  ],
  async enter(side, lab, agents) {
    if (side === 'rows') return measureRows(lab, agents)
    const target = await lab.start(side)
    const devices = await lab.devices(target, agents)
    return async (seconds) => {
      const requests = await commandList(target, devices)
      const cpuBefore = cpuMs(target)
      const load = await saturate({
        origin: target.origin,
        connections,
        seconds,
        requests,
        good: { status: 202 },
      })
      const cpuAfter = cpuMs(target)
      await clearUp(target)
      const refused = refusals(load)
      if (refused) {
        const full = load.bad['409']
          ? `: a device takes ${limits.openCommandsMax} that wait, so more --agents or fewer --seconds`
          : ''
        throw new Error(`${side} did not accept every command: ${refused}${full}`)
      }
      const { good } = load
      const perSecond = good / load.seconds
      if (!cpuBefore || !cpuAfter) return { perSecond }
      const programUs = ((cpuAfter.program - cpuBefore.program) * 1000) / good
      const postgresUs = ((cpuAfter.postgres - cpuBefore.postgres) * 1000) / good
      return { cpuUs: programUs + postgresUs, programUs, postgresUs, perSecond }
    }
  },
}

/** In batches of what 32 callers can have under way: no hub could make them larger. */
async function measureRows(lab: Lab, devices: number): Promise<Measure> {
  const database = await lab.rowsDatabase()
  const ids = await fillHubTables(database.url, devices)
  return async (seconds) => {
    const before = treeCpuMs(database.pid)
    const stored = await storeAlone(database.url, ids, { batch: connections, seconds })
    const postgresUs = ((treeCpuMs(database.pid) - before) * 1000) / stored.count
    return { cpuUs: postgresUs, postgresUs, perSecond: stored.count / stored.seconds }
  }
}
