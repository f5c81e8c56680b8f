// One pino logger for the process. Owns what may never be printed; knows nothing of requests.
import { pino, type DestinationStream, type Logger, type LoggerOptions } from 'pino'

export type { Logger }

/** Members that hold secrets wherever they turn up: their values are never written. */
const secretMembers = new Set([
  'password',
  'currentPassword',
  'newPassword',
  'accessToken',
  'refreshToken',
  'agentToken',
  'enrollmentSecret',
  'token',
  'secret',
  'authorization',
  'key',
  'connectionString',
])
const censor = '[secret]'

/**
 * Makes the logger; `name` tells threads apart. Level is one of pino's, or `silent`. It writes to the
 * standard output where no other destination is given.
 */
export function createLog(level: string, name: string, destination?: DestinationStream): Logger {
  const options: LoggerOptions = {
    level,
    base: { name },
    timestamp: pino.stdTimeFunctions.isoTime,
    // Not by pino's `redact`: with names that may stand anywhere it takes 16 µs of every line, this 0.2.
    formatters: { log: withoutSecrets },
    serializers: { err: describeError, error: describeError },
  }
  return destination ? pino(options, destination) : pino(options)
}

/** What a line tells, with the values of secret members blanked: its own, and those of objects in it. */
function withoutSecrets(line: Record<string, unknown>): Record<string, unknown> {
  return blanked(line, (value) =>
    // Errors are described by their serializer, which takes few members and none of these.
    typeof value === 'object' && value !== null && !(value instanceof Error)
      ? blanked(value as Record<string, unknown>, (inner) => inner)
      : value,
  )
}

/** The object itself where nothing in it is changed. */
function blanked<T extends Record<string, unknown>>(
  object: T,
  shown: (value: unknown) => unknown,
): T {
  let copy: Record<string, unknown> | undefined
  for (const name of Object.keys(object)) {
    const value = object[name]
    const told = secretMembers.has(name) ? censor : shown(value)
    if (told === value) continue
    copy ??= { ...object }
    copy[name] = told
  }
  return (copy as T | undefined) ?? object
}

/** An error as one flat object; a connection string in a message never gets through. */
function describeError(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const code = 'code' in error ? { code: error.code } : {}
  return { type: error.name, message: withoutPasswords(error.message), ...code, stack: error.stack }
}

/** Blanks the password of every URL in a text. */
export function withoutPasswords(text: string): string {
  return text.replace(/(\b[a-z][a-z0-9+.-]*:\/\/[^\s:/@]*):[^\s@/]*@/gi, '$1:[secret]@')
}
