// The table of actions: what a command may be, what its payload must hold, who may send it and how long
// it may run. A new action is one entry here and one in the agent.
import { Type, type TObject } from 'typebox'
import { Compile } from 'typebox/compile'
import type { Operation } from './auth.ts'
import { AppError, type ErrorDetail } from './errors.ts'
import { limits } from './limits.ts'
import { versionLengthMax, versionPattern } from './versions.ts'
import { detailsOf } from './schema_errors.ts'

export interface Action {
  payload: TObject
  may: Operation
  /** How long it may run unless the caller says otherwise. */
  timeoutSeconds: number
}

// What the agent can run, and no more: a command that it must refuse is refused here, with a 400.
const environment = Type.Record(
  Type.String({ pattern: '^[A-Za-z_][A-Za-z0-9_]{0,254}$' }),
  Type.String(),
  {
    additionalProperties: false,
    description: 'Names of letters, digits and _, no digit first, of at most 255 characters.',
  },
)
const shells = ['sh', 'bash', 'zsh', 'powershell', 'pwsh', 'cmd'] as const
const delay = Type.Optional(Type.Integer({ minimum: 0, maximum: 86_400 }))

/** What `run_script` runs, and what a script of the library is written in. */
export const languages = ['bash', 'sh', 'powershell', 'cmd', 'python', 'node'] as const

export const actions: Readonly<Record<string, Action>> = {
  ping: action({ timeoutSeconds: 30 }),
  run_command: action({
    payload: {
      command: Type.String({ minLength: 1, maxLength: 65_536 }),
      shell: Type.Optional(
        Type.Enum([...shells], {
          description: 'By default cmd on Windows, else sh.',
        }),
      ),
    },
    timeoutSeconds: limits.commandTimeoutSecondsDefault,
  }),
  run_script: action({
    payload: {
      language: Type.Enum([...languages]),
      content: Type.String({ minLength: 1, maxLength: limits.payloadBytesMax }),
      env: Type.Optional(environment),
    },
    timeoutSeconds: limits.commandTimeoutSecondsDefault,
  }),
  refresh_inventory: action({ timeoutSeconds: 120 }),
  list_processes: action({ timeoutSeconds: 60 }),
  kill_process: action({
    payload: { pid: Type.Integer({ minimum: 2, maximum: 2_147_483_647 }) },
    timeoutSeconds: 60,
  }),
  collect_logs: action({
    payload: {
      maxBytes: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.outputBytesMax })),
    },
    timeoutSeconds: 120,
  }),
  reboot: action({ payload: { delaySeconds: delay }, timeoutSeconds: 60 }),
  shutdown: action({ payload: { delaySeconds: delay }, timeoutSeconds: 60 }),
  restart_agent: action({ timeoutSeconds: 60 }),
  upgrade_agent: action({
    payload: {
      version: Type.String({
        pattern: versionPattern,
        maxLength: versionLengthMax,
        description: 'A version such as 1.2.3 or 1.2.3-rc.1.',
      }),
    },
    may: 'commands.upgrade',
    timeoutSeconds: limits.upgradeTimeoutSeconds,
  }),
  uninstall_agent: action({ may: 'commands.upgrade', timeoutSeconds: 60 }),
}

/** The action of this name; throws UNSUPPORTED_ACTION. */
export function findAction(name: string): Action {
  const found = Object.hasOwn(actions, name) ? actions[name] : undefined
  if (found) return found
  throw new AppError(
    'UNSUPPORTED_ACTION',
    `there is no action "${name.slice(0, 64)}"; there are ${Object.keys(actions).join(', ')}`,
  )
}

const compile = (payload: TObject) => Compile(payload)
/** Made with the first command of each action. */
const checks = new Map<string, ReturnType<typeof compile>>()

function checkOf(name: string): ReturnType<typeof compile> | undefined {
  if (!Object.hasOwn(actions, name)) return undefined
  const check = checks.get(name) ?? compile(findAction(name).payload)
  checks.set(name, check)
  return check
}

/** What is wrong with a payload, as paths below it and sentences; empty when it is well. */
export function payloadErrors(name: string, payload: unknown): ErrorDetail[] {
  const check = checkOf(name)
  if (check === undefined || check.Check(payload)) return []
  return detailsOf(check.Errors(payload), findAction(name).payload)
}

function action(
  options: Partial<Omit<Action, 'payload'>> & { payload?: TObject['properties'] },
): Action {
  return {
    may: 'commands.write',
    timeoutSeconds: limits.commandTimeoutSecondsDefault,
    ...options,
    payload: Type.Object(options.payload ?? {}, { additionalProperties: false }),
  }
}
