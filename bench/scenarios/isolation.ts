// P8: how long a command takes while the hub bears something else: a shard that stands still, an export of the audit,
// people who sign in, downloads. Beside it the least that a hub could do, on the same machine under the same
// disturbance of the same hub, with devices and a database of its own: what the machine is short of, both are.
import { join } from 'node:path'
import { partOf } from '../../src/ids.ts'
import { commandRequests, timedCommandsP99Ms } from '../commands.ts'
import {
  auditExport,
  blockedShard,
  fillAudit,
  logins,
  makeRelease,
  pacedDownloads,
  type Disturbance,
} from '../disturbances.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import type { Lab, Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import type { RowSpec } from '../rows.ts'
import { watchGrowth } from '../rss_watch.ts'
import { clearUp } from '../settled.ts'
import type { Scenario } from '../suite.ts'

const shards = 2
const blockedIndex = 0
const waitSeconds = 30
/** The audit that is exported: a million rows beside 1,000 agents. */
const auditRowsPerAgent = 1000
const ratioMost = 2

/** The hub of a run, which every side's measurements disturb. */
const disturbed = new WeakMap<Lab, Disturbed>()

interface Disturbed {
  target: Target
  door: string
  auditRows: number
}

const kinds = [
  { id: 'P8a', metric: 'blockedMs', name: 'while the other shard stands still for 2 s' },
  { id: 'P8b', metric: 'exportMs', name: 'while 1,000,000 audit rows are exported' },
  { id: 'P8c', metric: 'loginsMs', name: 'while 200 people a second sign in' },
  { id: 'P8d', metric: 'downloadsMs', name: 'while 1,000 downloads take 100 MB/s' },
] as const

export const isolation: Scenario = {
  name: 'isolation',
  about:
    'round trips while a shard stands still, the audit is exported, people sign in, agents download',
  rivals: ['least'],
  agents: 1000,
  seconds: 12,
  // A write that the disk keeps waiting for 100 ms is the p99 of four seconds; it is not in most of nine turns.
  turns: 3,
  warmUpSeconds: 4,
  ownHub: 'disturbs a hub that it starts',
  rows: [
    ...kinds.map(({ id, metric, name }): RowSpec => {
      const goal = { ratioMost }
      return { id, metric, name: `round trip p99 ${name}`, unit: 'ms', rival: 'least', goal }
    }),
    { id: 'P8e', metric: 'quietMs', name: 'round trip p99 at rest', unit: 'ms', rival: 'least' },
    {
      id: 'P8f',
      metric: 'grownMb',
      name: 'growth of the hub meanwhile',
      unit: 'MB',
      goal: { valueMost: 64 },
    },
  ],
  async enter(side, lab, agents) {
    const target = side === 'hub' ? await enterHub(lab, agents) : await lab.start(side)
    const devices = await lab.devices(target, agents)
    const fleet = await lab.fleet(target, devices)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))
    const asked = devices.filter(({ id }) => partOf(id, shards) !== blockedIndex)
    return async (seconds) => {
      const next = await commandRequests(target, asked, waitSeconds)
      const p99Ms = (span: number) => timedCommandsP99Ms(target, next, span)
      // Sealing what the turn before left would take half a core, and autovacuum another.
      await clearUp(target)
      // Of tables that were cleared up PostgreSQL plans every statement anew.
      await p99Ms(1)
      return measure(lab, p99Ms, seconds)
    }
  },
}

async function enterHub(lab: Lab, agents: number): Promise<Target> {
  await makeRelease(lab)
  const door = join(lab.folder, 'door')
  const target = await lab.start('hub', {
    program: 'bench/controlled_hub.ts',
    nodeFlags: ['--import', new URL('../blockable.ts', import.meta.url).href],
    env: { BENCH_DOOR: door, SHARDS: String(shards) },
  })
  const auditRows = agents * auditRowsPerAgent
  await fillAudit(target, lab, auditRows)
  disturbed.set(lab, { target, door, auditRows })
  return target
}

async function measure(
  lab: Lab,
  p99Ms: (seconds: number) => Promise<number>,
  seconds: number,
): Promise<Record<string, number>> {
  const hub = disturbed.get(lab)
  if (!hub) throw new Error('the hub enters first')
  const { target, door, auditRows } = hub
  const headers = await signIn(target.origin, target.credentials)
  const disturbances: Record<(typeof kinds)[number]['metric'], Disturbance> = {
    blockedMs: blockedShard(door, blockedIndex),
    exportMs: auditExport(target, headers, auditRows),
    loginsMs: logins(target),
    downloadsMs: pacedDownloads(target, lab),
  }
  const sample: Record<string, number> = { quietMs: await p99Ms(seconds) }
  const growth = watchGrowth(target.pid)
  try {
    for (const { metric, name } of kinds) {
      lab.progress.step(`isolation: ${name}`)
      const end = await disturbances[metric](seconds)
      try {
        sample[metric] = await p99Ms(seconds)
      } finally {
        await end()
      }
    }
  } finally {
    sample['grownMb'] = growth.stop()
  }
  return sample
}
