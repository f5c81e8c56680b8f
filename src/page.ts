// Keyset pages: limits, cursors that can't be forged or moved to another list, and the list envelope.
import { createHmac, timingSafeEqual, type KeyObject } from 'node:crypto'
import { Type, type Static, type TSchema } from 'typebox'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'

/** The query parameters that every list takes. */
export const pageQuery = {
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: limits.pageSizeMax,
      default: limits.pageSizeDefault,
      description: 'Items per page.',
    }),
  ),
  cursor: Type.Optional(
    Type.String({
      maxLength: limits.cursorCharsMax,
      description: 'Where the previous page ended: its `pagination.cursor`.',
    }),
  ),
}

/** The envelope of a list of `item`. */
export function pageOf<T extends TSchema>(item: T) {
  return Type.Object({
    data: Type.Array(item),
    pagination: Type.Object({
      hasMore: Type.Boolean(),
      cursor: Type.Union([Type.String(), Type.Null()]),
    }),
  })
}

export type Keys = readonly (string | null)[]

export interface Pager {
  limit: number
  /** The keys of the last row of the previous page, or undefined on the first page. */
  after: Keys | undefined
  /**
   * Makes the envelope from up to `limit + 1` rows that PostgreSQL wrote as JSON texts; `cut`: there are
   * more, though these are not as many as were asked for.
   */
  envelope(rows: readonly PageRow[], cut?: boolean): string
  /** The same of items alone; `keysOf` tells the position of the n-th, and is asked for the last one of a page. */
  envelopeOf(items: readonly string[], keysOf: (n: number) => Keys, cut?: boolean): string
}

export interface PageRow extends Record<string, unknown> {
  /** The item as JSON text. */
  item: string
  /** Its position in the list's order. */
  keys: string[]
}

/**
 * Reads `limit` and `cursor` of a query. `binding` names the list: route, filters, order and the
 * caller's scope; a cursor made under another binding is refused with INVALID_CURSOR.
 */
export function pager(
  secret: KeyObject,
  binding: unknown,
  query: { limit?: number; cursor?: string },
): Pager {
  const limit = query.limit ?? limits.pageSizeDefault
  const bound = JSON.stringify(binding, sortedMembers)
  const sign = (keys: string) =>
    createHmac('sha256', secret).update(`${keys}\n${bound}`).digest().subarray(0, 16)
  const encode = (keys: Keys) => {
    const text = JSON.stringify(keys)
    return Buffer.concat([sign(text), Buffer.from(text)]).toString('base64url')
  }
  const decode = (cursor: string): Keys => {
    const bytes = Buffer.from(cursor, 'base64url')
    const text = bytes.subarray(16).toString()
    // The round trip refuses another spelling of the same bytes: a cursor is one string.
    const genuine =
      bytes.length > 16 &&
      bytes.toString('base64url') === cursor &&
      timingSafeEqual(bytes.subarray(0, 16), sign(text))
    if (genuine) return JSON.parse(text) as Keys
    throw new AppError(
      'INVALID_CURSOR',
      'the cursor is not one that this list with these filters returned; start again without it',
    )
  }
  const envelopeOf: Pager['envelopeOf'] = (items, keysOf, cut = false) => {
    const page = items.length > limit ? items.slice(0, limit) : items
    const hasMore = (cut || items.length > limit) && page.length > 0
    const cursor = hasMore ? `"${encode(keysOf(page.length - 1))}"` : 'null'
    return `{"data":[${page.join(',')}],"pagination":{"hasMore":${hasMore},"cursor":${cursor}}}`
  }
  return {
    limit,
    after: query.cursor === undefined ? undefined : decode(query.cursor),
    envelope: (rows, cut) =>
      envelopeOf(
        rows.map(({ item }) => item),
        (n) => rows[n]?.keys ?? [],
        cut,
      ),
    envelopeOf,
  }
}

/** Filters in any order are the same filters. */
function sortedMembers(_: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)))
}

export type PageQuery = Static<ReturnType<typeof Type.Object<typeof pageQuery>>>
