// What PostgreSQL refuses to store is replaced here: U+0000 and lone surrogates. Used for strings whose
// author can't be asked again: agents, headers, audit details. Request bodies are refused instead.

/** At most `charsMax` UTF-16 units of `text`, storable as `text`. */
export function cleanText(text: string, charsMax: number): string {
  const cut = text.length > charsMax ? text.slice(0, charsMax) : text
  return cut.replaceAll('\u0000', '\ufffd').toWellFormed()
}

/** A value as JSON text, storable as `jsonb`. */
export function jsonText(value: unknown): string {
  const text = JSON.stringify(value)
  // A false alarm, such as an escaped backslash before "u0000", only costs the slower way.
  return /\\u(?:0000|d[89a-f])/i.test(text) ? JSON.stringify(cleanMembers(value)) : text
}

function cleanMembers(value: unknown): unknown {
  if (typeof value === 'string') return cleanText(value, Infinity)
  if (Array.isArray(value)) return value.map(cleanMembers)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, member]) => [cleanText(key, Infinity), cleanMembers(member)]),
  )
}
