// list_processes and kill_process.

import { setTimeout as delay } from 'node:timers/promises'
import { PayloadError, wholeNumber } from '../action.ts'
import type { Action } from '../action.ts'
import { killGraceMs, killPollMs, processesMax } from '../limits.ts'
import { isThere, signal } from '../processes.ts'
import { readProcesses } from '../process_list.ts'

export const listProcesses: Action = {
  concurrent: true,
  repeatable: true,
  async run() {
    const all = await readProcesses()
    const data = all.toSorted((a, b) => b.memoryBytes - a.memoryBytes).slice(0, processesMax)
    return { status: 'completed', data, truncated: data.length < all.length }
  },
}

export const killProcess: Action = {
  concurrent: true,
  repeatable: false,
  async run(payload, context) {
    const pid = wholeNumber(payload, 'pid', { min: -Infinity, max: 2 ** 31 - 1 })
    if (pid <= 1) throw new PayloadError('payload: pid must be greater than 1')
    if (pid === process.pid || isSupervisor(pid)) {
      throw new PayloadError('payload: pid is the agent itself; use restart_agent')
    }
    if (!signal(pid, 'SIGTERM')) return { status: 'failed', error: `no process ${pid}` }
    for (const end = Date.now() + killGraceMs; Date.now() < end; await delay(killPollMs)) {
      if (!isThere(pid)) return { status: 'completed', data: { pid, signal: 'SIGTERM' } }
      // Nobody wants it any more: it may end in its own time.
      if (context.signal.aborted) return { status: 'failed', error: `SIGTERM was sent to ${pid}` }
    }
    signal(pid, 'SIGKILL')
    return { status: 'completed', data: { pid, signal: 'SIGKILL' } }
  },
}

function isSupervisor(pid: number): boolean {
  return process.env['MUSTER_AGENT_SUPERVISED'] !== undefined && pid === process.ppid
}
