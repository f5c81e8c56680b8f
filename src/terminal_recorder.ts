// Recordings of terminals: output as lines of an asciicast (version 2), written in batches off the way of the
// bytes. Bounded per session, and while PostgreSQL is away; what is left out is told in the recording itself.
import type { Queryable } from './db.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import type { TerminalSize } from './terminal_frames.ts'
import { insertRecordings, type RecordingChunk } from './terminal_rows.ts'

/** The recording of one session. */
export class Recording {
  private readonly terminalId: string
  private readonly startedMs = performance.now()
  private readonly decoder = new TextDecoder()
  private lines = ''
  private seq = 0
  private bytes = 0
  private gap = false
  private full = false

  constructor(terminalId: string) {
    this.terminalId = terminalId
  }

  get waiting(): boolean {
    return this.lines !== ''
  }

  output(bytes: Uint8Array): void {
    // A character may come in two pieces.
    const text = this.decoder.decode(bytes, { stream: true })
    if (this.full || text === '') return
    if (this.lines.length > limits.recordingWaitingCharsMax) {
      this.gap = true
      return
    }
    if (this.gap) this.add('m', 'output is missing here: the database did not answer')
    this.gap = false
    this.add('o', text)
    if (this.bytes <= limits.recordingBytesMax) return
    this.full = true
    this.add('m', `the recording ends here: it may hold ${limits.recordingBytesMax} bytes`)
  }

  resize({ cols, rows }: TerminalSize): void {
    if (!this.full) this.add('r', `${cols}x${rows}`)
  }

  /** What is to be written now; the same again until `written`. */
  take(): RecordingChunk | undefined {
    if (this.lines === '') return undefined
    return { terminalId: this.terminalId, seq: this.seq, lines: this.lines }
  }

  /** A chunk is stored. */
  written({ lines }: RecordingChunk): void {
    this.seq++
    this.lines = this.lines.slice(lines.length)
  }

  private add(kind: 'o' | 'm' | 'r', text: string): void {
    const seconds = Math.round(performance.now() - this.startedMs) / 1000
    const line = `${JSON.stringify([seconds, kind, text])}\n`
    this.lines += line
    this.bytes += Buffer.byteLength(line)
  }
}

/** Writes what recordings hold, all of them in one statement. */
export class Recorder {
  private readonly recordings = new Set<Recording>()
  private timer: NodeJS.Timeout | undefined
  private writing: Promise<void> | undefined
  private failing = false
  private readonly db: Queryable
  private readonly log: Logger

  constructor(db: Queryable, log: Logger) {
    this.db = db
    this.log = log
  }

  begin(terminalId: string): Recording {
    const recording = new Recording(terminalId)
    this.recordings.add(recording)
    return recording
  }

  /** Call it after every change: what comes within the next while is written together. */
  touched(): void {
    this.timer ??= setTimeout(() => void this.flush(), limits.recordingFlushMs)
  }

  /** Writes the rest of a recording and lets go of it. Throws while PostgreSQL is away; call it again. */
  async finish(recording: Recording): Promise<void> {
    // Never two writes at once: the second would hold what the first has not confirmed.
    while (this.writing) await this.writing
    while (recording.waiting)
      await (this.writing = this.write([recording]).finally(() => this.idle()))
    this.recordings.delete(recording)
  }

  close(): void {
    clearTimeout(this.timer)
  }

  private async flush(): Promise<void> {
    this.timer = undefined
    if (this.writing) return this.touched()
    const waiting = [...this.recordings].filter((recording) => recording.waiting)
    if (waiting.length === 0) return
    this.writing = this.write(waiting).finally(() => this.idle())
    try {
      await this.writing
      this.failing = false
    } catch (error) {
      if (!this.failing) this.log.warn({ err: error }, 'recordings can not be written; tried again')
      this.failing = true
      this.touched()
    }
  }

  private async write(recordings: readonly Recording[]): Promise<void> {
    const taken = recordings.flatMap((recording) => {
      const chunk = recording.take()
      return chunk ? [{ recording, chunk }] : []
    })
    await insertRecordings(
      this.db,
      taken.map(({ chunk }) => chunk),
    )
    for (const { recording, chunk } of taken) recording.written(chunk)
  }

  private idle(): void {
    this.writing = undefined
  }
}
