// One simulated agent: a raw socket that upgrades, takes commands and answers each at once. Cheap on
// purpose, since the generator shares its cores with what it measures; it never reconnects by itself,
// but when a hub that drains tells it to.
import type { Socket } from 'node:net'
import { agentSubprotocol, type HubFrame } from '../src/protocol.ts'
import { answersTo } from './answers.ts'
import { emptyCounts, tally, type FleetCounts } from './fleet_counts.ts'
import { clientFrame, jsonFrame, opcodes, readFrames } from './frames.ts'
import { heartbeatFrames } from './heartbeat.ts'
import { openSocket, type Place } from './sockets.ts'

export interface Device {
  id: string
  token: string
}

/** What all agents of one process share. */
export interface Ground {
  place: Place
  /** A loopback address to connect from, this process's own, so that all its ports are free. */
  sourceAddress: string | undefined
  /** The port last connected from, see `nextPort`. */
  sourcePort: number
  counts: FleetCounts
  /** Ids of commands that ran; an id runs once, whatever the hub sends. */
  ran: Set<string>
  /** Results by command id until the hub acknowledges their end. */
  unacked: Map<string, { agent: SimAgent; frames: Buffer; sentMs: number }>
  /** How its agents work and come back; without one they answer at once and stay away. */
  conduct?: Conduct
}

/** What an agent makes of what it hears, where that is more than an answer at once. */
export interface Conduct {
  onWelcome(agent: SimAgent): void
  onCommand(agent: SimAgent, command: CommandFrame): void
  onCancel(agent: SimAgent, id: string): void
  onAck(agent: SimAgent, id: string): void
  /** Its socket was lost, or none was to be had; not when it left by itself. */
  onLost(agent: SimAgent, closeCode: number): void
}

export type CommandFrame = Extract<HubFrame, { type: 'command' }>

export function newGround(place: Place, sourceAddress?: string): Ground {
  return {
    place,
    sourceAddress,
    sourcePort: 10_000,
    counts: emptyCounts(),
    ran: new Set(),
    unacked: new Map(),
  }
}

/** Every socket reads into this one: bytes are handled before the next read, the rest is copied. */
const readBuffer = Buffer.allocUnsafe(64 * 1024)
const nothing = Buffer.alloc(0)

/** One socket of an agent. */
interface Line {
  socket: Socket
  rest: Buffer
  upgraded: boolean
  closeCode: number
}

export class SimAgent {
  readonly device: Device
  readonly #ground: Ground
  #line: Line | undefined
  /** Of a move: it takes over once the hub welcomed it. */
  #next: { line: Line; dueMs: number } | undefined
  #connecting: Promise<boolean> | undefined

  constructor(device: Device, ground: Ground) {
    this.device = device
    this.#ground = ground
  }

  get open(): boolean {
    return this.#line?.upgraded === true
  }

  get unsentBytes(): number {
    return this.#line?.socket.writableLength ?? 0
  }

  /** Opens the socket; true once the server upgraded it, false when it refused. Asked twice it opens one. */
  connect(): Promise<boolean> {
    this.#connecting ??= new Promise<boolean>((resolve) => {
      this.#line = this.#dial(resolve)
    }).finally(() => (this.#connecting = undefined))
    return this.#connecting
  }

  #dial(settle: (upgraded: boolean) => void): Line {
    const { place, sourceAddress } = this.#ground
    let failure = 'closed'
    const socket = openSocket(place, {
      ...(sourceAddress ? { localAddress: sourceAddress, localPort: nextPort(this.#ground) } : {}),
      onread: {
        buffer: readBuffer,
        callback: (count, bytes) => {
          // The buffer was given as one, so that is what comes back.
          this.#read(line, (bytes as Buffer).subarray(0, count), settle)
          return true
        },
      },
    })
    const line: Line = { socket, rest: nothing, upgraded: false, closeCode: 1006 }
    socket.on('error', (error: NodeJS.ErrnoException) => (failure = error.code ?? error.message))
    socket.once('close', () => {
      this.#closed(line, failure)
      settle(false)
    })
    socket.write(this.#upgradeRequest())
    return line
  }

  /** Writes bytes that hold `frames` whole frames. */
  send(bytes: Buffer, frames: number): void {
    this.#line?.socket.write(bytes)
    this.#ground.counts.framesOut += frames
  }

  /** Sends the n-th heartbeat of this process. */
  beat(n: number): void {
    this.send(heartbeatFrames[n % heartbeatFrames.length]!, 1)
    this.#ground.counts.heartbeats++
  }

  disconnect(): void {
    if (this.#next) this.#drop(this.#next.line)
    this.#next = undefined
    const line = this.#line
    if (!line) return
    if (line.upgraded) this.#ground.counts.open--
    this.#line = undefined
    this.#connecting = undefined
    this.#drop(line)
  }

  /**
   * Ends a socket, with a reset where there is no TLS around it: 15,000 sockets in TIME_WAIT would starve
   * the next round of ports.
   */
  #drop({ socket }: Line): void {
    socket.removeAllListeners('close')
    if (this.#ground.place.secure) socket.destroy()
    else socket.resetAndDestroy()
  }

  #upgradeRequest(): string {
    const { host, port } = this.#ground.place
    return (
      `GET /api/v1/agents/${this.device.id}/ws HTTP/1.1\r\nHost: ${host}:${port}\r\n` +
      'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n' +
      `Sec-WebSocket-Key: bXVzdGVyIGJlbmNoIGtleQ==\r\nSec-WebSocket-Protocol: ${agentSubprotocol}\r\n` +
      `Authorization: Bearer ${this.device.token}\r\n\r\n`
    )
  }

  #read(line: Line, chunk: Buffer, settle: (upgraded: boolean) => void): void {
    let bytes = line.rest.length === 0 ? chunk : Buffer.concat([line.rest, chunk])
    if (!line.upgraded) {
      const end = bytes.indexOf('\r\n\r\n')
      if (end >= 0 && this.#readAnswer(line, bytes.toString('latin1', 0, end))) {
        settle(true)
        bytes = bytes.subarray(end + 4)
      }
    }
    if (line.upgraded) {
      bytes = readFrames(bytes, (opcode, payload) => this.#take(line, opcode, payload))
    }
    line.rest = bytes.length === 0 ? nothing : Buffer.from(bytes)
  }

  #readAnswer(line: Line, head: string): boolean {
    const status = head.slice(9, 12)
    line.upgraded = status === '101'
    if (!line.upgraded) {
      line.socket.destroy(Object.assign(new Error('refused'), { code: `HTTP ${status}` }))
    } else if (line === this.#line) this.#ground.counts.open++
    return line.upgraded
  }

  #take(line: Line, opcode: number, payload: Buffer): void {
    const { counts } = this.#ground
    counts.framesIn++
    if (opcode === opcodes.text) {
      this.#takeMessage(line, JSON.parse(payload.toString()) as HubFrame)
    } else if (opcode === opcodes.ping) {
      line.socket.write(clientFrame(opcodes.pong, payload))
      counts.framesOut++
    } else if (opcode === opcodes.close && payload.length >= 2) {
      line.closeCode = payload.readUInt16BE(0)
      line.socket.destroy()
    }
  }

  #takeMessage(line: Line, message: HubFrame): void {
    const { conduct, counts, unacked } = this.#ground
    if (message.type === 'welcome') {
      counts.welcomes++
      if (line === this.#next?.line) this.#moved(this.#next)
      conduct?.onWelcome(this)
    } else if (message.type === 'command') {
      if (conduct) conduct.onCommand(this, message)
      else this.#run(message.id)
    } else if (message.type === 'cancel') conduct?.onCancel(this, message.id)
    else if (message.type === 'reconnect') this.#moveAfter(message.afterMs)
    else if (message.type === 'ack') {
      counts.acks++
      unacked.delete(message.id)
      conduct?.onAck(this, message.id)
    }
  }

  /** A hub that drains sends its agents elsewhere: the new socket is opened first, as real agents do. */
  #moveAfter(afterMs: number): void {
    const { counts } = this.#ground
    const line = this.#line
    const dueMs = performance.now() + afterMs
    counts.asked++
    setTimeout(() => {
      // Lost meanwhile: it is on its way to another one already.
      if (this.#line !== line || !line?.upgraded || this.#next) return
      this.#next = { line: this.#dial(() => undefined), dueMs }
    }, afterMs)
  }

  #moved({ line, dueMs }: { line: Line; dueMs: number }): void {
    const { counts } = this.#ground
    const old = this.#line
    this.#next = undefined
    this.#line = line
    counts.moves++
    counts.lateMsMax = Math.max(counts.lateMsMax, performance.now() - dueMs)
    if (old?.upgraded) this.#drop(old)
    else counts.open++
  }

  /** Answers a command as an agent would whose work takes no time; a repeated id only repeats the answer. */
  #run(id: string): void {
    const { counts, ran, unacked } = this.#ground
    if (ran.has(id)) counts.duplicates++
    else {
      ran.add(id)
      counts.commands++
    }
    const frames = answerFrames(id)
    unacked.set(id, { agent: this, frames, sentMs: performance.now() })
    this.send(frames, 3)
  }

  #closed(line: Line, failure: string): void {
    const { counts } = this.#ground
    const isCurrent = line === this.#line
    if (line.upgraded) {
      if (isCurrent) counts.open--
      // Without a close frame the socket's own error is all there is to tell.
      const code = line.closeCode
      tally(counts.closed, code === 1006 && failure !== 'closed' ? `1006 ${failure}` : String(code))
    } else tally(counts.refused, failure)
    line.upgraded = false
    if (isCurrent) this.#line = undefined
    if (line === this.#next?.line) this.#next = undefined
    if (isCurrent) this.#ground.conduct?.onLost(this, line.closeCode)
  }
}

/**
 * Ports in turn: left to the kernel, the search for a free one costs 0.2 ms once some thousand are taken,
 * ten times what the server under test needs for the whole upgrade.
 */
export function nextPort(ground: Ground): number {
  ground.sourcePort = ground.sourcePort >= 65_000 ? 10_000 : ground.sourcePort + 1
  return ground.sourcePort
}

/** All answers in one write: the agent had nothing to wait for. */
function answerFrames(id: string): Buffer {
  return Buffer.concat(answersTo(id).map(jsonFrame))
}
