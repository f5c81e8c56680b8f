// The hub of a soak: the same parts as `npm start`, and a door for the bench alone, through which it kills the hub's
// threads, or has one stand still, as a fault of theirs would. The door is a socket in the bench's own closed folder; no hub in use has one.
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { BroadcastChannel } from 'node:worker_threads'
import { run } from '../src/main.ts'
import { channelName, type Block } from './blockable.ts'

const door = process.env['BENCH_DOOR']
if (door === undefined) throw new Error('BENCH_DOOR says where the bench knocks')

const hub = await run({ env: process.env })

const blocks = new BroadcastChannel(channelName)
blocks.unref()

const server = createServer((socket) => {
  socket.setEncoding('utf8')
  socket.on('error', () => undefined)
  socket.on('data', (text: string) => {
    carryOut(text.trim()).then(
      () => socket.end('done'),
      (error: unknown) => socket.end(String(error)),
    )
  })
})
server.listen(door)

process.on('SIGUSR2', hub.collectGarbage)
process.once('SIGTERM', () => {
  server.close()
  void hub.close().then(() => process.exit(0))
})

async function carryOut(order: string): Promise<void> {
  const [what, number = '0', ms = '0'] = order.split(' ')
  if (what === 'shard') {
    const threads = hub.ctx.shards.threads()
    await threads[Number(number) % threads.length]?.terminate()
  } else if (what === 'jobs') await hub.jobs.current().terminate()
  else if (what === 'block') {
    const block: Block = { shard: Number(number), ms: Number(ms) }
    blocks.postMessage(block)
    await sleep(block.ms)
  } else throw new Error(`no such order: ${order}`)
}
