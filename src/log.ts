// One pino logger for the process. Owns what may never be printed; knows nothing of requests.
import { pino, type DestinationStream, type Logger, type LoggerOptions } from 'pino'

export type { Logger }

/** Members that hold secrets wherever they turn up; pino replaces their values. */
const secretMembers = [
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
]

/**
 * Makes the logger; `name` tells threads apart. Level is one of pino's, or `silent`. It writes to the
 * standard output where no other destination is given.
 */
export function createLog(level: string, name: string, destination?: DestinationStream): Logger {
  const options: LoggerOptions = {
    level,
    base: { name },
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: {
      paths: secretMembers.flatMap((member) => [member, `*.${member}`]),
      censor: '[secret]',
    },
    serializers: { err: describeError, error: describeError },
  }
  return destination ? pino(options, destination) : pino(options)
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
