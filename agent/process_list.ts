// The processes of this device, from what each system offers. Only reads.

import { readFileSync, statSync } from 'node:fs'
import { readIfThere } from './files.ts'
import { pids, readProc, statField } from './processes.ts'
import { askPowerShell, runTool } from './tools.ts'

export interface ProcessRow {
  pid: number
  ppid: number
  name: string
  memoryBytes: number
  user: string
  /** Percent of one processor since the process started. */
  cpu?: number
}

/** All processes, in no order. */
export async function readProcesses(): Promise<ProcessRow[]> {
  if (process.platform === 'linux') return linuxProcesses()
  if (process.platform === 'win32') return windowsProcesses()
  return parsePs(await runTool('ps', ['-axo', 'pid=,ppid=,rss=,pcpu=,user=,comm=']))
}

/** The rows of `ps -axo pid=,ppid=,rss=,pcpu=,user=,comm=`. */
export function parsePs(text: string): ProcessRow[] {
  return text.split('\n').flatMap((line) => {
    const match = /^\s*(\d+)\s+(\d+)\s+(\d+)\s+([\d.,]+)\s+(\S+)\s+(.*)$/.exec(line)
    if (!match) return []
    const [, pid, ppid, rss, cpu, user = '', name = ''] = match
    return {
      pid: Number(pid),
      ppid: Number(ppid),
      name: name.split('/').at(-1) ?? name,
      memoryBytes: Number(rss) * 1024,
      user,
      cpu: Number(cpu?.replace(',', '.')),
    }
  })
}

function linuxProcesses(): ProcessRow[] {
  const users = readUsers()
  const uptimeSeconds = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0])
  return pids().flatMap((pid) => linuxProcess(pid, users, uptimeSeconds) ?? [])
}

function linuxProcess(
  pid: number,
  users: Map<string, string>,
  uptimeSeconds: number,
): ProcessRow | null {
  const stat = readProc(pid, 'stat')
  const owner = ownerOf(pid)
  if (stat === '' || owner === null) return null // ended while we looked
  return {
    pid,
    ppid: Number(statField(stat, 4)),
    name: stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')')),
    memoryBytes: Number(statField(stat, 24)) * 4096,
    user: users.get(owner) ?? owner,
    cpu: cpuPercent(stat, uptimeSeconds),
  }
}

// The kernel counts in hundredths of a second (USER_HZ) on every system we run on.
function cpuPercent(stat: string, uptimeSeconds: number): number {
  const busyTicks = Number(statField(stat, 14)) + Number(statField(stat, 15))
  const ageTicks = uptimeSeconds * 100 - Number(statField(stat, 22))
  return ageTicks > 0 ? Math.round((busyTicks / ageTicks) * 1000) / 10 : 0
}

function ownerOf(pid: number): string | null {
  try {
    return String(statSync(`/proc/${pid}`).uid)
  } catch {
    return null
  }
}

function readUsers(): Map<string, string> {
  const lines = (readIfThere('/etc/passwd') ?? '').split('\n').map((line) => line.split(':'))
  return new Map(lines.flatMap(([name, , uid]) => (name && uid ? [[uid, name]] : [])))
}

async function windowsProcesses(): Promise<ProcessRow[]> {
  const rows = await askPowerShell(
    'Get-CimInstance Win32_Process | Select-Object ProcessId,ParentProcessId,Name,WorkingSetSize' +
      ' | ConvertTo-Json -Compress',
  )
  if (!Array.isArray(rows)) throw new Error('PowerShell could not list the processes')
  return (rows as Record<string, unknown>[]).map((row) => ({
    pid: Number(row['ProcessId']),
    ppid: Number(row['ParentProcessId']),
    name: String(row['Name']),
    memoryBytes: Number(row['WorkingSetSize']),
    user: '', // asking for owners takes a call per process
  }))
}
