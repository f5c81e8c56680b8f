// The vocabulary of refusals: every error code with its HTTP status, one class, and how an error
// becomes a response body or crosses a thread. Never formats anything for a log.

/** Error code → HTTP status. The code is API; the message is for people. */
export const statusOf = {
  VALIDATION_ERROR: 400,
  INVALID_JSON: 400,
  INVALID_CURSOR: 400,
  UNSUPPORTED_ACTION: 400,
  UNAUTHENTICATED: 401,
  INVALID_CREDENTIALS: 401,
  TOKEN_EXPIRED: 401,
  INVALID_TOKEN: 401,
  INVALID_REFRESH_TOKEN: 401,
  REFRESH_TOKEN_REUSED: 401,
  INVALID_ENROLLMENT_SECRET: 401,
  FORBIDDEN: 403,
  ORGANIZATION_SUSPENDED: 403,
  USER_DISABLED: 403,
  NOT_FOUND: 404,
  AGENT_BINARY_NOT_FOUND: 404,
  METHOD_NOT_ALLOWED: 405,
  CONFLICT: 409,
  ALREADY_EXISTS: 409,
  ALREADY_RESOLVED: 409,
  /** 409 to an operator; the front answers an agent 403 with the same code. */
  DEVICE_DECOMMISSIONED: 409,
  DEVICE_OFFLINE: 409,
  QUEUE_FULL: 409,
  SESSION_LIMIT: 409,
  IDEMPOTENCY_KEY_REUSED: 409,
  LAST_ADMIN: 409,
  PAYLOAD_TOO_LARGE: 413,
  UNSUPPORTED_MEDIA_TYPE: 415,
  UPGRADE_REQUIRED: 426,
  RATE_LIMITED: 429,
  INTERNAL_ERROR: 500,
  UNAVAILABLE: 503,
  OVERLOADED: 503,
} as const

export type ErrorCode = keyof typeof statusOf

/** One thing that is wrong with a request: a JSON pointer to it and a sentence. */
export interface ErrorDetail {
  path: string
  message: string
}

interface AppErrorOptions {
  details?: ErrorDetail[] | undefined
  /** Whole seconds after which a retry makes sense; becomes `Retry-After`. */
  retryAfterSeconds?: number | undefined
  /** Overrides the status of the code, where the same code means another status to another caller. */
  status?: number | undefined
  headers?: Record<string, string> | undefined
  cause?: unknown
}

/** An expected refusal. Anything else that is thrown is our own mistake and becomes INTERNAL_ERROR. */
export class AppError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly details: ErrorDetail[] | undefined
  readonly retryAfterSeconds: number | undefined
  readonly headers: Record<string, string> | undefined

  constructor(code: ErrorCode, message: string, options: AppErrorOptions = {}) {
    super(message, { cause: options.cause })
    this.name = 'AppError'
    this.code = code
    this.status = options.status ?? statusOf[code]
    this.details = options.details
    this.retryAfterSeconds = options.retryAfterSeconds
    this.headers = options.headers
  }
}

/** The JSON body of an error response. */
export interface ErrorBody {
  error: { code: string; message: string; details?: ErrorDetail[]; requestId: string }
}

/** Turns a refusal into the body that every error response has. */
export function errorBody(error: AppError, requestId: string): ErrorBody {
  const { code, message, details } = error
  return { error: { code, message, ...(details ? { details } : {}), requestId } }
}

/** What an error looks like in a message between threads: an `Error` itself loses class and code. */
export interface ErrorMessage {
  code: ErrorCode
  message: string
  retryAfterSeconds?: number | undefined
}

/** Packs any error for another thread; what is not an AppError becomes INTERNAL_ERROR without detail. */
export function toMessage(error: unknown): ErrorMessage {
  if (error instanceof AppError) {
    return { code: error.code, message: error.message, retryAfterSeconds: error.retryAfterSeconds }
  }
  return { code: 'INTERNAL_ERROR', message: 'the hub failed to carry this out' }
}

/** Unpacks what `toMessage` packed. */
export function fromMessage(message: ErrorMessage): AppError {
  return new AppError(message.code, message.message, {
    retryAfterSeconds: message.retryAfterSeconds,
  })
}
