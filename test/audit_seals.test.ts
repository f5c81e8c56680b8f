// Sealing and verifying the audit, with somebody at work who may change every row.
import assert from 'node:assert/strict'
import { after, afterEach, before, describe, test } from 'node:test'
import { auditOf, insertAudit, type AuditEntry } from '../src/audit.ts'
import { platformChain, type Break } from '../src/audit_chains.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { idFloor, newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { dropOldPartitions } from '../workers/maintenance.ts'
import { sealAudit } from '../workers/sealing.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { call, makeOrganization, outcome, signedIn, type Person } from './support/people.ts'
import { until } from './support/until.ts'

let hub: TestHub
/** The hub's own role. */
let db: Database
/** A superuser. */
let owner: Database
let platform: Person

before(async () => {
  hub = await startHub()
  const { url } = hub.database
  db = openDatabase({ url, name: 'hub', connections: 3 })
  owner = openDatabase({ url, name: 'owner', connections: 3, role: 'owner' })
  platform = await signedIn(hub, 'platform_admin')
})
after(async () => {
  await db.close()
  await owner.close()
  await hub.close()
})

interface Chain {
  orgId: string
  admin: Person
}

async function makeChain(): Promise<Chain> {
  const orgId = await makeOrganization(hub)
  return { orgId, admin: await signedIn(hub, 'org_admin', { orgId }) }
}

function entry(orgId: string | null, overrides: Partial<AuditEntry> = {}): AuditEntry {
  const actor = { userId: newId(), email: 'ann@example.org' }
  const source = { actor, ip: '192.0.2.7', userAgent: 'test', requestId: 'r' }
  const subject = { action: 'site.create', resourceType: 'site', resourceId: newId(), orgId }
  const rest = { deviceId: newId(), details: { after: { name: 'a' } } }
  return { ...auditOf(source, subject), ...rest, ...overrides }
}

async function add(orgId: string | null, count = 1): Promise<string[]> {
  const entries = Array.from({ length: count }, () => entry(orgId))
  await insertAudit(db, entries)
  return entries.map(({ id }) => id)
}

/** Seals until nothing is left; the hub's own jobs may do some of it. */
async function sealAll(): Promise<void> {
  await until('all rows to be sealed', async () => {
    await sealAudit(db)
    const open = await db.query(
      `select true as found from audit a where not exists (select from audit_seals s
         where (s.through_xid, s.through_id) >= (a.xid, a.id)) limit 1`,
    )
    return open.length === 0
  })
}

async function verify({ token } = platform, query = '') {
  const answer = await call(hub, 'GET', `/audit/verify${query}`, { token })
  assert.equal(answer.status, 200, answer.text)
  return answer.body as { ok: boolean; entries: number; firstBreak: Break | null }
}

/** Adds a chain of three links, the middle one with three rows. */
async function sealedChain() {
  const chain = await makeChain()
  const links: string[][] = []
  for (const count of [1, 3, 2]) {
    links.push(await add(chain.orgId, count))
    await sealAll()
  }
  const positions = await db.query<{ position: string; ids: string[] }>(
    'select position, ids from audit_seals where chain = $1 order by position',
    [chain.orgId],
  )
  assert.deepEqual(
    positions.map(({ ids }) => ids),
    links,
  )
  return { ...chain, links, ids: links.flat() }
}

const allOk = (entries: number) => ({ ok: true, entries, firstBreak: null })

test('rows are sealed per organization, each once, and verified by whoever may', async () => {
  const chain = await sealedChain()
  assert.deepEqual(await verify(chain.admin), allOk(6))
  assert.deepEqual(await verify(platform, `?orgId=${chain.orgId}`), allOk(6))
  await add(null)
  await sealAll()
  const [row] = await db.query<{ rows: number }>('select count(*)::int as rows from audit')
  const all = await verify()
  assert.deepEqual([all.ok, all.entries], [true, row?.rows])
  // What came since is not judged yet.
  await add(chain.orgId)
  assert.ok((await verify(chain.admin)).entries >= 6)
})

test('a foreign chain is not there, and an empty one is whole', async () => {
  const { admin, orgId } = await makeChain()
  const other = await makeChain()
  assert.deepEqual(await verify(admin), allOk(0))
  const foreign = `/audit/verify?orgId=${other.orgId}`
  assert.equal(outcome(await call(hub, 'GET', foreign, admin)), '404 NOT_FOUND')
  const unknown = `/audit/verify?orgId=${newId()}`
  assert.equal(outcome(await call(hub, 'GET', unknown, platform)), '404 NOT_FOUND')
  assert.deepEqual(await verify(admin, `?orgId=${orgId}`), allOk(0))
})

test('the hub itself can neither change nor remove rows and seals', async () => {
  await add(null)
  await sealAll()
  const { db: own, auditDb } = hub.hub.ctx
  for (const pool of [own, auditDb]) {
    for (const table of ['audit', 'audit_seals']) {
      const column = table === 'audit' ? 'action' : 'hash'
      for (const statement of [
        `update ${table} set ${column} = ${column}`,
        `delete from ${table}`,
        `truncate ${table}`,
        `drop table ${table}`,
        `alter table ${table} disable trigger all`,
      ]) {
        await assert.rejects(pool.query(statement), /permission denied|must be owner/, statement)
      }
    }
  }
})

test('what becomes visible late is sealed late, and nothing is missed or sealed twice', async () => {
  const { orgId, admin } = await makeChain()
  const held = Promise.withResolvers<void>()
  const written = Promise.withResolvers<string>()
  const slow = db.transaction(async (tx) => {
    const late = entry(orgId)
    await insertAudit(tx, [late])
    written.resolve(late.id)
    await held.promise
  })
  const late = await written.promise
  const early = await add(orgId, 3)
  // The slow transaction is older than they are: none of them may be taken before it ended.
  await sealAudit(db)
  const sealed = () =>
    db.query<{ id: string }>('select unnest(ids) as id from audit_seals where chain = $1', [orgId])
  assert.deepEqual(await sealed(), [])
  held.resolve()
  await slow
  await sealAll()
  assert.deepEqual(
    (await sealed()).map(({ id }) => id),
    [late, ...early],
  )
  assert.deepEqual(await verify(admin), allOk(4))
})

test('hubs that seal at once make one chain', async () => {
  const { orgId, admin } = await makeChain()
  for (let round = 0; round < 5; round++) {
    await add(orgId, 20)
    await Promise.all([sealAudit(db), sealAudit(db), sealAudit(owner), sealAudit(owner)])
  }
  await sealAll()
  assert.deepEqual(await verify(admin), allOk(100))
})

test('more rows than one link holds are sealed in several, chains side by side', async () => {
  const [one, two] = [await makeChain(), await makeChain()]
  const rows = limits.sealRowsMax + 10
  await insertAudit(
    db,
    Array.from({ length: rows }, (_, n) => entry(n % 2 ? one.orgId : two.orgId)),
  )
  await sealAll()
  for (const { admin } of [one, two]) assert.deepEqual(await verify(admin), allOk(rows / 2))
  const links = await db.query<{ rows: number }>(
    'select cardinality(ids) as rows from audit_seals where chain = any($1)',
    [[one.orgId, two.orgId]],
  )
  assert.ok(links.length >= 4 && links.every((link) => link.rows <= limits.sealRowsMax))
})

test('a digest is what it was when it went by way of jsonb, whatever the row holds', async () => {
  const orgId = await makeOrganization(hub)
  const texts = [
    '',
    'a "quoted" \\ one',
    '\t\n\u0001\u007f',
    'é ü 漢 \u2028 🙂',
    '</script>',
    '{}',
    'null',
  ]
  const values = [
    null,
    true,
    0,
    -0.1,
    1e300,
    1e-7,
    12345678901234,
    '',
    [],
    {},
    [[]],
    [{ '': null }],
  ]
  const entries = texts.flatMap((text) =>
    values.map((value) =>
      entry(orgId, {
        resourceId: text,
        userAgent: text === '' ? null : text,
        deviceId: null,
        details: { [text]: value, nested: { [text]: [value, { text }] } },
      }),
    ),
  )
  await insertAudit(db, entries)
  const [sum] = await owner.query<{ same: number; different: number }>(
    `select count(*) filter (where s)::int as same, count(*) filter (where s is not true)::int as different
     from (
       select audit_digest(a) = sha256(convert_to(jsonb_build_array(
         a.id, a.org_id, extract(epoch from a.at), a.actor_type, a.actor_id, a.actor_email, a.action,
         a.resource_type, a.resource_id, a.device_id, a.result, a.ip, a.user_agent, a.request_id,
         a.details, a.xid::text)::text, 'UTF8')) as s
       from audit a
     ) as rows`,
  )
  assert.ok(sum && sum.same >= entries.length)
  assert.equal(sum.different, 0)
})

test('the jobs of a hub seal by themselves', async () => {
  const { orgId } = await makeChain()
  await add(orgId)
  await until(
    'a seal',
    async () => (await db.query('select from audit_seals where chain = $1', [orgId])).length > 0,
  )
})

describe('tampering', () => {
  let undo: (() => Promise<unknown>) | undefined
  afterEach(async () => {
    await undo?.()
    undo = undefined
    assert.equal((await verify()).ok, true)
  })

  /** Tampers with `statement`, and puts back afterwards what the table was. */
  async function tamper(table: string, statement: string, values: unknown[]): Promise<void> {
    await owner.query(`create table was as select * from ${table}`)
    undo = async () => {
      await owner.query(`truncate ${table}`)
      await owner.query(`insert into ${table} select * from was`)
      await owner.query('drop table was')
    }
    await owner.query(statement, values)
  }

  test('a change of any column is found', async () => {
    const { admin, orgId, links } = await sealedChain()
    const id = links[1]?.[1]
    const columns = await owner.query<{ name: string; type: string }>(
      `select column_name as name, udt_name as type from information_schema.columns
       where table_name = 'audit'`,
    )
    assert.equal(columns.length, 16)
    const other: Record<string, (name: string) => string> = {
      uuid: () => `'${newId()}'`,
      text: (name) =>
        ({ actor_type: `'agent'`, result: `'denied'` })[name] ?? `${name} || '\u00a0'`,
      timestamptz: (name) => `${name} + interval '1 microsecond'`,
      jsonb: () => `'{"after": {"name": "b"}}'`,
      xid8: () => `(xid::text::bigint - 1)::text::xid8`,
    }
    await tamper('audit', 'select 1 as nothing', [])
    for (const { name, type } of columns) {
      for (const value of name === 'id' || name === 'xid' || name === 'at' || name === 'action'
        ? [other[type]?.(name)]
        : [other[type]?.(name), ...(/^(actor_type|result)$/.test(name) ? [] : ['null'])]) {
        const [was] = await owner.query('select * from audit where id = $1', [id])
        await owner.query(`update audit set ${name} = ${value} where id = $1`, [id])
        const { ok, firstBreak } = await verify(admin)
        const kind = name === 'id' ? 'entry_removed' : 'entry_changed'
        assert.deepEqual([ok, firstBreak], [false, { orgId, position: 2, kind, entryId: id }], name)
        await owner.query(`delete from audit where id = $1 or (org_id = $2 and not id = any($3))`, [
          id,
          orgId,
          links.flat(),
        ])
        await owner.query('insert into audit select * from was where id = $1', [id])
        assert.deepEqual(await owner.query('select * from audit where id = $1', [id]), [was])
      }
    }
  })

  test('a removed row is found', async () => {
    const { admin, orgId, links } = await sealedChain()
    const id = links[2]?.[0]
    await tamper('audit', 'delete from audit where id = $1', [id])
    const firstBreak = { orgId, position: 3, kind: 'entry_removed', entryId: id }
    assert.deepEqual(await verify(admin), { ok: false, entries: 4, firstBreak })
    assert.deepEqual((await verify()).firstBreak, firstBreak)
  })

  test('a row slipped in between sealed ones is found', async () => {
    const { admin, orgId, links } = await sealedChain()
    const id = newId()
    await tamper(
      'audit',
      `insert into audit (id, org_id, at, actor_type, action, result, xid)
       select $1, org_id, at, 'system', 'site.create', 'success', xid from audit where id = $2`,
      [id, links[1]?.[0]],
    )
    const { ok, firstBreak } = await verify(admin)
    assert.equal(ok, false)
    // It has the xid of the second link’s rows and the youngest id: it lies behind them.
    assert.deepEqual(firstBreak, { orgId, position: 3, kind: 'entry_inserted', entryId: id })
  })

  test('of several breaks the first is told', async () => {
    const { admin, orgId, links } = await sealedChain()
    const id = newId()
    await tamper(
      'audit',
      `insert into audit (id, org_id, at, actor_type, action, result, xid)
       select $1, org_id, at, 'system', 'site.create', 'success',
         ((xid::text)::bigint - 1)::text::xid8 from audit where id = $2`,
      [id, links[1]?.[0]],
    )
    await owner.query(`update audit set ip = 'x' where id = $1`, [links[2]?.[0]])
    const first = (await verify(admin)).firstBreak
    assert.deepEqual(first, { orgId, position: 2, kind: 'entry_inserted', entryId: id })
  })

  test('a changed seal is found, whatever of it was changed', async () => {
    const { admin, orgId, links } = await sealedChain()
    await tamper('audit_seals', 'select 1 as nothing', [])
    const [first] = await owner.query<{ place: string }>(
      `select through_xid::text as place from audit_seals where chain = $1 and position = 1`,
      [orgId],
    )
    for (const change of [
      `hash = sha256(hash)`,
      `previous = sha256(previous)`,
      `sealed_at = sealed_at - interval '1 microsecond'`,
      `ids[2] = '${newId()}'`,
      `ids = ids[1:2], digests = digests[1:2]`,
      `digests[1] = sha256(digests[1])`,
      `through_xid = '${first?.place}'`,
      `through_id = '${links[2]?.[0]}'`,
      `dropped_before = '${idFloor(Date.now() + 1e9)}', base_position = 1, base_hash = ''`,
    ]) {
      await owner.query(`update audit_seals set ${change} where chain = $1 and position = 2`, [
        orgId,
      ])
      const { ok, firstBreak } = await verify(admin)
      assert.equal(ok, false, change)
      const kind = 'seal_changed'
      assert.deepEqual(firstBreak, { orgId, position: 2, kind, entryId: null }, change)
      await owner.query('delete from audit_seals where chain = $1', [orgId])
      await owner.query('insert into audit_seals select * from was where chain = $1', [orgId])
    }
  })

  test('a seal made anew without its neighbours, removed ones, and all of them', async () => {
    const { admin, orgId, ids } = await sealedChain()
    await tamper('audit_seals', 'select 1 as nothing', [])
    await owner.query(
      `update audit_seals set sealed_at = now(), hash = audit_seal_hash(chain, position, now(),
         through_xid, through_id, ids, digests, dropped_before, base_position, base_hash, previous)
       where chain = $1 and position = 2`,
      [orgId],
    )
    const found = async () => (await verify(admin)).firstBreak
    const seal = { orgId, entryId: null }
    assert.deepEqual(await found(), { ...seal, position: 3, kind: 'seal_changed' })
    await owner.query('delete from audit_seals where chain = $1 and position = 2', [orgId])
    assert.deepEqual(await found(), { ...seal, position: 2, kind: 'seal_removed' })
    // A later seal of anyone says that these rows were sealed once.
    await add(platform.orgId)
    await sealAll()
    await owner.query('delete from audit_seals where chain = $1', [orgId])
    const [id] = ids
    assert.deepEqual(await found(), { orgId, position: 1, kind: 'entry_inserted', entryId: id })
    assert.deepEqual((await verify()).firstBreak?.orgId, orgId)
  })
})

describe('retention', () => {
  /** A row of a time, sealed like any other. */
  async function addAt(orgId: string | null, ms: number): Promise<string> {
    const id = idFloor(ms).slice(0, 14) + newId().slice(14)
    await insertAudit(db, [entry(orgId, { id, atMs: ms })])
    return id
  }

  const month = (months: number) => {
    const now = new Date()
    return Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 15)
  }
  const named = (months: number) =>
    `audit_${new Date(month(months)).toISOString().slice(0, 7).replace('-', '')}`
  const makeOld = () =>
    owner.query(`select make_partitions((now() - interval '6 months')::date, 2)`)

  test('a partition goes when it is sealed to its end, and what stays is still verified', async () => {
    const { orgId, admin } = await makeChain()
    await makeOld()
    await addAt(orgId, month(-6))
    // One link over old and new, one over the old alone, one over the new alone.
    const kept = await addAt(orgId, month(0))
    await sealAll()
    await addAt(orgId, month(-6))
    await sealAll()
    const [last] = await add(orgId)
    await sealAll()
    const unsealed = await db.transaction(async (tx) => {
      // While this one runs, nothing that began later is sealed.
      await tx.query('select pg_current_xact_id()')
      await addAt(orgId, month(-6))
      return dropOldPartitions(owner, 150)
    })
    assert.ok(!unsealed.includes(named(-6)))
    await sealAll()
    assert.deepEqual(await verify(admin), allOk(5))
    assert.ok((await dropOldPartitions(owner, 150)).includes(named(-6)))
    assert.deepEqual(await verify(admin), allOk(2))
    assert.equal((await verify()).ok, true)

    await add(orgId)
    await sealAll()
    assert.deepEqual(await verify(admin), allOk(3))
    await owner.query(`update audit set ip = 'x' where id = $1`, [kept])
    assert.equal((await verify(admin)).firstBreak?.entryId, kept)
    await owner.query(`update audit set ip = '192.0.2.7' where id = $1`, [kept])
    await owner.query('create table was as select * from audit where id = $1', [last])
    await owner.query('delete from audit where id = $1', [last])
    const removed = (await verify(admin)).firstBreak
    assert.deepEqual([removed?.kind, removed?.entryId], ['entry_removed', last])
    await owner.query('insert into audit select * from was')
    await owner.query('drop table was')
    assert.deepEqual(await verify(admin), allOk(3))
  })

  test('links over nothing but dropped rows go as well, and months may go out of order', async () => {
    const { orgId, admin } = await makeChain()
    await makeOld()
    for (const months of [-6, -5, -6, 0]) {
      await addAt(orgId, month(months))
      await sealAll()
    }
    const seals = async () => {
      const rows = await db.query<{ position: string }>(
        'select position from audit_seals where chain = $1 order by position',
        [orgId],
      )
      return rows.map(({ position }) => Number(position))
    }
    const first = await owner.transaction(async (tx) => {
      await tx.query(`select count(*) from ${named(-6)}`)
      return dropOldPartitions(owner, 120)
    })
    assert.ok(first.includes(named(-5)) && !first.includes(named(-6)))
    assert.equal((await verify(admin)).ok, true)
    assert.ok((await dropOldPartitions(owner, 120)).includes(named(-6)))
    assert.deepEqual(await verify(admin), allOk(1))
    const left = await seals()
    assert.ok(!left.includes(1) && left.includes(4), String(left))
    assert.equal((await verify()).ok, true)
  })

  test('a chain all of whose rows are gone goes on after its checkpoint', async () => {
    const { orgId, admin } = await makeChain()
    await makeOld()
    await addAt(orgId, month(-6))
    await sealAll()
    assert.ok((await dropOldPartitions(owner, 150)).includes(named(-6)))
    assert.deepEqual(await verify(admin), allOk(0))
    await add(orgId)
    await sealAll()
    assert.deepEqual(await verify(admin), allOk(1))
    const rows = await db.query('select chain from audit_seals where chain = $1', [platformChain])
    assert.ok(rows.length > 0)
  })
})

test('one verification runs at once', async () => {
  const { verifications } = hub.hub.ctx
  const release = verifications.take(platform.id)
  const { admin } = await makeChain()
  const [mine, others] = [
    await call(hub, 'GET', '/audit/verify', platform),
    await call(hub, 'GET', '/audit/verify', admin),
  ]
  assert.deepEqual([outcome(mine), outcome(others)], ['429 RATE_LIMITED', '503 OVERLOADED'])
  assert.equal(mine.headers.get('retry-after'), '10')
  release()
  release()
  assert.equal(verifications.inUse(), 0)
  assert.equal((await verify(admin)).ok, true)
})
