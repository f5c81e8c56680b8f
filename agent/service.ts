// The agent as a service of systemd: the text of its unit, and where it lies. Runs nothing.

export const serviceName = 'muster-agent.service'
export const unitPath = `/etc/systemd/system/${serviceName}`
/** The link by which the unit is enabled. */
export const wantedPath = `/etc/systemd/system/multi-user.target.wants/${serviceName}`

/** The unit that runs this command, which is the agent's `run --supervised`. */
export function unitText(command: string[]): string {
  return `[Unit]
Description=Muster agent
Wants=network-online.target
After=network-online.target
# A device that nobody can reach any more is worse than one that tries for ever.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=${command.map(quote).join(' ')}
Restart=always
RestartSec=5
# Decommissioned: for good.
RestartPreventExitStatus=3
# The supervisor ends its agent, and that its commands, in order.
KillMode=mixed
TimeoutStopSec=20
# A command that takes all memory is ended alone.
OOMPolicy=continue
# These would make another program of the agent's own.
UnsetEnvironment=BUN_BE_BUN BUN_OPTIONS NODE_OPTIONS
UMask=0077
# Nothing more is taken away: what an operator does through the agent, root's own shell may do. It must be
# able to write where its program lies, too, or it could not be upgraded.

[Install]
WantedBy=multi-user.target
`
}

// As systemd.service(5) reads a command line: quotes, escapes, specifiers and variables.
function quote(text: string): string {
  const escaped = text
    .replaceAll('\\', '\\\\')
    .replaceAll('"', '\\"')
    .replaceAll('%', '%%')
    .replaceAll('$', '$$$$')
  return /[\s"'\\;]/.test(text) ? `"${escaped}"` : escaped
}
