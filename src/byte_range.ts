// Conditions and ranges of a request for a file (RFC 9110, 13 and 14): which bytes to send. Knows no file.

export interface Conditions {
  ifNoneMatch: string
  ifRange: string
  range: string
}

export type Selection =
  | { status: 200; begin: number; end: number }
  | { status: 206; begin: number; end: number }
  | { status: 304 }
  | { status: 416 }

/** Decides for a file of `size` bytes and a strong `etag`; `end` is the byte after the last one. */
export function selectBytes(
  { ifNoneMatch, ifRange, range }: Conditions,
  size: number,
  etag: string,
): Selection {
  const whole: Selection = { status: 200, begin: 0, end: size }
  if (ifNoneMatch !== '' && matches(ifNoneMatch, etag)) return { status: 304 }
  // Another file than the one that was begun: from the start. A date proves nothing.
  if (ifRange !== '' && ifRange !== etag) return whole
  // Several ranges, other units and what is malformed may be ignored, and are.
  const match = /^bytes=(\d{0,40})-(\d{0,40})$/i.exec(range.replaceAll(/[ \t]/g, ''))
  const [, first = '', last = ''] = match ?? []
  if (first === '' && last === '') return whole
  if (first === '') {
    const count = Number(last)
    return count === 0 ? { status: 416 } : part(Math.max(0, size - count), size)
  }
  if (last !== '' && Number(last) < Number(first)) return whole
  if (Number(first) >= size) return { status: 416 }
  return part(Number(first), last === '' ? size : Math.min(size, Number(last) + 1))
}

function part(begin: number, end: number): Selection {
  return { status: 206, begin, end }
}

/** By weak comparison, as If-None-Match asks. */
function matches(header: string, etag: string): boolean {
  if (header.trim() === '*') return true
  return header.split(',').some((one) => one.trim().replace(/^W\//, '') === etag)
}
