// The list of devices by value: every filter in both orders, for everyone who may read it, beside the same
// choice made here. Enough devices that a common status and a rare one are found in different ways.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { limits } from '../src/limits.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { everyPage, makeOrganization, makeSite, signedIn, type Person } from './support/people.ts'

interface Row extends Record<string, unknown> {
  id: string
  orgId: string
  siteId: string
  hostname: string
  displayName: string | null
  os: string
  tags: string[]
  status: string
}

let hub: TestHub
let rows: Row[]
let orgs: string[]
let sites: string[]
let people: Record<'platform' | 'organization' | 'narrowed', Person>

before(async () => {
  hub = await startHub()
  orgs = [await makeOrganization(hub), await makeOrganization(hub)]
  const [first = '', second = ''] = orgs
  sites = await Promise.all([first, first, second].map((orgId) => makeSite(hub, orgId)))
  const { db } = hub.hub.ctx
  // Names come several times and in both cases; of each eighty devices one is decommissioned.
  await db.query(
    `insert into devices (id, org_id, site_id, hostname, display_name, os, arch, tags, token_hash)
     select id, case when n % 3 = 2 then $2::uuid else $1::uuid end, ($3::uuid[])[1 + n % 3],
       case n % 2 when 0 then 'Host-' else 'host-' end || md5((n / 4)::text), case when n % 7 = 0 then 'Till ' || n end,
       case n % 5 when 0 then 'darwin' else 'linux' end, 'arm64',
       case n % 4 when 0 then '{till,prod}' when 1 then '{prod}' else '{}' end::text[], sha256(n::text::bytea)
     from (select n, overlay(gen_random_uuid()::text placing left(uuid7_floor(now() + n * interval '1 millisecond')::text, 13)
       from 1)::uuid as id from generate_series(1, $4::int) n) ids`,
    [first, second, sites, limits.sortedRowsMax + 1000],
  )
  await db.query(
    `insert into device_presence (device_id, org_id, status)
     select id, org_id, case when n % 80 = 0 then 'decommissioned' else 'offline' end
     from (select id, org_id, row_number() over (order by id) as n from devices) d`,
  )
  rows = await db.query<Row>(
    `select d.id, d.org_id as "orgId", site_id as "siteId", hostname, display_name as "displayName", os, tags, status
     from devices d join device_presence p on p.device_id = d.id`,
  )
  people = {
    platform: await signedIn(hub, 'platform_admin'),
    organization: await signedIn(hub, 'viewer', { orgId: first }),
    narrowed: await signedIn(hub, 'viewer', { orgId: first, siteIds: sites.slice(0, 1) }),
  }
})
after(() => hub.close())

const startsWith = (text: string | null, prefix: string) =>
  text?.toLowerCase().startsWith(prefix.toLowerCase()) ?? false
const filters: Record<string, (row: Row) => boolean> = {
  '': () => true,
  'status=offline': ({ status }) => status === 'offline',
  'status=decommissioned': ({ status }) => status === 'decommissioned',
  'status=decommissioned&os=darwin': ({ status, os }) =>
    status === 'decommissioned' && os === 'darwin',
  'status=offline&tag=till': ({ status, tags }) => status === 'offline' && tags.includes('till'),
  'status=online': () => false,
  'os=darwin': ({ os }) => os === 'darwin',
  'tag=till': ({ tags }) => tags.includes('till'),
  'q=HOST-a': ({ hostname }) => startsWith(hostname, 'host-a'),
  'q=till%201': ({ displayName }) => startsWith(displayName, 'till 1'),
  'status=decommissioned&q=till': ({ status, displayName }) =>
    status === 'decommissioned' && startsWith(displayName, 'till'),
}
const visible: Record<keyof typeof people, (row: Row) => boolean> = {
  platform: () => true,
  organization: ({ orgId }) => orgId === orgs[0],
  narrowed: ({ siteId }) => siteId === sites[0],
}
const byId = (a: Row, b: Row) => (a.id < b.id ? 1 : -1)
const byName = (a: Row, b: Row) => {
  const [left, right] = [a.hostname.toLowerCase(), b.hostname.toLowerCase()]
  return left === right ? (a.id < b.id ? -1 : 1) : left < right ? -1 : 1
}

for (const who of Object.keys(visible) as (keyof typeof people)[]) {
  describe(`devices as ${who}`, () => {
    for (const [query, matches] of Object.entries(filters)) {
      for (const [sort, compare] of [
        ['newest', byId],
        ['hostname', byName],
      ] as const) {
        test(`${query || 'all'}, ${sort}`, () => compareList(who, query, matches, sort, compare))
      }
    }
    test('of one site and of one organization', async () => {
      const [site = '', org = ''] = [sites[0], orgs[0]]
      await compareList(who, `siteId=${site}`, ({ siteId }) => siteId === site, 'hostname', byName)
      const ofOrg = ({ orgId, status }: Row) => orgId === org && status === 'decommissioned'
      await compareList(who, `orgId=${org}&status=decommissioned`, ofOrg, 'hostname', byName)
    })
  })
}

async function compareList(
  who: keyof typeof people,
  query: string,
  matches: (row: Row) => boolean,
  sort: string,
  compare: (a: Row, b: Row) => number,
): Promise<void> {
  const expected = rows.filter((row) => visible[who](row) && matches(row)).toSorted(compare)
  const path = `/devices?${query}&sort=${sort}&limit=400`
  const { items } = await everyPage(hub, path, people[who].token)
  assert.deepEqual(
    items.map(({ id }) => id),
    expected.map(({ id }) => id),
  )
}
