// The heartbeats a fleet sends: 100 bytes of JSON each, built and masked beforehand.
import { clientFrame, opcodes } from './frames.ts'
import type { HeartbeatFrame } from '../src/protocol.ts'

/**
 * A heartbeat of exactly 100 bytes without a `seq`: the hub answers a seq, and P1 is measured beside a
 * program that only receives. Loads stay far below any alert's threshold. `variant` is 0 to 8.
 */
export function heartbeat(variant: number): HeartbeatFrame {
  const tenths = (variant + 1) / 10
  return {
    type: 'heartbeat',
    metrics: {
      cpuPercent: 10 + tenths,
      memoryPercent: 40 + tenths,
      diskPercent: 50 + tenths,
      users: 3,
    },
  }
}

/** The payloads that agents send in turn, so that metrics change from beat to beat. */
export const heartbeatPayloads: readonly Buffer[] = Array.from({ length: 9 }, (_, variant) =>
  Buffer.from(JSON.stringify(heartbeat(variant))),
)

/** The same as masked frames. */
export const heartbeatFrames: readonly Buffer[] = heartbeatPayloads.map((payload) =>
  clientFrame(opcodes.text, payload),
)
