// How busy this device is, cheap enough for every heartbeat.

import { readFileSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { cpus, freemem, loadavg, totalmem } from 'node:os'
import type { AgentMetrics } from '../src/protocol.ts'

interface CpuTimes {
  busy: number
  total: number
}

/** Measures since the call before; one meter per reader, or they would shorten each other's spans. */
export class Meter {
  #before = cpuTimes()

  /** The metrics of now; what can't be measured is left out. */
  async read(): Promise<AgentMetrics> {
    const now = cpuTimes()
    const memoryUsed = totalmem() - availableMemory()
    const metrics: AgentMetrics = {
      memoryPercent: percent(memoryUsed, totalmem()),
      memoryUsedBytes: memoryUsed,
      load1: loadavg()[0] ?? 0,
      ...(await diskMetrics()),
    }
    if (now.total > this.#before.total) metrics.cpuPercent = cpuPercent(this.#before, now)
    this.#before = now
    return metrics
  }
}

/** The busy share between two readings. */
export function cpuPercent(before: CpuTimes, now: CpuTimes): number {
  return percent(now.busy - before.busy, now.total - before.total)
}

/** The system disk: where the operating system lives. */
export function systemDisk(): string {
  return process.platform === 'win32' ? `${process.env['SystemDrive'] ?? 'C:'}\\` : '/'
}

function cpuTimes(): CpuTimes {
  const sum = { busy: 0, total: 0 }
  for (const { times } of cpus()) {
    const busy = times.user + times.nice + times.sys + times.irq
    sum.busy += busy
    sum.total += busy + times.idle
  }
  return sum
}

// "Free" counts the page cache as used; what a program could still get is the useful number.
function availableMemory(): number {
  if (process.platform !== 'linux') return freemem()
  const match = /^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync('/proc/meminfo', 'utf8'))
  return match ? Number(match[1]) * 1024 : freemem()
}

// As df counts: what is reserved for root is neither used nor available.
async function diskMetrics(): Promise<AgentMetrics> {
  try {
    const { blocks, bfree, bavail, bsize } = await statfs(systemDisk())
    const used = blocks - bfree
    return { diskPercent: percent(used, used + bavail), diskFreeBytes: bavail * bsize }
  } catch {
    return {}
  }
}

function percent(part: number, whole: number): number {
  if (whole <= 0) return 0
  return Math.round(Math.min(100, Math.max(0, (part / whole) * 100)) * 10) / 10
}
