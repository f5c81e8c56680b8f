// `run`: builds the parts in order, joins them, waits for the end, takes them down in reverse.

import { rmSync } from 'node:fs'
import { actions } from './actions.ts'
import type { AgentControl } from './action.ts'
import { Commands } from './commands.ts'
import { Connection } from './connection.ts'
import { describe, exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { Heartbeat } from './heartbeat.ts'
import { InventoryReporter } from './inventory_reporter.ts'
import { Journal } from './journal.ts'
import { stopMsMax } from './limits.ts'
import { takeLock } from './lock.ts'
import { openLog } from './log.ts'
import type { Log } from './log.ts'
import { Meter } from './metrics.ts'
import { startSuccessor } from './successor.ts'
import { prepareState, requireIdentity } from './state.ts'
import type { Identity, State } from './state.ts'
import { writeStatus } from './status.ts'
import { isSupervised, onSupervisorGone } from './supervise.ts'
import { Terminals } from './terminals.ts'
import { TokenStore } from './tokens.ts'
import { agentVersion } from './version.ts'
import type { HubFrame } from '../src/protocol.ts'

/** Why the agent ends. */
type Ending = 'stopped' | 'decommissioned' | 'restart' | 'left'

/** Runs the agent until it is stopped; answers the exit code. */
export async function run(state: State): Promise<ExitCode> {
  const identity = requireIdentity(state)
  prepareState(state)
  const lock = await takeLock(state.lock)
  const log = openLog(state.log)
  let ending: Ending
  try {
    log.info('agent starts', { agentVersion, pid: process.pid, deviceId: identity.deviceId })
    ending = await live(state, identity, log)
    log.info('agent ends', { ending })
  } finally {
    lock.release()
  }
  return endWith(ending)
}

async function live(state: State, identity: Identity, log: Log): Promise<Ending> {
  const { promise: ended, resolve: end } = Promise.withResolvers<Ending>()
  // Listened to from the first moment: a signal during start must still end in order.
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => end('stopped'))
  onSupervisorGone(() => end('stopped'))

  // No script runs yet: what lies there was left by a crash and may hold secrets.
  rmSync(state.scripts, { recursive: true, force: true })
  const journal = await Journal.open(state.journal, log)
  const agent: AgentControl = {
    sendInventory: () => inventory.send(),
    restart: () => end('restart'),
    leave: () => end('left'),
  }
  const heartbeat = new Heartbeat({
    meter: new Meter(),
    send: (frame) => connection.send(frame),
    silent() {
      log.warn('hub is silent, reconnecting')
      connection.dropSilent()
    },
  })
  const tokens = new TokenStore(state)
  const connection: Connection = new Connection({
    url: identity.websocketUrl,
    tokens,
    log,
    events: {
      up(intervalMs) {
        writeStatus(state, { connected: true })
        heartbeat.start(intervalMs)
        commands.resendAll()
        inventory.connected()
      },
      down() {
        writeStatus(state, { connected: false })
        heartbeat.stop()
        terminals.down()
      },
      frame: handleFrame,
      binary(bytes) {
        heartbeat.heardFromHub()
        return terminals.receive(bytes)
      },
      decommissioned: () => end('decommissioned'),
    },
  })
  const inventory = new InventoryReporter({ send: (frame) => connection.send(frame), log })
  const terminals = new Terminals({ send: (frame) => connection.sendBinary(frame), log })
  const commands = new Commands({ journal, actions, outlet: connection, agent, state, log })

  writeStatus(state, { connected: false })
  await commands.start()
  connection.start()
  const ending = await ended
  // A disk or a child that does not let go must not keep the agent from ending.
  await Promise.race([stop(), deadline(stopMsMax)])
  writeStatus(state, { connected: false })
  return ending

  async function stop(): Promise<void> {
    inventory.stop()
    terminals.stop()
    await commands.stop()
    heartbeat.stop()
    connection.stop()
    await journal.close()
  }

  function rotateToken(token: string): void {
    try {
      tokens.rotate(token)
      log.info('new token received')
    } catch (error) {
      // The old token stays good until a new one was used, and the hub will offer one again.
      log.error('new token cannot be kept', { error: describe(error) })
    }
  }

  function handleFrame(frame: HubFrame): void {
    heartbeat.heardFromHub()
    switch (frame.type) {
      case 'command':
        return void commands.receive(frame)
      case 'cancel':
        return void commands.cancel(frame.id)
      case 'ack':
        return commands.acknowledge(frame.id)
      case 'reconnect':
        return connection.moveAfter(frame.afterMs)
      case 'token':
        return rotateToken(frame.agentToken)
      case 'error':
        return log.warn('hub reports an error', { code: frame.code, message: frame.message })
      case 'welcome': // the connection's own
      case 'heartbeat_ack': // heard, which is all it is for
    }
  }
}

function deadline(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms).unref())
}

async function endWith(ending: Ending): Promise<ExitCode> {
  switch (ending) {
    case 'stopped':
    case 'left':
      return exitCodes.ok
    case 'decommissioned':
      return exitCodes.decommissioned
    case 'restart':
      return isSupervised() ? exitCodes.restart : startSuccessor()
  }
}
