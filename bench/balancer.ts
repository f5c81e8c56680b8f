// What stands in front of several hubs, in a process of its own: hands each new connection to the next hub that
// says it is ready, and lets those that are there live until either end closes them.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'

export interface Balancer {
  origin: string
  /** The hubs from now on; connections to others stay. */
  serve(origins: readonly string[]): Promise<void>
  stop(): Promise<void>
}

/** As often as a careful operator has a hub's readiness asked. */
const lookMs = 200

export async function startBalancer(origins: readonly string[]): Promise<Balancer> {
  const child = fork(fileURLToPath(import.meta.url))
  const exited = once(child, 'exit')
  const serve = async (now: readonly string[]) => {
    child.send(now)
    return (await once(child, 'message'))[0] as string
  }
  return {
    origin: await serve(origins),
    serve: async (now) => void (await serve(now)),
    async stop() {
      child.disconnect()
      await exited
    },
  }
}

async function runProcess(): Promise<void> {
  let origins: readonly string[] = []
  let ready: string[] = []
  let next = 0
  const server = createServer({ noDelay: true }, (client) => {
    const origin = ready[next++ % ready.length]
    if (origin === undefined) return client.resetAndDestroy()
    const { hostname, port } = new URL(origin)
    const hub = connect({ host: hostname, port: Number(port), noDelay: true })
    client.pipe(hub)
    hub.pipe(client)
    // One end that is gone takes the other along: nobody is left talking to nobody.
    client.on('error', () => hub.destroy()).once('close', () => hub.destroy())
    hub.on('error', () => client.destroy()).once('close', () => client.destroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const look = async () => {
    const answers = await Promise.all(origins.map(isReady))
    ready = origins.filter((_, index) => answers[index])
  }
  setInterval(() => void look(), lookMs)
  process.on('disconnect', () => process.exit(0))
  process.on('message', (now: readonly string[]) => {
    origins = now
    void look().then(() => {
      process.send?.(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    })
  })
}

async function isReady(origin: string): Promise<boolean> {
  const answer = await fetch(`${origin}/health/ready`).catch(() => undefined)
  await answer?.body?.cancel()
  return answer?.status === 200
}

// Only a process that was forked to be this has a parent to talk to and this file as its program.
if (process.send && process.argv[1] === fileURLToPath(import.meta.url)) await runProcess()
