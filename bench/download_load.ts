// Many downloads at a pace: sockets that stand still after each chunk, and a clock that lets some of them take the
// next one. In a thread of its own, so that the bytes do not delay what is measured beside them.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'

interface Order {
  origin: string
  path: string
  readers: number
  bytesPerSecond: number
}

export interface DownloadLoad {
  /** Bytes taken so far. */
  bytes(): number
  /** Downloads that are under way. */
  open(): number
  stop(): Promise<void>
}

/** Starts the downloads; returns when each has begun. Throws when one is refused. */
export async function startDownloads(order: Order): Promise<DownloadLoad> {
  const counts = new Float64Array(new SharedArrayBuffer(16))
  const worker = new Worker(new URL(import.meta.url), { workerData: { order, counts } })
  await once(worker, 'message')
  return {
    bytes: () => counts[0] ?? 0,
    open: () => counts[1] ?? 0,
    stop: async () => void (await worker.terminate()),
  }
}

const tickMs = 5
/** What a chunk of a socket has at most. */
const chunkBytes = 64 * 1024

async function runThread(order: Order, counts: Float64Array): Promise<void> {
  const sockets: Socket[] = []
  for (let n = 0; n < order.readers; n++) {
    const socket = begin(order, counts)
    sockets.push(socket)
    // A listener takes a few hundred connections that wait to be accepted.
    if (n % 50 === 49) await once(socket, 'data')
  }
  parentPort?.postMessage('begun')
  let next = 0
  let allowed = 0
  setInterval(() => {
    allowed = Math.min(allowed + (order.bytesPerSecond * tickMs) / 1000, order.bytesPerSecond)
    for (; allowed > 0; allowed -= chunkBytes) sockets[next++ % sockets.length]?.resume()
  }, tickMs)
}

function begin({ origin, path }: Order, counts: Float64Array): Socket {
  const { hostname, port } = new URL(origin)
  const socket = connect({ host: hostname, port: Number(port) })
  socket.write(`GET ${path} HTTP/1.1\r\nHost: bench\r\n\r\n`)
  socket.once('data', (head: Buffer) => {
    if (!head.toString('latin1', 0, 16).startsWith('HTTP/1.1 200')) {
      throw new Error(`a download is refused: ${head.toString('latin1', 0, 200)}`)
    }
    counts[1] = (counts[1] ?? 0) + 1
  })
  socket.on('data', (chunk: Buffer) => {
    counts[0] = (counts[0] ?? 0) + chunk.length
    socket.pause()
  })
  socket.on('close', () => (counts[1] = (counts[1] ?? 0) - 1))
  return socket
}

// The order in workerData tells this module's own thread from any other that imports it.
const own = workerData as { order?: Order; counts?: Float64Array } | null
if (!isMainThread && own?.order && own.counts) await runThread(own.order, own.counts)
