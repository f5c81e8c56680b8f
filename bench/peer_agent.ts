// One simulated device at a message broker, as cheap as the hub's simulated agents and with the same payloads: it
// publishes heartbeats, takes commands and publishes their three answers to whoever asked.
import type { Socket } from 'node:net'
import type { HubFrame } from '../src/protocol.ts'
import { answersTo } from './answers.ts'
import { tally } from './fleet_counts.ts'
import { heartbeatPayloads } from './heartbeat.ts'
import { nextPort, type Device, type Ground } from './sim_agent.ts'
import { openSocket } from './sockets.ts'
import { lastPart, topicsOf, type Wire, type WireListener } from './wires.ts'

/** Every socket reads into this one: bytes are handled before the next read, the rest is copied. */
const readBuffer = Buffer.allocUnsafe(64 * 1024)
const nothing = Buffer.alloc(0)

export class PeerAgent {
  readonly #device: Device
  readonly #wire: Wire
  readonly #ground: Ground
  readonly #heartbeat: Buffer
  #socket: Socket | undefined
  #rest: Buffer = nothing
  #ready = false

  /** `index` chooses a payload: a topic names the device, so that each has a packet of its own. */
  constructor(device: Device, index: number, wire: Wire, ground: Ground) {
    this.#device = device
    this.#wire = wire
    this.#ground = ground
    const payload = heartbeatPayloads[index % heartbeatPayloads.length]!
    this.#heartbeat = wire.publish(topicsOf(wire).heartbeat(device.id), payload)
  }

  get open(): boolean {
    return this.#ready
  }

  get unsentBytes(): number {
    return this.#socket?.writableLength ?? 0
  }

  /** Opens a session; true once the broker confirmed the subscription, false when it refused. */
  connect(): Promise<boolean> {
    return new Promise((resolve) => this.#dial(resolve))
  }

  /** Writes bytes that hold `packets` whole packets. */
  send(bytes: Buffer, packets: number): void {
    this.#socket?.write(bytes)
    this.#ground.counts.framesOut += packets
  }

  beat(): void {
    this.send(this.#heartbeat, 1)
    this.#ground.counts.heartbeats++
  }

  /** With a reset, as the hub's agents do: sockets in TIME_WAIT would starve the next round of ports. */
  disconnect(): void {
    const socket = this.#socket
    if (!socket) return
    if (this.#ready) this.#ground.counts.open--
    this.#ready = false
    this.#socket = undefined
    socket.removeAllListeners('close')
    socket.resetAndDestroy()
  }

  #dial(settle: (ready: boolean) => void): void {
    const { place, sourceAddress, counts } = this.#ground
    let failure = 'closed'
    const socket = openSocket(place, {
      ...(sourceAddress ? { localAddress: sourceAddress, localPort: nextPort(this.#ground) } : {}),
      onread: {
        buffer: readBuffer,
        callback: (count, bytes) => {
          // The buffer was given as one, so that is what comes back.
          this.#read((bytes as Buffer).subarray(0, count), listener)
          return true
        },
      },
    })
    const listener: WireListener = {
      ready: () => {
        if (this.#ready) return
        this.#ready = true
        counts.open++
        counts.welcomes++
        settle(true)
      },
      message: (topic, payload) => this.#take(topic, payload),
      asked: (answer) => socket.write(answer),
      pong: () => undefined,
      refused: (reason) => {
        socket.destroy(Object.assign(new Error('refused'), { code: reason }))
      },
    }
    this.#socket = socket
    this.#rest = nothing
    socket.on('error', (error: NodeJS.ErrnoException) => (failure = error.code ?? error.message))
    socket.once('close', () => {
      if (this.#ready) {
        counts.open--
        tally(counts.closed, failure)
      } else tally(counts.refused, failure)
      this.#ready = false
      this.#socket = undefined
      settle(false)
    })
    socket.write(this.#wire.open(this.#device.id, [topicsOf(this.#wire).commands(this.#device.id)]))
  }

  #read(chunk: Buffer, listener: WireListener): void {
    const bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    const rest = this.#wire.read(bytes, listener)
    this.#rest = rest.length === 0 ? nothing : Buffer.from(rest)
  }

  /** Runs a command: each id once, all three answers in one write. Nobody acknowledges them. */
  #take(topic: string, payload: Buffer): void {
    const { counts, ran } = this.#ground
    counts.framesIn++
    const command = JSON.parse(payload.toString()) as HubFrame
    if (command.type !== 'command') return
    if (ran.has(command.id)) counts.duplicates++
    else {
      ran.add(command.id)
      counts.commands++
    }
    const answers = topicsOf(this.#wire).answers(lastPart(this.#wire, topic))
    const packets = answersTo(command.id).map((answer) =>
      this.#wire.publish(answers, Buffer.from(JSON.stringify(answer))),
    )
    this.send(Buffer.concat(packets), packets.length)
  }
}
