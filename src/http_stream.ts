// Writes the bodies of streamed replies as fast as their readers take them: what makes or reads them is asked for
// more only then.
import type { HttpResponse } from 'uWebSockets.js'
import { limits } from './limits.ts'

export interface Reader {
  /** True once the connection is gone; the response must not be touched any more. */
  left: () => boolean
  onLeft: (listener: () => void) => void
}

/** A body whose length is known and which can be read at any place, as often as need be. */
export interface ByteSource {
  /** Bytes. */
  length: number
  /**
   * Passes some bytes from `offset` on to `take`, which is done with them when it returns, and answers how many of them
   * were sent.
   */
  read: (offset: number, take: (bytes: Uint8Array) => number) => Promise<void>
  close: () => Promise<void>
}

/**
 * Writes all chunks from `step` on and ends the response; false when the reader left or stalled before.
 * At most a chunk waits here. The iteration is ended in any case. Throws what making a chunk threw, with the
 * response still open.
 */
export async function writeChunks(
  res: HttpResponse,
  reader: Reader,
  first: IteratorResult<string | Uint8Array>,
  chunks: AsyncIterator<string | Uint8Array>,
): Promise<boolean> {
  try {
    // They may have left while the first chunk was made.
    if (reader.left()) return false
    const outlet = new Outlet(res, reader)
    for (let step = first; !step.done; step = await chunks.next()) {
      if (reader.left()) return false
      const { value } = step
      // An empty chunk would be the end of the body.
      if (value.length === 0) continue
      if (!(await outlet.write(() => res.write(value)))) return false
    }
    if (reader.left()) return false
    res.cork(() => res.end())
    return true
  } finally {
    await chunks.return?.()
  }
}

/**
 * Writes a whole source under its Content-Length; false when the reader left or stalled before. Nothing waits here:
 * what a socket did not take is read again. Closes the source. Throws what reading threw, with the response still
 * open.
 */
export async function writeBytes(
  res: HttpResponse,
  reader: Reader,
  source: ByteSource,
): Promise<boolean> {
  const { length } = source
  try {
    if (reader.left()) return false
    const outlet = new Outlet(res, reader)
    let offset = 0
    for (;;) {
      let written = Promise.resolve(false)
      await source.read(offset, (bytes) => {
        if (reader.left()) return 0
        const begin = offset
        written = outlet.write(() => {
          const [taken, done] = res.tryEnd(bytes, length)
          offset = done ? length : res.getWriteOffset()
          return taken || done
        })
        return offset - begin
      })
      if (!(await written)) return false
      if (offset >= length) return true
    }
  } finally {
    await source.close()
  }
}

/** A response that takes what its socket takes. */
class Outlet {
  private readonly res: HttpResponse
  private readonly reader: Reader
  private wake = () => {}

  constructor(res: HttpResponse, reader: Reader) {
    this.res = res
    this.reader = reader
    reader.onLeft(() => this.wake())
    res.onWritable(() => {
      this.wake()
      return true
    })
  }

  /**
   * Calls `write`, which answers whether the socket took all, and waits until it takes more; false when the reader
   * left or stalled.
   */
  async write(write: () => boolean): Promise<boolean> {
    let taken = true
    this.res.cork(() => {
      taken = write()
    })
    if (taken) return true
    const stalled = await new Promise<boolean>((resolve) => {
      const timer = setTimeout(() => resolve(true), limits.streamStallMs)
      this.wake = () => {
        clearTimeout(timer)
        resolve(false)
      }
    })
    this.wake = () => {}
    if (stalled && !this.reader.left()) this.res.close()
    return !this.reader.left()
  }
}
