// A fleet of simulated agents, spread over processes and loopback addresses, as one thing that
// connects, beats, counts and goes away. The parent never touches a socket itself.
import { fork, type ChildProcess } from 'node:child_process'
import { addCounts, type FleetCounts } from './fleet_counts.ts'
import type { FleetAnswer, FleetRequest } from './fleet_process.ts'
import type { Device } from './sim_agent.ts'
import { placeOf } from './sockets.ts'
import type { Broker } from './wires.ts'

/** Below the limit of 20,000 open files with room for the process's own. */
const agentsPerProcessMax = 18_000
/** No phase of a fleet may outlast this; a bench that hangs is worse than one that fails. */
const phaseMsMax = 120_000

export interface FleetOptions {
  origin: string
  devices: readonly Device[]
  processes: number
  /** The agents speak to a message broker instead of a hub. */
  broker?: Broker | undefined
  /** Agents that work, remember and come back by themselves: lasting_agents.ts. */
  lasting?: boolean
}

export interface ConnectOptions {
  from?: number
  to?: number
  /** Upgrades under way at a time, over all processes. */
  inFlight?: number
  /** Upgrades per second over all processes; 0 is as fast as `inFlight` allows. */
  perSecond?: number
}

let sources = 0

export class Fleet {
  readonly size: number
  readonly #members: Member[]

  private constructor(size: number, members: Member[]) {
    this.size = size
    this.#members = members
  }

  /** Starts the processes and gives each its share of the devices; opens no socket yet. */
  static async start(options: FleetOptions): Promise<Fleet> {
    const { devices, origin, broker } = options
    const count = Math.max(options.processes, Math.ceil(devices.length / agentsPerProcessMax))
    const place = placeOf(origin)
    const local = /^(localhost|127\.[\d.]+)$/.test(place.host)
    const members = Array.from({ length: count }, () => new Member())
    const fleet = new Fleet(devices.length, members)
    await Promise.all(
      members.map((member, index) =>
        member.ask({
          type: 'load',
          devices: devices.filter((_, device) => device % count === index),
          place,
          ...(broker ? { broker } : {}),
          lasting: options.lasting ?? false,
          ...(local ? { sourceAddress: nextSource() } : {}),
        }),
      ),
    )
    return fleet
  }

  /** Opens the agents from `from` to `to`, returns when each is upgraded or refused. */
  connect(options: ConnectOptions = {}): Promise<FleetCounts> {
    const { from = 0, to = this.size, inFlight = 512, perSecond = 0 } = options
    const count = this.#members.length
    // Devices are dealt like cards, so member i holds those whose index leaves i.
    const share = (bound: number, index: number) => Math.ceil((bound - index) / count)
    return this.#all((index) => ({
      type: 'connect',
      from: share(from, index),
      to: share(to, index),
      inFlight: Math.ceil(inFlight / count),
      perSecond: perSecond / count,
    }))
  }

  /** Heartbeats per second over all open agents from now on. */
  pace(perSecond: number): Promise<FleetCounts> {
    return this.#all(() => ({ type: 'pace', perSecond: perSecond / this.#members.length }))
  }

  /** One of `of` agents loses its socket, all of them at once: others at each turn. */
  storm(of: number, turn: number): Promise<FleetCounts> {
    return this.#all(() => ({ type: 'storm', of, turn }))
  }

  /** Adds what lasting agents did to a file. */
  async writeLedger(file: string): Promise<void> {
    // One after the other: they share the file.
    for (const member of this.#members) await member.ask({ type: 'ledger', file })
  }

  counts(): Promise<FleetCounts> {
    return this.#all(() => ({ type: 'counts' }))
  }

  disconnect(): Promise<FleetCounts> {
    return this.#all(() => ({ type: 'disconnect' }))
  }

  /** Ends the processes, and with them whatever sockets are open. */
  async close(): Promise<void> {
    await Promise.all(this.#members.map((member) => member.close()))
  }

  async #all(request: (index: number) => FleetRequest): Promise<FleetCounts> {
    return addCounts(
      await Promise.all(this.#members.map((member, index) => member.ask(request(index)))),
    )
  }
}

/** One fleet process and the requests it has not answered yet. */
class Member {
  readonly #child: ChildProcess = fork(new URL('./fleet_process.ts', import.meta.url))
  readonly #waiting = new Map<number, (answer: FleetAnswer) => void>()
  #lastId = 0

  constructor() {
    this.#child.on('message', (answer: FleetAnswer) => this.#waiting.get(answer.id)?.(answer))
    this.#child.once('exit', () => {
      for (const [id, settle] of this.#waiting) settle({ id, error: 'the fleet process ended' })
    })
  }

  ask(request: FleetRequest): Promise<FleetCounts> {
    const id = ++this.#lastId
    return new Promise((resolve, reject) => {
      const deadline = setTimeout(
        () => reject(new Error(`the fleet did not finish "${request.type}" in ${phaseMsMax} ms`)),
        phaseMsMax,
      )
      this.#waiting.set(id, (answer) => {
        clearTimeout(deadline)
        this.#waiting.delete(id)
        if (answer.counts) resolve(answer.counts)
        else reject(new Error(answer.error ?? 'the fleet process gave no counts'))
      })
      this.#child.send({ ...request, id }, (error) => {
        if (error) this.#waiting.get(id)?.({ id, error: 'the fleet process is gone' })
      })
    })
  }

  async close(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const gone = new Promise((resolve) => this.#child.once('exit', resolve))
    this.#child.disconnect()
    await gone
  }
}

/** 127.0.1.1, 127.0.1.2, …: each process of a run connects from an address of its own. */
function nextSource(): string {
  const number = sources++
  return `127.0.${1 + Math.floor(number / 250)}.${1 + (number % 250)}`
}
