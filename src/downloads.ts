// Reads proved files for many readers at once: one open file for all readers of it, one piece in memory for each.
// Never sends a byte of a file that is not the one that was proved.
import type { FileHandle } from 'node:fs/promises'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import { openRegular, stampOf } from './release_files.ts'
import type { ProvedFile } from './release_folder.ts'
import { Slots } from './slots.ts'

interface Shared {
  opening: Promise<FileHandle>
  readers: number
}

export class Downloads {
  private readonly slots = new Slots('download', limits.downloadsMax, limits.downloadsPerAddressMax)
  private readonly open = new Map<string, Shared>()

  /** How many run now. */
  running(): number {
    return this.slots.inUse()
  }

  /**
   * The bytes from `begin` to before `end`, for a reader at the address `ip`. A piece is valid until the next one is
   * asked for. Throws OVERLOADED, RATE_LIMITED, UNAVAILABLE where the file is another one by now, and an ordinary
   * error when that happens on the way, so that the download breaks off.
   */
  async *pieces(
    file: ProvedFile,
    begin: number,
    end: number,
    ip: string,
  ): AsyncGenerator<Uint8Array> {
    const release = this.slots.take(ip)
    const shared = this.share(file)
    try {
      const handle = await shared.opening
      // Not from the pool of small buffers: a piece of it would hold all of it.
      const buffer = Buffer.allocUnsafeSlow(Math.min(limits.downloadPieceBytes, end - begin))
      for (let at = begin; at < end;) {
        const length = Math.min(buffer.length, end - at)
        const { bytesRead } = await handle.read(buffer, 0, length, at)
        if (bytesRead === 0) throw new Error(`${file.path} became shorter while it was sent`)
        at += bytesRead
        // Before the last piece: what was written into meanwhile must not look whole.
        if (at === end && stampOf(await handle.stat({ bigint: true })) !== file.stamp) {
          throw new Error(`${file.path} was changed while it was sent`)
        }
        yield buffer.subarray(0, bytesRead)
      }
    } finally {
      release()
      await this.leave(file, shared)
    }
  }

  private share(file: ProvedFile): Shared {
    const key = keyOf(file)
    let shared = this.open.get(key)
    if (shared === undefined) {
      shared = { opening: openProved(file), readers: 0 }
      this.open.set(key, shared)
    }
    shared.readers++
    return shared
  }

  private async leave(file: ProvedFile, shared: Shared): Promise<void> {
    if (--shared.readers > 0) return
    this.open.delete(keyOf(file))
    const handle = await shared.opening.catch(() => undefined)
    await handle?.close()
  }
}

function keyOf({ path, stamp }: ProvedFile): string {
  return `${path}\n${stamp}`
}

async function openProved({ path, stamp }: ProvedFile): Promise<FileHandle> {
  const file = await openRegular(path).catch((error: unknown) => {
    throw replaced(error)
  })
  if (file === undefined) throw replaced()
  if (stampOf(file.stats) === stamp) return file.handle
  await file.handle.close()
  throw replaced()
}

/** The next look at the folder decides what it is now. */
function replaced(cause?: unknown): AppError {
  const message = 'this release has just been changed and is checked anew; try again shortly'
  return new AppError('UNAVAILABLE', message, { retryAfterSeconds: 3, cause })
}
