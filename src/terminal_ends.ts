// How terminal sessions end: what is said to whoever is at one, with which close code, and the writing of it, which
// goes on until PostgreSQL has it. Who ends a session, and when, is `terminals.ts`'.
import type { Database } from './db.ts'
import { AppError } from './errors.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import { closeCodes } from './protocol.ts'
import type { Recorder } from './terminal_recorder.ts'
import { endTerminal, type EndReason, type TerminalEnd } from './terminal_rows.ts'
import type { TerminalSession } from './terminal_session.ts'

/** What is known of an end beside its reason. */
export interface EndDetails {
  /** What the agent said. */
  why?: string
  /** The close code of the agent's socket. */
  code?: number
}

const sentences: Record<EndReason, string> = {
  closed: 'the session was closed',
  exited: 'the shell has ended',
  operator_lost: 'nobody was connected to the session for too long',
  agent_lost: 'the device was away for too long',
  agent_refused: 'the device ended it',
  access_ended: 'you may not use this terminal any more',
  device_refused: 'the device was taken out of service',
  hub_stopped: 'the hub restarts',
  interrupted: 'the hub that it was on failed, and its shell was ended; open a new terminal',
}

/** Why a session is over, for the operator and in the log of the agent. */
export function endSentence(reason: EndReason, { why, code }: EndDetails = {}): string {
  if (reason === 'agent_refused' && why) return why
  if (code === closeCodes.organizationSuspended)
    return 'the organization of the device is suspended'
  return sentences[reason]
}

/** The code that the operator's socket is closed with: for what closed the agent's, the same one. */
export function endCode(reason: EndReason, { code }: EndDetails = {}): number {
  if (reason === 'device_refused') return code ?? closeCodes.decommissioned
  return reason === 'hub_stopped' ? closeCodes.restart : 1000
}

/** Whoever asks for a terminal that is over; null: its row does not say why yet. */
export function terminalEnded(reason: EndReason | null): AppError {
  const why = reason === null ? '' : `: ${sentences[reason]}`
  return new AppError('CONFLICT', `this terminal has ended${why}`)
}

export function deviceOffline(): AppError {
  return new AppError('DEVICE_OFFLINE', 'the device is offline; a terminal needs it connected')
}

export const unknownSession = 'the hub knows no such session'

/** Why an operator's socket is closed while the session may live: whoever comes back hears more. */
export const wayBroke = 'the way to the hub of the terminal broke; connect again'
export const homeSilent =
  'the hub of the terminal does not answer; connect again to go on, or to hear why it ended'

export interface EndWriterOptions {
  db: Database
  recorder: Recorder
  log: Logger
}

/** Writes ends, each with what is left of its recording. */
export class EndWriter {
  private readonly underWay = new Set<Promise<void>>()
  private readonly options: EndWriterOptions
  private closed = false

  constructor(options: EndWriterOptions) {
    this.options = options
  }

  /** Ends that are not written yet. */
  get waiting(): number {
    return this.underWay.size
  }

  write(session: TerminalSession, end: Pick<TerminalEnd, 'reason' | 'by'>): void {
    const { bytesIn, bytesOut, exit } = session
    const exitCode = exit ? exit.exitCode : null
    const writing = this.writeOne(session, { ...end, exitCode, bytesIn, bytesOut })
    this.underWay.add(writing)
    void writing.finally(() => this.underWay.delete(writing))
  }

  /** What can't be written now is left to the sweep of another hub. */
  async close(): Promise<void> {
    this.closed = true
    await Promise.all(this.underWay)
  }

  private async writeOne(
    { id, recording }: TerminalSession,
    end: Omit<TerminalEnd, 'recordingComplete'>,
  ): Promise<void> {
    const { db, recorder, log } = this.options
    for (let tries = 0; ; tries++) {
      try {
        if (recording) await recorder.finish(recording)
        const recordingComplete = recording?.complete ?? false
        await endTerminal(db, id.slice('term-'.length), { ...end, recordingComplete })
        return
      } catch (error) {
        if (tries === 0) log.warn({ err: error }, 'the end of a terminal can not be written')
        if (this.closed) return
        await new Promise((resolve) => setTimeout(resolve, limits.terminalEndRetryMs))
      }
    }
  }
}
