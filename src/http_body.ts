// The body of a request, as its route takes it: plain JSON that its schema knows, or nothing.
import { AppError } from './errors.ts'
import { invalid, nothingSent, type Route } from './route.ts'
import { unstorableAt } from './schema_values.ts'

/** What the headers say of a body. */
interface BodyHeaders {
  contentType: string
  contentEncoding: string
}

/** Undefined where the route takes none. Throws UNSUPPORTED_MEDIA_TYPE, INVALID_JSON, VALIDATION_ERROR, what `sent` is. */
export function bodyOf(route: Route, sent: string | AppError, headers: BodyHeaders): unknown {
  if (route.body) requirePlainJson(sent !== '', headers)
  if (sent instanceof AppError) throw sent
  if (route.body) return checked(route, route.body, sent)
  if (sent !== '' && route.at === 'base') requireNothing(sent, headers)
  return undefined
}

/** JSON is UTF-8 by its definition, and a packed body could unfold without bound. */
function requirePlainJson(hasBody: boolean, { contentType, contentEncoding }: BodyHeaders): void {
  if (contentEncoding !== '') {
    throw new AppError('UNSUPPORTED_MEDIA_TYPE', 'send the body without a Content-Encoding')
  }
  if (hasBody && !/^application\/json\s*(;\s*charset="?utf-8"?\s*)?$/i.test(contentType)) {
    throw new AppError('UNSUPPORTED_MEDIA_TYPE', 'send the body as application/json, in UTF-8')
  }
}

/** Where nothing is asked for, `{}` may be sent, and what is not known is refused as everywhere. */
function requireNothing(text: string, headers: BodyHeaders): void {
  requirePlainJson(true, headers)
  nothingSent.check(parsed(text))
}

function checked(
  { bodyOptional }: Route,
  schema: NonNullable<Route['body']>,
  text: string,
): unknown {
  if (text === '' && bodyOptional) return schema.check({})
  if (text === '') throw invalid('', 'must be a JSON object; there is none')
  const value = parsed(text)
  // Both can only come as an escape: the bytes were checked as UTF-8.
  const at = text.includes('\\u') ? unstorableAt(value) : undefined
  if (at !== undefined) {
    throw invalid(at, 'holds U+0000 or half a surrogate pair, which no string may')
  }
  return schema.check(value)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new AppError('INVALID_JSON', 'the body is not valid JSON', { cause: error })
  }
}
