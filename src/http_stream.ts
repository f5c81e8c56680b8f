// Writes the chunks of a streamed reply as fast as its reader takes them: at most a chunk waits here, and what
// makes them is asked for the next one only then.
import type { HttpResponse } from 'uWebSockets.js'
import { limits } from './limits.ts'

export interface Reader {
  /** True once the connection is gone; the response must not be touched any more. */
  left: () => boolean
  onLeft: (listener: () => void) => void
}

type Chunk = string | Uint8Array

/**
 * Writes all chunks from `step` on and ends the response; false when the reader left or stalled before.
 * With a `length` in bytes it is told as Content-Length and the chunks have to be as many; a chunk's memory may
 * then be used for the next one. The iteration is ended in any case. Throws what making a chunk threw, with the
 * response still open.
 */
export async function writeChunks(
  res: HttpResponse,
  reader: Reader,
  first: IteratorResult<Chunk>,
  chunks: AsyncIterator<Chunk>,
  length?: number,
): Promise<boolean> {
  const body = length === undefined ? unsized(res) : sized(res, length)
  let wake = () => {}
  reader.onLeft(() => wake())
  try {
    // They may have left while the first chunk was made.
    if (reader.left()) return false
    res.onWritable((offset) => {
      const taken = body.goOn(offset)
      if (taken) wake()
      return taken
    })
    for (let step = first; !step.done; step = await chunks.next()) {
      if (reader.left()) return false
      const { value } = step
      // An empty chunk would be the end of the body.
      if (value.length === 0) continue
      let taken = true
      res.cork(() => {
        taken = body.write(value)
      })
      if (taken) continue
      const stalled = await new Promise<boolean>((resolve) => {
        const timer = setTimeout(() => resolve(true), limits.streamStallMs)
        wake = () => {
          clearTimeout(timer)
          resolve(false)
        }
      })
      wake = () => {}
      if (stalled && !reader.left()) res.close()
      if (reader.left()) return false
    }
    if (reader.left()) return false
    body.end()
    return true
  } finally {
    await chunks.return?.()
  }
}

/** How a body gets into its socket. */
interface Body {
  /** False when the socket did not take all of it. */
  write: (chunk: Chunk) => boolean
  /** The socket takes more, from this byte of the body on; false when it again did not take all. */
  goOn: (offset: number) => boolean
  end: () => void
}

/** In chunked encoding: what is not taken uWebSockets.js keeps a copy of. */
function unsized(res: HttpResponse): Body {
  return {
    write: (chunk) => res.write(chunk),
    goOn: () => true,
    end: () => res.cork(() => res.end()),
  }
}

/** With a Content-Length: what is not taken is offered again, and nobody copies it. */
function sized(res: HttpResponse, length: number): Body {
  let rest: Uint8Array | undefined
  let begin = 0
  let ended = false
  const offer = (bytes: Uint8Array) => {
    const [taken, done] = res.tryEnd(bytes, length)
    ended = done
    if (taken || done) rest = undefined
    return taken || done
  }
  return {
    write(chunk) {
      rest = typeof chunk === 'string' ? Buffer.from(chunk) : chunk
      begin = res.getWriteOffset()
      return offer(rest)
    },
    goOn: (offset) => rest === undefined || offer(rest.subarray(offset - begin)),
    end() {
      // The last chunk ended it. Too few of them must not look whole.
      if (!ended) res.close()
    },
  }
}
