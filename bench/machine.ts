// The machine a run was made on, in what matters for its numbers. Never its name or address.
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os'

export interface Machine {
  cores: number
  cpu: string
  memoryGiB: number
  kernel: string
  node: string
}

export function describeMachine(): Machine {
  return {
    cores: availableParallelism(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.version,
  }
}

/** Load average of the last minute. */
export function loadNow(): number {
  return Math.round((loadavg()[0] ?? 0) * 100) / 100
}
