// Makes a result frame that fits its bounds from whatever an action returned. Pure.

import type { ResultFrame, ResultStatus } from '../src/protocol.ts'
import { dataBytesMax, errorBytesMax, frameBytesMax, outputBytesMax } from './limits.ts'
import { cutEncoded } from './output.ts'

/** What an action returns; absent means nothing to say. */
export interface Outcome {
  status: ResultStatus
  exitCode?: number | null
  stdout?: string
  stderr?: string
  truncated?: boolean
  error?: string
  data?: unknown
}

/** The frame of an outcome: every part cut to its bound, `truncated` when any was. */
export function makeResult(id: string, outcome: Outcome, durationMs: number): ResultFrame {
  const stdout = cutEncoded(outcome.stdout ?? '', outputBytesMax)
  const stderr = cutEncoded(outcome.stderr ?? '', outputBytesMax)
  const error = cutEncoded(outcome.error ?? '', errorBytesMax)
  const data = fits(outcome.data, dataBytesMax) ? outcome.data : undefined
  const frame: ResultFrame = {
    type: 'result',
    id,
    status: outcome.status,
    exitCode: outcome.exitCode ?? null,
    stdout,
    stderr,
    truncated:
      outcome.truncated === true ||
      stdout.length < (outcome.stdout?.length ?? 0) ||
      stderr.length < (outcome.stderr?.length ?? 0) ||
      error.length < (outcome.error?.length ?? 0) ||
      data !== outcome.data,
    error: error || null,
    durationMs: Math.max(0, Math.round(durationMs)),
    ...(data === undefined ? {} : { data }),
  }
  return fits(frame, frameBytesMax) ? frame : withoutOutput(frame)
}

/** The same end without its output: for an outbox that is full. */
export function withoutOutput(frame: ResultFrame): ResultFrame {
  const { data: _, ...rest } = frame
  return { ...rest, stdout: '', stderr: '', truncated: true }
}

function fits(value: unknown, bytesMax: number): boolean {
  return value === undefined || Buffer.byteLength(JSON.stringify(value)) <= bytesMax
}
