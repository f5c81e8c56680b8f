// `status`: what the agent last wrote about itself, for a person or, with --json, for a program.

import { exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { readIfThere, replaceQuickly } from './files.ts'
import { lockOwner } from './lock.ts'
import { readIdentity } from './state.ts'
import type { State } from './state.ts'
import { agentVersion } from './version.ts'

interface Status {
  connected: boolean
  since: string
}

/** Notes a change for `status`; that the note can't be written is no reason to stop. */
export function writeStatus(state: State, { connected }: { connected: boolean }): void {
  try {
    const status: Status = { connected, since: new Date().toISOString() }
    replaceQuickly(state.status, JSON.stringify(status))
  } catch {
    // A full disk: `status` shows an older truth, the agent goes on.
  }
}

/** Prints the state of this device's agent. Fails when the device is not enrolled. */
export async function printStatus(state: State, json: boolean): Promise<ExitCode> {
  const report = await readReport(state)
  const text = json ? JSON.stringify(report, null, 2) : formatReport(report)
  process.stdout.write(`${text}\n`)
  return report.enrolled ? exitCodes.ok : exitCodes.failure
}

async function readReport(state: State) {
  const identity = readIdentity(state)
  const pid = (await lockOwner(state.lock))?.pid ?? null
  const status = parseStatus(readIfThere(state.status))
  return {
    agentVersion,
    state: state.dir,
    enrolled: identity !== null,
    deviceId: identity?.deviceId ?? null,
    orgId: identity?.orgId ?? null,
    siteId: identity?.siteId ?? null,
    hubUrl: identity?.hubUrl ?? null,
    enrolledAt: identity?.enrolledAt ?? null,
    running: pid !== null,
    pid,
    // A dead agent's last note is not about now.
    connected: pid !== null && status?.connected === true,
    since: pid === null ? null : (status?.since ?? null),
  }
}

function formatReport(report: Awaited<ReturnType<typeof readReport>>): string {
  const link = `${report.connected ? 'connected' : 'not connected'} since ${report.since}`
  const rows: [string, string][] = [
    ['version', report.agentVersion],
    ['state', report.state],
    ['device', report.deviceId ?? 'not enrolled'],
    ['site', report.siteId ?? '-'],
    ['hub', report.hubUrl ?? '-'],
    ['agent', report.running ? `running, pid ${report.pid}` : 'not running'],
    ['connection', report.running ? link : '-'],
  ]
  return rows.map(([name, value]) => `${name.padEnd(11)} ${value}`).join('\n')
}

function parseStatus(text: string | null): Status | null {
  try {
    return text === null ? null : (JSON.parse(text) as Status) // replaced whole by writeStatus
  } catch {
    return null
  }
}
