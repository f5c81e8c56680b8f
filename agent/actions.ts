// The table of actions: what a hub may ask for, one line each. An action lives in agent/actions/.

import { cpus, loadavg, uptime } from 'node:os'
import type { Action } from './action.ts'
import { collectLogs } from './actions/collect_logs.ts'
import { killProcess, listProcesses } from './actions/processes.ts'
import { reboot, restartAgent, shutdown, uninstallAgent } from './actions/power.ts'
import { runCommand } from './actions/run_command.ts'
import { runScript } from './actions/run_script.ts'
import { upgradeAgent } from './actions/upgrade_agent.ts'
import { agentVersion } from './version.ts'

const ping: Action = {
  concurrent: true,
  repeatable: true,
  run: () =>
    Promise.resolve({
      status: 'completed',
      data: {
        time: new Date().toISOString(),
        agentVersion,
        uptimeSeconds: Math.round(uptime()),
        load1: loadavg()[0] ?? 0,
        cpuCount: cpus().length,
      },
    }),
}

const refreshInventory: Action = {
  concurrent: true,
  repeatable: true,
  async run(_payload, { agent }) {
    const sent = await agent.sendInventory()
    return sent
      ? { status: 'completed' }
      : { status: 'failed', error: 'the connection was lost before the inventory was sent' }
  },
}

/** Every action by its name on the wire. */
export const actions: Record<string, Action> = Object.assign(
  // No prototype: an action named "constructor" is as unknown as any other.
  Object.create(null) as Record<string, Action>,
  {
    ping,
    run_command: runCommand,
    run_script: runScript,
    refresh_inventory: refreshInventory,
    list_processes: listProcesses,
    kill_process: killProcess,
    collect_logs: collectLogs,
    restart_agent: restartAgent,
    uninstall_agent: uninstallAgent,
    reboot,
    shutdown,
    upgrade_agent: upgradeAgent,
  },
)
