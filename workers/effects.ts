// Carries out what actors ask for: frames and news through the front, rows through the store. Decides nothing about
// devices.
import { setTimeout as sleep } from 'node:timers/promises'
import { limits } from '../src/limits.ts'
import type { Observations } from './observations.ts'
import { reportedAlert } from './alert_writes.ts'
import { endWrite, stateWrite } from './command_forms.ts'
import type { Device, Effect } from './device_state.ts'
import type { FrontPost } from './front_post.ts'
import type { Roster } from './roster.ts'
import type { ScriptFrames } from './script_frames.ts'
import type { ShardClock } from './shard_clock.ts'
import type { Seen, Store } from './store.ts'
import { crossingWrite } from './thresholds.ts'

export interface EffectsOptions {
  front: FrontPost
  store: Store
  roster: Roster
  scripts: ScriptFrames<Device>
  observed: Observations
  clock: ShardClock
  heartbeatSeconds: number
}

/** An effect of one kind. */
type Of<Type extends Effect['type']> = Extract<Effect, { type: Type }>

export class Effects {
  private readonly options: EffectsOptions

  constructor(options: EffectsOptions) {
    this.options = options
  }

  apply(device: Device, effect: Effect): void {
    const { front, store, roster, scripts, clock } = this.options
    switch (effect.type) {
      case 'welcome':
        return front.frame(device, {
          type: 'welcome',
          serverTime: new Date(clock.nowMs).toISOString(),
          heartbeatIntervalSeconds: this.options.heartbeatSeconds,
        })
      case 'send':
        if (effect.command.executionId !== null) return scripts.push(device, effect.command)
        return front.command(device, effect.command, effect.command.payload)
      case 'cancel':
      case 'ack':
        return front.frame(device, { type: effect.type, id: effect.id })
      case 'heartbeat_ack':
        return front.frame(device, { type: 'heartbeat_ack', seq: effect.seq })
      case 'close':
        return roster.close(device, effect.code, effect.reason)
      case 'offline':
        if (device.epoch === 0) return
        // A hub that goes down says what it heard last, and leaves the status to the next one.
        if (roster.leaving) return store.seen(this.seenOf(device, effect))
        return roster.left(this.seenOf(device, effect))
      case 'seen':
        return store.seen(this.seenOf(device, effect))
      case 'progress':
        return this.writeState(device, effect)
      case 'end':
        return store.commands.push(endWrite(device, effect, clock.nowMs))
      case 'stray':
        return this.keepStray(device, effect)
      case 'check':
        return store.checks.check(device, effect.id)
      case 'look':
        return store.checks.look(device.id, effect.id)
      case 'inventory':
        return this.writeInventory(device, effect)
      case 'answer':
        return this.answer(effect)
      case 'alert':
        return store.alert({ raise: reportedAlert(device, effect.frame) })
      case 'crossing':
        return store.alert(crossingWrite(device, effect.crossing))
      case 'phase':
        return store.phase({ deviceId: device.id, epoch: device.epoch, ...effect })
    }
  }

  private seenOf(device: Device, effect: Pick<Seen, 'metrics' | 'agentVersion'>): Seen {
    const { metrics, agentVersion } = effect
    const atMs = device.heardMs + this.options.clock.stalledMs
    return { deviceId: device.id, epoch: device.epoch, atMs, metrics, agentVersion }
  }

  private writeState(device: Device, { command, stage }: Of<'progress'>): void {
    const { clock, observed, store } = this.options
    if (stage === 'delivered') observed.delivered(clock.nowMs - command.createdMs)
    store.commands.push(stateWrite(device, command, stage, clock.nowMs))
  }

  private answer({ ask, value, after }: Of<'answer'>): void {
    const { front, store } = this.options
    if (after === undefined) return front.tell({ type: 'answer', ask, value })
    const settled = store.commands.settled(after)
    void Promise.race([settled, sleep(limits.cancelSettleMsMax)]).then(() => {
      front.tell({ type: 'answer', ask, value })
      front.flush()
    })
  }

  private keepStray(device: Device, { frame }: Of<'stray'>): void {
    const { front, store } = this.options
    // Terminals' ids are no commands: answered without a look at the table.
    if (frame.id.startsWith('term-')) front.frame(device, { type: 'ack', id: frame.id })
    else store.strays.add(device.id, device.orgId, frame)
  }

  private writeInventory(device: Device, { frame }: Of<'inventory'>): void {
    const { type: _type, ...parts } = frame
    this.options.store.inventory(device.id, JSON.stringify(parts))
  }
}
