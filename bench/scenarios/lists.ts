// P6 and the lists of large installations, for 100,000 devices, 1,000,000 commands and 1,000,000 audit rows, filters
// on, as those who may read them: what a page of devices costs beside the least it can (`limits/page.ts`), and what
// page 2,000 of a list costs beside its first page.
import { openDatabase } from '../../src/db.ts'
import { fillLarge, type LargeDatabase } from '../../test/support/large_database.ts'
import { HttpConnection, requestBytes, type Request } from '../http_connection.ts'
import { refusals } from '../http_load.ts'
import { cpuMs, type Lab, type Target } from '../lab.ts'
import { signIn, type Credentials } from '../operator.ts'
import { median, type RowSpec } from '../rows.ts'
import { saturate, saturationSecondsMax } from '../saturation.ts'
import { settled } from '../settled.ts'
import type { Measure, Scenario } from '../suite.ts'

/** Rows of a page that is measured; its place is reached by pages of `strideRows`. */
const pageRows = 50
const strideRows = 500
const deepRows = 2_000 * pageRows
/** Without work, before a filled hub is measured. */
const calmSeconds = 5
/** Of pages before those that are measured, at every side. */
const warmSeconds = 1
/** Who read pages of devices at a time, for P6. */
const readers = 8

type Who = 'platform' | 'organization' | 'narrowed'
interface List {
  id: string
  name: string
  who: Who
  path: (large: LargeDatabase) => string
}

const lists: List[] = [
  { id: 'L1', name: 'devices', who: 'platform', path: () => '/devices?' },
  { id: 'L2', name: 'devices by hostname', who: 'platform', path: () => '/devices?sort=hostname' },
  { id: 'L3', name: 'devices online', who: 'platform', path: () => '/devices?status=online' },
  { id: 'L4', name: 'devices of one system', who: 'platform', path: () => '/devices?os=linux' },
  { id: 'L5', name: 'devices with a tag', who: 'platform', path: () => '/devices?tag=prod' },
  { id: 'L6', name: "an organization's devices", who: 'organization', path: () => '/devices?' },
  {
    id: 'L7',
    name: "devices of a narrowed user's sites",
    who: 'narrowed',
    path: () => '/devices?status=online',
  },
  {
    id: 'L8',
    name: "a device's completed commands",
    who: 'organization',
    path: ({ deviceId }) => `/devices/${deviceId}/commands?status=completed`,
  },
  {
    id: 'L9',
    name: 'results of an execution',
    who: 'organization',
    path: ({ executionId }) => `/executions/${executionId}/results?`,
  },
  { id: 'L10', name: 'audit', who: 'platform', path: () => '/audit?' },
  {
    id: 'L11',
    name: 'audit of one kind of action',
    who: 'organization',
    path: () => '/audit?action=command.create',
  },
  {
    id: 'L12',
    name: 'resolved alerts of a narrowed user',
    who: 'narrowed',
    path: () => '/alerts?status=resolved',
  },
]

export const largeLists: Scenario = {
  name: 'lists',
  about: 'page 2,000 beside page 1 of lists at 100,000 devices, 1M commands and 1M audit rows',
  rivals: ['page'],
  agents: 100_000,
  secondsMax: saturationSecondsMax,
  seconds: 18,
  warmUpSeconds: 6,
  turns: 9,
  ownHub: 'fills the database of a hub that it starts',
  rows: [
    {
      id: 'P6a',
      name: 'CPU of hub and PostgreSQL per page of 50 devices of 100,000',
      metric: 'cpuUs',
      unit: 'µs',
      rival: 'page',
      goal: { ratioMost: 1.15 },
    },
    { id: 'P6b', name: 'of it PostgreSQL', metric: 'postgresUs', unit: 'µs', rival: 'page' },
    { id: 'P6c', name: 'pages read by 8 callers', metric: 'perSecond', unit: '/s', rival: 'page' },
    ...lists.flatMap(({ id, name }): RowSpec[] => [
      {
        id,
        name: `page 2,000 (or the last) : page 1, ${name}`,
        metric: `${id}ratio`,
        unit: '×',
        goal: { valueMost: 1.2 },
      },
      { id: `${id}t`, name: `page 1, ${name}`, metric: `${id}ms`, unit: 'ms' },
    ]),
  ],
  async enter(side, lab, devices) {
    const target = await lab.start(side)
    if (side === 'hub') {
      lab.progress.step(`${side}: filling the database; some minutes`)
      const large = await fill(target, devices)
      lab.progress.step(
        `${side}: waiting until it has sealed the audit and all else that the rows bring`,
      )
      await settled(target, calmSeconds)
      return measureLists(target, large, lab)
    }
    const request = onePage.get(lab)
    if (!request) throw new Error('the hub enters first: it fills the database')
    return (seconds) => measurePages(target, request, seconds / 2)
  },
}

/** The page that a run reads again and again, as the hub is asked for it. */
const onePage = new WeakMap<Lab, Request>()

async function measurePages(
  target: Target,
  request: Request,
  seconds: number,
): Promise<Record<string, number>> {
  const good = { status: 200, holds: `"hasMore":true` }
  const { origin } = target
  const pages = { origin, connections: readers, requests: [request], good }
  // Whatever else was read since the last time, the compiler is done with it.
  await saturate({ ...pages, seconds: Math.min(seconds, warmSeconds) })
  const before = cpuMs(target)
  const load = await saturate({ ...pages, seconds })
  const after = cpuMs(target)
  const refused = refusals(load)
  if (refused) throw new Error(`${target.side} did not show every page: ${refused}`)
  const perSecond = load.good / load.seconds
  if (!before || !after) return { perSecond }
  const programUs = ((after.program - before.program) * 1000) / load.good
  const postgresUs = ((after.postgres - before.postgres) * 1000) / load.good
  return { cpuUs: programUs + postgresUs, programUs, postgresUs, perSecond }
}

async function fill({ database }: Target, devices: number): Promise<LargeDatabase> {
  if (!database) throw new Error('only a hub of our own can be filled')
  const owner = openDatabase({
    url: database.url,
    name: 'fill',
    connections: 1,
    role: 'owner',
    statementMsMax: 600_000,
  })
  try {
    const rows = devices * 10
    const sizes = { devices, commands: rows, audit: rows, alerts: devices, others: 8_000 }
    const large = await fillLarge(owner, sizes)
    // Or PostgreSQL would do it by itself, in the middle of what is measured.
    await owner.query('vacuum (analyze)')
    return large
  } finally {
    await owner.close()
  }
}

interface Place {
  id: string
  first: Buffer
  deep: Buffer
}

async function measureLists(target: Target, large: LargeDatabase, lab: Lab): Promise<Measure> {
  const { origin } = target
  const platform = await signIn(origin, target.credentials)
  const [orgId] = large.orgIds
  const invite = (more: { email: string; siteIds?: string[] }) =>
    invited(origin, platform, { orgId, role: 'auditor', ...more })
  const people: Record<Who, { Authorization: string }> = {
    platform,
    organization: await signIn(origin, await invite({ email: 'auditor@example.com' })),
    narrowed: await signIn(
      origin,
      await invite({ email: 'narrowed@example.com', siteIds: large.siteIds }),
    ),
  }
  const page: Request = {
    method: 'GET',
    path: `/api/v1/devices?orgId=${orgId}&status=online&os=linux&limit=${pageRows}`,
    headers: people.organization,
  }
  onePage.set(lab, page)
  const connection = await HttpConnection.open(origin)
  lab.defer(() => connection.close())
  const bytes = (who: Who, path: string) =>
    requestBytes(origin, { method: 'GET', path: `/api/v1${path}`, headers: people[who] })

  const places: Place[] = []
  for (const { id, name, who, path } of lists) {
    lab.progress.step(`lists: going to page 2,000 of ${name}`)
    const at = (limit: number, cursor?: string) =>
      bytes(who, `${path(large)}&limit=${limit}${cursor ? `&cursor=${cursor}` : ''}`)
    let cursor: string | undefined
    for (let rows = strideRows; rows < deepRows; rows += strideRows) {
      const next = (await read(connection, at(strideRows, cursor))).pagination.cursor
      if (next === null) break
      cursor = next
    }
    places.push({ id, first: at(pageRows), deep: at(pageRows, cursor) })
  }
  return async (seconds) => {
    const sample = await measurePages(target, page, seconds / 2)
    for (const { id, first, deep } of places) {
      const took = { first: [] as number[], deep: [] as number[] }
      const endMs = performance.now() + (seconds * 1000) / places.length
      // At least enough for a median, however slow.
      while (performance.now() < endMs || took.deep.length < 15) {
        took.first.push(await timed(connection, first))
        took.deep.push(await timed(connection, deep))
      }
      const firstMs = median(took.first) ?? 0
      sample[`${id}ms`] = firstMs
      sample[`${id}ratio`] = (median(took.deep) ?? 0) / firstMs
    }
    return sample
  }
}

async function timed(connection: HttpConnection, request: Buffer): Promise<number> {
  const startedMs = performance.now()
  const { status, body } = await connection.send(request)
  const took = performance.now() - startedMs
  if (status !== 200) throw new Error(`a list was refused: ${status} ${body}`)
  return took
}

interface Page {
  pagination: { cursor: string | null }
}

async function read(connection: HttpConnection, request: Buffer): Promise<Page> {
  const { status, body } = await connection.send(request)
  if (status !== 200) throw new Error(`a list was refused: ${status} ${body}`)
  return JSON.parse(body) as Page
}

/** A new user, by invitation. */
async function invited(
  origin: string,
  headers: { Authorization: string },
  user: { email?: string; orgId: string; role: string; siteIds?: string[] },
): Promise<Credentials> {
  const post = async (path: string, body: object): Promise<Record<string, string>> => {
    const answer = await fetch(`${origin}/api/v1${path}`, {
      method: 'POST',
      headers: { ...headers, 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
    if (!answer.ok) throw new Error(`POST ${path}: ${answer.status} ${await answer.text()}`)
    return (await answer.json()) as Record<string, string>
  }
  const { inviteUrl = '' } = await post('/users/invite', user)
  const token = new URL(inviteUrl).hash.slice('#token='.length)
  const password = 'a password of a bench'
  await post('/auth/accept-invite', { token, password })
  return { email: user.email ?? '', password, enrollmentSecret: '' }
}
