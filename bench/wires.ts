// How the load speaks to a message broker: as little of NATS and of MQTT 3.1.1 as devices and operators need to
// stand where they stand with the hub. Bytes in, bytes out; sockets are the business of those who use it.
import { mqtt } from './wires/mqtt.ts'
import { nats } from './wires/nats.ts'
import type { Side } from './rows.ts'

/** What a broker tells. A payload is a view into the bytes read: copy it to keep it. */
export interface WireListener {
  /** The session is open and everything subscribed to. */
  ready(): void
  message(topic: string, payload: Buffer): void
  /** The server asks whether we are there: write the answer. */
  asked(answer: Buffer): void
  /** The answer to a ping: all that was written before it is with the server. */
  pong(): void
  refused(reason: string): void
}

export interface Wire {
  /** Between the parts of a topic, and for any one part of it. */
  separator: string
  any: string
  /** Opens a session, whatever the server says first. `name` is known to nobody else. */
  open(name: string, topics: readonly string[]): Buffer
  publish(topic: string, payload: Buffer): Buffer
  ping: Buffer
  /** Tells of every whole packet in `bytes` and returns what is left of the last one. */
  read(bytes: Buffer, listener: WireListener): Buffer
}

export type Broker = Extract<Side, 'nats' | 'mosquitto'>

export const wires: Record<Broker, Wire> = { nats, mosquitto: mqtt }

export function isBroker(side: Side): side is Broker {
  return side in wires
}

/** The topics that everyone in a load agrees on. */
export function topicsOf({ separator, any }: Wire) {
  const join = (...parts: string[]) => parts.join(separator)
  return {
    heartbeat: (deviceId: string) => join('beat', deviceId),
    heartbeats: join('beat', any),
    /** The last part is who asks, so that nobody has to look into a payload for it. */
    command: (deviceId: string, operator: string) => join('command', deviceId, operator),
    commands: (deviceId: string) => join('command', deviceId, any),
    answers: (operator: string) => join('answer', operator),
  }
}

/** The last part of a topic. */
export function lastPart({ separator }: Wire, topic: string): string {
  return topic.slice(topic.lastIndexOf(separator) + 1)
}
