// Every list stays as fast at depth as on its first page, whatever it is filtered by, for everyone who may read
// it. Judged by what PostgreSQL reads for the statements that the routes send, not by time.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import pg from 'pg'
import { connection, openDatabase, textArray, type Queryable } from '../src/db.ts'
import { routes } from '../src/resources/index.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { fillLarge, type LargeDatabase } from './support/large_database.ts'
import { call, signedIn, type Person } from './support/people.ts'

let hub: TestHub
/** As the hub's own connections for lists: those that plan each, and those that keep their plans. */
let planning: pg.Client
let keeping: pg.Client
let large: LargeDatabase
/** Who asks: over all organizations, over the largest or the smallest, or over five sites of the largest. */
let people: Record<'platform' | 'large' | 'small' | 'narrowed', Person>

/** Pages of 500 to the place that is compared with the first page, unless the list ends before. */
const deepPages = 8
const pageRows = 50
/** A page with all that is looked up for its rows; a list that reads on past it reads tens of thousands. */
const rowsReadMax = 3_000
/** Ten per row: rows that lie apart, where those of the first page lie together. */
const buffersMore = 10 * pageRows

before(async () => {
  hub = await startHub()
  const { url } = hub.database
  const options = { name: 'fill', connections: 1, role: 'owner', statementMsMax: 120_000 } as const
  const owner = openDatabase({ url, ...options })
  const others = 8_000
  large = await fillLarge(owner, {
    devices: 50_000,
    commands: 100_000,
    audit: 100_000,
    alerts: 50_000,
    others,
  })
  await owner.close()
  const [first, , last] = large.orgIds
  people = {
    platform: await signedIn(hub, 'platform_admin'),
    large: await signedIn(hub, 'org_admin', { orgId: first }),
    small: await signedIn(hub, 'org_admin', { orgId: last }),
    narrowed: await signedIn(hub, 'auditor', { orgId: first, siteIds: large.siteIds }),
  }
  planning = new pg.Client(connection({ url, name: 'plans', planEach: true }))
  keeping = new pg.Client(connection({ url, name: 'plans', planOnce: true }))
  await Promise.all([planning.connect(), keeping.connect()])
})
after(async () => {
  await Promise.all([planning.end(), keeping.end()])
  await hub.close()
})

type Who = keyof typeof people
interface Row {
  who: Who[]
  /** Queries, without limit and cursor. */
  queries: string[]
  path?: () => string
  /** No index has these rows in the order of the list: a page may read all that it looks through. */
  search?: true
}

const everyone: Who[] = ['platform', 'large', 'small', 'narrowed']
const wide: Who[] = ['platform', 'large', 'small']

const lists: Record<string, Row[]> = {
  listDevices: [
    { who: everyone, queries: ['', 'sort=hostname'] },
    {
      who: wide,
      queries: [
        'status=online',
        'status=offline',
        'status=decommissioned',
        'os=linux',
        'os=darwin',
        'os=linux&sort=hostname',
      ],
    },
    { who: ['platform'], queries: ['orgId={org}', 'orgId={org}&status=offline'] },
    {
      who: ['platform', 'large', 'narrowed'],
      queries: ['siteId={site}', 'siteId={site}&sort=hostname'],
    },
    {
      search: true,
      who: everyone,
      queries: [
        'tag=prod',
        'tag=lab',
        'tag=none',
        'q=host-',
        'q=lab-',
        'q=host-0001',
        'q=nothing',
        'status=offline',
        'os=darwin',
      ].flatMap((query) => [query, `${query}&sort=hostname`]),
    },
    { search: true, who: wide, queries: ['q=till', 'q=till&sort=hostname'] },
    { search: true, who: ['platform', 'narrowed'], queries: ['siteId={site}&status=offline'] },
  ],
  listCommands: [
    {
      who: ['platform', 'large', 'narrowed'],
      path: () => `/devices/${large.deviceId}/commands`,
      queries: ['', 'status=completed', 'status=failed', 'status=pending', 'status=expired'],
    },
  ],
  listTerminals: [
    {
      who: ['platform', 'large', 'narrowed'],
      path: () => `/devices/${large.deviceId}/terminals`,
      queries: [''],
    },
  ],
  listAlerts: [
    {
      who: everyone,
      queries: [
        '',
        'status=active',
        'status=acknowledged',
        'status=resolved',
        'severity=low',
        'severity=critical',
        'kind=cpu_high',
        'kind=disk_high',
        'kind=auth_abuse',
        'deviceId={device}',
      ],
    },
    { who: ['platform'], queries: ['orgId={org}', 'orgId={org}&status=active'] },
    { who: ['platform', 'large', 'narrowed'], queries: ['siteId={site}'] },
  ],
  listOrganizations: [{ who: wide, queries: [''] }],
  listSites: [
    { who: everyone, queries: [''] },
    { who: ['platform'], queries: ['orgId={org}'] },
  ],
  listEnrollmentKeys: [
    {
      who: ['platform', 'large'],
      path: () => `/sites/${large.siteIds[0]}/enrollment-keys`,
      queries: [''],
    },
  ],
  listUsers: [
    {
      who: everyone,
      queries: [
        '',
        'status=active',
        'status=invited',
        'role=viewer',
        'role=auditor',
        'q=user',
        'q=user77',
      ],
    },
    { who: ['platform'], queries: ['orgId={org}'] },
  ],
  listScripts: [
    { who: everyone, queries: [''] },
    { who: ['platform', 'large'], queries: ['orgId={org}'] },
  ],
  listExecutions: [
    { who: everyone, queries: [''] },
    { who: ['platform', 'large', 'narrowed'], queries: ['scriptId={script}'] },
    { who: ['platform'], queries: ['orgId={org}'] },
  ],
  listExecutionResults: [
    {
      who: ['platform', 'large'],
      path: () => `/executions/${large.executionId}/results`,
      queries: [''],
    },
  ],
  listRollouts: [
    { who: wide, queries: [''] },
    { who: ['platform'], queries: ['orgId={org}'] },
  ],
  listRolloutDevices: [
    {
      who: ['platform', 'large'],
      path: () => `/agents/rollouts/${large.rolloutId}/devices`,
      queries: [
        '',
        'status=failed',
        'status=completed',
        'group=1',
        'group=3',
        'group=2&status=completed',
      ],
    },
  ],
  listAudit: [
    {
      who: everyone,
      queries: [
        '',
        'from=2020-01-01T00:00:00Z',
        'to=2100-01-01T00:00:00Z',
        'actorId={actor}',
        'action=command.create',
        'action=none',
        'resourceType=command',
        'resourceId={device}',
        'result=success',
        'result=denied',
        'deviceId={device}',
      ],
    },
    { who: ['platform'], queries: ['orgId={org}', 'action=site.update', 'resourceType=site'] },
    {
      search: true,
      who: everyone,
      queries: ['action=site.update', 'action=site.*', 'resourceType=site'],
    },
  ],
  listWebhooks: [
    { who: wide, queries: [''] },
    { who: ['platform'], queries: ['orgId={org}'] },
  ],
  listWebhookDeliveries: [
    {
      who: ['platform', 'large'],
      path: () => `/webhooks/${large.webhookId}/deliveries`,
      queries: [''],
    },
  ],
}

// Found by walks of indexes that end early, or by a search where those found too few.
for (const filters of [
  'status=online&os=linux',
  'status=offline&os=windows',
  'status=decommissioned&os=darwin',
  'status=online&tag=till',
  'os=darwin&tag=lab',
  'status=offline&os=linux&tag=lab',
  'status=online&os=darwin',
]) {
  test(`all devices with ${filters} are shown, newest first`, async () => {
    const [org] = large.orgIds
    const wanted = Object.fromEntries(new URLSearchParams(filters))
    const { status = null, os = null, tag = null } = wanted
    const { rows } = await planning.query<{ id: string }>(
      `select d.id from devices d join device_presence p on p.device_id = d.id
       where d.org_id = $1 and ($2::text is null or p.status = $2) and ($3::text is null or d.os = $3)
         and ($4::text is null or $4 = any(d.tags)) order by d.id desc`,
      [org, status, os, tag],
    )
    assert.equal(rows.length > 0, filters !== 'status=online&os=darwin')
    const shown: string[] = []
    let cursor: string | null = null
    do {
      const path = `/devices?${filters}&limit=500${cursor ? `&cursor=${cursor}` : ''}`
      const answer = await call(hub, 'GET', path, { token: people.large.token })
      assert.equal(answer.status, 200, answer.text)
      const { data, pagination } = answer.body as Shown
      shown.push(...data.map(({ id }) => id))
      cursor = pagination.cursor
    } while (cursor !== null && shown.length < 10_000)
    assert.deepEqual(
      shown,
      rows.slice(0, shown.length).map(({ id }) => id),
    )
    assert.ok(cursor !== null || shown.length === rows.length)
  })
}

interface Shown {
  data: { id: string }[]
  pagination: { cursor: string | null }
}

const listRoutes = routes.filter(({ query }) => query && 'cursor' in query.schema.properties)

test('every list of the route table is looked at, with each of its filters', () => {
  for (const { name, query } of listRoutes) {
    const rows = lists[name]
    assert.ok(rows, `${name} has no row here`)
    const asked = new Set(
      rows.flatMap(({ queries }) =>
        queries.flatMap((text) => [...new URLSearchParams(text).keys()]),
      ),
    )
    for (const filter of Object.keys(query?.schema.properties ?? {})) {
      if (filter === 'limit' || filter === 'cursor') continue
      assert.ok(asked.has(filter), `${name} is not asked with ${filter}`)
    }
  }
})

for (const { name, path } of listRoutes) {
  describe(name, () => {
    for (const row of lists[name] ?? []) {
      for (const who of row.who) {
        for (const query of row.queries) {
          test(`as ${who} with ${query || 'no filter'}`, () =>
            isFlat(row, row.path?.() ?? path, who, query))
        }
      }
    }
  })
}

async function isFlat({ search }: Row, path: string, who: Who, query: string): Promise<void> {
  const [org] = large.orgIds
  const ids: Record<string, string> = {
    org,
    site: large.siteIds[0] ?? '',
    device: large.deviceId,
    script: large.scriptId,
    actor: large.actorId,
  }
  const filters = query.replace(/{(\w+)}/g, (_, id: string) => ids[id] ?? '')
  const get = async (more: string) => {
    const answer = await call(hub, 'GET', `${path}?${filters}&${more}`, {
      token: people[who].token,
    })
    assert.equal(answer.status, 200, answer.text)
    return answer.body.pagination.cursor as string | null
  }
  const first = await pageCost(() => get(`limit=${pageRows}`))
  let cursor: string | undefined
  for (let page = 0; page < deepPages; page++) {
    // The last page may be short: the one before it is the deepest that compares.
    const next = await get(`limit=500${cursor ? `&cursor=${cursor}` : ''}`)
    if (next === null) break
    cursor = next
  }
  const deep =
    cursor === undefined ? first : await pageCost(() => get(`limit=${pageRows}&cursor=${cursor}`))
  for (const [place, cost] of search ? [] : Object.entries({ first, deep })) {
    assert.ok(cost.rowsRead <= rowsReadMax, `the ${place} page reads ${cost.rowsRead} rows`)
    assert.ok(cost.sorted <= rowsReadMax, `the ${place} page sorts ${cost.sorted} rows`)
  }
  assert.ok(
    deep.buffers <= first.buffers * 1.2 + buffersMore,
    `a deep page reads ${deep.buffers} buffers, the first ${first.buffers}`,
  )
}

interface Cost {
  rowsRead: number
  sorted: number
  buffers: number
}

/** What the statements of one request read, planned as the hub's connection plans them. */
async function pageCost(ask: () => Promise<unknown>): Promise<Cost> {
  const sent = await captured(ask)
  const cost: Cost = { rowsRead: 0, sorted: 0, buffers: 0 }
  for (const statement of sent) {
    const root = await explain(statement)
    cost.buffers += root['Shared Hit Blocks'] + root['Shared Read Blocks']
    for (const node of nodesOf(root)) {
      const loops = node['Actual Loops']
      if (node['Relation Name'] !== undefined || node['Node Type'] === 'Bitmap Index Scan') {
        cost.rowsRead += loops * (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0))
      }
      if (/Sort/.test(node['Node Type'])) {
        cost.sorted += loops * (node.Plans?.[0]?.['Actual Rows'] ?? 0)
      }
    }
  }
  return cost
}

interface Statement {
  client: pg.Client
  text: string
  values: readonly unknown[]
}

/** The statements that a request sends by the pools that lists are read with. */
async function captured(ask: () => Promise<unknown>): Promise<Statement[]> {
  const { db, auditDb, commandDb } = hub.hub.ctx
  const sent: Statement[] = []
  const pools: Queryable[] = [db, auditDb, commandDb]
  const originals = pools.map((pool) => {
    const client = pool === commandDb ? keeping : planning
    const original = pool.query.bind(pool)
    pool.query = (text, values = []) => {
      sent.push({ client, text, values })
      return original(text, values)
    }
    return () => (pool.query = original)
  })
  try {
    await ask()
  } finally {
    for (const restore of originals) restore()
  }
  return sent.filter(({ text }) => /\blimit\b/.test(text))
}

interface Plan {
  'Node Type': string
  'Relation Name'?: string
  'Actual Rows': number
  'Actual Loops': number
  'Rows Removed by Filter'?: number
  'Shared Hit Blocks': number
  'Shared Read Blocks': number
  Plans?: Plan[]
}

async function explain({ client, text, values }: Statement): Promise<Plan> {
  await client.query(`prepare page as ${text}`)
  try {
    const given = values.length > 0 ? `(${values.map(literal).join(', ')})` : ''
    const { rows } = await client.query<{ 'QUERY PLAN': { Plan: Plan }[] }>(
      `explain (analyze, buffers, timing off, format json) execute page${given}`,
    )
    const root = rows[0]?.['QUERY PLAN'][0]?.Plan
    assert.ok(root)
    return root
  } finally {
    await client.query('deallocate page')
  }
}

function literal(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return pg.escapeLiteral(textArray(value as string[]))
  return typeof value === 'number' ? `${value}` : pg.escapeLiteral(value as string)
}

function nodesOf(node: Plan): Plan[] {
  return [node, ...(node.Plans ?? []).flatMap(nodesOf)]
}
