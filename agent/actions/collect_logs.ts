// collect_logs: the end of the agent's own log and of the system's, each within half the bound.

import { wholeNumber } from '../action.ts'
import type { Action } from '../action.ts'
import { readIfThere } from '../files.ts'
import { collectBytesDefault, collectBytesMax } from '../limits.ts'
import { encodedBytes } from '../output.ts'
import type { State } from '../state.ts'
import { askTool } from '../tools.ts'
import { readTail } from '../tail.ts'

export const collectLogs: Action = {
  concurrent: true,
  repeatable: true,
  async run(payload, { state }) {
    const bounds = { min: 1, max: 2 ** 31, absent: collectBytesDefault }
    const wanted = wholeNumber(payload, 'maxBytes', bounds)
    const half = Math.floor(Math.min(wanted, collectBytesMax) / 2)
    const agent = agentLog(state, half)
    const system = await systemLog(half)
    const agentLogCut = lastEncoded(agent, half)
    const systemLogCut = lastEncoded(system.text, half)
    return {
      status: 'completed',
      truncated: agentLogCut.length < agent.length || systemLogCut.length < system.text.length,
      data: { agentLog: agentLogCut, systemLog: systemLogCut, systemLogSource: system.source },
    }
  },
}

/** The longest end of a text that takes at most so many bytes as JSON; whole lines where it can. */
export function lastEncoded(text: string, bytesMax: number): string {
  if (encodedBytes(text) <= bytesMax) return text
  let cut = text.slice(-bytesMax)
  while (encodedBytes(cut) > bytesMax) {
    cut = cut.slice(Math.ceil((encodedBytes(cut) - bytesMax) / 6))
  }
  const line = cut.indexOf('\n')
  return line >= 0 && line < cut.length - 1 ? cut.slice(line + 1) : cut.toWellFormed()
}

function agentLog(state: State, bytes: number): string {
  const now = readTail(state.log, bytes)
  return now.length < bytes
    ? (readIfThere(`${state.log}.1`) ?? '').slice(now.length - bytes) + now
    : now
}

async function systemLog(bytes: number): Promise<{ source: string; text: string }> {
  if (process.platform === 'darwin') {
    const args = ['show', '--last', '30m', '--style', 'syslog']
    return { source: 'log show', text: await askTool('log', args) }
  }
  if (process.platform === 'win32') {
    const script =
      'Get-WinEvent -LogName System -MaxEvents 500 | Format-List | Out-String -Width 200'
    const args = ['-NoProfile', '-NonInteractive', '-Command', script]
    return { source: 'Get-WinEvent System', text: await askTool('powershell.exe', args) }
  }
  return linuxLog(bytes)
}

async function linuxLog(bytes: number): Promise<{ source: string; text: string }> {
  const journal = await askTool('journalctl', ['--no-pager', '-n', '5000', '-o', 'short-iso'])
  if (journal !== '') return { source: 'journalctl', text: journal }
  for (const source of ['/var/log/syslog', '/var/log/messages']) {
    const text = readTail(source, bytes)
    if (text !== '') return { source, text }
  }
  return { source: 'none', text: '' }
}
