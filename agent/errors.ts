// What ends a call of the command line: a sentence for a person and an exit code for a machine.

/** The exit codes of the contract, and one spoken only between the agent and its supervisor. */
export const exitCodes = {
  ok: 0,
  failure: 1,
  usage: 2,
  decommissioned: 3,
  /** The child asks its supervisor to start it again; never leaves the supervisor. */
  restart: 75,
  /** The child asks its supervisor to try another version; never leaves the supervisor either. */
  upgrade: 76,
} as const

export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes]

/** An expected failure: printed as one line, never with a stack trace. */
export class AgentError extends Error {
  readonly exitCode: ExitCode

  constructor(message: string, exitCode: ExitCode = exitCodes.failure, options?: ErrorOptions) {
    super(message, options)
    this.name = 'AgentError'
    this.exitCode = exitCode
  }
}

/** The sentence of whatever was thrown; system errors keep their code, which says the most. */
export function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const cause = error.cause instanceof Error ? `: ${describe(error.cause)}` : ''
  return `${error.message}${cause}`
}

/** Whether the operating system refused something; our own mistakes carry codes too, but no call. */
export function isSystemError(error: unknown): boolean {
  return typeof (error as { syscall?: unknown } | null)?.syscall === 'string'
}

/** The code of a system error (ENOENT, EPERM, …), or undefined. */
export function errorCode(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code
  return typeof code === 'string' ? code : undefined
}

/** True when the disk has no room, for anybody or for this user. */
export function isFull(error: unknown): boolean {
  return ['ENOSPC', 'EDQUOT'].includes(errorCode(error) ?? '')
}
