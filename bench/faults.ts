// What a soak does to the hub it runs: one fault after the other, in turn, from outside or through the door of
// `controlled_hub.ts`. Each resolves when the blow is struck; what comes of it is watched by others.
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { BenchDatabase } from './database.ts'
import type { Fleet } from './fleet.ts'
import { descendants } from './proc.ts'

/** What a fault may reach for. */
export interface Scene {
  door: string
  database: BenchDatabase
  fleet: Fleet
  /** To the next fault: no blow may last until then. */
  faultSeconds: number
  /** Sends so many commands as fast as they go. */
  flood: () => Promise<void>
}

export interface Fault {
  name: string
  /** A thread of the hub dies of it. */
  killsThread?: boolean
  /** `turn`: how often it was struck before. */
  strike(scene: Scene, turn: number): Promise<void>
}

/** By turns: requests are refused; the hub loses its lease; requests are slow. */
const frozenSeconds = [7, 20, 2]
/** A third of the fleet. */
const stormOf = 3

export const faults: readonly Fault[] = [
  {
    name: 'a shard is killed',
    killsThread: true,
    strike: ({ door }, turn) => knock(door, `shard ${turn}`),
  },
  {
    name: 'PostgreSQL restarts',
    // INT is its fast shutdown.
    strike: async ({ database }) => strike(database.pid, 'SIGINT'),
  },
  {
    name: 'an agent storm',
    strike: async ({ fleet }, turn) => void (await fleet.storm(stormOf, turn)),
  },
  {
    name: 'the jobs thread is killed',
    killsThread: true,
    strike: ({ door }) => knock(door, 'jobs'),
  },
  {
    name: 'PostgreSQL freezes',
    strike: ({ database, faultSeconds }, turn) =>
      freeze(database.pid, Math.min(frozenSeconds[turn % frozenSeconds.length]!, faultSeconds / 2)),
  },
  { name: 'a flood of commands', strike: ({ flood }) => flood() },
  {
    name: 'PostgreSQL is killed',
    // By turns without a word, and told to end at once: both recover from the log at the next start.
    strike: async ({ database }, turn) =>
      strike(database.pid, turn % 2 === 0 ? 'SIGKILL' : 'SIGQUIT'),
  },
]

/** The fault of a period, and how often it was struck before. */
export function faultOf(period: number): { fault: Fault; turn: number } {
  const fault = faults[period % faults.length]!
  return { fault, turn: Math.floor(period / faults.length) }
}

/** Every process of it stands still for a while, the postmaster first: it would start others. */
async function freeze(postmaster: number, seconds: number): Promise<void> {
  const stopped = [postmaster]
  strike(postmaster, 'SIGSTOP')
  try {
    for (const pid of descendants(postmaster)) {
      if (signal(pid, 'SIGSTOP')) stopped.push(pid)
    }
    await sleep(seconds * 1000)
  } finally {
    for (const pid of stopped.toReversed()) signal(pid, 'SIGCONT')
  }
}

/** Signals a postmaster. Throws where there is none: a blow that hits nobody proves nothing. */
export function strike(postmaster: number, name: NodeJS.Signals): void {
  // To the system 0 is the process group of the bench itself.
  if (postmaster <= 0)
    throw new Error(`PostgreSQL is not running, so ${name} can not be sent to it`)
  process.kill(postmaster, name)
}

/** A connection's process may end meanwhile. */
function signal(pid: number, name: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, name)
  } catch {
    return false
  }
}

/** Has the hub do something to itself; throws when it does not. */
/** Has a hub with a door carry out an order; returns when it has. */
export async function knock(door: string, order: string): Promise<void> {
  const socket = connect(door)
  let answer = ''
  socket.setEncoding('utf8')
  socket.on('data', (text: string) => (answer += text))
  await once(socket, 'connect')
  socket.write(`${order}\n`)
  await once(socket, 'close')
  if (answer !== 'done') throw new Error(`${order}: ${answer || 'no answer'}`)
}
