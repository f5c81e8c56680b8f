// The durable inbox and outbox: one file, appended in batches with one fsync each, rewritten when it
// has grown. A full disk holds writers back until there is space; nothing is reported that isn't kept.

import { open, rename } from 'node:fs/promises'
import type { FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { describe, isFull } from './errors.ts'
import { readIfThere, syncFolder } from './files.ts'
import { apply, forget, replay, snapshot } from './ledger.ts'
import type { JournalRecord, Ledger } from './ledger.ts'
import { journalBytesMin, journalGrowthMax, journalRetryMs, journalRetryMsMax } from './limits.ts'
import type { Log } from './log.ts'

interface Waiting {
  line: string
  resolve: () => void
}

export class Journal {
  readonly ledger: Ledger
  readonly #path: string
  readonly #log: Log
  #file: FileHandle | null = null
  #queue: Waiting[] = []
  #writing: Promise<void> | null = null
  #bytes = 0
  #bytesAfterRewrite = 0
  #rewriteWanted = true

  private constructor(path: string, ledger: Ledger, log: Log) {
    this.#path = path
    this.ledger = ledger
    this.#log = log
  }

  /** Reads what an earlier life left and rewrites it, which also drops a torn last line. */
  static async open(path: string, log: Log): Promise<Journal> {
    const { ledger, broken } = replay(readIfThere(path) ?? '')
    if (broken > 0) log.warn('journal had torn lines', { broken })
    const journal = new Journal(path, ledger, log)
    try {
      await journal.#rewrite()
    } catch (error) {
      if (!isFull(error)) throw error
      log.error('journal cannot be written, commands wait', { error: describe(error) })
      journal.rewriteSoon()
    }
    return journal
  }

  /** The ledger knows the record at once; the promise resolves when the disk does. */
  append(record: JournalRecord): Promise<void> {
    apply(this.ledger, record)
    return new Promise((resolve) => {
      this.#queue.push({ line: `${JSON.stringify(record)}\n`, resolve })
      this.#writing ??= this.#drain()
    })
  }

  /** Asks that ended commands' payloads leave the disk soon: they may hold secrets. */
  rewriteSoon(): void {
    this.#rewriteWanted = true
    this.#writing ??= this.#drain()
  }

  /** Waits for what is being written and lets the file go. */
  async close(): Promise<void> {
    await this.#writing
    await this.#file?.close()
    this.#file = null
  }

  // What arrives while one batch is on its way to the disk is the next batch.
  async #drain(): Promise<void> {
    while (this.#queue.length > 0 || this.#mustRewrite()) {
      const batch = this.#queue.splice(0)
      await this.#untilWritten(batch)
      for (const { resolve } of batch) resolve()
    }
    this.#writing = null
  }

  async #untilWritten(batch: Waiting[]): Promise<void> {
    for (let waitMs = journalRetryMs; ; waitMs = Math.min(waitMs * 2, journalRetryMsMax)) {
      try {
        // A rewriting takes in the batch too: the ledger already knows it.
        await (this.#mustRewrite() ? this.#rewrite() : this.#write(batch))
        return
      } catch (error) {
        this.#log.error('journal cannot be written, commands wait', { error: describe(error) })
        this.#rewriteWanted = true // the end of the file may now be torn
        await delay(waitMs)
      }
    }
  }

  async #write(batch: Waiting[]): Promise<void> {
    if (!this.#file) throw new Error('the journal is closed')
    const bytes = Buffer.from(batch.map(({ line }) => line).join(''))
    await this.#file.appendFile(bytes)
    await this.#file.datasync()
    this.#bytes += bytes.length
  }

  async #rewrite(): Promise<void> {
    // Before the ledger is read: what is asked for while this is being written asks for the next one.
    this.#rewriteWanted = false
    forget(this.ledger, Date.now())
    const lines = [...snapshot(this.ledger)].map((record) => `${JSON.stringify(record)}\n`)
    const draft = `${this.#path}.new`
    const file = await open(draft, 'w', 0o600)
    try {
      await file.writeFile(lines.join(''))
      await file.datasync()
      // Windows does not rename over a file that is open.
      await this.#file?.close()
      this.#file = null
      await rename(draft, this.#path)
      syncFolder(dirname(this.#path))
    } finally {
      await file.close()
    }
    this.#file = await open(this.#path, 'a', 0o600)
    this.#bytes = this.#bytesAfterRewrite = (await this.#file.stat()).size
  }

  #mustRewrite(): boolean {
    const allowed = Math.max(journalBytesMin, this.#bytesAfterRewrite * journalGrowthMax)
    return this.#rewriteWanted || this.#bytes > allowed
  }
}
