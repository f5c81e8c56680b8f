// What the agent does for the hub once it may: the journal, the commands in it, and the end of an upgrade that
// went on across a restart. Knows no socket.

import { actions } from './actions.ts'
import type { AgentControl } from './action.ts'
import { Commands } from './commands.ts'
import type { HubFrame } from '../src/protocol.ts'
import type { InventoryReporter } from './inventory_reporter.ts'
import { Journal } from './journal.ts'
import type { Log } from './log.ts'
import type { Outlet } from './outbox.ts'
import { installedProgram } from './programs.ts'
import type { State } from './state.ts'
import { killPoint } from './test_build.ts'
import { isSettled, placesOf } from './upgrade/places.ts'
import { clearRecord, outcomeOf, readRecord } from './upgrade/record.ts'

export interface WorkParts {
  outlet: Outlet
  agent: AgentControl
  inventory: InventoryReporter
  state: State
  log: Log
}

type WorkFrame = Extract<HubFrame, { type: 'command' | 'cancel' | 'ack' }>

export class Work {
  readonly #journal: Journal
  readonly #commands: Commands
  readonly #inventory: InventoryReporter

  private constructor(journal: Journal, commands: Commands, inventory: InventoryReporter) {
    this.#journal = journal
    this.#commands = commands
    this.#inventory = inventory
  }

  /** Takes up what an earlier life left. */
  static async start({ outlet, agent, inventory, state, log }: WorkParts): Promise<Work> {
    const journal = await Journal.open(state.journal, log)
    const commands = new Commands({ journal, actions, outlet, agent, state, log })
    const upgrade = readRecord(state)
    const outcome = upgrade && outcomeOf(upgrade)
    if (outcome) killPoint('result.known')
    await commands.start(new Map(outcome ? [[upgrade.commandId, outcome]] : []))
    if (outcome) endUpgrade(state)
    return new Work(journal, commands, inventory)
  }

  /** A socket was welcomed: the hub hears of everything it has not acknowledged. */
  connected(): void {
    this.#commands.resendAll()
    this.#inventory.connected()
  }

  take(frame: WorkFrame): void {
    switch (frame.type) {
      case 'command':
        return void this.#commands.receive(frame)
      case 'cancel':
        return void this.#commands.cancel(frame.id)
      case 'ack':
        return this.#commands.acknowledge(frame.id)
    }
  }

  /** Ends what runs; what waits stays in the journal. */
  stop(): Promise<void> {
    return this.#commands.stop()
  }

  /** Lets the journal go. */
  close(): Promise<void> {
    return this.#journal.close()
  }
}

/** The journal has its end now. Of a program that is not in its place yet the record is still needed. */
function endUpgrade(state: State): void {
  killPoint('result.kept')
  if (isSettled(placesOf(installedProgram()))) clearRecord(state)
  killPoint('record.cleared')
}
