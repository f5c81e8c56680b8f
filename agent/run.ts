// `run`: builds the parts in order, joins them, waits for the end, takes them down in reverse.

import { rmSync } from 'node:fs'
import type { AgentControl } from './action.ts'
import { sentenceOf } from './backoff.ts'
import { Connection } from './connection.ts'
import { describe, exitCodes } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { Heartbeat } from './heartbeat.ts'
import { InventoryReporter } from './inventory_reporter.ts'
import { stopMsMax, trialFramesMax } from './limits.ts'
import { lockOwner, takeLock } from './lock.ts'
import { openLog } from './log.ts'
import type { Log } from './log.ts'
import { Meter } from './metrics.ts'
import { startSuccessor } from './successor.ts'
import { prepareState, requireIdentity } from './state.ts'
import type { Identity, State } from './state.ts'
import { writeStatus } from './status.ts'
import { isSupervised, isTrial, onSupervisorGone, trialMayBegin } from './supervise.ts'
import { Terminals } from './terminals.ts'
import { breakAtStart, hubAddress, killPoint } from './test_build.ts'
import { TokenStore } from './tokens.ts'
import { beatMs } from './upgrade/bounds.ts'
import { installProved, recover } from './upgrade/recover.ts'
import { Trial } from './upgrade/trial.ts'
import { agentVersion } from './version.ts'
import { Work } from './work.ts'
import type { HubFrame } from '../src/protocol.ts'

/** Why the agent ends. */
type Ending = 'stopped' | 'decommissioned' | 'restart' | 'upgrade' | 'left'

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
  if (isTrial() && !(await trialMayBegin())) return 'stopped'
  onSupervisorGone(() => end('stopped'))
  breakAtStart()
  if (!isSupervised() && !(await lockOwner(state.supervisorLock))) await recover(state, log)
  const trial = Trial.of(state, log)
  if (trial) killPoint('trial.begun')

  // No script runs yet: what lies there was left by a crash and may hold secrets.
  rmSync(state.scripts, { recursive: true, force: true })
  const agent: AgentControl = {
    sendInventory: () => inventory.send(),
    restart: () => end('restart'),
    upgrade: () => end('upgrade'),
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
    url: hubAddress(identity.websocketUrl),
    tokens,
    log,
    events: {
      up(intervalMs) {
        writeStatus(state, { connected: true })
        if (trial?.running) return beatForTrial(trial)
        heartbeat.start(intervalMs)
        terminals.up()
        work?.connected()
      },
      down() {
        writeStatus(state, { connected: false })
        heartbeat.stop()
        terminals.down()
      },
      failed: (ending) => trial?.link(sentenceOf(ending)),
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
  /** Null while a trial has not passed: until then nothing is written that the old version reads. */
  let work: Work | null = null
  /** What the hub sent meanwhile. */
  const early: HubFrame[] = []

  writeStatus(state, { connected: false })
  if (!trial) work = await startWork()
  connection.start()
  if (trial) void trial.passed.then(afterTrial).catch((error: unknown) => fail(error))
  const ending = await ended
  // A disk or a child that does not let go must not keep the agent from ending.
  await Promise.race([stop(), deadline(stopMsMax)])
  writeStatus(state, { connected: false })
  if (ending === 'upgrade') killPoint('old.left')
  return ending

  async function startWork(): Promise<Work> {
    return Work.start({ outlet: connection, agent, inventory, state, log })
  }

  function beatForTrial({ commandId }: Trial): void {
    killPoint('trial.connected')
    heartbeat.start(beatMs(), 1)
    connection.send({ type: 'progress', id: commandId, seq: 0, stream: 'phase', data: 'trial' })
  }

  async function afterTrial(): Promise<void> {
    installProved(state, log)
    killPoint('install.done')
    work = await startWork()
    for (const frame of early.splice(0)) handleFrame(frame)
    // From here on at the hub's pace, and with everything that waits.
    connection.welcomeAgain()
  }

  function fail(error: unknown): void {
    log.error('the agent cannot go on', { error: describe(error) })
    end('restart')
  }

  async function stop(): Promise<void> {
    trial?.stop()
    inventory.stop()
    terminals.stop()
    await work?.stop()
    heartbeat.stop()
    connection.stop()
    await work?.close()
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
      case 'cancel':
      case 'ack':
        if (work) return work.take(frame)
        if (early.length < trialFramesMax) early.push(frame)
        return
      case 'reconnect':
        return connection.moveAfter(frame.afterMs)
      case 'token':
        return rotateToken(frame.agentToken)
      case 'error':
        return log.warn('hub reports an error', { code: frame.code, message: frame.message })
      case 'heartbeat_ack':
        return trial?.acknowledged()
      case 'welcome': // the connection's own
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
    case 'upgrade': // refused without a supervisor
      return exitCodes.upgrade
  }
}
