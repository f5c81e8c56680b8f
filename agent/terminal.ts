// One terminal session on the device: a shell whose output is kept until the operator has it, whichever socket
// is lost on the way. Knows no socket; frames go out through `send`, which may refuse.

import { loginShell } from './shell.ts'
import { openPty } from './pty.ts'
import type { Pty } from './pty.ts'
import { describe } from './errors.ts'
import { terminalGatherMs, terminalKeptBytesMax, terminalKillGraceMs } from './limits.ts'
import {
  decodeSize,
  encodeBase,
  encodeExit,
  encodeFrame,
  encodeText,
  isResumed,
  windowBytes,
} from '../src/terminal_frames.ts'
import type { FrameKind, TerminalFrame, TerminalSize } from '../src/terminal_frames.ts'
import { Incoming, Outgoing } from '../src/terminal_streams.ts'

export interface TerminalParts {
  id: string
  /** False: no socket took it, and what is lost comes again when the hub asks. */
  send(frame: Uint8Array<ArrayBuffer>): boolean
  /** The session is over, for the reason given; called once. */
  over(why: string): void
}

export class Terminal {
  readonly #parts: TerminalParts
  readonly #output = new Outgoing()
  readonly #input = new Incoming()
  #pty: Pty | undefined
  #exit: { exitCode: number; signal: string } | undefined
  #gather: NodeJS.Timeout | undefined
  #paused = false
  /** The exit was told since the last `open`. */
  #told = false
  #over = false

  private constructor(parts: TerminalParts) {
    this.#parts = parts
  }

  /** Starts a shell and answers; ends the session with a reason where there can be none. */
  static start(parts: TerminalParts, size: TerminalSize): Terminal {
    const terminal = new Terminal(parts)
    void terminal.#start(size)
    return terminal
  }

  receive({ kind, seq, body }: TerminalFrame): void {
    switch (kind) {
      case 'open':
        if (isResumed(body) || this.#pty) this.#goOn(seq, decodeSize(body))
        return
      case 'data':
        return this.#type(seq, body)
      case 'ack':
        this.#output.ack(seq)
        return this.#flow()
      case 'resize':
        return this.#resize(decodeSize(body))
      case 'close':
        return this.end('')
      case 'opened':
      case 'exit': // an agent's own
    }
  }

  /** Says how far input is taken; from whoever does not know the session comes a `close`. */
  confirm(): void {
    this.#say('ack', this.#input.at - (this.#pty?.waitingBytes ?? 0))
  }

  /** Hangs up and kills what ignores it. A reason is told to the hub. */
  end(why: string): void {
    if (this.#over) return
    this.#over = true
    clearTimeout(this.#gather)
    if (why !== '') this.#say('close', 0, encodeText(why))
    this.#parts.over(why)
    const pty = this.#pty
    if (!pty || this.#exit) return
    pty.close()
    setTimeout(() => {
      if (!this.#exit) killGroup(pty.pid)
    }, terminalKillGraceMs)
  }

  async #start(size: TerminalSize): Promise<void> {
    try {
      const pty = await openPty(loginShell(size), {
        data: (bytes) => this.#keep(bytes),
        written: () => this.confirm(),
        exit: (exitCode, signal) => this.#ended(exitCode, signal),
      })
      this.#pty = pty
      // The hub may have closed it while the shell was starting.
      if (this.#over) return pty.close()
      this.#goOn(0)
    } catch (error) {
      this.end(describe(error))
    }
  }

  #goOn(seq: number, size?: TerminalSize): void {
    this.#resize(size)
    this.#told = false
    const base = this.#output.resume(seq)
    this.#say('opened', this.#input.at - (this.#pty?.waitingBytes ?? 0), encodeBase(base))
    this.#flow()
  }

  #resize(size: TerminalSize | undefined): void {
    if (size && this.#pty && !this.#exit) this.#pty.resize(size)
  }

  // ---- input

  #type(seq: number, body: Uint8Array): void {
    const pty = this.#pty
    if (!pty || this.#exit || pty.waitingBytes + body.length > windowBytes) return
    const fresh = this.#input.take(seq, body)
    if (fresh) pty.write(fresh)
  }

  // ---- output

  #keep(bytes: Uint8Array): void {
    if (this.#over) return
    this.#output.push(bytes)
    if (this.#output.kept > terminalKeptBytesMax) {
      return this.end('this system can’t make the program wait, and its output came too fast')
    }
    if (this.#output.kept >= windowBytes && !this.#paused) {
      this.#paused = true
      this.#pty?.pause()
    }
    // The first of it goes at once: somebody waits for the echo of a key.
    if (this.#gather !== undefined) return
    this.#pump()
    this.#gather = setTimeout(() => {
      this.#gather = undefined
      this.#pump()
    }, terminalGatherMs)
  }

  #ended(exitCode: number, signal: string): void {
    this.#exit = { exitCode, signal }
    this.#pump()
  }

  /** Room was made, or everything is to be sent again. */
  #flow(): void {
    if (this.#paused && this.#output.kept < windowBytes / 2) {
      this.#paused = false
      this.#pty?.resume()
    }
    this.#pump()
  }

  #pump(): void {
    for (let next = this.#output.next(); next; next = this.#output.next()) {
      this.#say('data', next.seq, next.body)
    }
    const { sent, end } = this.#output
    if (!this.#exit || sent < end || this.#told || this.#over) return
    this.#told = true
    this.#say('exit', end, encodeExit(this.#exit.exitCode, this.#exit.signal))
  }

  #say(kind: FrameKind, seq: number, body?: Uint8Array): void {
    this.#parts.send(encodeFrame(kind, this.#parts.id, seq, body))
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL')
  } catch {
    // It went by itself.
  }
}
