// An operator at a message broker: one command at a time, sent to a device's topic and ended by the result that
// comes back, as `?wait` ends it at the hub. Nothing is stored: when the broker restarts, nobody knows of it.
import { randomUUID } from 'node:crypto'
import { isCompleted, uptime } from './commands.ts'
import type { Answer } from './http_connection.ts'
import type { Connection, Load } from './http_load.ts'
import { PeerClient } from './peer_client.ts'
import type { Device } from './sim_agent.ts'
import { topicsOf, type Wire } from './wires.ts'

const timeoutSeconds = 300

/** What a load needs to ask a broker's devices instead of a hub; a request is the device's id. */
export function brokerLoad(
  wire: Wire,
  devices: readonly Device[],
): Required<Pick<Load, 'next' | 'good' | 'open'>> {
  const ids = devices.map(({ id }) => Buffer.from(id))
  let next = 0
  return {
    next: () => ids[next++ % ids.length]!,
    good: isCompleted,
    open: (origin) => PeerOperator.open(origin, wire),
  }
}

interface Asked {
  id: string
  resolve: (answer: Answer) => void
  reject: (error: Error) => void
}

export class PeerOperator implements Connection {
  readonly #wire: Wire
  readonly #name = randomUUID()
  #client: PeerClient | undefined
  #asked: Asked | undefined

  private constructor(wire: Wire) {
    this.#wire = wire
  }

  static async open(origin: string, wire: Wire): Promise<PeerOperator> {
    const operator = new PeerOperator(wire)
    operator.#client = await PeerClient.open(origin, wire, {
      name: operator.#name,
      topics: [topicsOf(wire).answers(operator.#name)],
      onMessage: (_, payload) => operator.#take(payload),
      onEnd: (reason) => operator.#asked?.reject(reason),
    })
    return operator
  }

  get closed(): boolean {
    return this.#client?.closed ?? true
  }

  /** Sends a command to the device whose id `request` is; resolves with its result. */
  send(request: Buffer): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (!this.#client || this.closed) return reject(new Error('the broker ended the session'))
      const id = randomUUID()
      this.#asked = { id, resolve, reject }
      const topic = topicsOf(this.#wire).command(request.toString('latin1'), this.#name)
      // The frame that the hub sends to its agents.
      const command = { type: 'command', id, ...uptime, attempt: 1, timeoutSeconds }
      this.#client.write(this.#wire.publish(topic, Buffer.from(JSON.stringify(command))))
    })
  }

  close(): void {
    this.#client?.close()
  }

  #take(payload: Buffer): void {
    const body = payload.toString()
    const { type, id } = JSON.parse(body) as { type: string; id: string }
    if (type !== 'result' || id !== this.#asked?.id) return
    this.#asked.resolve({ status: 202, body })
    this.#asked = undefined
  }
}
