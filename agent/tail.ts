// The end of a file that may be large.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs'

/** The last bytes of a file as text, or an empty string where it can't be read. */
export function readTail(path: string, bytes: number): string {
  try {
    const file = openSync(path, 'r')
    try {
      const buffer = Buffer.alloc(bytes)
      const from = Math.max(0, fstatSync(file).size - bytes)
      return buffer.toString('utf8', 0, readSync(file, buffer, 0, bytes, from))
    } finally {
      closeSync(file)
    }
  } catch {
    return ''
  }
}
