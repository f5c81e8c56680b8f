// What is made of a value before a handler sees it: numbers and booleans of a query's texts, spaces around names,
// UUIDs in the one spelling that everything behind compares by. And what no schema says cheaply.
import type { TObject, TSchema } from 'typebox'
import { isUuid } from './ids.ts'
import { limits } from './limits.ts'
import type { ErrorDetail } from './errors.ts'

/** Numbers and booleans of a query string, only where the schema asks for one. */
export function fromTexts(schema: TObject, texts: Record<string, string>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(texts).map(([name, text]) => {
      const known = Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined
      return [name, fromText(known, text)]
    }),
  )
}

function fromText(schema: TSchema | undefined, text: string): unknown {
  const type = schema && 'type' in schema ? schema.type : undefined
  if ((type === 'integer' || type === 'number') && /^-?\d+(\.\d+)?$/.test(text)) return Number(text)
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true'
  return text
}

type Change = (value: unknown) => unknown

/** Drops spaces around texts that say `x-trimmed`, before they are checked; undefined where none does. */
export function trimming(schema: TObject): Change | undefined {
  const names = Object.entries(schema.properties).flatMap(([name, member]) =>
    isTrimmed(member) ? [name] : [],
  )
  if (names.length === 0) return undefined
  const trim: Change = (value) => (typeof value === 'string' ? value.trim() : value)
  return changingMembers(names.map((name) => [name, trim]))
}

function isTrimmed(schema: TSchema): boolean {
  if ('x-trimmed' in schema) return schema['x-trimmed'] === true
  return unionOf(schema).some(isTrimmed)
}

/**
 * Writes UUIDs in lower case, as PostgreSQL does: caches, actors and the audit compare them as texts. Undefined where
 * the schema has none.
 */
export function lowering(schema: TSchema): Change | undefined {
  if ('format' in schema && schema['format'] === 'uuid') return lowerUuid
  if ('items' in schema) {
    const change = lowering(schema['items'] as TSchema)
    return change && ((value) => (Array.isArray(value) ? value.map(change) : value))
  }
  if ('properties' in schema) {
    const members = Object.entries(schema['properties'] as Record<string, TSchema>)
    const changes = members.flatMap(([name, member]): [string, Change][] => {
      const change = lowering(member)
      return change ? [[name, change]] : []
    })
    return changes.length > 0 ? changingMembers(changes) : undefined
  }
  return unionOf(schema)
    .map(lowering)
    .find((change) => change !== undefined)
}

function lowerUuid(value: unknown): unknown {
  return typeof value === 'string' && isUuid(value) ? value.toLowerCase() : value
}

function changingMembers(changes: readonly (readonly [string, Change])[]): Change {
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    const members: Record<string, unknown> = { ...value }
    for (const [name, change] of changes) {
      if (Object.hasOwn(members, name)) members[name] = change(members[name])
    }
    return members
  }
}

/** The schema as it is compiled: without `uniqueItems`, whose errors cost the square of a list's length. */
export function withoutUnique(schema: TObject): TObject {
  const text = JSON.stringify(schema, (key, value: unknown) =>
    key === 'uniqueItems' ? undefined : value,
  )
  // Schemas of requests are JSON.
  return text === JSON.stringify(schema) ? schema : (JSON.parse(text) as TObject)
}

/** Lists that hold the same twice although their schema says `uniqueItems`. */
export function repeats(schema: TSchema, value: unknown, path = ''): ErrorDetail[] {
  if (Array.isArray(value)) {
    if (!('uniqueItems' in schema) || new Set(value).size === value.length) return []
    return [{ path, message: 'must not hold the same twice' }]
  }
  const known = 'properties' in schema ? (schema['properties'] as Record<string, TSchema>) : {}
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, member]) => {
    const at = Object.hasOwn(known, name) ? known[name] : undefined
    return at ? [at, ...unionOf(at)].flatMap((one) => repeats(one, member, `${path}/${name}`)) : []
  })
}

function unionOf(schema: TSchema): TSchema[] {
  return 'anyOf' in schema && Array.isArray(schema.anyOf) ? (schema.anyOf as TSchema[]) : []
}

/** Where a parsed body holds a string that PostgreSQL can't store, U+0000 or half a surrogate: a JSON pointer; else undefined. */
export function unstorableAt(body: unknown): string | undefined {
  // No recursion: a body may be nested deeper than the stack is.
  const open: Member[] = [{ value: body, key: '', of: undefined }]
  for (let member = open.pop(); member !== undefined; member = open.pop()) {
    const { value } = member
    if (typeof value === 'string') {
      if (!isStorable(value)) return pathOf(member)
    } else if (typeof value === 'object' && value !== null) {
      for (const [key, inner] of Object.entries(value)) {
        // A name that can't be told is no path.
        if (!isStorable(key)) return pathOf(member)
        open.push({ value: inner, key, of: member })
      }
    }
  }
  return undefined
}

interface Member {
  value: unknown
  key: string
  /** What it is a member of; none for the body itself. */
  of: Member | undefined
}

function isStorable(text: string): boolean {
  return !text.includes('\u0000') && text.isWellFormed()
}

/** As a JSON pointer; '' where it is longer than anybody reads. */
function pathOf(member: Member): string {
  let path = ''
  for (let at = member; at.of !== undefined; at = at.of) {
    path = `/${at.key.replaceAll('~', '~0').replaceAll('/', '~1')}${path}`
    if (path.length > limits.errorPathCharsMax) return ''
  }
  return path
}
