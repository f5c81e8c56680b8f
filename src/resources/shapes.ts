// Pieces of schemas that several resources share. No queries, no routes.
import { Type, type TSchema } from 'typebox'
import { limits } from '../limits.ts'
import { invalid } from '../route.ts'

export const Id = Type.String({ format: 'uuid' })
export const Time = Type.String({ format: 'date-time', description: 'ISO-8601 UTC, milliseconds.' })
/** A name that people give; spaces around it are dropped. */
export const Name = Type.String({
  minLength: 1,
  maxLength: limits.nameCharsMax,
  'x-trimmed': true,
})

/** Filters that say which devices something is for. */
export const deviceFilter = {
  siteId: Type.Optional(Id),
  orgId: Type.Optional(Id),
  os: Type.Optional(Type.Enum(['linux', 'darwin', 'windows'])),
  tag: Type.Optional(Type.String({ minLength: 1, maxLength: limits.tagCharsMax })),
  status: Type.Optional(Type.Enum(['online', 'offline'])),
}

export function nullable<T extends TSchema>(schema: T) {
  return Type.Union([schema, Type.Null()])
}

/** A credential as presented: any text, refused only when it is too long to be hashed for free. */
export function presented(name: string, value: string): string {
  if (Buffer.byteLength(value) <= limits.credentialBytesMax) return value
  throw invalid(`/${name}`, `may hold at most ${limits.credentialBytesMax} bytes`)
}
