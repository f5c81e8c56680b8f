// P7: a script on every connected device, from POST to the last committed result, while heartbeats flow and
// an operator reads lists. Beside it PostgreSQL alone with the same rows (`limits/rows.sql`).
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { migrate } from '../../src/migrate.ts'
import { startDatabase } from '../database.ts'
import { standingFleet } from '../fleet_phases.ts'
import { requestBytes } from '../http_connection.ts'
import { openLoop, refusals } from '../http_load.ts'
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
    const uptime = await newScript(target, devices)
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
  const database = await lab.starting(() => startDatabase(join(lab.folder, 'rows-postgres'), false))
  lab.defer(() => database.stop())
  const root = new URL('../..', import.meta.url).pathname
  await migrate({
    connectionString: database.url,
    hubVersion: '0.1.0',
    directory: join(root, 'migrations'),
  })
  const client = new pg.Client({ connectionString: database.url })
  client.on('error', () => undefined)
  await client.connect()
  lab.defer(() => client.end())
  const [orgId, siteId] = [randomUUID(), randomUUID()]
  await client.query(`insert into organizations (id, name, slug) values ($1, 'o', 'o')`, [orgId])
  await client.query(`insert into sites (id, org_id, name) values ($1, $2, 's')`, [siteId, orgId])
  await client.query(
    `insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
     select gen_random_uuid(), $1, $2, 'h', 'linux', 'amd64', sha256(n::text::bytea)
     from generate_series(1, $3::int) as n`,
    [orgId, siteId, devices],
  )
  await client.query(
    'insert into device_presence (device_id, org_id) select id, org_id from devices',
  )
  await client.query('vacuum analyze')
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
