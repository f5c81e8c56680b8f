// An answer that stays open, over uWebSockets.js: writes what it is given and knows how far its reader is
// behind. Decides nothing: who is too slow is the caller's to say.
import type { HttpResponse } from 'uWebSockets.js'
import type { StreamSink } from './event_streams.ts'

/** Takes over a response whose status and headers are written. `onGone` calls back when it is aborted. */
export function openStream(res: HttpResponse, onGone: (listener: () => void) => void): StreamSink {
  let closed = false
  let unsent = 0
  let behindSince: number | undefined
  const waiting: (() => void)[] = []
  const listeners: (() => void)[] = []

  const caughtUp = () => {
    unsent = 0
    behindSince = undefined
    for (const resolve of waiting.splice(0)) resolve()
  }
  const close = () => {
    if (closed) return
    closed = true
    caughtUp()
    for (const listener of listeners) listener()
  }
  onGone(close)
  res.onWritable(() => {
    // With a handler, uWebSockets.js sends what it holds only when something more is written.
    if (!closed && res.write(':\n\n')) caughtUp()
    return true
  })

  return {
    write(text) {
      if (closed) return
      let taken = true
      res.cork(() => {
        taken = res.write(text)
      })
      if (taken) return caughtUp()
      unsent += Buffer.byteLength(text)
      behindSince ??= performance.now()
    },
    unsentBytes: () => unsent,
    behindSince: () => behindSince,
    drained: () =>
      closed || unsent === 0
        ? Promise.resolve()
        : new Promise((resolve) => {
            waiting.push(resolve)
          }),
    end(text) {
      if (closed) return
      // Not with closing: uWebSockets.js would write the header of it into the body.
      res.cork(() => res.end(text))
      close()
    },
    destroy() {
      if (!closed) res.close()
    },
    onClose: (listener) => void listeners.push(listener),
  }
}
