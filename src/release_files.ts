// Opening the files of releases: regular ones alone, never through a link, and told apart from whatever later
// has the same name. Used by the thread that checks them and by the downloads.
import type { BigIntStats } from 'node:fs'
import { constants } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'

export interface OpenFile {
  handle: FileHandle
  stats: BigIntStats
}

/** Opens a regular file for reading; undefined for a link, a folder or a device. Throws what the system says. */
export async function openRegular(path: string): Promise<OpenFile | undefined> {
  // Not blocking: opening a FIFO would wait for a writer.
  const flags = constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)
  let handle: FileHandle
  try {
    handle = await open(path, flags)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ELOOP') return undefined
    throw error
  }
  try {
    const stats = await handle.stat({ bigint: true })
    if (stats.isFile()) return { handle, stats }
  } catch (error) {
    await handle.close()
    throw error
  }
  await handle.close()
  return undefined
}

/**
 * Another text for another file of the same name, and for the same file once something was written into it: the
 * time of change (ctime) can't be set back.
 */
export function stampOf(stats: BigIntStats): string {
  const { dev, ino, size, mtimeNs, ctimeNs } = stats
  return [dev, ino, size, mtimeNs, ctimeNs].join(':')
}

/** A small file as text; undefined for what is no file, null for one of more bytes. */
export async function readSmall(
  path: string,
  bytesMax: number,
): Promise<string | null | undefined> {
  const file = await openRegular(path)
  if (file === undefined) return undefined
  try {
    if (file.stats.size > BigInt(bytesMax)) return null
    const buffer = Buffer.alloc(bytesMax)
    const { bytesRead } = await file.handle.read(buffer, 0, bytesMax, 0)
    return buffer.toString('utf8', 0, bytesRead)
  } finally {
    await file.handle.close()
  }
}
