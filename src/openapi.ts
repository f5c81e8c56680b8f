// The OpenAPI 3.1 document, made from the table of routes: what checks a request is what describes it, so
// the two can't disagree.
import { ErrorBodySchema, errorResponses } from './openapi_errors.ts'
import { headers, pathsOf, securitySchemes } from './openapi_operations.ts'
import type { Route } from './route.ts'

export { ErrorBodySchema }

interface ApiDescription {
  version: string
  /** Scheme, host and port, without a path. */
  publicOrigin: string
}

/** The document as JSON text. */
export function openapi(routes: readonly Route[], api: ApiDescription): string {
  const named = namedSchemas(routes)
  const schemas: Record<string, unknown> = { Error: ErrorBodySchema }
  for (const [text, name] of named) {
    // Its members may hold another resource; itself it is spelled out.
    schemas[name] = withMembers(JSON.parse(text) as object, (m) => withReferences(m, named))
  }
  const document = {
    openapi: '3.1.0',
    info: {
      title: 'Muster',
      version: api.version,
      description,
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: `${api.publicOrigin}/api/v1` }],
    security: [{ bearer: [] }],
    tags: [...new Set(routes.map((route) => route.tag))].map((name) => ({ name })),
    paths: withReferences(pathsOf(routes, api.publicOrigin), named),
    components: {
      schemas,
      responses: errorResponses(),
      headers,
      securitySchemes,
    },
  }
  return JSON.stringify(document)
}

const description = `Devices run agents, each of which holds one WebSocket; operators use this API.

Ids are UUIDv7, times ISO-8601 UTC with milliseconds. Unknown fields are refused. Lists are newest first \
unless said otherwise and come as \`{data, pagination}\`: \`pagination.cursor\` gets the next page.

Refusals come in this order: 401, 429, 403 by role alone, 400, 404 by scope, 409. Another organization's \
id is 404, never 403. Every error has the body \`Error\`: its \`code\` is stable, its \`message\` is for \
people. \`x-roles\` names the roles that may call an operation.

Connections are kept, one request at a time: one that is sent before the last is answered, or by who closed \
their own side, finds the connection closed without an answer. What is asked again with the same \
\`Idempotency-Key\` is done once.`

/** JSON text of a schema → its name: a resource is what its `get` route answers. */
function namedSchemas(routes: readonly Route[]): Map<string, string> {
  const named = new Map<string, string>()
  for (const route of routes) {
    const name = /^get([A-Z]\w*)$/.exec(route.name)?.[1]
    const schema = route.responses[200]
    if (name !== undefined && schema) named.set(JSON.stringify(schema), name)
  }
  return named
}

/** The value with every named schema in it replaced by a reference; typebox copies, so texts are compared. */
function withReferences(value: unknown, named: ReadonlyMap<string, string>): unknown {
  if (typeof value !== 'object' || value === null) return value
  const name = named.get(JSON.stringify(value))
  if (name !== undefined) return { $ref: `#/components/schemas/${name}` }
  return withMembers(value, (member) => withReferences(member, named))
}

function withMembers(value: object, map: (member: unknown) => unknown): unknown {
  if (Array.isArray(value)) return value.map(map)
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, map(member)]))
}
