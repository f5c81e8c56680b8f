// What ends the agent or the device: reported as scheduled first, done after the hub's ack.
// The command that is run can be replaced from the environment, for sites with their own ways.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { wholeNumber } from '../action.ts'
import type { Action, ActionOutcome } from '../action.ts'
import { powerDelaySecondsMax } from '../limits.ts'
import { findProgram } from '../programs.ts'
import { pauseWindows, uninstallScript } from '../uninstall.ts'

const windows = process.platform === 'win32'
const data = { scheduled: true }

export const reboot = powerAction('MUSTER_AGENT_REBOOT_COMMAND', (seconds) =>
  windows ? `shutdown /r /t ${seconds}` : `sleep ${seconds}; shutdown -r now || reboot`,
)

export const shutdown = powerAction('MUSTER_AGENT_SHUTDOWN_COMMAND', (seconds) =>
  windows ? `shutdown /s /t ${seconds}` : `sleep ${seconds}; shutdown -h now || poweroff`,
)

export const restartAgent: Action = {
  concurrent: false,
  repeatable: false,
  run: (_payload, { agent }) =>
    scheduled(() => {
      agent.restart()
      return Promise.resolve()
    }),
}

export const uninstallAgent: Action = {
  concurrent: false,
  repeatable: false,
  run: (_payload, { agent, state }) =>
    scheduled(async () => {
      await startDetached(process.env['MUSTER_AGENT_UNINSTALL_COMMAND'] ?? uninstallScript(state))
      agent.leave()
    }),
}

function powerAction(variable: string, commandAfter: (seconds: number) => string): Action {
  return {
    concurrent: false,
    repeatable: false,
    run(payload, { log }) {
      const bounds = { min: 0, max: powerDelaySecondsMax, absent: 0 }
      const seconds = wholeNumber(payload, 'delaySeconds', bounds)
      return scheduled(async () => {
        const replaced = process.env[variable]
        log.info('power command starts', { variable, replaced: replaced !== undefined, seconds })
        await startDetached(replaced ? delayed(replaced, seconds) : commandAfter(seconds))
      })
    },
  }
}

function scheduled(after: () => Promise<void>): Promise<ActionOutcome> {
  return Promise.resolve({ status: 'completed', data, after })
}

function delayed(command: string, seconds: number): string {
  if (seconds === 0) return command
  return windows ? `${pauseWindows(seconds)} & ${command}` : `sleep ${seconds}; ${command}`
}

// In a session of its own: it must outlive the agent that it may end.
async function startDetached(command: string): Promise<void> {
  const [file, args] = detachedCommand(command)
  const child = spawn(file, args, {
    detached: true,
    stdio: 'ignore',
    windowsHide: true,
    windowsVerbatimArguments: windows,
  })
  await once(child, 'spawn')
  child.unref()
}

// systemd ends a service's whole control group with it, sessions or not: only another unit survives.
function detachedCommand(command: string): [file: string, args: string[]] {
  if (windows) return ['cmd.exe', ['/d', '/s', '/c', `"${command}"`]]
  const systemdRun = process.env['INVOCATION_ID'] ? findProgram('systemd-run') : null
  if (systemdRun) return [systemdRun, ['--collect', '--quiet', '/bin/sh', '-c', command]]
  return ['/bin/sh', ['-c', command]]
}
