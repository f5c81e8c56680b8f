// Folders of tests, removed again.
import { rmSync } from 'node:fs'

/**
 * Removes a folder and all in it. A killed hub's PostgreSQL ends a moment after it and may write
 * while its folder goes: up to 5.5 s of patience.
 */
export function removeFolder(path: string): void {
  rmSync(path, { recursive: true, force: true, maxRetries: 10 })
}
