// Carries commands from the durable inbox to the durable outbox. Every id runs once: it is on disk
// before it is reported `delivered`, its start before it runs, its end before it is sent.

import type { AgentFrame, ResultFrame } from '../src/protocol.ts'
import { PayloadError } from './action.ts'
import type { Action, ActionContext, ActionOutcome, AgentControl, StopReason } from './action.ts'
import { describe } from './errors.ts'
import type { CommandFrame } from './frames.ts'
import type { Journal } from './journal.ts'
import { briefResult } from './ledger.ts'
import type { Entry, JournalRecord } from './ledger.ts'
import {
  ackWaitMs,
  concurrentRunsMax,
  inboxCommandsMax,
  killGiveUpMs,
  killGraceMs,
  outboxBytesMax,
  progressBacklogBytesMax,
  resendBacklogBytesMax,
  resendIntervalMs,
  resendJitter,
} from './limits.ts'
import type { Log } from './log.ts'
import { killLeftover, startTimeOf } from './processes.ts'
import { Progress } from './progress.ts'
import { makeResult, withoutOutput } from './result.ts'
import type { State } from './state.ts'

/** The way to the hub; `send` answers whether there was one. */
export interface Outlet {
  send(frame: AgentFrame): boolean
  readonly backlogBytes: number
}

export interface CommandsParts {
  journal: Journal
  actions: Record<string, Action>
  outlet: Outlet
  agent: AgentControl
  state: State
  log: Log
}

/** One side of the engine: commands wait in order, at most `runsMax` of them run. */
interface Lane {
  runsMax: number
  runs: number
  queue: CommandFrame[]
}

export class Commands {
  readonly #parts: CommandsParts
  readonly #serial: Lane = { runsMax: 1, runs: 0, queue: [] }
  readonly #concurrent: Lane = { runsMax: concurrentRunsMax, runs: 0, queue: [] }
  /** What the ledger says of these ids is not yet on disk, so the hub must not hear it. */
  readonly #saving = new Map<string, Promise<void>>()
  readonly #running = new Map<string, AbortController>()
  readonly #ends = new Map<string, Promise<void>>()
  readonly #ackWaiters = new Map<string, () => void>()
  readonly #sentAt = new Map<string, number>()
  #outboxBytes = 0
  #timer: NodeJS.Timeout | null = null
  #stopping = false

  constructor(parts: CommandsParts) {
    this.#parts = parts
  }

  get #ledger() {
    return this.#parts.journal.ledger
  }

  /** Takes up what an earlier life left: kills what ran, ends it as interrupted, queues the rest. */
  async start(): Promise<void> {
    for (const [id, entry] of this.#ledger) {
      if (entry.phase === 'running') await this.#endInterrupted(id, entry)
      if (entry.phase === 'waiting') this.#enqueue(entry.command)
      if (entry.phase === 'ended') this.#outboxBytes += sizeOf(entry.result)
    }
    this.#scheduleResend()
  }

  /** A command from the hub: new, repeated, running or long ended. */
  async receive(command: CommandFrame): Promise<void> {
    const known = this.#ledger.get(command.id)
    if (known) return this.#answerAgain(command.id, known)
    if (this.#stopping || this.#openCount() >= inboxCommandsMax) {
      this.#parts.log.warn('command not taken', { id: command.id, stopping: this.#stopping })
      return
    }
    await this.#save(command.id, { type: 'command', command, at: Date.now() })
    this.#send({ type: 'delivered', id: command.id })
    // A cancel may have overtaken the disk.
    if (this.#ledger.get(command.id)?.phase === 'waiting') this.#enqueue(command)
  }

  /** Stops a command: one that waits never starts, one that runs is killed with its group. */
  async cancel(id: string): Promise<void> {
    const run = this.#running.get(id)
    if (run) return run.abort('cancelled' satisfies StopReason)
    if (this.#ledger.get(id)?.phase !== 'waiting') return
    for (const lane of [this.#serial, this.#concurrent]) {
      lane.queue = lane.queue.filter((command) => command.id !== id)
    }
    await this.#end(makeResult(id, { status: 'cancelled' }, 0))
  }

  /** The hub has committed the end: the result may go, the id stays. */
  acknowledge(id: string): void {
    const entry = this.#ledger.get(id)
    if (entry?.phase !== 'ended') return
    this.#outboxBytes -= sizeOf(entry.result)
    this.#sentAt.delete(id)
    // Nobody waits for the disk: losing this record costs one repeated result.
    void this.#parts.journal.append({ type: 'acked', id, at: Date.now() })
    this.#ackWaiters.get(id)?.()
  }

  /** After `welcome`: the hub hears of everything it has not acknowledged. */
  resendAll(): void {
    this.#sentAt.clear()
    this.#resend()
  }

  /** Ends what runs as interrupted and takes nothing more; what waits stays in the journal. */
  async stop(): Promise<void> {
    this.#stopping = true
    if (this.#timer) clearTimeout(this.#timer)
    for (const run of this.#running.values()) run.abort('interrupted' satisfies StopReason)
    await Promise.all(this.#ends.values())
  }

  // ---- running ---------------------------------------------------------------------------------

  #enqueue(command: CommandFrame): void {
    const lane = this.#parts.actions[command.action]?.concurrent ? this.#concurrent : this.#serial
    lane.queue.push(command)
    this.#pump(lane)
  }

  #pump(lane: Lane): void {
    if (this.#stopping) return
    while (lane.runs < lane.runsMax) {
      const command = lane.queue.shift()
      if (!command) return
      lane.runs++
      const end = this.#run(command).finally(() => {
        lane.runs--
        this.#ends.delete(command.id)
        this.#pump(lane)
      })
      this.#ends.set(command.id, end)
    }
  }

  async #run(command: CommandFrame): Promise<void> {
    const { id } = command
    const startedAt = Date.now()
    const control = new AbortController()
    this.#running.set(id, control)
    await this.#recordStart(command, startedAt)
    this.#send({ type: 'started', id })
    const reason: StopReason = 'timeout'
    const timer = setTimeout(() => control.abort(reason), command.timeoutSeconds * 1000)
    const outcome = await this.#outcomeOf(command, control.signal)
    clearTimeout(timer)
    this.#running.delete(id)
    const { after, ...said } = outcome
    await this.#end(makeResult(id, said, Date.now() - startedAt))
    if ('env' in command.payload) this.#parts.journal.rewriteSoon()
    if (after) await this.#actAfterAck(id, after)
  }

  // What changes nothing may run again after a crash, so its start need not wait for the disk.
  async #recordStart(command: CommandFrame, at: number): Promise<void> {
    if (this.#parts.actions[command.action]?.repeatable) return
    await this.#save(command.id, { type: 'started', id: command.id, at })
  }

  async #outcomeOf(command: CommandFrame, signal: AbortSignal): Promise<ActionOutcome> {
    const action = this.#parts.actions[command.action]
    if (!action) return failure(`unsupported action "${command.action.slice(0, 64)}"`)
    const { context, progress } = this.#contextOf(command.id, signal)
    try {
      const outcome = await Promise.race([action.run(command.payload, context), abandoned(signal)])
      return signal.aborted ? stopped(outcome, signal) : outcome
    } catch (error) {
      if (signal.aborted) return stopped({ status: 'failed' }, signal)
      if (!(error instanceof PayloadError)) {
        this.#parts.log.error('action failed', { id: command.id, error: describe(error) })
      }
      return failure(describe(error))
    } finally {
      progress.flush()
    }
  }

  #contextOf(id: string, signal: AbortSignal) {
    const { state, log, agent, journal, outlet } = this.#parts
    const progress = new Progress(id, (frame) => {
      if (outlet.backlogBytes < progressBacklogBytesMax) this.#send(frame)
    })
    const context: ActionContext = {
      id,
      state,
      log,
      agent,
      signal,
      progress: (stream, text) => progress.push(stream, text),
      spawned: async (pid) => {
        const recorded = { pid, startTime: await startTimeOf(pid) }
        await journal.append({ type: 'process', id, process: recorded })
      },
    }
    return { context, progress }
  }

  // ---- ends ------------------------------------------------------------------------------------

  async #end(frame: ResultFrame): Promise<void> {
    const full = this.#outboxBytes + sizeOf(frame) > outboxBytesMax
    const result = full ? withoutOutput(frame) : frame
    this.#outboxBytes += sizeOf(result)
    const { id, status } = result
    await this.#save(id, { type: 'result', result, at: Date.now() })
    this.#parts.log.info('command ended', { id, status, durationMs: result.durationMs })
    this.#sendResult(result)
  }

  async #endInterrupted(id: string, entry: Extract<Entry, { phase: 'running' }>): Promise<void> {
    if (entry.process) {
      await killLeftover(entry.process.pid, entry.process.startTime, `MUSTER_COMMAND_ID=${id}`)
    }
    await this.#end(makeResult(id, failure('interrupted'), Date.now() - entry.at))
  }

  async #actAfterAck(id: string, after: () => Promise<void>): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ackWaitMs)
      this.#ackWaiters.set(id, () => {
        clearTimeout(timer)
        resolve()
      })
      if (this.#ledger.get(id)?.phase !== 'ended') this.#ackWaiters.get(id)?.()
    })
    this.#ackWaiters.delete(id)
    try {
      await after()
    } catch (error) {
      this.#parts.log.error('action failed after its ack', { id, error: describe(error) })
    }
  }

  async #save(id: string, record: JournalRecord): Promise<void> {
    const saved = this.#parts.journal.append(record)
    this.#saving.set(id, saved)
    await saved
    if (this.#saving.get(id) === saved) this.#saving.delete(id)
  }

  // ---- sending ---------------------------------------------------------------------------------

  #answerAgain(id: string, entry: Entry): void {
    if (this.#saving.has(id)) return
    this.#sentAt.delete(id)
    if (entry.phase === 'done') {
      this.#send({ type: 'delivered', id })
      this.#send(briefResult(id, entry.end))
    } else {
      this.#tell(id, entry)
    }
  }

  #tell(id: string, entry: Entry): void {
    if (this.#saving.has(id) || entry.phase === 'done') return
    if (entry.phase === 'ended') return this.#sendResult(entry.result)
    this.#send({ type: 'delivered', id })
    if (entry.phase === 'running') this.#send({ type: 'started', id })
  }

  #sendResult(result: ResultFrame): void {
    if (this.#send(result)) this.#sentAt.set(result.id, Date.now())
  }

  #resend(): void {
    const freshSince = Date.now() - resendIntervalMs * (1 - resendJitter)
    for (const [id, entry] of this.#ledger) {
      if (this.#parts.outlet.backlogBytes > resendBacklogBytesMax) return
      if ((this.#sentAt.get(id) ?? -Infinity) < freshSince) this.#tell(id, entry)
    }
  }

  #scheduleResend(): void {
    const ms = resendIntervalMs * (1 + resendJitter * (2 * Math.random() - 1))
    this.#timer = setTimeout(() => {
      this.#resend()
      this.#scheduleResend()
    }, ms)
  }

  #send(frame: AgentFrame): boolean {
    return this.#parts.outlet.send(frame)
  }

  #openCount(): number {
    return this.#serial.queue.length + this.#concurrent.queue.length + this.#saving.size
  }
}

function failure(error: string): ActionOutcome {
  return { status: 'failed', error }
}

// What was stopped keeps its output; how it ended is ours to say, not the killed process's.
function stopped(outcome: ActionOutcome, signal: AbortSignal): ActionOutcome {
  const reason = signal.reason as StopReason // the only reasons this file aborts with
  const { error: _, after: __, ...rest } = outcome
  if (reason === 'interrupted') return { ...rest, ...failure('interrupted'), exitCode: null }
  return { ...rest, status: reason, exitCode: null }
}

// An action that ignores its signal must not hold its lane: its end is reported without it.
function abandoned(signal: AbortSignal): Promise<ActionOutcome> {
  return new Promise((resolve) => {
    signal.addEventListener('abort', () => {
      const ms = killGraceMs + 3 * killGiveUpMs
      setTimeout(() => resolve({ status: 'failed' }), ms).unref()
    })
  })
}

function sizeOf(result: ResultFrame): number {
  return (result.stdout?.length ?? 0) + (result.stderr?.length ?? 0) + 512
}
