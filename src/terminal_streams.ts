// One direction of a terminal at either of its ends: bytes that are kept until they are acknowledged, and bytes
// that are taken once and in order, whatever was lost or comes twice. Numbers count bytes since the session
// began. No socket, no clock; loads the frames alone, because agent and browser run it too.
import { dataBytesMax, windowBytes } from './terminal_frames.ts'

/** Bytes to the other end. */
export class Outgoing {
  /** Everything before it was taken by the other end. */
  acked = 0
  /** Everything before it was handed out by `next` since the last `resume`. */
  sent = 0
  /** Where the bytes end. */
  end = 0
  private bytes = new Uint8Array(4096)
  /** Where in `bytes` the byte number `acked` lies. */
  private start = 0

  /** Bytes that are kept. */
  get kept(): number {
    return this.end - this.acked
  }

  /** Adds bytes, however many: who may not keep them all looks at `kept`. */
  push(more: Uint8Array): void {
    const { kept } = this
    if (this.start + kept + more.length > this.bytes.length) this.makeRoom(kept + more.length)
    this.bytes.set(more, this.start + kept)
    this.end += more.length
  }

  /** The next bytes to send; undefined while the window is full or nothing waits. Valid until the next call. */
  next(): { seq: number; body: Uint8Array } | undefined {
    const room = Math.min(this.end, this.acked + windowBytes) - this.sent
    if (room <= 0) return undefined
    const seq = this.sent
    const at = this.start + seq - this.acked
    const body = this.bytes.subarray(at, at + Math.min(room, dataBytesMax))
    this.sent += body.length
    return { seq, body }
  }

  /** The other end has taken everything before `seq`. A number that can't be is ignored. */
  ack(seq: number): void {
    if (seq <= this.acked || seq > this.end) return
    this.start += seq - this.acked
    this.acked = seq
    this.sent = Math.max(this.sent, seq)
    if (this.kept === 0) this.start = 0
  }

  /** The other end goes on at `seq`: what lies behind it is sent again. Returns where it really goes on. */
  resume(seq: number): number {
    this.ack(seq)
    this.sent = Math.max(this.acked, Math.min(seq, this.end))
    return this.sent
  }

  /** The other end counts otherwise: what was not sent yet begins at `seq`, and the rest is given up. */
  renumber(seq: number): void {
    const unsent = this.end - this.sent
    this.start += this.sent - this.acked
    this.acked = this.sent = seq
    this.end = seq + unsent
  }

  private makeRoom(needed: number): void {
    const kept = this.bytes.subarray(this.start, this.start + this.kept)
    const larger = new Uint8Array(Math.max(4096, needed * 2))
    larger.set(kept)
    this.bytes = larger
    this.start = 0
  }
}

/** Bytes from the other end. */
export class Incoming {
  /** Everything before it was taken. */
  at = 0

  /** What is new in these bytes; undefined when all of it came before, or when something before it is missing. */
  take(seq: number, body: Uint8Array): Uint8Array | undefined {
    if (seq > this.at || seq + body.length <= this.at) return undefined
    const fresh = body.subarray(this.at - seq)
    this.at += fresh.length
    return fresh
  }
}
