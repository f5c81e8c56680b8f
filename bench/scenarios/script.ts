// P7: a script on every connected device, from POST to the last committed result, while heartbeats flow and
// an operator reads lists. Beside it PostgreSQL alone with the same rows (`limits/rows.sql`).
import { readFileSync } from 'node:fs'
import pg from 'pg'
import { standingFleet } from '../fleet_phases.ts'
import { requestBytes } from '../http_connection.ts'
import { openLoop, refusals } from '../http_load.ts'
import { fillHubTables } from '../hub_tables.ts'
import type { Lab, Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { newScript } from '../script_runs.ts'
import type { Device } from '../sim_agent.ts'
import type { Measure, Scenario } from '../suite.ts'

const readsPerSecond = 50
const batchRows = 500

export const script: Scenario = {
  name: 'script',
  about: 'a script on 10,000 connected devices, POST to last result committed',
  rivals: ['rows'],
  agents: 10_000,
  seconds: 5,
  warmUpSeconds: 5,
  rows: [
    {
      id: 'P7a',
      name: 'script on every device, POST to last result',
      metric: 'seconds',
      unit: 's',
      goal: { valueMost: 1.5 },
    },
    {
      id: 'P7b',
      name: 'the same, beside PostgreSQL with the same rows alone',
      metric: 'seconds',
      unit: 's',
      rival: 'rows',
      goal: { ratioMost: 2 },
    },
    { id: 'P7c', name: 'devices page p99 meanwhile', metric: 'busyP99Ms', unit: 'ms' },
    { id: 'P7d', name: 'devices page p99 before it', metric: 'quietP99Ms', unit: 'ms' },
  ],
  async enter(side, lab, agents) {
    if (side === 'rows') return measureRows(lab, agents)
    const target = await lab.start(side)
    const { devices } = await standingFleet(lab, target, agents)
    return measureScript(target, devices, lab)
  },
}

function measureScript(target: Target, devices: readonly Device[], lab: Lab): Measure {
  return async (seconds) => {
    const headers = await signIn(target.origin, target.credentials)
    const page = requestBytes(target.origin, { method: 'GET', path: '/api/v1/devices', headers })
    const reads = {
      origin: target.origin,
      connections: 8,
      perSecond: readsPerSecond,
      next: () => page,
      good: ({ status }: { status: number }) => status === 200,
    }
    const uptime = await newScript(lab, target, devices)
    const quiet = await openLoop({ ...reads, seconds })

    // The reads begin with the script and go on for a while after its end.
    const busy = openLoop({ ...reads, seconds })
    const took = await uptime.run()
    const meanwhile = await busy
    await uptime.remove()
    const refused = refusals(quiet) ?? refusals(meanwhile)
    if (refused) throw new Error(`lists were refused: ${refused}`)
    lab.findings.latencies('hub', 'devices page before a script', quiet.latencies)
    lab.findings.latencies('hub', 'devices page during a script', meanwhile.latencies)
    return {
      seconds: took,
      quietP99Ms: quiet.latencies.ms(99),
      busyP99Ms: meanwhile.latencies.ms(99),
    }
  }
}

/** A database with the hub's tables and as many devices, and nobody but this bench in it. */
async function measureRows(lab: Lab, devices: number): Promise<Measure> {
  const database = await lab.rowsDatabase()
  await fillHubTables(database.url, devices)
  const client = new pg.Client({ connectionString: database.url })
  client.on('error', () => undefined)
  await client.connect()
  lab.defer(() => client.end())
  const text = readFileSync(new URL('../limits/rows.sql', import.meta.url), 'utf8')
  const statements = text.split(/^--\n/m)
  return async () => {
    const startedMs = performance.now()
    for (const statement of statements) {
      for (let batch = 0; batch * batchRows < devices; batch++) {
        await client.query(statement, [devices, batch])
      }
    }
    return { seconds: (performance.now() - startedMs) / 1000 }
  }
}
