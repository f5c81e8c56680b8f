// The thread that reads the files of releases: their header, size and hash. CPU and the disk, nothing else; it
// knows no key and judges nothing.
import { createHash } from 'node:crypto'
import { setPriority } from 'node:os'
import { declaredBytes, headerBytes, platformOf, type Platform } from '../src/executable.ts'
import { limits } from '../src/limits.ts'
import { openRegular, stampOf, type OpenFile } from '../src/release_files.ts'

/** What a file is. */
export interface Measured {
  /** What it was opened as; `openRegular` and `stampOf` tell whether it still is that file. */
  stamp: string
  size: number
  /** Hex. */
  sha256: string
  /** By the header; null for what is no executable of ours. */
  platform: Platform | null
}

/** Why a file was not measured: by a code of ours or of the system, since an error loses its own on the way. */
export interface Unmeasured {
  failed: string
}

// Linux alone has a priority per thread; elsewhere this would slow the whole hub.
if (process.platform === 'linux') setPriority(limits.hashNice)

/** Reads one file to its end. */
export async function measure(path: string): Promise<Measured | Unmeasured> {
  try {
    const file = await openRegular(path)
    if (file === undefined) return { failed: 'NOT_A_FILE' }
    try {
      return await read(file)
    } finally {
      await file.handle.close()
    }
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    if (typeof code !== 'string') throw error
    return { failed: code }
  }
}

async function read({ handle, stats }: OpenFile): Promise<Measured | Unmeasured> {
  const buffer = Buffer.allocUnsafe(limits.releaseReadBytesMax)
  const hash = createHash('sha256')
  let header: Buffer | undefined
  let size = 0
  for (;;) {
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, size)
    if (bytesRead === 0) break
    const piece = buffer.subarray(0, bytesRead)
    header ??= Buffer.from(piece.subarray(0, headerBytes))
    hash.update(piece)
    size += bytesRead
    // One that grows while it is read is still being written.
    if (BigInt(size) > stats.size) return { failed: 'CHANGING' }
  }
  const stamp = stampOf(stats)
  if (stampOf(await handle.stat({ bigint: true })) !== stamp) return { failed: 'CHANGING' }
  const whole = header !== undefined && size >= declaredBytes(header) ? header : undefined
  const platform = (whole && platformOf(whole)) ?? null
  return { stamp, size, sha256: hash.digest('hex'), platform }
}
