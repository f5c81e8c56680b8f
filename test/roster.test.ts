// Who is connected to a shard, while claims are under way: what becomes of a device that is claimed anew meanwhile.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import type { Logger } from '../src/log.ts'
import { closeCodes, type FrontMessage } from '../src/protocol.ts'
import type { Device, DeviceMessage } from '../workers/device_state.ts'
import type { FrontPost } from '../workers/front_post.ts'
import { Roster } from '../workers/roster.ts'
import { ShardClock } from '../workers/shard_clock.ts'
import type { Claim, Claimed, Store } from '../workers/store.ts'

const deviceId = newId()
const orgId = newId()

/** A roster whose claims wait until they are answered, each with a higher epoch, as PostgreSQL does. */
function rosterOf({ isFull = (): boolean => false } = {}) {
  const claims: Claim[] = []
  const told: { device: Device; message: DeviceMessage }[] = []
  const offline: number[] = []
  const renewed: number[] = []
  const closed: number[] = []
  const ended: string[] = []
  let epochs = 0
  const store = {
    claim: (claim: Claim) => !isFull() && claims.push(claim) > 0,
    offline: ({ epoch }: { epoch: number }) => !isFull() && offline.push(epoch) > 0,
    renewToken: ({ epoch }: { epoch: number }) => renewed.push(epoch),
  } as unknown as Store
  const roster = new Roster({
    data: { index: 0, count: 1, nodeId: newId() },
    // Shows the device online here with the epoch of its last claim, and takes that back.
    db: {
      query: (_text: string, [first, second]: string[]) => {
        if (second === undefined) return Promise.resolve([{ id: deviceId, epoch: String(epochs) }])
        ended.push(`${first} ${second}`)
        return Promise.resolve([])
      },
    } as unknown as Database,
    store,
    front: {
      tell: (message: FrontMessage) => message.type === 'close' && closed.push(message.code),
      flush: () => {},
    } as unknown as FrontPost,
    clock: new ShardClock(),
    log: {} as Logger,
    times: () => ({ nowMs: 0, stalledMs: 0, timeoutGraceMs: 0 }),
    run(device, message) {
      told.push({ device, message })
      if (message.type === 'claimed') device.epoch = message.epoch
    },
  })
  const connect = (conn: number, token: Claim['token'] = 'current') =>
    roster.connect({
      type: 'connect',
      deviceId,
      orgId,
      conn,
      ip: '192.0.2.1',
      resumed: false,
      token,
    })
  /** Commits the oldest claim. */
  const answer = () => {
    const claim = claims.shift()
    assert.ok(claim, 'no claim is under way')
    const nothing = { commands: [], high: [], terminals: [] } satisfies Partial<Claimed>
    roster.claimed({ claim, epoch: ++epochs, ...nothing })
  }
  const epoch = () => roster.find(deviceId)?.epoch
  const stored = () => epochs
  return { roster, claims, told, offline, renewed, closed, ended, connect, answer, epoch, stored }
}

test('a device that waits for its claim and is claimed anew writes with the last epoch, and is welcomed', () => {
  const { roster, claims, told, connect, answer, epoch, stored } = rosterOf()
  connect(1)
  const device = roster.find(deviceId)
  roster.reclaim()
  roster.reclaim()
  assert.equal(claims.length, 1, 'one at a time')
  answer()
  assert.equal(told.length, 0, 'what the first brings may be from before')
  answer()
  assert.equal(claims.length, 0)
  assert.deepEqual([epoch(), stored()], [2, 2])
  assert.equal(roster.find(deviceId), device)
  assert.deepEqual(
    told.map((one) => [one.device === device, one.message.type, one.device.resumed]),
    [[true, 'claimed', false]],
  )
})

test('one that is claimed begins again with a new epoch, over the same socket', () => {
  const { roster, claims, connect, answer, epoch } = rosterOf()
  connect(1)
  answer()
  roster.reclaim()
  assert.deepEqual([claims[0]?.conn, epoch()], [1, 0])
  answer()
  assert.equal(epoch(), 2)
  assert.equal(roster.at(1)?.resumed, true)
})

test('a socket that closes while it is claimed a second time leaves no presence behind', () => {
  const { roster, claims, offline, connect, answer } = rosterOf()
  connect(1)
  roster.reclaim()
  answer()
  roster.disconnect(1)
  answer()
  assert.deepEqual([offline, claims.length, roster.size], [[2], 0, 0])
})

test('a newer socket takes over while the older one is doubted', () => {
  const { roster, claims, offline, connect, answer, epoch } = rosterOf()
  connect(1)
  roster.reclaim()
  connect(2)
  answer()
  answer()
  assert.deepEqual([epoch(), roster.find(deviceId)?.conn, roster.at(1)], [2, 2, undefined])
  assert.deepEqual([offline, claims.length], [[], 0])
})

test('an old token is still renewed, one that was taken with the first claim is not taken twice', () => {
  for (const [token, again, renewals] of [
    ['old', 'old', [2]],
    ['next', 'current', []],
  ] as const) {
    const { roster, claims, renewed, connect, answer } = rosterOf()
    connect(1, token)
    roster.reclaim()
    answer()
    assert.equal(claims[0]?.token, again)
    answer()
    assert.deepEqual(renewed, renewals)
  }
})

test('past the bound of claims a socket is closed, and nobody is shown online for it', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let isFull = false
  const { roster, closed, ended, connect, answer } = rosterOf({ isFull: () => isFull })
  connect(1)
  answer()
  isFull = true
  roster.reclaim()
  assert.deepEqual([closed, roster.size, ended], [[closeCodes.overloaded], 0, []])
  t.mock.timers.tick(limits.doubtMs)
  await new Promise(setImmediate)
  assert.deepEqual(ended, [`{${deviceId}} {1}`])
})

test('an end that is past the bound is found by comparing', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { roster, ended } = rosterOf({ isFull: () => true })
  roster.left({ deviceId, epoch: 0, atMs: 0, metrics: null, agentVersion: null })
  t.mock.timers.tick(limits.doubtMs)
  await new Promise(setImmediate)
  assert.deepEqual(ended, [`{${deviceId}} {0}`])
})
