// Searching and exporting the audit, through the door of the hub.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { auditOf, insertAudit, type AuditEntry } from '../src/audit.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { idFloor, newId } from '../src/ids.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  auditOfResource,
  call,
  everyPage,
  makeOrganization,
  makeSite,
  outcome,
  signedIn,
  type Person,
} from './support/people.ts'
import { addDevice } from './support/rows.ts'

let hub: TestHub
let owner: Database
let platform: Person
let orgId: string
let auditor: Person
let stranger: Person

before(async () => {
  hub = await startHub()
  owner = openDatabase({
    url: hub.database.url,
    name: 'test',
    connections: 1,
    role: 'owner',
    statementMsMax: 60_000,
  })
  platform = await signedIn(hub, 'platform_admin')
  orgId = await makeOrganization(hub)
  auditor = await signedIn(hub, 'auditor', { orgId })
  stranger = await signedIn(hub, 'org_admin', { orgId: await makeOrganization(hub, 'Other') })
})
after(async () => {
  await owner.close()
  await hub.close()
})

function entry(overrides: Partial<AuditEntry> = {}): AuditEntry {
  const source = { ip: '192.0.2.7', userAgent: 'test', requestId: 'r-1' }
  const subject = { action: 'site.create', resourceType: 'site', resourceId: newId(), orgId }
  return { ...auditOf(source, subject), ...overrides }
}

async function add(...overrides: Partial<AuditEntry>[]): Promise<string[]> {
  const entries = overrides.map(entry)
  await insertAudit(hub.hub.ctx.db, entries)
  return entries.map(({ id }) => id)
}

const search = (query: string, { token } = auditor) => call(hub, 'GET', `/audit${query}`, { token })

async function idsOf(query: string, person = auditor): Promise<string[]> {
  const answer = await search(query, person)
  assert.equal(answer.status, 200, answer.text)
  return answer.body.data.map((item: { id: string }) => item.id)
}

test('an entry is told with all that it holds, newest first', async () => {
  const details = { before: { name: 'a' }, after: { name: 'b' } }
  const written = entry({ actorId: newId(), actorEmail: 'ann@example.org', details })
  await insertAudit(hub.hub.ctx.db, [written])
  const [later] = await add({ resourceId: written.resourceId })
  const { body } = await search(`?resourceId=${written.resourceId}`)
  assert.deepEqual(body.data[1], {
    id: written.id,
    orgId,
    at: new Date(written.atMs).toISOString(),
    actorType: 'user',
    actorId: written.actorId,
    actorEmail: 'ann@example.org',
    action: 'site.create',
    resourceType: 'site',
    resourceId: written.resourceId,
    result: 'success',
    ip: '192.0.2.7',
    userAgent: 'test',
    requestId: 'r-1',
    details,
  })
  assert.equal(body.data[0].id, later)
})

test('each filter finds its rows and no others', async () => {
  const organization = await makeOrganization(hub)
  const person = await signedIn(hub, 'org_admin', { orgId: organization })
  const [actorId, deviceId, commandId] = [newId(), newId(), newId()]
  const day = Date.UTC(2026, 5, 1)
  const rows: Record<string, Partial<AuditEntry>> = {
    actor: { actorId },
    device: { deviceId, action: 'device.update', resourceType: 'device' },
    created: { action: 'command.create', resourceType: 'command', resourceId: commandId },
    cancelled: { action: 'command.cancel', resourceType: 'command', resourceId: commandId },
    login: { action: 'user.login', resourceType: 'user', resourceId: 'x%_\\', result: 'failure' },
    // A hub whose clock is not that of the ids.
    old: { atMs: day, id: idFloor(day - 60_000).slice(0, 24) + newId().slice(24) },
  }
  await owner.query(
    `select make_partition('audit', '2026-05-01'), make_partition('audit', '2026-06-01')`,
  )
  const ids = await add(...Object.values(rows).map((row) => ({ ...row, orgId: organization })))
  const names = new Map(ids.map((id, index) => [id, Object.keys(rows)[index]]))
  const found = async (query: string) =>
    (await idsOf(`?${query}`, person)).map((id) => names.get(id) ?? id).toSorted()
  const expected: [string, string[]][] = [
    [`actorId=${actorId}`, ['actor']],
    [`deviceId=${deviceId}`, ['device']],
    ['action=command.create', ['created']],
    ['action=command.*', ['cancelled', 'created']],
    ['action=c*', ['cancelled', 'created']],
    ['action=user.login', ['login']],
    ['action=user*', ['login']],
    ['action=us_r*', []],
    ['action=*', Object.keys(rows).toSorted()],
    ['resourceType=command', ['cancelled', 'created']],
    ['resourceType=device', ['device']],
    [`resourceId=${commandId}`, ['cancelled', 'created']],
    [`resourceId=${commandId.toUpperCase()}`, ['cancelled', 'created']],
    [`resourceId=${encodeURIComponent('x%_\\')}`, ['login']],
    ['result=failure', ['login']],
    ['result=denied', []],
    [`orgId=${organization}`, Object.keys(rows).toSorted()],
    [`orgId=${orgId}`, []],
    ['to=2026-06-01T00:00:00.001Z', ['old']],
    ['to=2026-06-01T02:00:00%2B02:00', []],
    ['from=2026-06-01T00:00:00Z&to=2026-06-02T00:00:00Z', ['old']],
    ['from=2026-06-01T00:00:00.001Z&result=failure', ['login']],
    [`action=command.*&resourceId=${commandId}&resourceType=command&actorId=${actorId}`, []],
  ]
  for (const [query, rowNames] of expected) assert.deepEqual(await found(query), rowNames, query)
})

test('a filter that can not be is refused by name', async () => {
  const queries: [string, string][] = [
    ['from=yesterday', '/query/from'],
    ['to=2026-13-01T00:00:00Z', '/query/to'],
    ['from=2026-06-02T00:00:00Z&to=2026-06-01T00:00:00Z', '/query/to'],
    ['actorId=ann', '/query/actorId'],
    ['action=', '/query/action'],
    ['action=*.create', '/query/action'],
    [`resourceId=${'x'.repeat(256)}`, '/query/resourceId'],
    ['result=maybe', '/query/result'],
    ['orgId=acme', '/query/orgId'],
    ['deviceId=1', '/query/deviceId'],
    ['colour=red', '/query/colour'],
  ]
  for (const path of ['', '/export']) {
    for (const [query, field] of queries) {
      const answer = await search(`${path}?${query}`)
      assert.equal(outcome(answer), '400 VALIDATION_ERROR', query)
      assert.equal(answer.body.error.details[0].path, field)
    }
  }
  assert.equal(outcome(await search('/export?format=xml')), '400 VALIDATION_ERROR')
  assert.equal(outcome(await search('/export?limit=5')), '400 VALIDATION_ERROR')
  // Times no calendar of ours holds are bounds like others.
  assert.equal((await search('?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z')).status, 200)
})

test('another organization’s rows and the platform’s are seen by the platform alone', async () => {
  const [ours] = await add({})
  const [theirs] = await add({ orgId: stranger.orgId })
  const [platforms] = await add({ orgId: null })
  const of = async (person: Person) => {
    const { items } = await everyPage(hub, '/audit?limit=500', person.token)
    return [ours, theirs, platforms].map((id) => items.some((item) => item.id === id))
  }
  assert.deepEqual(await of(auditor), [true, false, false])
  assert.deepEqual(await of(stranger), [false, true, false])
  assert.deepEqual(await of(platform), [true, true, true])
})

test('admins and auditors read it, others do not, and whoever tried is in it', async () => {
  for (const role of ['technician', 'viewer'] as const) {
    const person = await signedIn(hub, role, { orgId })
    for (const path of ['', '/export', '/verify']) {
      assert.equal(outcome(await search(path, person)), '403 FORBIDDEN')
    }
    const denied = await idsOf(`?actorId=${person.id}&result=denied&action=request.denied`)
    assert.equal(denied.length, 3)
  }
  assert.equal(outcome(await call(hub, 'GET', '/audit')), '401 UNAUTHENTICATED')
})

test('who is narrowed to sites sees the rows of the devices there, and verifies nothing', async () => {
  const [mine, other] = [await makeSite(hub, orgId), await makeSite(hub, orgId)]
  const device = await addDevice(hub.hub.ctx.db, { orgId, siteId: mine })
  const elsewhere = await addDevice(hub.hub.ctx.db, { orgId, siteId: other })
  const [seen] = await add({ deviceId: device })
  const [, unseen] = await add({}, { deviceId: elsewhere })
  const narrowed = await signedIn(hub, 'auditor', { orgId, siteIds: [mine] })
  assert.deepEqual(await idsOf('', narrowed), [seen])
  assert.deepEqual(await idsOf(`?deviceId=${elsewhere}`, narrowed), [])
  assert.deepEqual(await idsOf(`?deviceId=${elsewhere}`), [unseen])
  const file = await search('/export?format=ndjson', narrowed)
  assert.deepEqual(
    file.text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).id),
    [seen],
  )
  assert.equal(outcome(await search('/verify', narrowed)), '403 FORBIDDEN')
})

test('pages follow each other without gap, and a cursor is nobody else’s', async () => {
  const resourceId = newId()
  const ids = await add(...Array.from({ length: 7 }, () => ({ resourceId })))
  const { items, pages } = await everyPage(
    hub,
    `/audit?limit=3&resourceId=${resourceId}`,
    auditor.token,
  )
  assert.deepEqual(
    items.map(({ id }) => id),
    ids.toReversed(),
  )
  assert.equal(pages, 3)
  const { body } = await search(`?limit=3&resourceId=${resourceId}`)
  const cursor: string = body.pagination.cursor
  const flipped = `${cursor.slice(0, 30)}${cursor[30] === 'A' ? 'B' : 'A'}${cursor.slice(31)}`
  const sites = (await call(hub, 'GET', '/sites?limit=1', platform)).body.pagination.cursor
  for (const [query, person] of [
    [`resourceId=${resourceId}&cursor=${flipped}`, auditor],
    [`resourceId=${resourceId}&cursor=${cursor.slice(0, -1)}`, auditor],
    [`resourceId=${resourceId}&cursor=e30`, auditor],
    [`resourceId=${resourceId}&action=x&cursor=${cursor}`, auditor],
    [`cursor=${cursor}`, auditor],
    [`resourceId=${resourceId}&cursor=${cursor}`, platform],
    [`resourceId=${resourceId}&cursor=${cursor}`, stranger],
    [`cursor=${sites}`, platform],
  ] as const) {
    assert.equal(outcome(await search(`?limit=3&${query}`, person)), '400 INVALID_CURSOR', query)
  }
})

// ---- export ----------------------------------------------------------------------------------

/** Reads RFC 4180 as a strict reader would; fails on what is none. */
function parseCsv(text: string): string[][] {
  const rows: string[][] = []
  let row: string[] = []
  const cell = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/gy
  while (cell.lastIndex < text.length) {
    const at = cell.lastIndex
    const match = cell.exec(text)
    assert.ok(match, `not CSV at ${at}: ${JSON.stringify(text.slice(at, at + 80))}`)
    row.push(match[1]?.replaceAll('""', '"') ?? match[2] ?? '')
    if (match[3] === ',') continue
    rows.push(row)
    row = []
  }
  assert.deepEqual(row, [], 'the last line has no end')
  return rows
}

describe('export', () => {
  test('is CSV with a header, oldest first, safe from formulas, quotes and line ends', async () => {
    const resourceType = `csv-${newId()}`
    const nasty = [
      "=cmd|' /C calc'!A0",
      '+1',
      '-1',
      '@SUM(A1)',
      '\t=1',
      '\r=1',
      '\n=1',
      '  =1',
      '＝1',
      'plain, with comma',
      'a "quote"',
      'two\r\nlines',
      'nul \u0000 here',
      '',
      'ünïcödé ✓ 🎉',
    ]
    const ids = await add(
      ...nasty.map((userAgent) => ({ resourceType, userAgent, details: { note: userAgent } })),
      { resourceType, userAgent: null, ip: null, details: null },
    )
    const answer = await search(`/export?resourceType=${resourceType}`)
    assert.equal(answer.status, 200)
    assert.equal(answer.headers.get('content-type'), 'text/csv; charset=utf-8; header=present')
    assert.match(
      answer.headers.get('content-disposition') ?? '',
      /^attachment; filename="audit-\d{4}-\d\d-\d\d\.csv"$/,
    )
    const [head = [], ...rows] = parseCsv(answer.text)
    assert.deepEqual(head, [
      'id',
      'orgId',
      'at',
      'actorType',
      'actorId',
      'actorEmail',
      'action',
      'resourceType',
      'resourceId',
      'result',
      'ip',
      'userAgent',
      'requestId',
      'details',
    ])
    assert.deepEqual(
      rows.map(([id]) => id),
      ids,
    )
    const column = (name: string) => rows.map((row) => row[head.indexOf(name)])
    assert.deepEqual(column('userAgent'), [
      ...nasty.slice(0, 9).map((text) => `'${text}`),
      ...nasty.slice(9).map((text) => text.replace('\u0000', '\ufffd')),
      '',
    ])
    const notes = nasty.map((text) => JSON.stringify({ note: text.replace('\u0000', '\ufffd') }))
    assert.deepEqual(
      column('details')
        .slice(0, -1)
        .map((text) => JSON.stringify(JSON.parse(text ?? ''))),
      notes,
    )
    const listed = (await search(`?resourceType=${resourceType}`)).body.data.toReversed()
    const lines = (await search(`/export?format=ndjson&resourceType=${resourceType}`)).text
    assert.deepEqual(
      lines
        .split('\n')
        .slice(0, -1)
        .map((line) => JSON.parse(line)),
      listed,
    )
  })

  test('without a row is a header alone, or nothing at all', async () => {
    const none = `resourceId=${newId()}`
    assert.equal(parseCsv((await search(`/export?${none}`)).text).length, 1)
    const lines = await search(`/export?format=ndjson&${none}`)
    assert.equal(lines.text, '')
    assert.equal(lines.headers.get('content-type'), 'application/x-ndjson; charset=utf-8')
  })

  test('is audited and told with its filters before the first row leaves', async () => {
    const organization = await makeOrganization(hub)
    const person = await signedIn(hub, 'org_admin', { orgId: organization })
    const file = await search('/export?action=site.*', person)
    assert.equal(file.status, 200)
    const [row] = await auditOfResource(hub, 'audit.export', null).then((rows) =>
      rows.filter(({ actorId }) => actorId === person.id),
    )
    assert.equal(row?.orgId, organization)
    assert.deepEqual(row?.details, { format: 'csv', filters: { action: 'site.*' } })
    const events = await hub.hub.ctx.db.query(
      `select org_id as "orgId", data from events where type = 'audit.exported' and org_id = $1`,
      [organization],
    )
    const { id: userId, email } = person
    const data = { userId, email, format: 'csv', filters: { action: 'site.*' } }
    assert.deepEqual(events, [{ orgId: organization, data }])
  })

  test('by the platform is seen by the organization it is about', async () => {
    const organization = await makeOrganization(hub)
    assert.equal((await search(`/export?orgId=${organization}`, platform)).status, 200)
    const person = await signedIn(hub, 'org_admin', { orgId: organization })
    const { body } = await search('?action=audit.export', person)
    assert.equal(body.data[0].actorId, platform.id)
    assert.equal(outcome(await search(`/export?orgId=${newId()}`, platform)), '404 NOT_FOUND')
    // Nobody writes into a foreign audit by naming it.
    assert.equal(parseCsv((await search(`/export?orgId=${organization}`)).text).length, 1)
    assert.equal((await search('?action=audit.export', person)).body.data.length, 1)
  })

  test('HEAD tells the type and exports nothing', async () => {
    const exports = await auditOfResource(hub, 'audit.export', null)
    const answer = await call(hub, 'HEAD', '/audit/export', { token: auditor.token })
    assert.equal(answer.status, 200)
    assert.match(answer.headers.get('content-type') ?? '', /^text\/csv/)
    assert.equal((await auditOfResource(hub, 'audit.export', null)).length, exports.length)
    assert.equal(hub.hub.ctx.exports.inUse(), 0)
  })
})
