// Reads proved files for many readers at once: one open file for all readers of it, some buffers for all readers
// together, and a pace in all. Never sends a byte of a file that is not the one that was proved.
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
  private readonly buffers: Buffers

  /** All of them together send at most so many bytes a second. */
  constructor(bytesPerSecond: number) {
    this.buffers = new Buffers(bytesPerSecond)
  }

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
        this.buffers.use(async (buffer) =>
          take(await readPiece(handle, file, begin + offset, end, buffer)),
        )
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

/**
 * Buffers that many take turns with, at a pace in all. Readers who take what they get, some hundred of them, would have
 * the front thread for themselves: the buffers of their sockets alone hold gigabytes.
 */
class Buffers {
  private readonly free: Buffer[]
  private readonly waiting: ((buffer: Buffer) => void)[] = []
  private readonly msPerByte: number
  /** When the pace catches up with what was sent, in ms of this process. */
  private dueMs = 0
  private pause: NodeJS.Timeout | undefined

  constructor(bytesPerSecond: number) {
    this.msPerByte = 1000 / bytesPerSecond
    // Pages of memory that nothing was written to take none.
    this.free = Array.from({ length: limits.downloadBuffers }, () =>
      Buffer.allocUnsafeSlow(limits.downloadPieceBytes),
    )
  }

  /** In the order of asking. `work` answers how many bytes it sent. */
  async use(work: (buffer: Buffer) => Promise<number>): Promise<void> {
    const buffer = await new Promise<Buffer>((go) => {
      this.waiting.push(go)
      this.lend()
    })
    try {
      const sent = await work(buffer)
      const earliestMs = performance.now() - limits.downloadCreditMs
      this.dueMs = Math.max(this.dueMs, earliestMs) + sent * this.msPerByte
    } finally {
      this.free.push(buffer)
      this.lend()
    }
  }

  private lend(): void {
    if (this.pause !== undefined) return
    while (this.waiting.length > 0 && this.free.length > 0) {
      const pauseMs = this.dueMs - performance.now()
      if (pauseMs > 0) return this.lendIn(pauseMs)
      const [go, buffer] = [this.waiting.shift(), this.free.pop()]
      if (go && buffer) go(buffer)
    }
  }

  private lendIn(ms: number): void {
    this.pause = setTimeout(() => {
      this.pause = undefined
      this.lend()
    }, ms)
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
