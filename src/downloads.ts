// Reads proved files for many readers at once: one open file for all readers of it, and some buffers for all readers
// together. Never sends a byte of a file that is not the one that was proved.
import type { FileHandle } from 'node:fs/promises'
import { AppError } from './errors.ts'
import type { ByteSource } from './http_stream.ts'
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
  private readonly buffers = new Buffers(limits.downloadBuffers, limits.downloadPieceBytes)

  /** How many run now. */
  running(): number {
    return this.slots.inUse()
  }

  /**
   * The bytes from `begin` to before `end`, for a reader at the address `ip`. Throws OVERLOADED, RATE_LIMITED, and
   * UNAVAILABLE where the file is another one by now; when that happens later, reading throws, so that the download
   * breaks off. It has to be closed.
   */
  async start(file: ProvedFile, begin: number, end: number, ip: string): Promise<ByteSource> {
    const release = this.slots.take(ip)
    const shared = this.share(file)
    const close = async () => {
      release()
      await this.leave(file, shared)
    }
    try {
      const handle = await shared.opening
      const read: ByteSource['read'] = (offset, take) =>
        this.buffers.use(async (buffer) => {
          take(await readPiece(handle, file, begin + offset, end, buffer))
        })
      return { length: end - begin, read, close }
    } catch (error) {
      await close()
      throw error
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

/** Buffers that many take turns with. */
class Buffers {
  private readonly free: Buffer[]
  private readonly waiting: ((buffer: Buffer) => void)[] = []

  constructor(count: number, bytes: number) {
    // Pages of memory that nothing was written to take none.
    this.free = Array.from({ length: count }, () => Buffer.allocUnsafeSlow(bytes))
  }

  async use(work: (buffer: Buffer) => Promise<void>): Promise<void> {
    const buffer = this.free.pop() ?? (await new Promise<Buffer>((go) => this.waiting.push(go)))
    try {
      await work(buffer)
    } finally {
      const next = this.waiting.shift()
      if (next) next(buffer)
      else this.free.push(buffer)
    }
  }
}

async function readPiece(
  handle: FileHandle,
  { path, stamp }: ProvedFile,
  at: number,
  end: number,
  buffer: Buffer,
): Promise<Uint8Array> {
  const { bytesRead } = await handle.read(buffer, 0, Math.min(buffer.length, end - at), at)
  // Before the last piece: what was written into meanwhile must not look whole.
  const changed = async () => stampOf(await handle.stat({ bigint: true })) !== stamp
  if (bytesRead === 0 || (at + bytesRead === end && (await changed()))) {
    throw new Error(`${path} was changed while it was sent`)
  }
  return buffer.subarray(0, bytesRead)
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
