// P8b: an export of 1,000,000 audit rows: how much the hub grows, and what other requests notice of it.
import { exportedLines, fillAudit, shortExport } from '../disturbances.ts'
import { requestBytes } from '../http_connection.ts'
import { openLoop, refusals } from '../http_load.ts'
import type { Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { watchGrowth } from '../rss_watch.ts'
import type { Measure, Scenario } from '../suite.ts'

const rows = 1_000_000
const readsPerSecond = 50

export const auditExport: Scenario = {
  name: 'export',
  about: 'an export of 1,000,000 audit rows, while an operator reads lists',
  rivals: [],
  agents: 100,
  seconds: 8,
  warmUpSeconds: 2,
  ownHub: 'fills the database of a hub that it starts',
  rows: [
    {
      id: 'P8b1',
      name: 'growth of the hub during an export of 1,000,000 audit rows',
      metric: 'grownMb',
      unit: 'MB',
      goal: { valueMost: 50 },
    },
    { id: 'P8b2', name: 'rows exported', metric: 'perSecond', unit: '/s' },
    { id: 'P8b3', name: 'devices page p99 meanwhile', metric: 'busyP99Ms', unit: 'ms' },
    { id: 'P8b4', name: 'devices page p99 before it', metric: 'quietP99Ms', unit: 'ms' },
  ],
  async enter(side, lab, agents) {
    const target = await lab.start(side)
    await lab.devices(target, agents)
    await fillAudit(target, lab, rows)
    return measureExport(target)
  },
}

function measureExport(target: Target): Measure {
  return async (seconds) => {
    const { origin } = target
    const headers = await signIn(origin, target.credentials)
    const page = requestBytes(origin, { method: 'GET', path: '/api/v1/devices', headers })
    const good = ({ status }: { status: number }) => status === 200
    const load = { origin, connections: 8, perSecond: readsPerSecond, next: () => page, good }
    const quiet = await openLoop({ ...load, seconds })

    const growth = watchGrowth(target.pid)
    const startedMs = performance.now()
    const busy = openLoop({ ...load, seconds })
    const lines = await exportedLines(origin, headers)
    const took = (performance.now() - startedMs) / 1000
    const grownMb = growth.stop()
    if (lines < rows) throw shortExport(lines, rows)
    const meanwhile = await busy
    const refused = refusals(quiet) ?? refusals(meanwhile)
    if (refused) throw new Error(`lists were refused: ${refused}`)
    return {
      grownMb,
      perSecond: lines / took,
      quietP99Ms: quiet.latencies.ms(99),
      busyP99Ms: meanwhile.latencies.ms(99),
    }
  }
}
