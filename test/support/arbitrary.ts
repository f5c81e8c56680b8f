// Values for a fuzzer, made from a JSON schema: what fits it, what nearly does, and what does not at all.
import fc from 'fast-check'

/** The parts of JSON Schema that the routes use. */
export interface Schema {
  type?: string
  enum?: unknown[]
  const?: unknown
  anyOf?: Schema[]
  allOf?: Schema[]
  properties?: Record<string, Schema>
  required?: string[]
  patternProperties?: Record<string, Schema>
  items?: Schema
  format?: string
  pattern?: string
  minLength?: number
  maxLength?: number
  minItems?: number
  maxItems?: number
  minimum?: number
  maximum?: number
  uniqueItems?: boolean
}

/** Values that the test knows to mean something, by the name of the member or by its format. */
export type Known = (name: string, schema: Schema) => readonly unknown[] | undefined

/** Texts at which programs stumble. */
export const oddTexts: readonly string[] = [
  '',
  ' ',
  '\u0000',
  'a\u0000b',
  '\ud800',
  '\u202e\u0007\u001b[31m',
  '__proto__',
  'constructor',
  'toString',
  "Robert'); drop table users; --",
  '%',
  '\\',
  '%_\\%',
  '=cmd|calc!A0',
  '${jndi:ldap://x}',
  '../../etc/passwd',
  '-1',
  '1e309',
  '9007199254740993',
  'null',
  'true',
  'NaN',
  'é'.repeat(100),
  '👩‍👩‍👧'.repeat(20),
  'x'.repeat(5000),
  '00000000-0000-0000-0000-000000000000',
  'ffffffff-ffff-ffff-ffff-ffffffffffff',
  '9999-12-31T23:59:60Z',
  '0000-01-01T00:00:00Z',
  '2026-02-30T00:00:00Z',
]

export const garbage: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom<unknown>(null, true, 0, -1, 1.5, 2 ** 31, 2 ** 53, 1e308, [], {}, [[]], [null]),
  fc.constantFrom(...oddTexts),
  fc.jsonValue(),
)

/** Values that fit, or would but for rules that no schema tells; most of them known, where any is. */
export function fitting(schema: Schema, known: Known, name = ''): fc.Arbitrary<unknown> {
  const any = shaped(schema, known, name)
  const values = known(name, schema)
  if (values === undefined || values.length === 0) return any
  return fc.oneof(
    { weight: 4, arbitrary: fc.constantFrom(...values) },
    { weight: 1, arbitrary: any },
  )
}

function shaped(schema: Schema, known: Known, name: string): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const)
  if (schema.enum) return fc.constantFrom(...schema.enum)
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map((one) => fitting(one, known, name)))
  if (schema.allOf) return fitting(Object.assign({}, ...schema.allOf) as Schema, known, name)
  switch (schema.type) {
    case 'object':
      return anObject(schema, known)
    case 'array': {
      const bounds = {
        minLength: schema.minItems ?? 0,
        maxLength: Math.min(schema.maxItems ?? 4, 4),
      }
      const item = fitting(schema.items ?? {}, known, name)
      return schema.uniqueItems
        ? fc.uniqueArray(item, { ...bounds, selector: (one) => JSON.stringify(one) })
        : fc.array(item, bounds)
    }
    case 'string':
      return aText(schema)
    case 'integer':
    case 'number': {
      const [min, max] = [schema.minimum ?? -1000, schema.maximum ?? 1_000_000]
      const edges = fc.constantFrom(min, max)
      if (schema.type === 'integer') return fc.oneof(edges, fc.integer({ min, max }))
      return fc.oneof(edges, fc.double({ min, max, noNaN: true }))
    }
    case 'boolean':
      return fc.boolean()
    case 'null':
      return fc.constant(null)
    default:
      return garbage
  }
}

function anObject(schema: Schema, known: Known): fc.Arbitrary<unknown> {
  const { properties = {}, required = [], patternProperties } = schema
  if (patternProperties || schema.properties === undefined) {
    const [value] = Object.values(patternProperties ?? {})
    const key = fc.oneof(
      fc.constantFrom(...oddTexts),
      fc.string({ unit: 'grapheme', maxLength: 20 }),
    )
    return fc.dictionary(key, value ? fitting(value, known) : garbage, { maxKeys: 4 })
  }
  const members = Object.entries(properties).map(
    ([key, value]) => [key, fitting(value, known, key)] as const,
  )
  return fc.record(Object.fromEntries(members), { requiredKeys: required })
}

function aText(schema: Schema): fc.Arbitrary<string> {
  const { format, pattern, minLength = 0, maxLength = 100 } = schema
  if (format === 'uuid') return fc.uuid()
  if (format === 'email') return fc.emailAddress()
  if (format === 'date-time') {
    const dates = fc.date({ noInvalidDate: true, min: new Date(0), max: new Date('9999-12-31') })
    return dates.map((date) => date.toISOString())
  }
  if (pattern !== undefined) {
    const longest = Math.min(maxLength, 100)
    return fc.stringMatching(new RegExp(pattern)).map((text) => text.slice(0, longest))
  }
  const bounds = { minLength, maxLength: Math.min(maxLength, minLength + 60) }
  return fc.oneof(
    { weight: 5, arbitrary: fc.string({ unit: 'grapheme', ...bounds }) },
    { weight: 2, arbitrary: fc.constantFrom(...oddTexts) },
    { weight: 1, arbitrary: fc.constant('x'.repeat(Math.min(maxLength, 100_000))) },
  )
}

/** What fits with one thing changed: a value of another kind, a member more, or one less. */
export function nearly(schema: Schema, known: Known): fc.Arbitrary<unknown> {
  return fc
    .tuple(fitting(schema, known), fc.nat(), fc.constantFrom('replace', 'add', 'remove'), garbage)
    .map(([value, at, how, odd]) => changed(value, at, how, odd))
}

function changed(value: unknown, at: number, how: string, odd: unknown): unknown {
  if (typeof value !== 'object' || value === null) return odd
  const keys = Object.keys(value)
  const key = keys[at % Math.max(1, keys.length)]
  const inner = key === undefined ? undefined : (value as Record<string, unknown>)[key]
  // Half of the time deeper, where there is a deeper.
  if (key !== undefined && typeof inner === 'object' && inner !== null && at % 2 === 0) {
    const deeper = changed(inner, Math.floor(at / 2), how, odd)
    return Array.isArray(value) ? value.with(Number(key), deeper) : { ...value, [key]: deeper }
  }
  if (Array.isArray(value)) return how === 'remove' ? value.slice(1) : [...value, odd]
  const entries = Object.entries(value)
  if (how === 'add' || key === undefined) {
    return Object.fromEntries([...entries, [typeof odd === 'string' ? odd : 'unknown', odd]])
  }
  if (how === 'remove') return Object.fromEntries(entries.filter(([name]) => name !== key))
  return Object.fromEntries(entries.map(([name, one]) => [name, name === key ? odd : one]))
}
