// An agent made of a bare socket: sends what a test says, remembers what the hub sent, and where asked to,
// carries commands out the way a good agent does.
import { WebSocket } from 'ws'
import type { HubFrame } from '../../src/protocol.ts'
import type { Device } from './hub.ts'
import { until } from './until.ts'

type CommandFrame = Extract<HubFrame, { type: 'command' }>

export class FakeAgent {
  readonly frames: HubFrame[] = []
  /** How often each id was run. */
  readonly runs = new Map<string, number>()
  closed: { code: number; reason: string } | undefined
  readonly socket: WebSocket
  /** Set: what to answer each new command with. */
  onCommand: ((frame: CommandFrame) => void) | undefined

  private constructor(socket: WebSocket) {
    this.socket = socket
    socket.on('message', (data, isBinary) => {
      if (isBinary) return
      const frame = JSON.parse((data as Buffer).toString()) as HubFrame
      this.frames.push(frame)
      if (frame.type === 'command') this.onCommand?.(frame)
    })
    socket.on('close', (code, reason) => {
      this.closed = { code, reason: String(reason) }
    })
    socket.on('error', () => {})
  }

  /** Opens a socket and waits for the welcome; where the socket breaks before it, once more, as agents do. */
  static async connect(device: Device, origin: string, tries = 2): Promise<FakeAgent> {
    const agent = await FakeAgent.open(device, origin)
    const welcomed = () => agent.frames.some(({ type }) => type === 'welcome')
    await until('the welcome', () => welcomed() || agent.closed)
    if (welcomed()) return agent
    if (agent.closed?.code === 1006 && tries > 1)
      return FakeAgent.connect(device, origin, tries - 1)
    throw new Error(`closed before the welcome: ${JSON.stringify(agent.closed)}`)
  }

  /** Opens a socket; rejects with the status of a refused upgrade. */
  static open(
    device: Pick<Device, 'deviceId' | 'agentToken'>,
    origin: string,
    protocol = 'muster.v1',
  ): Promise<FakeAgent> {
    const url = `${origin.replace(/^http/, 'ws')}/api/v1/agents/${device.deviceId}/ws`
    const headers = { authorization: `Bearer ${device.agentToken}` }
    const socket = new WebSocket(url, protocol === '' ? [] : [protocol], { headers })
    const agent = new FakeAgent(socket)
    return new Promise((resolve, reject) => {
      socket.once('open', () => resolve(agent))
      socket.once('error', reject)
      socket.once('unexpected-response', (_request, response) => {
        response.resume()
        reject(new Error(`refused with ${response.statusCode}`))
        socket.terminate()
      })
    })
  }

  send(frame: unknown): void {
    this.socket.send(typeof frame === 'string' ? frame : JSON.stringify(frame))
  }

  heartbeat(more: Record<string, unknown> = {}): void {
    this.send({ type: 'heartbeat', ...more })
  }

  /** The first frame of this type, and with this id where one is given; waits for it. */
  async frame<T extends HubFrame['type']>(
    type: T,
    id?: string,
  ): Promise<Extract<HubFrame, { type: T }>> {
    const found = await until(`a ${type} frame ${id ?? ''}`, () =>
      this.frames.find(
        (frame) => frame.type === type && (!id || ('id' in frame && frame.id === id)),
      ),
    )
    return found as Extract<HubFrame, { type: T }>
  }

  /** Carries out every command at once: delivered, started, result; an id only once. */
  obey(result: Record<string, unknown> = { status: 'completed', exitCode: 0 }): this {
    this.onCommand = (frame) => {
      this.send({ type: 'delivered', id: frame.id })
      if (this.runs.has(frame.id)) return
      this.runs.set(frame.id, 1)
      this.send({ type: 'started', id: frame.id })
      this.send({ type: 'result', id: frame.id, ...result })
    }
    // What came together with the welcome is there already.
    for (const frame of this.frames) if (frame.type === 'command') this.onCommand(frame)
    return this
  }

  async close(): Promise<void> {
    if (this.closed) return
    this.socket.close()
    await until('the socket to close', () => this.closed)
  }

  async closing(): Promise<{ code: number; reason: string }> {
    return until('the hub to close the socket', () => this.closed)
  }
}
