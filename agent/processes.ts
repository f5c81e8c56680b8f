// Other processes of this machine: are they alive, are they the same, end them as a group.
// Knows nothing of commands; never kills a pid it can't tell apart from a recycled one.

import { readFileSync, readdirSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { errorCode } from './errors.ts'
import type { RecordedProcess } from './ledger.ts'
import { killPollMs } from './limits.ts'
import { askTool } from './tools.ts'

const windows = process.platform === 'win32'

/** When a process started, in a form only good for comparing; null when it is gone. */
export async function startTimeOf(pid: number): Promise<string | null> {
  if (process.platform === 'linux') return linuxStartTime(pid)
  if (windows) {
    const script = `(Get-Process -Id ${pid} -ErrorAction Stop).StartTime.ToFileTimeUtc()`
    return (await askTool('powershell.exe', ['-NoProfile', '-Command', script])).trim() || null
  }
  return (await askTool('ps', ['-o', 'lstart=', '-p', String(pid)])).trim() || null
}

/** Whether the process that was recorded still lives; a recycled pid or a zombie is not it. */
export async function isSameProcess(pid: number, startTime: string | null): Promise<boolean> {
  if (!isThere(pid)) return false
  return startTime !== null && (await startTimeOf(pid)) === startTime
}

/** Whether a process (or, with a negative number, a process group) exists. */
export function isThere(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return errorCode(error) === 'EPERM'
  }
}

/** Ends a process and its group: asks first, kills after the grace. True when nothing is left. */
export async function endGroup(pid: number, graceMs: number, giveUpMs: number): Promise<boolean> {
  if (windows) {
    await askTool('taskkill', ['/PID', String(pid), '/T', '/F'])
    return waitUntilGone(pid, giveUpMs)
  }
  signalGroup(pid, 'SIGTERM')
  if (await waitUntilGone(-pid, graceMs)) return true
  signalGroup(pid, 'SIGKILL')
  return waitUntilGone(-pid, giveUpMs)
}

/** Kills at once what an earlier life of the agent left running for a command. */
export async function killLeftover(left: RecordedProcess, mark: string): Promise<void> {
  const { pid, startTime } = left
  if (await isSameProcess(pid, startTime)) {
    if (windows) await askTool('taskkill', ['/PID', String(pid), '/T', '/F'])
    else signalGroup(pid, 'SIGKILL')
    return
  }
  for (const member of markedMembers(pid, mark)) signal(member, 'SIGKILL')
}

/** Sends a signal to one process; false when it is gone. Throws where that is not allowed. */
export function signal(pid: number, name: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, name)
  } catch (error) {
    if (errorCode(error) === 'ESRCH') return false
    throw error
  }
}

// The leader may be gone while its children run on. Its number as a group can't be trusted alone,
// so a member must also carry the environment mark that only this command's processes have.
function markedMembers(group: number, mark: string): number[] {
  if (process.platform !== 'linux') return []
  return pids().filter((pid) => {
    const stat = readProc(pid, 'stat')
    return (
      statField(stat, 5) === String(group) && readProc(pid, 'environ').split('\0').includes(mark)
    )
  })
}

/** All pids of this Linux machine. */
export function pids(): number[] {
  return readdirSync('/proc').map(Number).filter(Number.isInteger)
}

/** A file of /proc/PID, or an empty string when the process is gone or not ours to read. */
export function readProc(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'utf8')
  } catch {
    return ''
  }
}

/** A field of /proc/PID/stat, counted as in proc(5); the command name may hold spaces and brackets. */
export function statField(stat: string, field: number): string | undefined {
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[field - 3]
}

// Ticks count from the boot, so the boot itself belongs to the answer.
function linuxStartTime(pid: number): string | null {
  const stat = readProc(pid, 'stat')
  const ticks = statField(stat, 22)
  if (!ticks || statField(stat, 3) === 'Z') return null
  return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()}:${ticks}`
}

function signalGroup(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(-pid, name)
  } catch (error) {
    // ESRCH: gone already. EPERM: macOS says so for a group of zombies; the wait tells the truth.
    if (errorCode(error) !== 'ESRCH' && errorCode(error) !== 'EPERM') throw error
  }
}

async function waitUntilGone(pid: number, ms: number): Promise<boolean> {
  for (const end = Date.now() + ms; Date.now() < end; await delay(killPollMs)) {
    if (!isAlive(pid)) return true
  }
  return !isAlive(pid)
}

// A group of zombies still takes signals, and some containers reap late: only the living count.
function isAlive(pid: number): boolean {
  if (!isThere(pid) || process.platform !== 'linux' || pid > 0) return isThere(pid)
  return pids().some((member) => {
    const stat = readProc(member, 'stat')
    return statField(stat, 5) === String(-pid) && statField(stat, 3) !== 'Z'
  })
}
