// Parameters of scripts: how they are declared, and how the values of an execution are checked and become
// environment variables. A value is never put into a script's text.
import { Type, type Static } from 'typebox'
import type { ErrorDetail } from '../errors.ts'
import { limits } from '../limits.ts'
import { refusal } from '../route.ts'
import { nullable } from './shapes.ts'

const types = ['string', 'number', 'boolean'] as const
const Value = Type.Union([Type.String(), Type.Number(), Type.Boolean()])

const fields = {
  name: Type.String({
    pattern: '^[A-Za-z_][A-Za-z0-9_]*$',
    maxLength: limits.parameterNameCharsMax,
    description:
      'Letters, digits and _, no digit first. In upper case behind PARAM_ it is the name of the environment variable.',
  }),
  type: Type.Enum([...types]),
}

/** A parameter as it is answered: every member is there. */
export const Parameter = Type.Object({
  ...fields,
  required: Type.Boolean(),
  default: nullable(Value),
  secret: Type.Boolean({ description: 'Its values are sealed at rest and never shown.' }),
})

export const NewParameters = Type.Array(
  Type.Object(
    {
      ...fields,
      required: Type.Optional(Type.Boolean({ default: false })),
      default: Type.Optional(nullable(Value)),
      secret: Type.Optional(Type.Boolean({ default: false })),
    },
    { additionalProperties: false },
  ),
  { maxItems: limits.scriptParametersMax },
)

export const ParameterValues = Type.Record(Type.String(), Value)

export type Parameter = Static<typeof Parameter>
type Values = Static<typeof ParameterValues>

/** The declarations with every member set. Throws VALIDATION_ERROR where one contradicts itself. */
export function declared(given: Static<typeof NewParameters>): Parameter[] {
  const wrong: ErrorDetail[] = []
  const names = new Set<string>()
  const parameters = given.map((one, n): Parameter => {
    const { name, type, required = false, secret = false } = one
    const fallback = one.default ?? null
    const path = `/parameters/${n}`
    // Windows knows no case in names of variables.
    if (names.has(name.toUpperCase())) {
      wrong.push({ path: `${path}/name`, message: 'is there twice; case does not tell apart' })
    }
    names.add(name.toUpperCase())
    if (fallback !== null && secret) {
      wrong.push({ path: `${path}/default`, message: 'would show: a secret has no default' })
    } else if (fallback !== null && typeof fallback !== type) {
      wrong.push({ path: `${path}/default`, message: `must be a ${type}` })
    }
    return { name, type, required, default: fallback, secret }
  })
  if (wrong.length > 0) throw refusal(wrong)
  return parameters
}

export interface Environment {
  /** Values that may be shown, by name of the parameter. */
  shown: Values
  /** The variables of those. */
  env: Record<string, string>
  /** The variables of secret ones. */
  secrets: Record<string, string>
}

/** The environment that `given` makes of the declarations. Throws VALIDATION_ERROR naming each problem. */
export function environmentOf(parameters: readonly Parameter[], given: Values): Environment {
  const wrong: ErrorDetail[] = []
  const known = new Set(parameters.map(({ name }) => name))
  for (const name of Object.keys(given)) {
    if (known.has(name)) continue
    wrong.push({ path: `/parameters/${name}`, message: 'is no parameter of this script' })
  }
  const found: Omit<Environment, 'shown'> = { env: {}, secrets: {} }
  const shown: [string, Values[string]][] = []
  let bytes = 0
  for (const { name, type, required, default: fallback, secret } of parameters) {
    const value = (Object.hasOwn(given, name) ? given[name] : undefined) ?? fallback
    const path = `/parameters/${name}`
    if (value === null) {
      if (required) wrong.push({ path, message: 'is required' })
      continue
    }
    if (typeof value !== type) {
      wrong.push({ path, message: `must be a ${type}` })
      continue
    }
    const variable = `PARAM_${name.toUpperCase()}`
    bytes += Buffer.byteLength(variable) + Buffer.byteLength(String(value)) + 2
    if (secret) found.secrets[variable] = String(value)
    else {
      shown.push([name, value])
      found.env[variable] = String(value)
    }
  }
  if (bytes > limits.parametersBytesMax) {
    const message = `may make an environment of at most ${limits.parametersBytesMax} bytes in all`
    wrong.push({ path: '/parameters', message })
  }
  if (wrong.length > 0) throw refusal(wrong)
  // Not by assignment: that would lose a parameter called __proto__.
  return { ...found, shown: Object.fromEntries(shown) }
}
