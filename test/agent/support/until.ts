// Waiting for a fact, with a deadline: the only way these tests wait.

import { setTimeout as delay } from 'node:timers/promises'

/** Looks until there is an answer; fails naming what never came. */
export async function until<T>(
  look: () => T | undefined | null | false | Promise<T | undefined | null | false>,
  what: string,
  ms = 60_000,
): Promise<T> {
  for (const end = Date.now() + ms; ; await delay(10)) {
    const found = await look()
    if (found !== undefined && found !== null && found !== false) return found
    if (Date.now() > end) throw new Error(`waited ${ms} ms in vain for: ${what}`)
  }
}
