// A commit whose answer is lost: the caller hears that nothing is certain, and the actor looks for itself.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Actor } from '../src/auth.ts'
import { Commands, type NewCommand } from '../src/commands.ts'
import { isConnectionFailure, type Database, type Queryable } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import type { Shards } from '../src/shards.ts'

const actor = {
  userId: 'u',
  orgId: null,
  siteIds: null,
  email: 'a@example.com',
} as unknown as Actor
const command: NewCommand = {
  deviceId: 'd',
  action: 'ping',
  payload: '{}',
  timeoutSeconds: 300,
  expiresInSeconds: 60,
  idempotencyKey: null,
  awaited: false,
  actor,
  ip: '192.0.2.1',
  userAgent: null,
  requestId: 'r',
}

function commandsWith(query: Queryable['query']) {
  const checked: string[][] = []
  const shards = {
    onEnded: () => {},
    tellCommand: () => assert.fail('told of what nobody knows to be committed'),
    check: (deviceId: string, id: string) => void checked.push([deviceId, id]),
  }
  const commands = new Commands({
    nodeId: 'n',
    db: { query } as Database,
    shards: shards as unknown as Shards,
    onHanded: () => {},
    onAccepted: () => {},
  })
  return { commands, checked }
}

test('when no answer came, the actor is to look for each command of the batch', async () => {
  const { commands, checked } = commandsWith(() =>
    Promise.reject(new AppError('UNAVAILABLE', 'the connection broke')),
  )
  const both = [
    { ...command, deviceId: 'a' },
    { ...command, deviceId: 'b' },
  ]
  for (const one of both) {
    await assert.rejects(commands.accept(one), { code: 'UNAVAILABLE' })
  }
  assert.deepEqual(
    checked.map(([deviceId]) => deviceId),
    ['a', 'b'],
  )
})

test('when the statement was not begun, there is nothing to look for', async () => {
  const { commands, checked } = commandsWith(() =>
    Promise.reject(new AppError('OVERLOADED', 'the hub is busy')),
  )
  await assert.rejects(commands.accept(command), { code: 'OVERLOADED' })
  assert.deepEqual(checked, [])
})

test('a repeat has the actor look for the command that came first, while it is open', async () => {
  for (const ended of [true, false]) {
    const first = { n: 0, same: true, id: 'first', ended, createdMs: 0, expiresMs: 1 }
    let asked = 0
    const { commands, checked } = commandsWith((async () =>
      asked++ === 0 ? [] : [first]) as unknown as Queryable['query'])
    const accepted = await commands.accept({ ...command, idempotencyKey: 'k' })
    assert.deepEqual([accepted.id, accepted.fresh], ['first', false])
    assert.deepEqual(checked, ended ? [] : [['d', 'first']])
  }
})

test('a request that comes while the hub goes down does not wait for an end', async () => {
  const { commands } = commandsWith(() => Promise.resolve([]))
  commands.release()
  assert.equal(await commands.ended('id', 60, () => {}), undefined)
})

test('a refused sign-in or certificate is an outage, bad data and bugs are none', () => {
  const coded = (code: string) => Object.assign(new Error('refused'), { code })
  for (const code of [
    '28P01',
    '28000',
    '3D000',
    '08006',
    '57P01',
    '25P03',
    '25P04',
    '58030',
    'CERT_HAS_EXPIRED',
  ]) {
    assert.ok(isConnectionFailure(coded(code)), code)
  }
  assert.ok(isConnectionFailure(new Error('Query read timeout')))
  for (const code of ['22P05', '23505', '42P01', 'ERR_INVALID_ARG_TYPE']) {
    assert.ok(!isConnectionFailure(coded(code)), code)
  }
})
