// Identifiers: UUIDv7 that grow strictly within this process, so that the order of ids is the order of
// acceptance even inside one millisecond (the platform's own generator promises that only across them).
import { randomUUIDv7 } from 'node:crypto'

let lastMs = 0
let counter = 0
// The first 15 characters, made once a millisecond.
let prefix = ''

/** A new UUIDv7: 48 bits of time, a 12-bit counter, 62 random bits. */
export function newId(nowMs = Date.now()): string {
  if (nowMs > lastMs) startMs(nowMs)
  // More than 4,096 in a millisecond, or a clock that stepped back: run ahead of it.
  else if (++counter > 0xfff) startMs(lastMs + 1)
  const count = counter.toString(16)
  return `${prefix}${'000'.slice(count.length)}${count}${randomUUIDv7().slice(18)}`
}

function startMs(ms: number): void {
  lastMs = ms
  counter = 0
  const time = ms.toString(16).padStart(12, '0')
  prefix = `${time.slice(0, 8)}-${time.slice(8)}-7`
}

/** The lowest UUIDv7 of a time: nothing made earlier sorts above it. */
export function idFloor(ms: number): string {
  const time = Math.max(0, Math.floor(ms)).toString(16).padStart(12, '0')
  return `${time.slice(0, 8)}-${time.slice(8)}-0000-0000-000000000000`
}

/** Which of `count` parts an id belongs to, by its random end. */
export function partOf(uuid: string, count: number): number {
  return count === 1 ? 0 : Number.parseInt(uuid.slice(-7), 16) % count
}

/** The 32 digits of a UUID, and back. */
export function hexOf(uuid: string): string {
  return uuid.replaceAll('-', '')
}

export function uuidOf(hex: string): string {
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20)]
  return [...parts, hex.slice(20)].join('-')
}

const pattern = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

export function isUuid(text: string): boolean {
  return pattern.test(text)
}
