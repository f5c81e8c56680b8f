// The actor against a small world of its own: a PostgreSQL of one map, an agent that runs an id once, and
// a front that may lose a socket at any point. Whatever the order of events, the invariants hold.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { step } from '../workers/device.ts'
import { find } from '../workers/device_queue.ts'
import {
  openDevice,
  type Device,
  type DeviceMessage,
  type Effect,
  type End,
  type OpenCommand,
} from '../workers/device_state.ts'
import type { AgentFrame, ResultStatus } from '../src/protocol.ts'

const rules = {
  heartbeatTimeoutMs: 75_000,
  timeoutGraceMs: 30_000,
  presenceFlushMs: 60_000,
  thresholds: {},
}

interface Stored {
  command: OpenCommand
  ends: number
  status: string
  cancelRequested: boolean
}

interface Write {
  epoch: number
  id: string
  end: End | null
  stage: string
  attempts: number
  /** Its shard died: PostgreSQL commits it, and nobody hears of that. */
  orphaned?: boolean
}

/** Everything around the actor, kept as simple as it can be. */
class World {
  nowMs = 1_000_000
  conn = 0
  epoch = 0
  connected = false
  device: Device | undefined
  /** The snapshot of a claim under way, or null. */
  claiming: Stored[] | null = null
  readonly rows = new Map<string, Stored>()
  /** Told commits on their way to the actor, in any order. */
  told: string[] = []
  /** Frames at the front that are not confirmed as written. */
  atFront: { conn: number; id: string }[] = []
  /** The agent: ids it holds, how often it ran each, results it has not seen acked. */
  readonly agentHas = new Set<string>()
  readonly runs = new Map<string, number>()
  readonly results = new Map<string, ResultStatus>()
  readonly unacked = new Map<string, ResultStatus>()
  readonly reported = new Set<string>()
  writes: Write[] = []
  /** What PostgreSQL said of commands that were looked for, on its way to the actor. */
  gone: string[] = []
  /** Commands that are asked for: by whom, what was read of each, once it was, and whether more has happened since. */
  checks = new Map<string, { asker: Device; read?: OpenCommand | null; stale: boolean }>()
  /** Cancels that no actor could take: PostgreSQL is about to end what waits. */
  cancels: string[] = []
  /** A statement that found its epoch to be the device's, and is not committed yet. */
  underWay: Write | undefined
  accepted = 0
  /** What is being cancelled. */
  cancelled = ''

  /** What heartbeats of the present connection named. */
  heard = new Set<string>()

  accept(concurrent: boolean, upgrade: boolean): void {
    const id = String(++this.accepted).padStart(6, '0')
    const command: OpenCommand = {
      id,
      action: upgrade ? 'upgrade_agent' : 'run_command',
      payload: upgrade ? '{"version":"2"}' : '{}',
      timeoutSeconds: 10,
      createdMs: this.nowMs,
      expiresMs: this.nowMs + 600_000,
      awaited: false,
      executionId: null,
      concurrent,
      stage: 'pending',
      attempts: 0,
      dueMs: this.nowMs + 600_000,
      cancelRequested: false,
      reported: false,
      late: null,
    }
    this.rows.set(id, { command, ends: 0, status: 'pending', cancelRequested: false })
    this.told.push(id)
  }

  connect(resumed: boolean): void {
    this.conn++
    this.connected = true
    this.device = openDevice(
      { deviceId: 'd', orgId: 'o', conn: this.conn, resumed },
      this.nowMs,
      this.nowMs + 60_000,
    )
    this.claiming = []
    this.heard = new Set()
  }

  beat(version: string): void {
    if (!this.connected) return
    this.heard.add(version)
    this.run({ type: 'frame', frame: { type: 'heartbeat', agentVersion: version }, bytes: 0 })
  }

  /** The claim commits: its snapshot is what the rows hold at this very moment. */
  claim(): void {
    if (this.claiming === null || this.device === undefined) return
    this.claiming = null
    this.epoch++
    const open = [...this.rows.values()].filter((row) => row.ends === 0)
    const loaded = () => ({ lookMs: this.nowMs + 1000, gapMs: 2000 })
    const commands = open.map((row) => ({ ...this.stored(row), loaded: loaded() }))
    this.run({ type: 'claimed', epoch: this.epoch, atMs: this.nowMs, commands, high: 0 })
  }

  close(): void {
    if (!this.connected || this.device === undefined) return
    this.connected = false
    this.run({ type: 'closed' })
    this.device = undefined
    this.claiming = null
  }

  /** The shard thread dies: what it held and had not written is gone; the socket stays. */
  crash(): void {
    this.writes = []
    this.gone = []
    this.checks.clear()
    if (this.underWay) this.underWay.orphaned = true
    this.told = this.told.filter(() => false)
    if (!this.connected) return
    const conn = this.conn
    this.connect(true)
    this.conn = conn
    if (this.device) this.device.conn = conn
  }

  tellNext(index: number): void {
    const [id] = this.told.splice(index % Math.max(1, this.told.length), 1)
    const row = id === undefined ? undefined : this.rows.get(id)
    if (row !== undefined) this.run({ type: 'command', command: row.command })
  }

  frontWrites(): void {
    const frame = this.atFront.shift()
    if (frame === undefined || frame.conn !== this.conn || !this.connected) return
    this.run({ type: 'sent', id: frame.id })
    this.agentHas.add(frame.id)
    // What ran before is answered again, at once.
    const result = this.results.get(frame.id)
    if (result === undefined) return
    this.unacked.set(frame.id, result)
    this.run({ type: 'frame', frame: { type: 'result', id: frame.id, status: result }, bytes: 0 })
  }

  agentSays(kind: 'delivered' | 'started' | 'result', index: number, status: ResultStatus): void {
    const ids = [...this.agentHas]
    const id = ids[index % Math.max(1, ids.length)]
    if (!this.connected || id === undefined) return
    if (kind === 'result' && !this.runs.has(id)) {
      this.runs.set(id, 1)
      this.results.set(id, status)
      this.unacked.set(id, status)
    }
    const held = this.unacked.get(id)
    if (kind === 'result' && held === undefined) return
    if (kind === 'result') this.reported.add(id)
    const frame: AgentFrame =
      kind === 'result' ? { type: 'result', id, status: held ?? status } : { type: kind, id }
    this.run({ type: 'frame', frame, bytes: 0 })
  }

  cancel(index: number): void {
    const ids = [...this.rows.keys()]
    const id = ids[index % Math.max(1, ids.length)]
    if (id === undefined) return
    const row = this.rows.get(id)
    if (row === undefined || row.ends > 0) return
    // Commands and cancels are told in the order in which they were asked for.
    const told = this.told.indexOf(id)
    if (told !== -1) this.tellNext(told)
    row.cancelRequested = true
    this.cancelled = id
    if (this.device) this.run({ type: 'cancel', id, ask: 1 })
    else this.cancels.push(id)
  }

  /** No actor holds it: the hub ends it where it waits. */
  cancelPending(): void {
    const row = this.rows.get(this.cancels.shift() ?? '')
    if (row?.status !== 'pending' || row.ends > 0) return
    row.ends++
    row.status = 'cancelled'
  }

  /** A front asks, since a caller repeats a command or its commit is in doubt; or it was handed over. */
  ask(index: number): void {
    const { device } = this
    const id = [...this.rows.keys()][index % Math.max(1, this.rows.size)]
    if (device === undefined || id === undefined || find(device, id) !== undefined) return
    // Whoever tells of a commit does so before anybody else can know of it here.
    if (this.told.includes(id)) return
    this.run({ type: 'ask', id })
  }

  /** A row as a claim or a check finds it. */
  stored(row: Stored): OpenCommand {
    return {
      ...row.command,
      stage: row.status as OpenCommand['stage'],
      cancelRequested: row.cancelRequested,
      reported: false,
      late: null,
    }
  }

  /** The store's check of a command: it reads, and then tells what it read, unless that is out of date. */
  check(): void {
    const [id, check] = [...this.checks][0] ?? []
    if (id === undefined || check === undefined) return
    const row = this.rows.get(id)
    assert.ok(row)
    if (check.read === undefined) {
      check.read = row.ends === 0 ? this.stored(row) : null
      return
    }
    this.checks.delete(id)
    const { asker, stale, read } = check
    if (stale) this.checks.set(id, { asker, stale: false })
    else if (asker === this.device) this.run({ type: 'checked', id, command: read })
  }

  /** The next statement begins, and sees which connection is the device's. */
  begin(): void {
    if (this.underWay !== undefined) return
    const write = this.writes.shift()
    if (write?.epoch === this.epoch) this.underWay = write
  }

  /** It commits; a claim that was committed in between has loaded its row as it was before. */
  commit(): void {
    this.begin()
    const write = this.underWay
    if (write === undefined) return
    this.underWay = undefined
    const row = this.rows.get(write.id)
    assert.ok(row)
    if (row.ends === 0) {
      row.command.attempts = Math.max(row.command.attempts, write.attempts)
      row.status = write.end?.status ?? write.stage
      if (write.end !== null) row.ends++
    }
    if (write.end === null) return
    this.outdate(write.id)
    if (this.device?.epoch === write.epoch) this.run({ type: 'committed', id: write.id })
    // The actor of the earlier connection, on another hub, does not know of this one, and acknowledges.
    else if (!write.orphaned) this.unacked.delete(write.id)
  }

  outdate(id: string): void {
    const check = this.checks.get(id)
    if (check) check.stale = true
  }

  tellGone(): void {
    const id = this.gone.shift()
    if (id === undefined) return
    this.outdate(id)
    this.run({ type: 'gone', id })
  }

  tick(ms: number): void {
    this.nowMs += ms
    if (this.device) this.run({ type: 'tick' })
  }

  run(message: DeviceMessage): void {
    const { device } = this
    if (device === undefined) return
    for (const effect of step(device, message, this.nowMs, rules))
      this.apply(device, effect, message)
  }

  apply(device: Device, effect: Effect, cause: DeviceMessage): void {
    switch (effect.type) {
      case 'send': {
        this.mayBeSent(effect.command)
        this.atFront.push({ conn: device.conn, id: effect.command.id })
        return
      }
      case 'progress': {
        const { id, attempts } = effect.command
        const { stage } = effect
        if (stage === 'sent') assert.equal(cause.type, 'sent', 'sent without a written frame')
        this.writes.push({ epoch: device.epoch, id, end: null, stage, attempts })
        return
      }
      case 'end': {
        const { id, attempts } = effect.command
        const twice = this.writes.some(
          (write) => write.id === id && write.end && write.epoch === device.epoch,
        )
        assert.ok(!twice, 'two ends of one command on one connection')
        if (effect.command.action === 'upgrade_agent' && effect.end.status === 'completed') {
          assert.ok(this.heard.has('2'), 'an upgrade is completed that no heartbeat proves')
        }
        this.writes.push({ epoch: device.epoch, id, end: effect.end, stage: '', attempts })
        return
      }
      case 'ack': {
        const row = this.rows.get(effect.id)
        assert.ok(row && row.ends === 1, 'acked before the end was committed')
        assert.ok(this.reported.has(effect.id), 'acked what the agent never reported')
        this.unacked.delete(effect.id)
        return
      }
      case 'stray':
        // The store looks it up, keeps it as a late result, and acks.
        assert.equal(
          this.rows.get(effect.frame.id)?.ends ?? 1,
          1,
          'an open command taken for a stray',
        )
        this.unacked.delete(effect.frame.id)
        return
      case 'check':
        this.checks.set(effect.id, {
          ...this.checks.get(effect.id),
          asker: device,
          stale: this.checks.has(effect.id),
        })
        return
      case 'answer':
        if (effect.value === 'unknown') this.cancels.push(this.cancelled)
        return
      case 'look':
        if (this.rows.get(effect.id)?.ends === 1) this.gone.push(effect.id)
        return
      case 'close':
        this.close()
        return
      case 'offline':
        assert.equal(this.connected, false)
        return
      default:
        return
    }
  }

  /** FIFO: every earlier command that is not concurrent has its end in PostgreSQL. */
  mayBeSent(command: OpenCommand): void {
    assert.ok(this.claiming === null, 'sent before the claim was committed')
    // One that was loaded may have ended while it was; its agent has it then.
    const own = this.rows.get(command.id)
    if (command.loaded === undefined)
      assert.equal(own?.ends, 0, `${command.id} was sent after its end`)
    assert.ok(!own?.cancelRequested, `${command.id} was sent after it was cancelled`)
    assert.ok(this.nowMs < command.dueMs, `${command.id} was sent after it had expired`)
    if (command.concurrent) return
    // Also of one that was accepted later and told earlier.
    const outstanding = new Set(['sending', 'sent', 'delivered', 'running'])
    for (const { id, concurrent, stage } of this.device?.commands ?? []) {
      if (concurrent || id === command.id) continue
      assert.ok(!outstanding.has(stage), `${command.id} was sent while ${id} is ${stage}`)
    }
    for (const [id, row] of this.rows) {
      if (id >= command.id || row.command.concurrent) continue
      // Nobody has told the actor of it yet.
      if (this.told.includes(id)) continue
      assert.equal(row.ends, 1, `${command.id} was sent while ${id} is open`)
    }
  }

  /** Lets everything come to rest with an agent that works, before any deadline of a run is over. */
  settle(): void {
    if (!this.connected) this.connect(false)
    for (let second = 0; second < this.rows.size + 35; second++) {
      this.claim()
      while (this.told.length > 0) this.tellNext(0)
      while (this.gone.length > 0) this.tellGone()
      while (this.cancels.length > 0) this.cancelPending()
      while (this.checks.size > 0) this.check()
      while (this.writes.length > 0 || this.underWay) this.commit()
      while (this.atFront.length > 0) this.frontWrites()
      this.beat('2')
      for (let index = 0; index < this.agentHas.size; index++)
        this.agentSays('result', index, 'completed')
      while (this.writes.length > 0) this.commit()
      if (!this.connected) this.connect(false)
      const ended = [...this.rows.values()].every((row) => row.ends === 1)
      if (ended && (this.device?.commands ?? null) === null) return
      // An agent that lost nothing may still hold an id it was asked to cancel.
      if (this.device) this.device.heardMs = this.nowMs
      this.tick(1000)
    }
    assert.fail('a command never ended, or its actor never learned of it')
  }
}

const steps = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('accept' as const),
      concurrent: fc.boolean(),
      upgrade: fc.boolean(),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('beat' as const), version: fc.constantFrom('1', '2') }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('connect' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('claim' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('close' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('crash' as const) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('tell' as const), index: fc.nat(5) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('front' as const) }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('agent' as const),
      kind: fc.constantFrom('delivered' as const, 'started' as const, 'result' as const),
      index: fc.nat(10),
      status: fc.constantFrom('completed' as const, 'failed' as const, 'cancelled' as const),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('cancel' as const), index: fc.nat(10) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('begin' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('gone' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('check' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('ask' as const), index: fc.nat(10) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('cancelPending' as const) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('commit' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('tick' as const), ms: fc.nat(50_000) }) },
)

test('any interleaving keeps one end per command, FIFO, honest states, proved upgrades and a bounded actor', () => {
  fc.assert(
    fc.property(fc.array(steps, { maxLength: 120, size: 'max' }), (plan) => {
      const world = new World()
      for (const event of plan) {
        if (event.do === 'accept') world.accept(event.concurrent, event.upgrade)
        else if (event.do === 'beat') world.beat(event.version)
        else if (event.do === 'connect') world.connect(false)
        else if (event.do === 'claim') world.claim()
        else if (event.do === 'close') world.close()
        else if (event.do === 'crash') world.crash()
        else if (event.do === 'tell') world.tellNext(event.index)
        else if (event.do === 'front') world.frontWrites()
        else if (event.do === 'agent') world.agentSays(event.kind, event.index, event.status)
        else if (event.do === 'cancel') world.cancel(event.index)
        else if (event.do === 'begin') world.begin()
        else if (event.do === 'gone') world.tellGone()
        else if (event.do === 'check') world.check()
        else if (event.do === 'ask') world.ask(event.index)
        else if (event.do === 'cancelPending') world.cancelPending()
        else if (event.do === 'commit') world.commit()
        else world.tick(event.ms)
        assert.ok((world.device?.commands?.length ?? 0) <= world.rows.size)
        assert.ok((world.device?.held?.messages.length ?? 0) <= plan.length)
      }
      world.settle()
      for (const [id, row] of world.rows) assert.equal(row.ends, 1, `${id} ended ${row.ends} times`)
      for (const [id, runs] of world.runs) assert.equal(runs, 1, `${id} ran ${runs} times`)
      assert.equal(world.device?.commands ?? null, null, 'an ended command stays in memory')
      assert.equal(world.device?.asked ?? null, null, 'an actor waits for an answer for ever')
    }),
    { numRuns: Number(process.env['PROPERTY_RUNS'] ?? 2000) },
  )
})
