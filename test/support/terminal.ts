// An operator at a terminal: opens it through the API, keeps what it shows, and comes back when a socket is lost,
// the way the page does.
import assert from 'node:assert/strict'
import { WebSocket } from 'ws'
import { TerminalClient } from '../../src/terminal_client.ts'
import { terminalSubprotocol, ticketSubprotocol } from '../../src/terminal_frames.ts'
import type { TestHub } from './hub.ts'
import { until } from './until.ts'

export interface OpenTicket {
  id: string
  ticket: string
  websocketUrl: string
  expiresAt: string
}

/** Asks for a terminal; fails the test where it is refused. */
export async function openTicket(
  hub: TestHub,
  deviceId: string,
  { token = hub.token, cols = 80, rows = 24 } = {},
): Promise<OpenTicket> {
  const answer = await hub.post(`/devices/${deviceId}/terminals`, { cols, rows }, { token })
  assert.equal(answer.status, 201, answer.text)
  return answer.body as OpenTicket
}

/** A socket with a ticket; rejects with the status of a refused upgrade. */
export function openSocket(
  { websocketUrl, ticket }: Pick<OpenTicket, 'websocketUrl' | 'ticket'>,
  protocols = [terminalSubprotocol, `${ticketSubprotocol}${ticket}`],
): Promise<WebSocket> {
  const socket = new WebSocket(websocketUrl, protocols, { perMessageDeflate: false })
  socket.binaryType = 'nodebuffer'
  return new Promise((resolve, reject) => {
    socket.once('open', () => resolve(socket))
    socket.once('error', reject)
    socket.once('unexpected-response', (_request, response) => {
      response.resume()
      reject(new Error(`refused with ${response.statusCode}`))
      socket.terminate()
    })
  })
}

const everyone = new Set<Operator>()

/** Ends what a test left open, so that the next one finds room. */
export async function endAll(): Promise<void> {
  for (const operator of everyone) {
    if (operator.over === undefined && operator.socket) {
      operator.client.end()
      await until('the session to end', () => operator.over !== undefined || operator.closed)
    }
    operator.socket?.terminate()
  }
  everyone.clear()
}

export class Operator {
  readonly id: string
  /** Everything that was shown. */
  shown = Buffer.alloc(0)
  opened = 0
  exit: { exitCode: number; signal: string } | undefined
  /** Why the session is over. */
  over: string | undefined
  closed: { code: number; reason: string } | undefined
  /** While set, output is shown, but not confirmed. */
  reading = true
  readonly client: TerminalClient
  socket: WebSocket | undefined
  private readonly hub: TestHub
  private readonly token: string
  private unconfirmed: (() => void)[] = []
  private readonly pieces: Uint8Array[] = []

  private constructor(hub: TestHub, id: string, token: string) {
    everyone.add(this)
    this.hub = hub
    this.id = id
    this.token = token
    this.client = new TerminalClient(
      id,
      { cols: 80, rows: 24 },
      {
        output: (bytes, done) => {
          this.pieces.push(bytes)
          if (this.reading) done()
          else this.unconfirmed.push(done)
        },
        opened: () => void this.opened++,
        exit: (exitCode, signal) => (this.exit = { exitCode, signal }),
        closed: (why) => (this.over = why),
      },
    )
  }

  /** Opens a terminal and waits for its shell. */
  static async open(hub: TestHub, deviceId: string, token = hub.token): Promise<Operator> {
    const ticket = await openTicket(hub, deviceId, { token })
    const operator = new Operator(hub, ticket.id, token)
    operator.join(await openSocket(ticket))
    await operator.arrives()
    return operator
  }

  /** Another page of the same user, which knows nothing of what was before. */
  async again(): Promise<Operator> {
    const other = new Operator(this.hub, this.id, this.token)
    await other.reconnect()
    await other.arrives()
    return other
  }

  /** Waits for the shell; a way between hubs that breaks meanwhile is taken anew, as the page does it. */
  private async arrives(): Promise<void> {
    const ways: unknown[] = []
    await until('the shell', async () => {
      if (this.opened > 0 || this.over) return true
      if (this.closed?.code === 1012) {
        ways.push(this.closed)
        this.closed = undefined
        await this.reconnect()
      }
      return false
    }).catch((error: unknown) => {
      const met = JSON.stringify({ ways, closed: this.closed, shown: this.text.slice(-500) })
      throw new Error(`there is no shell: ${met}`, { cause: error })
    })
  }

  /** Comes back with a new ticket. */
  async reconnect(): Promise<void> {
    const answer = await this.hub.post(`/terminals/${this.id}/tickets`, {}, { token: this.token })
    assert.equal(answer.status, 201, answer.text)
    this.join(await openSocket(answer.body))
  }

  /** The socket breaks, without a word. */
  drop(): void {
    this.client.disconnected()
    this.socket?.removeAllListeners('message')
    this.socket?.terminate()
    this.socket = undefined
  }

  type(text: string): void {
    this.client.type(Buffer.from(text))
  }

  /** Stops or goes on to confirm output. */
  read(reading: boolean): void {
    this.reading = reading
    if (reading) for (const done of this.unconfirmed.splice(0)) done()
  }

  get text(): string {
    this.shown = Buffer.concat([this.shown, ...this.pieces.splice(0)])
    return this.shown.toString('latin1')
  }

  shows(pattern: RegExp | string, ms?: number): Promise<true> {
    const found = () =>
      typeof pattern === 'string' ? this.text.includes(pattern) : pattern.test(this.text)
    return until(`the terminal to show ${pattern}`, found, ms).catch((error: unknown) => {
      throw new Error(`it shows ${JSON.stringify(this.text.slice(-500))}`, { cause: error })
    })
  }

  ended(): Promise<string> {
    return until('the session to end', () => this.over)
  }

  private join(socket: WebSocket): void {
    this.socket = socket
    socket.on('message', (data) => this.client.receive(data as Buffer))
    socket.on('close', (code, reason) => {
      this.closed = { code, reason: String(reason) }
      if (this.socket === socket) this.client.disconnected()
    })
    socket.on('error', () => {})
    this.client.connected((frame) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(frame)
    })
  }
}
