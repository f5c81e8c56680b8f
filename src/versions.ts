// Versions such as 1.2.3 and 1.2.3-rc.1, ordered as semver.org says. Knows nothing of what they belong to.

/** Also the pattern of the API; 64 characters at most. */
export const versionPattern = String.raw`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`
export const versionLengthMax = 64

const whole = new RegExp(versionPattern)

export function isVersion(text: string): boolean {
  return text.length <= versionLengthMax && whole.test(text)
}

export function isPrerelease(version: string): boolean {
  return version.includes('-')
}

/** Negative where `a` is older than `b`. Of two of the same number the one with a suffix is older. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [parse(a), parse(b)]
  for (const [index, number] of left.numbers.entries()) {
    const difference = number - (right.numbers[index] ?? 0)
    if (difference !== 0) return difference
  }
  if (left.suffix.length === 0 || right.suffix.length === 0) {
    return right.suffix.length - left.suffix.length
  }
  for (const [index, part] of left.suffix.entries()) {
    const other = right.suffix[index]
    if (other === undefined) return 1
    const difference = compareParts(part, other)
    if (difference !== 0) return difference
  }
  return left.suffix.length - right.suffix.length
}

function parse(version: string): { numbers: number[]; suffix: string[] } {
  const [plain = ''] = version.split('+')
  const dash = plain.indexOf('-')
  const [numbers, suffix] =
    dash === -1 ? [plain, ''] : [plain.slice(0, dash), plain.slice(dash + 1)]
  return {
    numbers: numbers.split('.').map(Number),
    suffix: suffix === '' ? [] : suffix.split('.'),
  }
}

/** Numbers before words, numbers by value, words by their bytes. */
function compareParts(a: string, b: string): number {
  const [left, right] = [a, b].map((part) => (/^\d+$/.test(part) ? Number(part) : undefined))
  if (left !== undefined && right !== undefined) return left - right
  if (left !== undefined) return -1
  if (right !== undefined) return 1
  return a < b ? -1 : a > b ? 1 : 0
}
