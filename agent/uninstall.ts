// How an agent leaves a device: its service, its state folder and, when it is one file, its program.

import { ownPrograms } from './install.ts'
import { serviceName, unitPath } from './service.ts'
import type { State } from './state.ts'

/** A shell script that waits for this process to end and then removes what was installed. */
export function uninstallScript(state: State, pid: number = process.pid): string {
  return process.platform === 'win32' ? windowsScript(state) : posixScript(state, pid)
}

function posixScript(state: State, pid: number): string {
  return [
    'rm -f /Library/LaunchDaemons/com.muster.agent.plist',
    `i=0; while kill -0 ${pid} 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done`,
    // In the pause before its manager would start it again.
    `systemctl disable --now ${serviceName} 2>/dev/null`,
    `rm -f ${unitPath}`,
    'systemctl daemon-reload 2>/dev/null',
    `rm -rf -- ${quote(state.dir)}`,
    ...ownPrograms().map((path) => `rm -f -- ${quote(path)}`),
  ].join('\n')
}

// cmd has no wait for a pid; a few seconds are enough for an agent that is leaving.
function windowsScript(state: State): string {
  const program = ownPrograms()
    .map((path) => ` & del /f /q "${path}"`)
    .join('')
  return `sc delete muster-agent & ${pauseWindows(12)} & rmdir /s /q "${state.dir}"${program}`
}

/** A pause that needs no console; Windows' own `timeout` refuses to run without one. */
export function pauseWindows(seconds: number): string {
  return `ping -n ${seconds + 1} 127.0.0.1 >nul`
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}
