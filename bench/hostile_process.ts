// A process full of hostile clients, so that their work delays nobody who measures. Who is thrown out comes again
// after a pause, as such clients do. It ends with its parent.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import {
  hostileKinds,
  openHostile,
  type HostileGround,
  type HostileKind,
} from './hostile_clients.ts'

export interface HostileOrder extends HostileGround {
  /** Of each kind. */
  clients: number
}

/** How often a client of a kind was thrown out, so far. */
export type HostileCounts = Record<HostileKind, number>

export interface HostileCrowd {
  counts(): Promise<HostileCounts>
  stop(): Promise<void>
}

/** A host that closes at once is not hammered: the load is what is held open, not the opening. */
const againMs = 250

/** Starts the crowd; returns when every client has opened its first socket or was refused. */
export async function startHostile(order: HostileOrder): Promise<HostileCrowd> {
  const child = fork(fileURLToPath(import.meta.url))
  const exited = once(child, 'exit')
  child.send(order)
  const ended = exited.then((): never => {
    throw new Error('the process of the hostile clients ended')
  })
  ended.catch(() => undefined)
  const answer = async () =>
    (await Promise.race([once(child, 'message'), ended]))[0] as HostileCounts
  await answer()
  return {
    async counts() {
      child.send('counts')
      return answer()
    },
    async stop() {
      child.disconnect()
      await exited
    },
  }
}

function runProcess(): void {
  const counts = Object.fromEntries(hostileKinds.map((kind) => [kind, 0])) as HostileCounts
  process.on('message', (message: HostileOrder | 'counts') => {
    if (message !== 'counts') crowd(message, counts)
    process.send?.(counts)
  })
  process.on('disconnect', () => process.exit(0))
}

function crowd(order: HostileOrder, counts: HostileCounts): void {
  hostileKinds.forEach((kind, place) => {
    for (let client = 0; client < order.clients; client++) {
      const open = () => {
        openHostile(kind, place * order.clients + client, order, () => {
          counts[kind]++
          setTimeout(open, againMs)
        })
      }
      open()
    }
  })
}

// Only a process that was forked to be this has a parent to talk to and this file as its program.
if (process.send && process.argv[1] === fileURLToPath(import.meta.url)) runProcess()
