// Routes as OpenAPI operations: parameters, bodies, answers, and which refusals each can meet. Describes by
// hand only what is no route.
import type { TSchema } from 'typebox'
import { operations, roles } from './auth.ts'
import { limits } from './limits.ts'
import { errorReference, rateHeaderReferences } from './openapi_errors.ts'
import type { Route } from './route.ts'

type Json = Record<string, unknown>

export const securitySchemes = {
  bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: 'From /auth/login.' },
  agentToken: { type: 'http', scheme: 'bearer', description: 'From /agents/enroll.' },
  scrapeToken: { type: 'http', scheme: 'bearer', description: 'METRICS_SCRAPE_TOKEN of the hub.' },
}

/** What a route can't say about itself: its security where that is no access token, its content type. */
const particulars: Record<string, { security?: Json[]; type?: string; errors?: number[] }> = {
  metrics: {
    security: [{ scrapeToken: [] }],
    type: 'text/plain; version=0.0.4',
    errors: [401, 404],
  },
  acceptInvitePage: { type: 'text/html' },
  docsPage: { type: 'text/html' },
  docsFile: { type: '*/*' },
  exportAudit: { type: 'text/csv', errors: [404] },
  verifyAudit: { errors: [404] },
  streamEvents: { type: 'text/event-stream', errors: [404, 409] },
  downloadAgent: { type: 'application/octet-stream', errors: [429] },
  enrollAgent: { security: [{}, { agentToken: [] }] },
}

/** Every path with its operations. */
export function pathsOf(routes: readonly Route[], origin: string): Json {
  const paths: Record<string, Json> = {}
  for (const route of routes) {
    const path = (paths[template(route.path)] ??= {})
    if (route.at === 'origin') path['servers'] = [{ url: origin }]
    path[route.method.toLowerCase()] = operationOf(route)
  }
  for (const [path, operation] of Object.entries(socketOperations)) {
    paths[path] = { ...paths[path], get: operation }
  }
  return paths
}

function operationOf(route: Route): Json {
  const parameters = [
    ...pathParameters(route),
    ...queryParameters(route),
    ...headerParameters(route),
  ]
  const security = particulars[route.name]?.security ?? (route.may === 'public' ? [] : undefined)
  return {
    operationId: route.name,
    tags: [route.tag],
    summary: route.summary,
    ...(route.organizationWide
      ? { description: 'Concerns a whole organization: a user narrowed to sites gets 403.' }
      : {}),
    ...(security ? { security } : {}),
    ...rolesOf(route),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(route.body ? { requestBody: requestBody(route, route.body.schema) } : {}),
    responses: responsesOf(route),
  }
}

function rolesOf({ may }: Route): Json {
  if (may === 'public') return {}
  return { 'x-roles': may === 'signed-in' ? roles : operations[may] }
}

function requestBody(route: Route, schema: TSchema): Json {
  return { required: !route.bodyOptional, content: { 'application/json': { schema } } }
}

function responsesOf(route: Route): Json {
  const responses: Json = {}
  for (const status of errorStatuses(route)) {
    responses[status] = errorReference(status)
  }
  for (const [status, schema] of Object.entries(route.responses)) {
    const type = particulars[route.name]?.type ?? 'application/json'
    const bare = Number(status) >= 300
    const content = schema ?? (bare || type === 'application/json' ? null : { type: 'string' })
    responses[status] = {
      description: successes[status] ?? 'Why the hub is not ready.',
      headers: {
        'X-Request-Id': { $ref: '#/components/headers/RequestId' },
        ...(mayBeLimited(route) ? rateHeaderReferences : {}),
        ...(status === '201' ? { Location: { $ref: '#/components/headers/Location' } } : {}),
      },
      ...(content ? { content: { [type]: { schema: content } } } : {}),
    }
  }
  return responses
}

const successes: Record<string, string> = {
  200: 'Done.',
  201: 'Created.',
  202: 'Accepted and durable; it runs as soon as it can.',
  204: 'Done; no body.',
  206: 'The part that was asked for.',
  304: 'As you have it.',
  416: 'The file ends before the part that was asked for; Content-Range tells its size.',
}

/** Which refusals an operation can meet, from what the adapter does with such a route. */
function errorStatuses(route: Route): number[] {
  const reads = route.method === 'GET'
  const open = route.may === 'public'
  const bare = route.at === 'origin'
  const can: [number, boolean][] = [
    [400, !bare],
    [401, !open || !reads],
    [403, !open || !reads],
    [404, route.params !== undefined],
    [409, !reads],
    [413, !reads],
    [415, !reads],
    [429, mayBeLimited(route)],
    [500, true],
    [503, !bare],
  ]
  const more = particulars[route.name]?.errors ?? []
  return can.flatMap(([status, may]) => (may || more.includes(status) ? [status] : []))
}

/** Every route for users, and those that are public but ask for a secret. */
function mayBeLimited(route: Route): boolean {
  return route.may !== 'public' || route.method !== 'GET'
}

// ---- parameters ------------------------------------------------------------------------------

/** `/sites/:id` → `/sites/{id}`. */
function template(path: string): string {
  return path.replace(/:(\w+)/g, '{$1}')
}

function pathParameters(route: Route): Json[] {
  return route.parameters.map((name) => ({
    name,
    in: 'path',
    required: true,
    schema: route.params?.schema.properties[name] ?? { type: 'string' },
  }))
}

function queryParameters(route: Route): Json[] {
  const schema = route.query?.schema
  if (schema === undefined) return []
  const required = new Set<string>(schema.required)
  return Object.entries(schema.properties).map(([name, property]) => ({
    name,
    in: 'query',
    ...(required.has(name) ? { required: true } : {}),
    schema: property,
  }))
}

function headerParameters(route: Route): Json[] {
  return route.headers.flatMap((name): Json[] => {
    const parameter = headerParameter[name]
    return parameter ? [parameter] : []
  })
}

/** Request headers worth telling; `authorization` is a security scheme, `host` is everyone's. */
const headerParameter: Record<string, Json> = {
  'idempotency-key': {
    name: 'Idempotency-Key',
    in: 'header',
    description: 'A retry with the same key and body gets the answer of the first request.',
    schema: { type: 'string', minLength: 1, maxLength: limits.idempotencyKeyCharsMax },
  },
  range: {
    name: 'Range',
    in: 'header',
    description: 'One range of bytes, to resume; with If-Range only of the same file.',
    schema: { type: 'string' },
  },
  'if-range': {
    name: 'If-Range',
    in: 'header',
    description: 'The ETag of what was begun: of another file all of it is sent.',
    schema: { type: 'string' },
  },
  'if-none-match': {
    name: 'If-None-Match',
    in: 'header',
    description: 'The ETag of what is there already: 304 where it is still the one.',
    schema: { type: 'string' },
  },
  'last-event-id': {
    name: 'Last-Event-ID',
    in: 'header',
    description:
      'The `id` of the last event received: what came after it is sent first. 400 INVALID_CURSOR when ' +
      'it is not one of ours, or when retention may have removed what came after it.',
    schema: { type: 'string', maxLength: 64 },
  },
  'x-enrollment-secret': {
    name: 'X-Enrollment-Secret',
    in: 'header',
    description: 'The enrollment secret, instead of `enrollmentSecret` in the body.',
    schema: { type: 'string', maxLength: limits.credentialBytesMax },
  },
}

/** Response headers that components share. */
export const headers = {
  RequestId: {
    description:
      'Finds this request in the log of the hub; a caller’s own well-formed one is kept.',
    schema: { type: 'string', maxLength: limits.requestIdCharsMax },
  },
  Location: { description: 'Where the created thing is.', schema: { type: 'string' } },
  RetryAfter: {
    description: 'Seconds after which another try makes sense; never more than RateLimit-Reset.',
    schema: { type: 'integer', minimum: 1 },
  },
  RateLimitLimit: {
    description:
      'Calls that may be made at once: the quota of the rate that is nearest to its end. Absent where rates are off.',
    schema: { type: 'integer', minimum: 1 },
  },
  RateLimitRemaining: {
    description: 'Calls that are left of RateLimit-Limit; they come back one by one.',
    schema: { type: 'integer', minimum: 0 },
  },
  RateLimitReset: {
    description: 'Seconds until the whole of RateLimit-Limit is there again.',
    schema: { type: 'integer', minimum: 0 },
  },
  WWWAuthenticate: { description: 'The Bearer challenge.', schema: { type: 'string' } },
  Allow: { description: 'The methods of this path.', schema: { type: 'string' } },
}

// ---- what is no route ------------------------------------------------------------------------

/** WebSockets, which the fronts serve beside the routes. */
const socketOperations: Record<string, Json> = {
  '/agents/{deviceId}/ws': {
    operationId: 'connectAgent',
    tags: ['agents'],
    summary: 'The socket of a device’s agent (WebSocket, subprotocol muster.v1)',
    description:
      'Upgrades to a WebSocket once the token is checked. Without `Upgrade` the same checks are made, ' +
      'and the refusal, or 426 when there is none, is answered as JSON: socket clients hide refusals.',
    security: [{ agentToken: [] }],
    parameters: [
      { name: 'deviceId', in: 'path', required: true, schema: { type: 'string', format: 'uuid' } },
      {
        name: 'Sec-WebSocket-Protocol',
        in: 'header',
        schema: { type: 'string', const: 'muster.v1' },
      },
    ],
    responses: {
      101: { description: 'The connection is a WebSocket now.' },
      ...Object.fromEntries(
        [400, 401, 403, 426, 429, 503].map((status) => [status, errorReference(status)]),
      ),
    },
  },
  '/terminals/{id}/ws': {
    operationId: 'connectTerminal',
    tags: ['terminals'],
    summary: 'The socket of a terminal’s operator (WebSocket, subprotocol muster-terminal.v1)',
    description:
      'Takes the one-time ticket of `createTerminal` or `createTerminalTicket` as a second subprotocol, ' +
      '`ticket.` and its value, and no access token. Every frame is binary.',
    security: [],
    parameters: [
      { name: 'id', in: 'path', required: true, schema: { type: 'string' } },
      {
        name: 'Sec-WebSocket-Protocol',
        in: 'header',
        required: true,
        schema: { type: 'string', examples: ['muster-terminal.v1, ticket.VALUE'] },
      },
    ],
    responses: {
      101: { description: 'The connection is a WebSocket now.' },
      ...Object.fromEntries([400, 401, 426, 503].map((status) => [status, errorReference(status)])),
    },
  },
}
