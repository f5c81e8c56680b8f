// How refusals show in the OpenAPI document: one schema, one response per status with the codes it carries.
import { Type } from 'typebox'
import { statusOf, type ErrorCode } from './errors.ts'

/** The body of every error response: what `errorBody` of errors.ts makes. */
export const ErrorBodySchema = Type.Object({
  error: Type.Object({
    code: Type.Enum(Object.keys(statusOf) as ErrorCode[], { description: 'Stable.' }),
    message: Type.String({ description: 'For people; may change.' }),
    details: Type.Optional(
      Type.Array(
        Type.Object({
          path: Type.String({ description: 'A JSON pointer into the request.' }),
          message: Type.String(),
        }),
      ),
    ),
    requestId: Type.String(),
  }),
})

/** RFC 9110's names. Those of node:http would bring HTTP/2 and a fetch along, 9 MB that nobody here needs. */
const names: Record<(typeof statusOf)[ErrorCode], string> = {
  400: 'BadRequest',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'NotFound',
  405: 'MethodNotAllowed',
  409: 'Conflict',
  413: 'PayloadTooLarge',
  415: 'UnsupportedMediaType',
  426: 'UpgradeRequired',
  429: 'TooManyRequests',
  500: 'InternalServerError',
  503: 'ServiceUnavailable',
}

/** Name of the reusable response of a status: 404 → `NotFound`. */
function errorName(status: number): string {
  return (names as Record<number, string>)[status] ?? String(status)
}

/** A reference to the reusable response of a status. */
export function errorReference(status: number): { $ref: string } {
  return { $ref: `#/components/responses/${errorName(status)}` }
}

/** The reusable responses, one per status that a code has. */
export function errorResponses(): Record<string, unknown> {
  const codes = Object.entries(statusOf)
  const statuses = [...new Set(codes.map(([, status]) => status))]
  return Object.fromEntries(
    statuses.map((status) => {
      const listed = codes.filter(([, other]) => other === status).map(([code]) => code)
      return [errorName(status), errorResponse(status, listed)]
    }),
  )
}

function errorResponse(status: number, codes: string[]) {
  const more = status === 403 ? [...codes, 'DEVICE_DECOMMISSIONED (to an agent)'] : codes
  return {
    description: more.join(', '),
    headers: {
      'X-Request-Id': { $ref: '#/components/headers/RequestId' },
      ...(retried.has(status)
        ? { 'Retry-After': { $ref: '#/components/headers/RetryAfter' } }
        : {}),
      ...(status === 429 ? rateHeaderReferences : {}),
      ...(status === 401
        ? { 'WWW-Authenticate': { $ref: '#/components/headers/WWWAuthenticate' } }
        : {}),
      ...(status === 405 ? { Allow: { $ref: '#/components/headers/Allow' } } : {}),
    },
    content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
  }
}

/** The headers by which a rate tells where it stands. */
export const rateHeaderReferences = Object.fromEntries(
  ['Limit', 'Remaining', 'Reset'].map((name) => [
    `RateLimit-${name}`,
    { $ref: `#/components/headers/RateLimit${name}` },
  ]),
)

/** Statuses that tell when to come back. */
const retried = new Set([429, 503])
