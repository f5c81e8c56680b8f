// Rows as JSON texts that PostgreSQL writes: one of them, or a page, newest first. What they are, and whose,
// is each resource's own to say.
import type { Queryable, Where } from '../db.ts'
import type { PageRow, Pager } from '../page.ts'

/** What rows of a resource are read from. */
export interface Source {
  /** Named as in the API. */
  columns: string
  /** A table with its alias, and what is joined to it. */
  tables: string
  /** The column that names a row and orders the list. */
  id: string
}

interface Item extends Record<string, unknown> {
  item: string
}

/** A page of the rows, newest first. */
export function newestFirst(
  db: Queryable,
  { columns, tables, id }: Source,
  where: Where,
  page: Pick<Pager, 'limit' | 'after'>,
): Promise<PageRow[]> {
  if (page.after) where.and(`${id} < ?::uuid`, page.after[0])
  const limit = where.value(page.limit + 1)
  return db.query<PageRow>(
    asPage(`select ${columns} from ${tables} ${where.text()} order by ${id} desc limit ${limit}`),
    where.values,
  )
}

/** The one row of these conditions; undefined when there is none. */
export async function findItem(
  db: Queryable,
  { columns, tables }: Source,
  where: Where,
): Promise<string | undefined> {
  const [row] = await db.query<Item>(
    asItem(`select ${columns} from ${tables} ${where.text()}`),
    where.values,
  )
  return row?.item
}

/** Wraps a select: each row becomes one JSON text, `item`. */
function asItem(select: string): string {
  return `select row_to_json(t)::text as item from (${select}) t`
}

/** Wraps a select that is ordered by `id desc`: each row becomes `item` and its `keys` for a pager. */
function asPage(select: string): string {
  return `select row_to_json(t)::text as item, array[t.id::text] as keys from (${select}) t order by t.id desc`
}
