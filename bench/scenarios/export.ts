// P8b: an export of 1,000,000 audit rows: how much the hub grows, and what other requests notice of it.
import { requestBytes } from '../http_connection.ts'
import { openLoop, refusals } from '../http_load.ts'
import type { Target } from '../lab.ts'
import { signIn } from '../operator.ts'
import { rssBytes } from '../proc.ts'
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
    lab.progress.step(`${side}: adding ${rows} audit rows`)
    await target.database?.read(
      `insert into audit (id, org_id, at, actor_type, actor_email, action, resource_type,
         resource_id, result, ip, user_agent, request_id, details)
       select overlay(gen_random_uuid()::text
           placing left(uuid7_floor(now() - n * interval '1 millisecond')::text, 13) from 1)::uuid,
         o.id, now(), 'user', 'bench@example.com', 'command.create', 'command', n::text, 'success',
         '127.0.0.1', 'bench', 'bench-' || n, '{"after": {"action": "run_command"}}'
       from (select id from organizations limit 1) o, generate_series(1, ${rows}) as n`,
    )
    await target.database?.read('analyze audit')
    return measureExport(target)
  },
}

function measureExport(target: Target): Measure {
  return async (seconds) => {
    const { origin, pid } = target
    const headers = await signIn(origin, target.credentials)
    const page = requestBytes(origin, { method: 'GET', path: '/api/v1/devices', headers })
    const good = ({ status }: { status: number }) => status === 200
    const load = { origin, connections: 8, perSecond: readsPerSecond, next: () => page, good }
    const quiet = await openLoop({ ...load, seconds })

    const before = pid === undefined ? 0 : rssBytes(pid)
    let most = before
    const watch = setInterval(() => {
      if (pid !== undefined) most = Math.max(most, rssBytes(pid))
    }, 100)
    const startedMs = performance.now()
    const busy = openLoop({ ...load, seconds })
    const lines = await exportedLines(origin, headers)
    const took = (performance.now() - startedMs) / 1000
    clearInterval(watch)
    if (lines < rows) throw new Error(`the export holds ${lines} lines, not ${rows}`)
    const meanwhile = await busy
    const refused = refusals(quiet) ?? refusals(meanwhile)
    if (refused) throw new Error(`lists were refused: ${refused}`)
    return {
      grownMb: (most - before) / 2 ** 20,
      perSecond: lines / took,
      quietP99Ms: quiet.latencies.ms(99),
      busyP99Ms: meanwhile.latencies.ms(99),
    }
  }
}

/** Counts line ends, keeps nothing. */
async function exportedLines(origin: string, headers: Record<string, string>): Promise<number> {
  const answer = await fetch(`${origin}/api/v1/audit/export`, { headers })
  if (!answer.ok || !answer.body) throw new Error(`the export was refused: ${answer.status}`)
  let lines = 0
  for await (const chunk of answer.body) {
    const bytes = Buffer.from(chunk)
    for (let at = bytes.indexOf(10); at !== -1; at = bytes.indexOf(10, at + 1)) lines++
  }
  return lines
}
