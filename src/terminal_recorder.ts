// Recordings of terminals: output as lines of an asciicast (version 2), written in batches off the way of the
// bytes. Nothing is left out: while PostgreSQL can't keep up, a session's output waits on its device.
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
  private readonly written: () => void
  private lines: string[] = []
  private chars = 0
  private seq = 0
  private bytes = 0
  private full = false
  /** What is being written, and how many lines it holds. */
  private taken: { chunk: RecordingChunk; count: number } | undefined
  /** A size that waits for room: of many the last one counts. */
  private size: TerminalSize | undefined

  /** `written` is told whenever a part of it is stored. */
  constructor(terminalId: string, written: () => void) {
    this.terminalId = terminalId
    this.written = written
  }

  get waiting(): boolean {
    return this.chars > 0
  }

  /** So much waits that it is to be written now. */
  get urgent(): boolean {
    return this.chars >= limits.recordingFlushChars
  }

  /** Whether the device may go on; what is on its way, a window at most, is taken all the same. */
  get hasRoom(): boolean {
    return this.chars <= limits.recordingWaitingCharsMax
  }

  /** Whether everything that was shown is in it. */
  get complete(): boolean {
    return !this.full
  }

  output(bytes: Uint8Array): void {
    // A character may come in two pieces.
    this.add('o', this.decoder.decode(bytes, { stream: true }))
  }

  resize(size: TerminalSize): void {
    if (this.hasRoom) this.add('r', `${size.cols}x${size.rows}`)
    else this.size = size
  }

  /** Nothing comes any more: half a character at the end is told as such. */
  end(): void {
    this.add('o', this.decoder.decode())
  }

  /** What is to be written now; the very same again until `stored`, because it may be stored already. */
  take(): RecordingChunk | undefined {
    if (this.lines.length === 0) return undefined
    this.taken ??= this.nextChunk()
    return this.taken.chunk
  }

  /** What was taken is stored. */
  stored(): void {
    if (this.taken === undefined) return
    this.seq++
    this.lines.splice(0, this.taken.count)
    this.chars -= this.taken.chunk.lines.length
    this.taken = undefined
    const { size } = this
    this.size = undefined
    if (size) this.resize(size)
    this.written()
  }

  private nextChunk(): { chunk: RecordingChunk; count: number } {
    let chars = 0
    let count = 0
    for (const { length } of this.lines) {
      if (count > 0 && chars + length > limits.recordingChunkCharsMax) break
      chars += length
      count++
    }
    const lines = this.lines.slice(0, count).join('')
    return { chunk: { terminalId: this.terminalId, seq: this.seq, lines }, count }
  }

  private add(kind: 'o' | 'r', text: string): void {
    if (this.full || text === '') return
    this.push(kind, text)
    if (this.bytes <= limits.recordingBytesMax) return
    this.full = true
    this.push('m', `the recording ends here: it may hold ${limits.recordingBytesMax} bytes`)
  }

  private push(kind: 'o' | 'm' | 'r', text: string): void {
    const seconds = Math.round(performance.now() - this.startedMs) / 1000
    const line = `${JSON.stringify([seconds, kind, text])}\n`
    this.lines.push(line)
    this.chars += line.length
    this.bytes += Buffer.byteLength(line)
  }
}

/** Writes what recordings hold, many of them in one statement, one statement at a time. */
export class Recorder {
  /** Those that were written last come last. */
  private readonly recordings = new Set<Recording>()
  private timer: NodeJS.Timeout | undefined
  private writing: Promise<void> | undefined
  private flushing = false
  private failing = false
  private closed = false
  private readonly db: Queryable
  private readonly log: Logger

  constructor(db: Queryable, log: Logger) {
    this.db = db
    this.log = log
  }

  begin(terminalId: string, written: () => void): Recording {
    const recording = new Recording(terminalId, written)
    this.recordings.add(recording)
    return recording
  }

  /** Call it after every change: what comes within the next while is written together. */
  touched(recording: Recording): void {
    if (!recording.waiting) return
    if (recording.urgent && !this.failing) void this.flush()
    else this.later()
  }

  /** Writes the rest of a recording and lets go of it. Throws while PostgreSQL is away; call it again. */
  async finish(recording: Recording): Promise<void> {
    recording.end()
    while (recording.waiting) await this.write()
    this.recordings.delete(recording)
  }

  close(): void {
    this.closed = true
    clearTimeout(this.timer)
  }

  private later(): void {
    if (!this.closed) this.timer ??= setTimeout(() => void this.flush(), limits.recordingFlushMs)
  }

  private async flush(): Promise<void> {
    clearTimeout(this.timer)
    this.timer = undefined
    if (this.flushing) return
    this.flushing = true
    try {
      do await this.write()
      while (this.some(({ urgent }) => urgent))
      this.failing = false
    } catch (error) {
      if (!this.failing) this.log.warn({ err: error }, 'recordings can not be written; tried again')
      this.failing = true
    } finally {
      this.flushing = false
    }
    if (this.some(({ waiting }) => waiting)) this.later()
  }

  private some(has: (recording: Recording) => boolean): boolean {
    return [...this.recordings].some(has)
  }

  /** The write under way, or the next one: two at once could store one piece twice. */
  private write(): Promise<void> {
    this.writing ??= this.writeNext().finally(() => (this.writing = undefined))
    return this.writing
  }

  private async writeNext(): Promise<void> {
    const taken: Recording[] = []
    const chunks: RecordingChunk[] = []
    let chars = 0
    for (const recording of this.recordings) {
      const chunk = recording.take()
      if (chunk === undefined) continue
      taken.push(recording)
      chunks.push(chunk)
      chars += chunk.lines.length
      if (chars >= limits.recordingWriteChars) break
    }
    if (chunks.length === 0) return
    await insertRecordings(this.db, chunks)
    for (const recording of taken) {
      this.recordings.delete(recording)
      this.recordings.add(recording)
      recording.stored()
    }
  }
}
