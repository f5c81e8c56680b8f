// Waiting for a fact, with a deadline: what tests use instead of sleeping.
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Resolves with the first value that is neither undefined, null nor false; fails by name at the deadline. That is
 * there to end a hang: a disk that is busy with other tests may hold up a commit for seconds.
 */
export async function until<T>(
  what: string,
  fact: () => T | Promise<T>,
  deadlineMs = 60_000,
): Promise<NonNullable<Exclude<T, false>>> {
  const endMs = performance.now() + deadlineMs
  for (let waitMs = 1; ; waitMs = Math.min(50, waitMs * 2)) {
    const value = await fact()
    if (value !== undefined && value !== null && value !== false) {
      return value as NonNullable<Exclude<T, false>>
    }
    if (performance.now() > endMs) throw new Error(`waited ${deadlineMs} ms in vain for ${what}`)
    await sleep(waitMs)
  }
}
