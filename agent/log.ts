// The agent's own words: JSON lines on stdout and in a bounded file. Nothing secret is passed here.

import { appendFileSync, renameSync, statSync } from 'node:fs'
import { logBytesMax, logLineCharsMax } from './limits.ts'

export type Fields = Record<string, unknown>

export interface Log {
  info(msg: string, fields?: Fields): void
  warn(msg: string, fields?: Fields): void
  error(msg: string, fields?: Fields): void
}

/** A log that prints and keeps; when the file can't be written, stdout alone carries on. */
export function openLog(path: string): Log {
  function keep(line: string): void {
    try {
      // Asked each time: a supervisor and its agent write to the same file.
      if (sizeOf(path) + line.length > logBytesMax) renameSync(path, `${path}.1`)
      appendFileSync(path, line, { mode: 0o600 })
    } catch {
      // A full disk must not stop the agent, and there is nowhere left to say so but stdout.
    }
  }

  function write(level: string, msg: string, fields: Fields = {}): void {
    const line = `${formatLine(new Date().toISOString(), level, msg, fields)}\n`
    process.stdout.write(line)
    keep(line)
  }

  return {
    info: (msg, fields) => write('info', msg, fields),
    warn: (msg, fields) => write('warn', msg, fields),
    error: (msg, fields) => write('error', msg, fields),
  }
}

/** One line; one too long keeps its time and message and says that its fields were dropped. */
export function formatLine(time: string, level: string, msg: string, fields: Fields): string {
  const line = JSON.stringify({ time, level, msg, ...fields })
  if (line.length <= logLineCharsMax) return line
  return JSON.stringify({
    time,
    level,
    msg: msg.slice(0, logLineCharsMax / 2),
    fieldsDropped: true,
  })
}

function sizeOf(path: string): number {
  try {
    return statSync(path).size
  } catch {
    return 0
  }
}
