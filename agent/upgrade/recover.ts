// What an earlier life left of an upgrade is finished or undone before anything runs: the record says which.

import { setTimeout as delay } from 'node:timers/promises'
import { describe } from '../errors.ts'
import { killGiveUpMs, killPollMs } from '../limits.ts'
import type { Log } from '../log.ts'
import { isSameProcess, signal } from '../processes.ts'
import { installedProgram, isCompiled } from '../programs.ts'
import type { State } from '../state.ts'
import { killPoint } from '../test_build.ts'
import { discard, install, isSettled, placesOf } from './places.ts'
import type { Failure } from './watch.ts'
import { readRecord, writeRecord } from './record.ts'
import type { UpgradeRecord } from './record.ts'

/**
 * Ends what is half done, and answers the program to run: the installed one, or a proved one that could not
 * be put in its place. Only for whoever holds the supervisor's place.
 */
export async function recover(state: State, log: Log): Promise<string> {
  const program = installedProgram()
  if (!isCompiled()) return program
  const places = placesOf(program)
  const record = readRecord(state)
  // Whatever it was about to do, it must not do it beside us. It may have gone on in its last moment.
  if (record && (await killTrial(record))) return recover(state, log)
  switch (record?.phase) {
    case undefined:
    case 'failed':
      discard(places)
      return program
    case 'trial':
      rollBack(state, {
        reason: 'interrupted',
        error: 'the agent or the device went down during the trial',
      })
      return program
    case 'committed':
      return installProved(state, log) ? program : places.next
  }
}

/** Puts a proved program in its place; false when the disk refuses, to be tried again at the next start. */
export function installProved(state: State, log: Log): boolean {
  const places = placesOf(installedProgram())
  try {
    install(places)
  } catch (error) {
    const version = readRecord(state)?.to
    log.error('upgrade cannot be installed yet', { version, error: describe(error) })
  }
  return isSettled(places)
}

/** The old version stays: noted first, so that its next start knows the reason, then cleared away. */
export function rollBack(state: State, failure: Failure): void {
  const record = readRecord(state)
  if (record) writeRecord(state, { ...record, ...failure, phase: 'failed' })
  killPoint('rollback.noted')
  discard(placesOf(installedProgram()))
  killPoint('rollback.discarded')
}

// A supervisor that was killed leaves a trial that may hang, deaf to the end of its standard input. True when
// there was one and it is gone.
async function killTrial({ process: trial }: UpgradeRecord): Promise<boolean> {
  if (!trial || !(await isSameProcess(trial.pid, trial.startTime))) return false
  signal(trial.pid, 'SIGKILL')
  for (const end = Date.now() + killGiveUpMs; Date.now() < end; await delay(killPollMs)) {
    if (!(await isSameProcess(trial.pid, trial.startTime))) return true
  }
  return false
}
