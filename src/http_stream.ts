// Writes the chunks of a streamed reply as fast as its reader takes them: at most a chunk waits here, and what
// makes them is asked for the next one only then.
import type { HttpResponse } from 'uWebSockets.js'
import { limits } from './limits.ts'

export interface Reader {
  /** True once the connection is gone; the response must not be touched any more. */
  left: () => boolean
  onLeft: (listener: () => void) => void
}

/**
 * Writes all chunks from `step` on and ends the response; false when the reader left or stalled before.
 * The iteration is ended in any case. Throws what making a chunk threw, with the response still open.
 */
export async function writeChunks(
  res: HttpResponse,
  reader: Reader,
  first: IteratorResult<string | Uint8Array>,
  chunks: AsyncIterator<string | Uint8Array>,
): Promise<boolean> {
  let wake = () => {}
  reader.onLeft(() => wake())
  try {
    // They may have left while the first chunk was made.
    if (reader.left()) return false
    res.onWritable(() => {
      wake()
      return true
    })
    for (let step = first; !step.done; step = await chunks.next()) {
      if (reader.left()) return false
      const { value } = step
      // An empty chunk would be the end of the body.
      if (value.length === 0) continue
      let drained = true
      res.cork(() => {
        drained = res.write(value)
      })
      if (drained) continue
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
    res.cork(() => res.end())
    return true
  } finally {
    await chunks.return?.()
  }
}
