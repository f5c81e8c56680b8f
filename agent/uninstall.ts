// How an agent leaves a device: its service, its state folder and, when it is one file, its program.

import { isCompiled } from './programs.ts'
import type { State } from './state.ts'

/** A shell script that waits for this process to end and then removes what was installed. */
export function uninstallScript(state: State, pid: number = process.pid): string {
  return process.platform === 'win32' ? windowsScript(state) : posixScript(state, pid)
}

function posixScript(state: State, pid: number): string {
  return [
    // The service first, or its manager would start the agent again.
    'systemctl disable muster-agent.service 2>/dev/null',
    'rm -f /etc/systemd/system/muster-agent.service',
    'systemctl daemon-reload 2>/dev/null',
    'rm -f /Library/LaunchDaemons/com.muster.agent.plist',
    `i=0; while kill -0 ${pid} 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done`,
    `rm -rf -- ${quote(state.dir)}`,
    isCompiled() ? `rm -f -- ${quote(process.execPath)}` : ':',
  ].join('\n')
}

// cmd has no wait for a pid; a few seconds are enough for an agent that is leaving.
function windowsScript(state: State): string {
  const program = isCompiled() ? ` & del /f /q "${process.execPath}"` : ''
  return `sc delete muster-agent & ${pauseWindows(12)} & rmdir /s /q "${state.dir}"${program}`
}

/** A pause that needs no console; Windows' own `timeout` refuses to run without one. */
export function pauseWindows(seconds: number): string {
  return `ping -n ${seconds + 1} 127.0.0.1 >nul`
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}
