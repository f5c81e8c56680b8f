// Carries commands from the durable inbox to the outbox. Every id runs once: it is on disk before it
// is reported `delivered`, its start before it runs, its end before it is sent.

import { uptime } from 'node:os'
import { performance } from 'node:perf_hooks'
import { PayloadError } from './action.ts'
import type { Action, ActionContext, ActionOutcome, AgentControl, StopReason } from './action.ts'
import { describe } from './errors.ts'
import type { CommandFrame } from './frames.ts'
import type { Journal } from './journal.ts'
import type { Entry } from './ledger.ts'
import {
  concurrentRunsMax,
  deadlineLookMs,
  inboxCommandsMax,
  killGiveUpMs,
  killGraceMs,
  progressBacklogBytesMax,
} from './limits.ts'
import type { Log } from './log.ts'
import { Outbox } from './outbox.ts'
import type { Outlet } from './outbox.ts'
import { killLeftover, startTimeOf } from './processes.ts'
import { Progress } from './progress.ts'
import { makeResult } from './result.ts'
import type { Outcome } from './result.ts'
import type { State } from './state.ts'

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
  readonly #outbox: Outbox
  readonly #serial: Lane = { runsMax: 1, runs: 0, queue: [] }
  readonly #concurrent: Lane = { runsMax: concurrentRunsMax, runs: 0, queue: [] }
  readonly #running = new Map<string, AbortController>()
  readonly #ends = new Map<string, Promise<void>>()
  #stopping = false

  constructor(parts: CommandsParts) {
    this.#parts = parts
    this.#outbox = new Outbox(parts.journal, parts.outlet)
  }

  /**
   * Takes up what an earlier life left: kills what ran, ends it as interrupted, queues the rest. `ends` are
   * those of commands that went on across a restart.
   */
  async start(ends: ReadonlyMap<string, Outcome> = new Map()): Promise<void> {
    for (const [id, entry] of this.#parts.journal.ledger) {
      const end = ends.get(id)
      if (entry.phase === 'running' && end) {
        await this.#end(entry.command, end, Date.now() - entry.at)
      } else if (entry.phase === 'running') await this.#endInterrupted(id, entry)
      if (entry.phase === 'waiting') this.#enqueue(entry.command)
    }
    this.#outbox.start()
  }

  /** A command from the hub: new, repeated, running or long ended. */
  async receive(command: CommandFrame): Promise<void> {
    const { id } = command
    const { journal, outlet, log } = this.#parts
    const known = journal.ledger.get(id)
    if (known) return this.#outbox.answerAgain(id, known)
    if (this.#stopping || this.#openCount() >= inboxCommandsMax) {
      return log.warn('command not taken', { id, stopping: this.#stopping })
    }
    await this.#outbox.save(id, { type: 'command', command, at: Date.now() })
    outlet.send({ type: 'delivered', id })
    // A cancel may have overtaken the disk.
    if (journal.ledger.get(id)?.phase === 'waiting') this.#enqueue(command)
  }

  /** Stops a command: one that waits never starts, one that runs is killed with its group. */
  async cancel(id: string): Promise<void> {
    const run = this.#running.get(id)
    if (run) return run.abort('cancelled' satisfies StopReason)
    const entry = this.#parts.journal.ledger.get(id)
    if (entry?.phase !== 'waiting') return
    for (const lane of [this.#serial, this.#concurrent]) {
      lane.queue = lane.queue.filter((command) => command.id !== id)
    }
    await this.#end(entry.command, { status: 'cancelled' }, 0)
  }

  /** The hub has committed the end of a command. */
  acknowledge(id: string): void {
    this.#outbox.acknowledge(id)
  }

  /** A new connection: the hub hears of everything it has not acknowledged. */
  resendAll(): void {
    this.#outbox.resendAll()
  }

  /** Ends what runs as interrupted and takes nothing more; what waits stays in the journal. */
  async stop(): Promise<void> {
    this.#stopping = true
    this.#outbox.stop()
    for (const run of this.#running.values()) run.abort('interrupted' satisfies StopReason)
    await Promise.all(this.#ends.values())
  }

  #enqueue(command: CommandFrame): void {
    const lane = this.#actionOf(command)?.concurrent ? this.#concurrent : this.#serial
    lane.queue.push(command)
    this.#pump(lane)
  }

  #pump(lane: Lane): void {
    while (lane.runs < lane.runsMax && !this.#stopping) {
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
    const startedAtMs = performance.now()
    const control = new AbortController()
    this.#running.set(id, control)
    // What changes nothing may run again after a crash, so its start need not wait for the disk.
    if (!this.#actionOf(command)?.repeatable) {
      await this.#outbox.save(id, { type: 'started', id, at: Date.now() })
    }
    this.#parts.outlet.send({ type: 'started', id })
    const { after, handedOver, ...outcome } = await this.#runUntilDeadline(command, control)
    this.#running.delete(id)
    if (handedOver) return
    await this.#end(command, outcome, performance.now() - startedAtMs)
    if (after) await this.#actAfterAck(id, after)
  }

  async #runUntilDeadline(command: CommandFrame, control: AbortController): Promise<ActionOutcome> {
    const reason: StopReason = 'timeout'
    const timer = setTimeout(() => control.abort(reason), command.timeoutSeconds * 1000)
    // Timers stand still while a machine sleeps, its time since boot does not; nor does a corrected clock move it.
    const endsAtSeconds = uptime() + command.timeoutSeconds
    const watch = setInterval(() => {
      if (uptime() >= endsAtSeconds) control.abort(reason)
    }, deadlineLookMs)
    try {
      const outcome = await this.#outcomeOf(command, control.signal)
      // What was handed over can't be stopped here any more.
      const ours = control.signal.aborted && !outcome.handedOver
      return ours ? stopped(outcome, control.signal) : outcome
    } finally {
      clearTimeout(timer)
      clearInterval(watch)
    }
  }

  async #outcomeOf(command: CommandFrame, signal: AbortSignal): Promise<ActionOutcome> {
    const action = this.#actionOf(command)
    if (!action) return failure(`unsupported action "${command.action.slice(0, 64)}"`)
    const progress = new Progress(command.id, (frame) => {
      const { outlet } = this.#parts
      if (outlet.backlogBytes < progressBacklogBytesMax) outlet.send(frame)
    })
    try {
      const context = this.#contextOf(command, signal, progress)
      return await Promise.race([action.run(command.payload, context), abandoned(signal)])
    } catch (error) {
      if (!(error instanceof PayloadError)) {
        this.#parts.log.error('action failed', { id: command.id, error: describe(error) })
      }
      return failure(describe(error))
    } finally {
      progress.flush()
    }
  }

  #contextOf(
    { id, timeoutSeconds }: CommandFrame,
    signal: AbortSignal,
    progress: Progress,
  ): ActionContext {
    const { state, log, agent, journal } = this.#parts
    return {
      id,
      state,
      log,
      agent,
      signal,
      endsByMs: Date.now() + timeoutSeconds * 1000,
      progress: (stream, text) => progress.push(stream, text),
      phase: (phase) => progress.phase(phase),
      spawned: async (pid) => {
        const recorded = { pid, startTime: await startTimeOf(pid) }
        await journal.append({ type: 'process', id, process: recorded })
      },
    }
  }

  async #end({ id, payload }: CommandFrame, outcome: Outcome, elapsedMs: number): Promise<void> {
    const result = makeResult(id, outcome, elapsedMs)
    await this.#outbox.put(result)
    this.#parts.log.info('command ended', {
      id,
      status: result.status,
      durationMs: result.durationMs,
    })
    // A script's parameters may be secrets; they leave the disk with its end, however it came.
    if ('env' in payload) this.#parts.journal.rewriteSoon()
  }

  async #endInterrupted(id: string, entry: Extract<Entry, { phase: 'running' }>): Promise<void> {
    try {
      if (entry.process) await killLeftover(entry.process, `MUSTER_COMMAND_ID=${id}`)
    } catch (error) {
      // Another user's by now: we can't end it, but we can still tell the truth about the command.
      this.#parts.log.error('leftover could not be killed', { id, error: describe(error) })
    }
    await this.#end(entry.command, failure('interrupted'), Date.now() - entry.at)
  }

  async #actAfterAck(id: string, after: () => Promise<void>): Promise<void> {
    await this.#outbox.acknowledged(id)
    try {
      await after()
    } catch (error) {
      this.#parts.log.error('action failed after its ack', { id, error: describe(error) })
    }
  }

  #actionOf(command: CommandFrame): Action | undefined {
    return this.#parts.actions[command.action]
  }

  #openCount(): number {
    return this.#serial.queue.length + this.#concurrent.queue.length + this.#outbox.savingCount
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
