// Single rules of the command queue that a random plan seldom meets, or never.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { limits } from '../src/limits.ts'
import type { AgentFrame, CommandMessage } from '../src/protocol.ts'
import { step } from '../workers/device.ts'
import {
  openDevice,
  type Device,
  type DeviceMessage,
  type OpenCommand,
} from '../workers/device_state.ts'

const rules = {
  heartbeatTimeoutMs: 75_000,
  timeoutGraceMs: 30_000,
  presenceFlushMs: 60_000,
  thresholds: {},
}
const startMs = 1_000_000

function command(id: string, more: Partial<CommandMessage> = {}): CommandMessage {
  return {
    id,
    action: 'run_command',
    payload: '{}',
    timeoutSeconds: 10,
    createdMs: startMs,
    expiresMs: startMs + 60_000,
    concurrent: false,
    awaited: false,
    executionId: null,
    ...more,
  }
}

/** As PostgreSQL holds it. */
function stored(id: string): OpenCommand {
  const open = { stage: 'pending', attempts: 0, reported: false, late: null } as const
  return { ...command(id), ...open, dueMs: startMs + 60_000, cancelRequested: false }
}

const socket = { deviceId: 'd', orgId: 'o', conn: 1, resumed: false }

/** A device whose claim is committed, with nothing open. */
function claimed(): Device {
  const device = openDevice(socket, startMs, startMs + 60_000)
  step(device, { type: 'claimed', epoch: 1, atMs: 0, commands: [], high: 0 }, startMs, rules)
  return device
}

function effects(device: Device, message: DeviceMessage, nowMs = startMs): string[] {
  return step(device, message, nowMs, rules).map((effect) => {
    if (effect.type === 'send') return `send ${effect.command.id}`
    if (effect.type === 'end') return `end ${effect.command.id} ${effect.end.status}`
    if (effect.type === 'progress') return `${effect.stage} ${effect.command.id}`
    return effect.type
  })
}

const said = (frame: AgentFrame, bytes = 0): DeviceMessage => ({ type: 'frame', frame, bytes })

test('one that was accepted earlier and told later waits for the one that is out', () => {
  const device = claimed()
  assert.deepEqual(effects(device, { type: 'command', command: command('2') }), ['send 2'])
  assert.deepEqual(effects(device, { type: 'command', command: command('1') }), [])
  const concurrent = command('0', { concurrent: true, action: 'list_processes' })
  assert.deepEqual(effects(device, { type: 'command', command: concurrent }), ['send 0'])
  effects(device, said({ type: 'result', id: '2', status: 'completed' }))
  assert.deepEqual(effects(device, { type: 'committed', id: '2' }), ['ack', 'send 1'])
})

test('what expired while another one ran is ended, not sent', () => {
  const device = claimed()
  effects(device, { type: 'command', command: command('1', { timeoutSeconds: 3600 }) })
  effects(device, { type: 'command', command: command('2') })
  effects(device, { type: 'sent', id: '1' })
  effects(device, said({ type: 'started', id: '1' }))
  effects(device, said({ type: 'result', id: '1', status: 'completed' }))
  const lateMs = startMs + 60_000
  assert.deepEqual(effects(device, { type: 'committed', id: '1' }, lateMs), [
    'ack',
    'end 2 expired',
  ])
})

test('a cancel of what was sent holds when the socket goes before a word of it', () => {
  const device = claimed()
  effects(device, { type: 'command', command: command('1') })
  effects(device, { type: 'sent', id: '1' })
  assert.deepEqual(effects(device, { type: 'cancel', id: '1', ask: 1 }), ['cancel', 'answer'])
  assert.deepEqual(effects(device, { type: 'closed' }), ['end 1 cancelled', 'offline'])
})

test('what was loaded is looked for, ever less often, and let go of when it has ended', () => {
  const device = openDevice(socket, startMs, startMs + 60_000)
  const loaded = { ...command('1', { timeoutSeconds: 3600 }), attempts: 1, cancelRequested: false }
  const running = {
    ...loaded,
    stage: 'running' as const,
    dueMs: startMs + 3_600_000,
    reported: false,
    late: null,
    loaded: { lookMs: startMs + 1000, gapMs: 2000 },
  }
  const waiting = { ...running, id: '3', stage: 'pending' as const }
  const commands = [running, waiting]
  const claim = { type: 'claimed' as const, epoch: 1, atMs: 0, commands, high: 0 }
  assert.deepEqual(effects(device, claim), ['welcome'])
  const later = command('2', { expiresMs: startMs + 3_600_000 })
  assert.deepEqual(effects(device, { type: 'command', command: later }), [])
  const looks: number[] = []
  for (let second = 1; second <= 60; second++) {
    const nowMs = startMs + second * 1000
    device.heardMs = nowMs
    const asked = effects(device, { type: 'tick' }, nowMs).filter((effect) => effect === 'look')
    if (asked.length > 0) looks.push(second)
    assert.ok(asked.length === 0 || asked.length === 2)
  }
  assert.deepEqual(looks, [1, 3, 7, 15, 31])
  assert.deepEqual(effects(device, { type: 'gone', id: '3' }), [])
  assert.deepEqual(
    device.commands?.map(({ id }) => id),
    ['1', '2'],
  )
  assert.deepEqual(effects(device, { type: 'gone', id: '1' }), ['cancel', 'send 2'])
  // Told of one whose end is being written here: the commit tells more.
  effects(device, said({ type: 'result', id: '2', status: 'completed' }))
  assert.deepEqual(effects(device, { type: 'gone', id: '2' }), [])
  assert.deepEqual(effects(device, { type: 'committed', id: '2' }), ['ack'])
})

test('what PostgreSQL holds open with the wish to cancel it is never sent', () => {
  const device = claimed()
  const told = command('1', { createdMs: 0 })
  const found = { ...stored('1'), cancelRequested: true }
  assert.deepEqual(effects(device, { type: 'command', command: told }), ['check'])
  // Nobody knows it here: PostgreSQL is asked again, since the answer may be older than the wish.
  assert.deepEqual(effects(device, { type: 'cancel', id: '1', ask: 1 }), ['answer', 'check'])
  const answer: DeviceMessage = { type: 'checked', id: '1', command: found }
  assert.deepEqual(effects(device, answer), ['end 1 cancelled'])
  assert.deepEqual(effects(device, { type: 'committed', id: '1' }), [])
  assert.equal(device.commands, null)
})

test('who knows of a command while the queue is being loaded has it asked for afterwards', () => {
  const device = openDevice(socket, startMs, startMs + 60_000)
  assert.deepEqual(effects(device, { type: 'ask', id: '1' }), [])
  const claim: DeviceMessage = { type: 'claimed', epoch: 1, atMs: 0, commands: [], high: 0 }
  assert.deepEqual(effects(device, claim), ['welcome', 'check'])
})

test('what came after a command that is being asked about waits for the answer', () => {
  const device = claimed()
  assert.deepEqual(effects(device, { type: 'ask', id: '2' }), ['check'])
  const reader = command('4', { concurrent: true, action: 'list_processes' })
  assert.deepEqual(effects(device, { type: 'command', command: command('3') }), [])
  assert.deepEqual(effects(device, { type: 'command', command: reader }), ['send 4'])
  // What came before it does not.
  assert.deepEqual(effects(device, { type: 'command', command: command('1') }), ['send 1'])
  effects(device, said({ type: 'result', id: '1', status: 'completed' }))
  assert.deepEqual(effects(device, { type: 'committed', id: '1' }), ['ack'])
  const open: DeviceMessage = { type: 'checked', id: '2', command: stored('2') }
  assert.deepEqual(effects(device, open), ['send 2'])
  effects(device, said({ type: 'result', id: '2', status: 'completed' }))
  assert.deepEqual(effects(device, { type: 'committed', id: '2' }), ['ack', 'send 3'])
})

test('a command that turns out to have ended holds up nothing', () => {
  const device = claimed()
  assert.deepEqual(effects(device, { type: 'ask', id: '1' }), ['check'])
  assert.deepEqual(effects(device, { type: 'ask', id: '2' }), ['check'])
  assert.deepEqual(effects(device, { type: 'command', command: command('3') }), [])
  assert.deepEqual(effects(device, { type: 'checked', id: '1', command: null }), [])
  assert.deepEqual(effects(device, { type: 'checked', id: '2', command: null }), ['send 3'])
  assert.equal(device.asked, null)
})

test('a command that ended elsewhere while its frame was in the making is not wanted any more', () => {
  const device = claimed()
  const upgrade = command('1', { action: 'upgrade_agent', payload: '{"version":"2"}' })
  assert.deepEqual(effects(device, { type: 'command', command: upgrade }), ['send 1'])
  const [held] = device.commands ?? []
  assert.deepEqual(effects(device, { type: 'ended', id: '1' }), ['cancel'])
  assert.equal(held?.stage, 'ending')
  const beat = said({ type: 'heartbeat', agentVersion: '2' })
  assert.deepEqual(
    effects(device, beat),
    ['seen'],
    'the version is written with the next heartbeat',
  )
})

test('the first heartbeat of a connection is written at once, and one that raises an alert', () => {
  const device = claimed()
  const beat = (cpuPercent: number) =>
    step(device, said({ type: 'heartbeat', metrics: { cpuPercent } }), startMs, {
      ...rules,
      thresholds: { cpuPercent: 90 },
    })
  const seen = (cpuPercent: number) => ({
    type: 'seen',
    metrics: { cpuPercent },
    agentVersion: null,
  })
  assert.deepEqual(beat(1), [seen(1)])
  // A newer socket that takes over before it is written takes it along.
  assert.deepEqual(device.metrics, { cpuPercent: 1 })
  assert.deepEqual(beat(2), [])
  const loud = Array.from({ length: 10 }, () => beat(99)).flat()
  assert.deepEqual(
    loud.map((effect) => (effect.type === 'seen' ? effect.metrics : effect.type)),
    ['crossing', { cpuPercent: 99 }],
  )
})

test('while a claim is under way an agent is held to a number of frames and of bytes', () => {
  const device = openDevice(socket, startMs, startMs + 60_000)
  const say = (bytes: number) => effects(device, said({ type: 'heartbeat' }, bytes))
  for (const bytes of [limits.heldBytesMax / 2, limits.heldBytesMax, limits.heldBytesMax / 4]) {
    say(bytes)
  }
  assert.equal(device.held?.messages.length, 2)
  for (let n = 0; n < 2 * limits.heldFramesMax; n++) say(1)
  assert.equal(device.held?.messages.length, limits.heldFramesMax)
  // What the hub itself says is never dropped.
  effects(device, { type: 'command', command: command('9') })
  assert.equal(device.held?.messages.length, limits.heldFramesMax + 1)
})
