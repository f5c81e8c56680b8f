// Heartbeats of one welcomed socket, and the judgement that the hub has gone silent.

import { uptime } from 'node:os'
import type { HeartbeatFrame } from '../src/protocol.ts'
import { heartbeatJitter, heartbeatsPerAck, silentIntervalsMax } from './limits.ts'
import type { Meter } from './metrics.ts'
import { agentVersion } from './version.ts'

export interface HeartbeatParts {
  meter: Meter
  send(frame: HeartbeatFrame): boolean
  /** No ack within 2.5 intervals: the socket is half open. */
  silent(): void
}

export class Heartbeat {
  readonly #parts: HeartbeatParts
  #timer: NodeJS.Timeout | null = null
  #silenceTimer: NodeJS.Timeout | null = null
  #seq = 0
  #generation = 0

  constructor(parts: HeartbeatParts) {
    this.#parts = parts
  }

  /** Beats at once, and from now on at this interval, asking for an ack each so many beats. */
  start(intervalMs: number, beatsPerAck = heartbeatsPerAck): void {
    this.stop()
    void this.#beat(intervalMs, beatsPerAck, this.#generation)
  }

  stop(): void {
    this.#generation++
    if (this.#timer) clearTimeout(this.#timer)
    this.#heard()
  }

  /** Any word from the hub proves the path. */
  heardFromHub(): void {
    this.#heard()
  }

  #heard(): void {
    if (this.#silenceTimer) clearTimeout(this.#silenceTimer)
    this.#silenceTimer = null
  }

  async #beat(intervalMs: number, beatsPerAck: number, generation: number): Promise<void> {
    const metrics = await this.#parts.meter.read()
    if (generation !== this.#generation) return
    const asksAck = this.#seq++ % beatsPerAck === 0 || this.#silenceTimer !== null
    this.#parts.send({
      type: 'heartbeat',
      ...(asksAck ? { seq: this.#seq } : {}),
      agentVersion,
      uptimeSeconds: Math.round(uptime()),
      metrics,
    })
    if (asksAck) this.#expectAck(intervalMs)
    const ms = intervalMs * (1 + heartbeatJitter * (2 * Math.random() - 1))
    this.#timer = setTimeout(() => void this.#beat(intervalMs, beatsPerAck, generation), ms)
  }

  #expectAck(intervalMs: number): void {
    this.#silenceTimer ??= setTimeout(() => this.#parts.silent(), intervalMs * silentIntervalsMax)
  }
}
