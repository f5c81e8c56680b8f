// What is wrong with a value, in words for people: the errors of a schema's check as paths and sentences.
// Says each thing once, and never shows a schema or a regular expression.
import type { TSchema } from 'typebox'
import type { ErrorDetail } from './errors.ts'

interface SchemaError {
  keyword: string
  /** A pointer to the schema that was not met; a keyword follows only where it has schemas of its own. */
  schemaPath: string
  instancePath: string
  params: unknown
  message: string
}

/** One detail per problem, in the order in which they were found. */
export function detailsOf(errors: readonly SchemaError[], schema: TSchema): ErrorDetail[] {
  const unions = errors.filter(({ keyword }) => keyword === 'anyOf')
  const inUnion = (error: SchemaError) =>
    unions.find(({ schemaPath }) => error.schemaPath.startsWith(`${schemaPath}/anyOf/`))
  const details = errors.flatMap((error): ErrorDetail[] => {
    if (error.keyword === 'anyOf') {
      const branches = errors.filter((other) => inUnion(other) === error)
      return inUnion(error) ? [] : unionDetails(error, branches, schema)
    }
    return inUnion(error) ? [] : detailsOfOne(error, schema)
  })
  // The check stops after some errors, each echo is one, and the names come last: then the echoes must do.
  if (details.length === 0) {
    const echoes = errors.filter(({ keyword }) => keyword === 'boolean')
    return echoes.map(({ instancePath: path }) => ({ path, message: 'is not a known field' }))
  }
  const seen = new Set<string>()
  return details.filter(({ path, message }) => {
    const key = `${path}\n${message}`
    return seen.has(key) ? false : seen.add(key)
  })
}

/** Something or null is that something; of several types or constants all are named. */
function unionDetails(
  union: SchemaError,
  branches: readonly SchemaError[],
  schema: TSchema,
): ErrorDetail[] {
  const path = union.instancePath
  const constants = branches.filter(({ keyword }) => keyword === 'const')
  if (constants.length > 0 && constants.length === branches.length) {
    const allowed = constants.map((error) => String(param(error, 'allowedValue')))
    return [{ path, message: `must be one of ${allowed.join(', ')}` }]
  }
  const types = branches.filter(
    ({ keyword, instancePath }) => keyword === 'type' && instancePath === path,
  )
  const others = branches.filter((error) => !types.includes(error))
  if (others.length > 0) return others.flatMap((error) => detailsOfOne(error, schema))
  const words = types.map((error) => typeWords(param(error, 'type')))
  return [{ path, message: `must be ${words.join(' or ')}` }]
}

function detailsOfOne(error: SchemaError, schema: TSchema): ErrorDetail[] {
  const { keyword, instancePath: path } = error
  if (keyword === 'additionalProperties') {
    const described = schemaAt(schema, error.schemaPath)
    return names(error, 'additionalProperties').map((name) => ({
      path: `${path}/${pointed(name)}`,
      message: described?.['patternProperties']
        ? inWords('is no name that may stand here', described)
        : 'is not a known field',
    }))
  }
  if (keyword === 'required') {
    return names(error, 'requiredProperties').map((name) => ({
      path: `${path}/${pointed(name)}`,
      message: 'is required',
    }))
  }
  // A false schema is the echo of an unknown member, which is told above by its name.
  if (keyword === 'boolean') return []
  return [{ path, message: sentence(error, schema) }]
}

function sentence(error: SchemaError, schema: TSchema): string {
  const limit = Number(param(error, 'limit'))
  switch (error.keyword) {
    case 'type':
      if (error.schemaPath === '#') return 'must be a JSON object'
      return `must be ${typeWords(param(error, 'type'))}`
    case 'enum':
      return `must be one of ${names(error, 'allowedValues').join(', ')}`
    case 'const':
      return `must be ${JSON.stringify(param(error, 'allowedValue'))}`
    case 'minLength':
      return limit === 1 ? 'must not be empty' : `must hold at least ${limit} characters`
    case 'maxLength':
      return `may hold at most ${counted(limit, 'character')}`
    case 'minItems':
    case 'minProperties':
      return limit === 1 ? 'must not be empty' : `must hold at least ${limit}`
    case 'maxItems':
    case 'maxProperties':
      return `may hold at most ${limit}`
    case 'uniqueItems':
      return 'must not hold the same twice'
    case 'minimum':
      return `must be at least ${limit}`
    case 'maximum':
      return `must be at most ${limit}`
    case 'format':
      return `must be ${formatWords(String(param(error, 'format')))}`
    case 'pattern':
      return inWords('is not written as it must be', schemaAt(schema, error.schemaPath))
    default:
      return error.message
  }
}

function inWords(message: string, schema: Record<string, unknown> | undefined): string {
  const description = schema?.['description']
  return typeof description === 'string' ? `${message}: ${description}` : message
}

function typeWords(type: unknown): string {
  if (Array.isArray(type)) return type.map(typeWords).join(' or ')
  return wordsOfType[String(type)] ?? String(type)
}

const wordsOfType: Record<string, string> = {
  object: 'an object',
  array: 'an array',
  string: 'a string',
  number: 'a number',
  integer: 'a whole number',
  boolean: 'true or false',
}

function formatWords(format: string): string {
  return wordsOfFormat[format] ?? `a ${format}`
}

const wordsOfFormat: Record<string, string> = {
  uuid: 'a UUID',
  email: 'an e-mail address',
  'date-time': 'an ISO-8601 time with a zone, such as 2030-01-31T12:00:00Z',
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

function param(error: SchemaError, name: string): unknown {
  return (error.params as Record<string, unknown>)[name]
}

function names(error: SchemaError, name: string): string[] {
  const found = param(error, name)
  return Array.isArray(found) ? found.map(String) : []
}

/** A member's name as a JSON pointer takes it. */
function pointed(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1')
}

/** The part of a schema that a pointer such as `#/properties/slug` names. */
function schemaAt(schema: TSchema, pointer: string): Record<string, unknown> | undefined {
  let at: unknown = schema
  for (const step of pointer.split('/').slice(1)) {
    if (typeof at !== 'object' || at === null) return undefined
    at = (at as Record<string, unknown>)[step]
  }
  return typeof at === 'object' && at !== null ? (at as Record<string, unknown>) : undefined
}
