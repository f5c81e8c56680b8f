// Compares the audit with its seals: every link of a chain with its hash, every sealed row with its digest, and
// the rows that are there with those that were sealed. PostgreSQL hashes; a few links at a time come here.
import type { Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'

/** The chain of the rows that belong to no organization. */
export const platformChain = '00000000-0000-0000-0000-000000000000'

/** A row's place in the order of sealing. */
export interface Place {
  xid: string
  id: string
}

/** Where a chain first differs from what was sealed. */
export interface Break {
  /** Null: of the platform's chain. */
  orgId: string | null
  position: number
  kind: 'entry_changed' | 'entry_removed' | 'entry_inserted' | 'seal_changed' | 'seal_removed'
  entryId: string | null
}

export interface Verdict {
  ok: boolean
  /** Sealed rows that were compared. */
  entries: number
  firstBreak: Break | null
}

/** The last row that is sealed, of all chains: every row up to it is, every later one is not. */
export async function sealedThrough(db: Queryable): Promise<Place> {
  const [row] = await db.query<{ xid: string; id: string }>(
    `select through_xid::text as xid, through_id as id from audit_seals
     order by through_xid desc, through_id desc limit 1`,
  )
  return row ?? { xid: '0', id: platformChain }
}

/** Verifies the chain of an organization. Throws UNAVAILABLE once the signal says that nobody waits. */
export async function verifyChain(
  db: Queryable,
  orgId: string,
  signal: AbortSignal,
): Promise<Verdict> {
  return verifyUpTo(db, orgId, await sealedThrough(db), signal)
}

/** Verifies every chain, the platform's first, up to the first break. */
export async function verifyChains(db: Queryable, signal: AbortSignal): Promise<Verdict> {
  const mark = await sealedThrough(db)
  let entries = 0
  for (let chain: string | undefined = platformChain; chain; chain = await nextChain(db, chain)) {
    const verdict = await verifyUpTo(db, chain, mark, signal)
    entries += verdict.entries
    if (!verdict.ok) return { ...verdict, entries }
  }
  return { ok: true, entries, firstBreak: null }
}

/** Organizations too: a chain all of whose links were removed must not pass. */
async function nextChain(db: Queryable, after: string): Promise<string | undefined> {
  const [row] = await db.query<{ chain: string }>(
    `(select chain from audit_seals where chain > $1 order by chain limit 1)
     union (select id from organizations where id > $1 order by id limit 1) order by 1 limit 1`,
    [after],
  )
  return row?.chain
}

async function verifyUpTo(
  db: Queryable,
  chain: string,
  mark: Place,
  signal: AbortSignal,
): Promise<Verdict> {
  for (;;) {
    const base = await baseOf(db, chain)
    const walk = new Walk(db, chain, base, mark, signal)
    const firstBreak = (await walk.findBreak()) ?? null
    const verdict = { ok: firstBreak === null, entries: walk.entries, firstBreak }
    // Retention may have taken rows and links away in the meantime, and says so by a new checkpoint.
    if (verdict.ok || (await baseOf(db, chain)).checkpoint === base.checkpoint) return verdict
  }
}

/** What a chain begins after: nothing, or what its newest checkpoint says. */
interface Base extends Record<string, unknown> {
  checkpoint: number
  position: number
  hash: string
  /** Rows below it are gone, or about to go. */
  droppedBefore: string
}

async function baseOf(db: Queryable, chain: string): Promise<Base> {
  const [row] = await db.query<Base>(
    `select s.position::float8 as checkpoint, s.base_position::float8 as position,
       encode(s.base_hash, 'hex') as hash, s.dropped_before as "droppedBefore"
     from audit_seals s where s.chain = $1 and s.dropped_before is not null
     order by s.position desc limit 1`,
    [chain],
  )
  return row ?? { checkpoint: 0, position: 0, hash: '', droppedBefore: platformChain }
}

/** One way through a chain. */
class Walk {
  entries = 0
  private position: number
  private hash: string
  /** The last row under the links that were found good. */
  private through: Place = { xid: '0', id: platformChain }
  private readonly db: Queryable
  private readonly chain: string
  private readonly base: Base
  private readonly mark: Place
  private readonly signal: AbortSignal

  constructor(db: Queryable, chain: string, base: Base, mark: Place, signal: AbortSignal) {
    this.db = db
    this.chain = chain
    this.base = base
    this.mark = mark
    this.signal = signal
    this.position = base.position
    this.hash = base.hash
  }

  async findBreak(): Promise<Break | undefined> {
    const broken = await this.followLinks()
    // Up to the break, or all of it, there must be as many rows as the links hold.
    if (broken === undefined) this.through = this.mark
    const rows = await this.countRows()
    return rows === this.entries ? broken : ((await this.findInserted()) ?? broken)
  }

  private async followLinks(): Promise<Break | undefined> {
    for (;;) {
      const links = await this.readLinks()
      if (links.length === 0) return undefined
      for (const link of links) {
        const kind = this.judge(link)
        if (kind !== undefined) return this.breakAt(this.position + 1, kind, link.entryId)
        this.entries += link.entries
        this.position = link.position
        this.hash = link.hash
        this.through = { xid: link.throughXid, id: link.throughId }
      }
    }
  }

  private judge(link: Link): Break['kind'] | undefined {
    if (link.position !== this.position + 1) return 'seal_removed'
    if (!link.genuine || link.previous !== this.hash) return 'seal_changed'
    if (link.entryId === null) return undefined
    return link.removed ? 'entry_removed' : 'entry_changed'
  }

  private breakAt(position: number, kind: Break['kind'], entryId: string | null): Break {
    const orgId = this.chain === platformChain ? null : this.chain
    const ofEntry = kind.startsWith('entry')
    return { orgId, position, kind, entryId: ofEntry ? entryId : null }
  }

  private readLinks(): Promise<Link[]> {
    this.requireReader()
    const { chain, position, base, mark } = this
    const values = [chain, position, mark.xid, mark.id, limits.verifySealsMax, base.droppedBefore]
    return this.db.query<Link>(linksSql, values)
  }

  private async countRows(): Promise<number> {
    let count = 0
    for (let after: string | null = this.base.droppedBefore; after !== null;) {
      this.requireReader()
      const [batch]: { rows: number; last: string | null }[] = await this.db.query(
        `with r as materialized (${this.rowsSql()})
         select (select count(*)::float8 from r where (xid, id) <= ($3::xid8, $4::uuid)) as rows,
           (select id from r order by id desc limit 1) as last`,
        this.chain === platformChain
          ? this.rowsValues(after)
          : [...this.rowsValues(after), this.chain],
      )
      count += batch?.rows ?? 0
      after = batch?.last ?? null
    }
    return count
  }

  /** The first row, in the order of sealing, that is in no link though the links passed it. */
  private async findInserted(): Promise<Break | undefined> {
    let first: (Place & { position: number }) | undefined
    for (let after: string | null = this.base.droppedBefore; after !== null;) {
      this.requireReader()
      const [batch]: {
        last: string | null
        xid: string | null
        id: string
        position: number | null
      }[] = await this.db.query(
        `with r as materialized (${this.rowsSql()}), i as (
             select r.xid, r.id from r
             where (r.xid, r.id) <= ($3::xid8, $4::uuid) and not exists (
               select from audit_seals s, unnest(s.ids) as u (id) where s.chain = $5 and u.id = r.id)
             order by r.xid, r.id limit 1
           )
           select (select id from r order by id desc limit 1) as last, i.xid::text as xid, i.id,
             (select min(position)::float8 from audit_seals s where s.chain = $5
                and (s.through_xid, s.through_id) >= (i.xid, i.id)) as position
           from (select) as one left join i on true`,
        [...this.rowsValues(after), this.chain],
      )
      after = batch?.last ?? null
      if (batch === undefined || batch.xid === null) continue
      const { xid, id, position } = batch
      if (first === undefined || isBefore(batch as Place, first))
        first = { xid, id, position: position ?? this.position + 1 }
    }
    return first && this.breakAt(first.position, 'entry_inserted', first.id)
  }

  private rowsSql(): string {
    const own = this.chain === platformChain ? 'org_id is null' : 'org_id = $5'
    return `select xid, id from audit where ${own} and id > $1 order by id limit $2`
  }

  private rowsValues(after: string): unknown[] {
    return [after, limits.verifyRowsMax, this.through.xid, this.through.id]
  }

  private requireReader(): void {
    if (this.signal.aborted) throw new AppError('UNAVAILABLE', 'nobody waits for the answer')
  }
}

function isBefore(a: Place, b: Place): boolean {
  const [left, right] = [BigInt(a.xid), BigInt(b.xid)]
  return left === right ? a.id < b.id : left < right
}

interface Link extends Record<string, unknown> {
  position: number
  previous: string
  hash: string
  /** Its hash is that of its columns. */
  genuine: boolean
  throughXid: string
  throughId: string
  /** Rows of it that are there. */
  entries: number
  /** The first that is missing or another than it was. */
  entryId: string | null
  removed: boolean | null
}

/** $1 chain, $2 position before, $3, $4 last row to be judged, $5 links, $6 the lowest id that must be there */
const linksSql = `
select l.position::float8 as position, encode(l.previous, 'hex') as previous,
  encode(l.hash, 'hex') as hash, l.through_xid::text as "throughXid", l.through_id as "throughId",
  audit_seal_hash(l.chain, l.position, l.sealed_at, l.through_xid, l.through_id, l.ids, l.digests,
    l.dropped_before, l.base_position, l.base_hash, l.previous) = l.hash as genuine,
  r.entries, r.bad[1] as "entryId", r.removed[1] as removed
from (
  select * from audit_seals s
  where s.chain = $1 and s.position > $2 and (s.through_xid, s.through_id) <= ($3::xid8, $4::uuid)
  order by s.position limit $5
) l
cross join lateral (
  select count(*) filter (where there and id >= $6)::float8 as entries,
    array_agg(id order by n) filter (where wrong) as bad,
    array_agg(not there order by n) filter (where wrong) as removed
  from (
    select u.id, u.n, a.id is not null as there,
      case when a.id is null then u.id >= $6 else audit_digest(a) <> u.digest end as wrong
    from unnest(l.ids, l.digests) with ordinality as u (id, digest, n)
    left join audit a on a.id = u.id
  ) e
) r
order by l.position`
