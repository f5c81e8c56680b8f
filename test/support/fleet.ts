// A fleet of simulated agents that behave: an id runs once, results are kept until they are acked and are
// sent again, a lost socket is opened again. What a real agent keeps on disk survives `kill` here.
import { WebSocket } from 'ws'
import type { HubFrame } from '../../src/protocol.ts'
import type { Device } from './hub.ts'

interface Result {
  status: 'completed' | 'failed'
  exitCode: number | null
  error: string | null
}

export class SimulatedAgent {
  /** How often each id was started: the proof that none runs twice. */
  readonly runs = new Map<string, number>()
  online = false
  /** Times it went to another hub when it was asked to. */
  moves = 0
  /** Why sockets were lost. */
  readonly losses: string[] = []
  /** Durable: ids in the inbox, and ends that are not acked. */
  private readonly inbox = new Map<string, 'delivered' | 'running'>()
  private readonly outbox = new Map<string, Result>()
  private readonly done = new Map<string, Result>()
  private socket: WebSocket | undefined
  private readonly welcomed = new WeakSet<WebSocket>()
  private stopped = false
  private readonly timers = new Set<NodeJS.Timeout>()
  private url: string
  private readonly token: string

  /** Of a hub behind TLS: whose certificates are good. */
  private readonly ca: Buffer | undefined

  constructor(device: Device, origin: string, ca?: Buffer) {
    this.ca = ca
    this.url = `${origin.replace(/^http/, 'ws')}/api/v1/agents/${device.deviceId}/ws`
    this.token = device.agentToken
    this.every(2000, () => this.repeat())
    this.every(5000, () => this.send({ type: 'heartbeat' }))
    this.open()
  }

  /** The process dies: what was running is lost and reported so after the restart. */
  kill(): void {
    this.socket?.terminate()
    for (const [id, state] of this.inbox) {
      if (state !== 'running') continue
      this.end(id, { status: 'failed', exitCode: null, error: 'interrupted' })
    }
  }

  /** To another hub: a new socket first, as when it is asked to reconnect. */
  moveTo(origin: string): void {
    this.url = `${origin.replace(/^http/, 'ws')}${new URL(this.url).pathname}`
    this.open()
  }

  stop(): void {
    this.stopped = true
    for (const timer of this.timers) clearTimeout(timer)
    this.socket?.terminate()
  }

  private open(): void {
    if (this.stopped) return
    const socket = new WebSocket(this.url, 'muster.v1', {
      headers: { authorization: `Bearer ${this.token}` },
      perMessageDeflate: false,
      ...(this.ca ? { ca: this.ca } : {}),
    })
    // While another one serves, this is the one to move to.
    this.socket ??= socket
    socket.on('message', (data) =>
      this.receive(socket, JSON.parse((data as Buffer).toString()) as HubFrame),
    )
    socket.on('error', (error) => {
      if (socket === this.socket) this.losses.push(error.message)
    })
    socket.on('close', (code, reason) => {
      if (socket !== this.socket) {
        // A move that found no hub costs nothing while the old socket serves.
        if (!this.welcomed.has(socket)) this.after(500 + Math.random() * 500, () => this.open())
        return
      }
      this.online = false
      this.socket = undefined
      this.losses.push(`${code} ${String(reason)}`)
      this.after(Math.random() * 1500, () => this.open())
    })
  }

  private receive(socket: WebSocket, frame: HubFrame): void {
    if (frame.type === 'welcome') {
      const before = this.socket
      this.socket = socket
      this.welcomed.add(socket)
      if (before !== socket) {
        this.moves++
        before?.close(1000)
      }
      this.online = true
      this.repeat()
    } else if (frame.type === 'reconnect') {
      this.after(frame.afterMs, () => this.open())
    } else if (frame.type === 'ack') {
      this.outbox.delete(frame.id)
    } else if (frame.type === 'command') {
      this.take(frame.id)
    }
  }

  private take(id: string): void {
    const result = this.outbox.get(id) ?? this.done.get(id)
    if (result) return this.report(id, result)
    const known = this.inbox.has(id)
    if (!known) this.inbox.set(id, 'delivered')
    this.send({ type: 'delivered', id })
    if (known) return
    this.after(Math.random() * 40, () => {
      if (!this.inbox.has(id)) return
      this.inbox.set(id, 'running')
      this.runs.set(id, (this.runs.get(id) ?? 0) + 1)
      this.send({ type: 'started', id })
      this.after(Math.random() * 40, () => {
        if (this.inbox.get(id) !== 'running') return
        this.end(id, { status: 'completed', exitCode: 0, error: null })
        this.report(id, this.outbox.get(id))
      })
    })
  }

  private end(id: string, result: Result): void {
    this.inbox.delete(id)
    this.done.set(id, result)
    this.outbox.set(id, result)
  }

  private repeat(): void {
    for (const id of this.inbox.keys()) this.send({ type: 'delivered', id })
    for (const [id, result] of this.outbox) this.report(id, result)
  }

  private report(id: string, result: Result | undefined): void {
    if (result) this.send({ type: 'result', id, ...result })
  }

  private send(frame: unknown): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame))
  }

  private after(ms: number, work: () => void): void {
    const timer = setTimeout(() => {
      this.timers.delete(timer)
      if (!this.stopped) work()
    }, ms)
    this.timers.add(timer)
  }

  private every(ms: number, work: () => void): void {
    this.after(ms * (0.5 + Math.random()), () => {
      work()
      this.every(ms, work)
    })
  }
}
