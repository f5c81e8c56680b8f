// What a process used, read from /proc: CPU of all its threads and of its children, resident memory.
// CPU is far steadier than throughput, so most goals are CPU per operation. Linux only.
import { readdirSync, readFileSync } from 'node:fs'

/** USER_HZ, which Linux keeps at 100 towards user space on every architecture. */
const tickMs = 10

export interface ProcessStat {
  parentPid: number
  /** User and system time of all threads, ended ones too. */
  cpuMs: number
  /** The same of children that ended and were waited for, and of theirs. */
  endedChildrenCpuMs: number
}

/** Reads one line of /proc/PID/stat. The name in brackets may hold spaces and brackets itself. */
export function parseStat(line: string): ProcessStat {
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ')
  // Counted from the state, which is field 3 of proc(5): ppid 4, utime 14, stime 15, cutime 16, cstime 17.
  const ticks = (field: number) => Number(fields[field - 3])
  const stat = {
    parentPid: ticks(4),
    cpuMs: (ticks(14) + ticks(15)) * tickMs,
    endedChildrenCpuMs: (ticks(16) + ticks(17)) * tickMs,
  }
  if (!Object.values(stat).every(Number.isFinite)) throw new Error(`no stat line: "${line}"`)
  return stat
}

/** CPU of one process, all threads. Throws when it is gone. */
export function processCpuMs(pid: number): number {
  return readStat(pid).cpuMs
}

/** CPU of one thread of a process; its first one has the process's own number. Throws when it is gone. */
export function threadCpuMs(pid: number, thread = pid): number {
  return parseStat(readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8')).cpuMs
}

/**
 * CPU of a process, its living descendants and those already ended. PostgreSQL needs this: each
 * connection is a process of its own, and one that closed lives on only in the postmaster's account.
 */
export function treeCpuMs(pid: number): number {
  return [pid, ...descendants(pid)].reduce((sum, member) => {
    const stat = statOrNothing(member)
    return stat ? sum + stat.cpuMs + stat.endedChildrenCpuMs : sum
  }, 0)
}

/** The pids below a process, nearest first. */
export function descendants(pid: number): number[] {
  const children = new Map<number, number[]>()
  for (const name of readdirSync('/proc')) {
    const member = Number(name)
    const stat = Number.isInteger(member) ? statOrNothing(member) : undefined
    if (stat) children.set(stat.parentPid, [...(children.get(stat.parentPid) ?? []), member])
  }
  const found = [...(children.get(pid) ?? [])]
  for (const member of found) found.push(...(children.get(member) ?? []))
  return found
}

/** CPU of all cores since the start of the machine. */
export interface CpuTimes {
  /** Idle time too. */
  allMs: number
  /** While something of this machine could run, its cores ran another one. */
  stolenMs: number
}

export function cpuTimes(): CpuTimes {
  return parseCpuTimes(readFileSync('/proc/stat', 'utf8'))
}

/** Reads the first line of /proc/stat. */
export function parseCpuTimes(text: string): CpuTimes {
  // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of the first two.
  const ticks = /^cpu +([\d ]+)$/m.exec(text)?.[1]?.split(' ').slice(0, 8).map(Number)
  if (ticks === undefined) throw new Error('no cpu line in /proc/stat')
  return {
    allMs: ticks.reduce((sum, value) => sum + value, 0) * tickMs,
    stolenMs: (ticks[7] ?? 0) * tickMs,
  }
}

/** Resident memory. The roll-up is exact; statm lags by up to 64 pages per thread. */
export function rssBytes(pid: number): number {
  return parseRollup(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))
}

/** Reads `Rss:` of /proc/PID/smaps_rollup, in bytes. */
export function parseRollup(text: string): number {
  const kilobytes = /^Rss:\s+(\d+) kB$/m.exec(text)?.[1]
  if (kilobytes === undefined) throw new Error('no Rss in smaps_rollup')
  return Number(kilobytes) * 1024
}

/** The command line of a process, its arguments joined by spaces; empty when it is gone. */
export function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim()
  } catch {
    return ''
  }
}

function readStat(pid: number): ProcessStat {
  return parseStat(readFileSync(`/proc/${pid}/stat`, 'utf8'))
}

/** Processes end while the list is read; one that did has nothing to tell. */
function statOrNothing(pid: number): ProcessStat | undefined {
  try {
    return readStat(pid)
  } catch {
    return undefined
  }
}
