// A pseudo-terminal with a program in it: Bun's own in the compiled agent, @lydell/node-pty under Node. What it
// promises is the same: bytes as they come, a pause that makes the program wait, and the end after all output.

import { writeSync } from 'node:fs'
import type { TerminalSize } from '../src/terminal_frames.ts'
import { AgentError, errorCode } from './errors.ts'
import { terminalDrainMs, terminalWriteRetryMs } from './limits.ts'
import { isCompiled } from './programs.ts'

export interface PtyProgram {
  file: string
  args: string[]
  cwd: string
  env: Record<string, string>
  size: TerminalSize
}

export interface PtyEvents {
  data(bytes: Uint8Array): void
  /** The program has taken input: `waitingBytes` is smaller. */
  written(): void
  /** The program ended; no data comes after it. */
  exit(exitCode: number, signal: string): void
}

export interface Pty {
  readonly pid: number
  /** Input that the program has not taken. */
  readonly waitingBytes: number
  write(bytes: Uint8Array): void
  resize(size: TerminalSize): void
  /** Makes the program wait with its output; what is on its way may still come. */
  pause(): void
  resume(): void
  /** Hangs up. */
  close(): void
}

/** Starts a program in a terminal. Throws AgentError where that is not possible. */
export async function openPty(program: PtyProgram, events: PtyEvents): Promise<Pty> {
  return isCompiled() ? openBun(program, events) : openNode(program, events)
}

// ---- Bun ---------------------------------------------------------------------------------------

/** What is used of Bun's `Subprocess` and `Terminal`; its types would need a package. */
interface BunTerminal {
  inputFlags: number
  write(bytes: Uint8Array): number
  resize(cols: number, rows: number): void
  close(): void
}
interface BunChild {
  pid: number
  exitCode: number | null
  signalCode: string | null
  exited: Promise<number>
  terminal: BunTerminal
}
interface BunRuntime {
  spawn(
    command: string[],
    options: {
      cwd: string
      env: Record<string, string>
      terminal: TerminalSize & {
        name: string
        data(terminal: BunTerminal, bytes: Uint8Array): void
        drain(): void
        exit(): void
      }
    },
  ): BunChild
}

// Bun reads on and on. With this flag the terminal itself obeys XOFF and XON, which stop and start its output.
const ixon = 0o2000
const xoff = new Uint8Array([0x13])
const xon = new Uint8Array([0x11])

function openBun({ file, args, cwd, env, size }: PtyProgram, events: PtyEvents): Pty {
  const bun = (globalThis as unknown as { Bun: BunRuntime }).Bun
  const { promise: drained, resolve: drain } = Promise.withResolvers<void>()
  let waiting = 0
  let paused = false
  let heldBefore = false
  const hold = (terminal: BunTerminal) => {
    terminal.inputFlags |= ixon
    terminal.write(xoff)
  }
  const child = bun.spawn([file, ...args], {
    cwd,
    env,
    terminal: {
      ...size,
      name: env['TERM'] ?? '',
      data(terminal, bytes) {
        // A program that sets its terminal anew starts the output again.
        if (paused) hold(terminal)
        events.data(bytes)
      },
      drain() {
        waiting = 0
        events.written()
      },
      exit: () => drain(),
    },
  })
  const { terminal } = child
  void ended()
  return {
    pid: child.pid,
    get waitingBytes() {
      return waiting
    },
    write(bytes) {
      waiting += bytes.length
      terminal.write(bytes)
    },
    resize: ({ cols, rows }) => terminal.resize(cols, rows),
    pause() {
      if (paused) return
      paused = true
      heldBefore = (terminal.inputFlags & ixon) !== 0
      hold(terminal)
    },
    resume,
    close: () => terminal.close(),
  }

  function resume(): void {
    if (!paused) return
    paused = false
    terminal.write(xon)
    if (!heldBefore) terminal.inputFlags &= ~ixon
  }

  async function ended(): Promise<void> {
    const exitCode = await child.exited
    // What the program wrote last may still lie in the terminal, also when output is held.
    await Promise.race([drained, patience(() => paused)])
    events.exit(child.signalCode === null ? exitCode : -1, child.signalCode ?? '')
  }
}

// ---- Node --------------------------------------------------------------------------------------

/** What is used of @lydell/node-pty, some of it beyond its types: the package is pinned for that. */
interface NodePty {
  pid: number
  /** Of the terminal; only on systems that have such a thing. */
  _fd?: number
  _socket?: { destroyed: boolean; destroy(error?: Error): unknown }
  onData(listener: (bytes: Uint8Array | string) => void): void
  onExit(listener: (end: { exitCode: number; signal?: number }) => void): void
  write(bytes: Uint8Array | string): void
  resize(cols: number, rows: number): void
  pause(): void
  resume(): void
  kill(): void
}

interface NodePtyModule {
  spawn(
    file: string,
    args: string[],
    options: TerminalSize & { cwd: string; env: object; name: string; encoding: null },
  ): NodePty
}

async function openNode(program: PtyProgram, events: PtyEvents): Promise<Pty> {
  const { file, args, cwd, env, size } = program
  const module = await loadModule()
  const term = module.spawn(file, args, {
    ...size,
    cwd,
    env,
    name: env['TERM'] ?? '',
    encoding: null,
  })
  const input = new NodeInput(term, () => events.written())
  const release = keepWhilePaused(term)
  term.onData((bytes) => events.data(typeof bytes === 'string' ? Buffer.from(bytes) : bytes))
  term.onExit(({ exitCode, signal }) => {
    input.stop()
    events.exit(signal ? -1 : exitCode, signal ? signalName(signal) : '')
  })
  return {
    pid: term.pid,
    get waitingBytes() {
      return input.waitingBytes
    },
    write: (bytes) => input.write(bytes),
    resize: ({ cols, rows }) => term.resize(cols, rows),
    pause: () => release.pause(),
    resume: () => release.resume(),
    close() {
      input.stop()
      release.resume()
      term.kill()
    },
  }
}

async function loadModule(): Promise<NodePtyModule> {
  try {
    return (await import('@lydell/node-pty')) as unknown as NodePtyModule
  } catch (error) {
    const message =
      'this agent can open no terminal: the optional package @lydell/node-pty is missing'
    throw new AgentError(message, undefined, { cause: error })
  }
}

/** Input to the terminal. Not by the package's own `write`: that one waits in a loop while nobody reads. */
class NodeInput {
  readonly #term: NodePty
  readonly #written: () => void
  #waiting: Buffer = Buffer.alloc(0)
  #timer: NodeJS.Timeout | undefined
  #stopped = false

  constructor(term: NodePty, written: () => void) {
    this.#term = term
    this.#written = written
  }

  get waitingBytes(): number {
    return this.#waiting.length
  }

  write(bytes: Uint8Array): void {
    this.#waiting = Buffer.concat([this.#waiting, bytes])
    if (this.#timer === undefined) this.#flush()
  }

  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
  }

  #flush(): void {
    this.#timer = undefined
    const { _fd: fd, _socket: socket } = this.#term
    // Behind a destroyed socket the number may be another file's already.
    if (this.#stopped || socket?.destroyed) return
    if (fd === undefined) {
      this.#term.write(this.#waiting)
      this.#waiting = Buffer.alloc(0)
      return this.#written()
    }
    try {
      while (this.#waiting.length > 0) {
        this.#waiting = this.#waiting.subarray(writeSync(fd, this.#waiting))
      }
    } catch (error) {
      // EIO: the program is gone, which its exit tells.
      if (errorCode(error) !== 'EAGAIN') return
      this.#timer = setTimeout(() => this.#flush(), terminalWriteRetryMs)
    }
    this.#written()
  }
}

/**
 * The package closes a terminal soon after its program ended. While output is held back that would lose the last
 * of it, so closing waits until it is let go.
 */
function keepWhilePaused(term: NodePty): { pause(): void; resume(): void } {
  const socket = term._socket
  let paused = false
  let wanted = false
  if (socket) {
    const destroy = socket.destroy.bind(socket)
    socket.destroy = (error) => {
      if (!paused || error) return destroy(error)
      wanted = true
      return socket
    }
  }
  return {
    pause() {
      paused = true
      term.pause()
    },
    resume() {
      paused = false
      term.resume()
      // It ends by itself when all is read, unless a background job holds it.
      if (wanted) setTimeout(() => socket?.destroy(), terminalDrainMs)
    },
  }
}

const signals: Record<number, string> = { 1: 'SIGHUP', 2: 'SIGINT', 9: 'SIGKILL', 15: 'SIGTERM' }

function signalName(number: number): string {
  return signals[number] ?? `signal ${number}`
}

/** Resolves after the drain time, counted anew while `holds`. */
async function patience(holds: () => boolean): Promise<void> {
  do {
    await new Promise((resolve) => setTimeout(resolve, terminalDrainMs))
  } while (holds())
}
