// How connections end, and what the agent does then.

import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

const retryMessage = 'not connected, will retry'

/** An agent that is connected to a hub of its own; disposing ends both and their folder. */
async function startConnected(heartbeatSeconds = 30) {
  const stack = new AsyncDisposableStack()
  const folder = stack.use(makeFolder())
  const hub = stack.use(await startFakeHub())
  hub.heartbeatSeconds = heartbeatSeconds
  await enrollAt(hub.url, folder.path)
  const agent = stack.use(startAgent(folder.path))
  const peer = await hub.welcomed()
  const file = (name: string) => join(folder.path, name)
  return { hub, agent, peer, file, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

test('close 4003 ends the agent with 3', async () => {
  await using t = await startConnected()
  t.peer.socket.close(4003)
  assert.equal(await t.agent.exited, 3)
})

test('a decommissioned device that dials is told by the plain request and ends with 3', async () => {
  await using t = await startConnected()
  t.hub.refusal = { status: 403, code: 'DEVICE_DECOMMISSIONED' }
  t.peer.socket.terminate()
  assert.equal(await t.agent.exited, 3)
  assert.equal(t.hub.plainRequests.length, 1)
})

test('close 4001 keeps the identity and waits the longest back-off', async () => {
  await using t = await startConnected()
  const token = readFileSync(t.file('token'), 'utf8')
  t.peer.socket.close(4001)
  const { delayMs } = await t.agent.logged(retryMessage)
  assert.ok(Number(delayMs) >= 24_000 && Number(delayMs) <= 30_000, `${Number(delayMs)} ms`)
  assert.equal(readFileSync(t.file('token'), 'utf8'), token)
  assert.equal(t.hub.enrolls.length, 1)
})

test('close 4004 and a suspended refusal wait 10 minutes', async () => {
  await using t = await startConnected()
  t.peer.socket.close(4004)
  const { delayMs } = await t.agent.logged(retryMessage)
  assert.ok(Number(delayMs) >= 600_000)
})

test('a refused token is learnt from the plain request; Retry-After is obeyed', async () => {
  await using t = await startConnected()
  t.hub.refusal = { status: 429, code: 'RATE_LIMITED', headers: { 'retry-after': '7' } }
  t.peer.socket.terminate()
  const refused = await until(
    () => t.agent.lines().filter(({ msg }) => msg === retryMessage)[1],
    'the refusal',
  )
  assert.deepEqual(refused['ending'], {
    type: 'refused',
    status: 429,
    code: 'RATE_LIMITED',
    retryAfterSeconds: 7,
  })
  assert.ok(Number(refused['delayMs']) >= 7000)
})

test('restart, overload, supersession and rate limits lead back with a short back-off', async () => {
  await using t = await startConnected()
  for (const [at, code] of [1012, 1013, 4002].entries()) {
    const peer = await t.hub.welcomed(at)
    peer.socket.close(code)
  }
  await t.hub.welcomed(3)
})

test('a hub that vanishes and returns is found again', async () => {
  await using t = await startConnected()
  t.peer.socket.terminate()
  const peer = await t.hub.welcomed(1)
  assert.ok(peer.frames.some(({ type }) => type === 'heartbeat'))
})

test('what the hub has not acknowledged comes first on a new connection', async () => {
  await using t = await startConnected()
  t.hub.acks = false
  const result = await t.hub.run('a', 'run_command', { command: 'echo out' })
  t.peer.socket.close(1012)
  const next = await t.hub.welcomed(1)
  await t.hub.run('b', 'ping')
  const told = next.frames.find(({ type }) => type === 'result')
  assert.deepEqual(told, result)
})

test('reconnect keeps the old socket until the new one serves', async () => {
  await using t = await startConnected()
  t.peer.send({ type: 'reconnect', afterMs: 200, reason: 'drain' })
  const next = await t.hub.welcomed(1)
  assert.equal(next.overlapped, true)
  await until(() => t.peer.closed === 1000, 'a polite close of the old socket')
  assert.equal((await t.hub.run('a', 'ping')).status, 'completed')
  assert.equal(t.hub.peers.length, 2)
})

test('while the new hub refuses, the old socket stays in use', async () => {
  await using t = await startConnected()
  t.hub.refusal = { status: 503, code: 'UNAVAILABLE' }
  t.peer.send({ type: 'reconnect', afterMs: 0, reason: 'drain' })
  await t.agent.logged(retryMessage)
  assert.equal((await t.hub.run('a', 'ping')).status, 'completed')
  t.hub.refusal = null
  await t.hub.welcomed(1)
  await until(() => t.peer.closed === 1000, 'the move')
})

test('a rotated token is used from the next connect and then replaces the old one', async () => {
  await using t = await startConnected()
  const token = `mst_${'n'.repeat(43)}`
  t.hub.tokens.add(token)
  t.peer.send({ type: 'token', agentToken: token })
  await until(() => existsSync(t.file('token.next')), 'the stored token')
  assert.notEqual(readFileSync(t.file('token'), 'utf8').trim(), token)
  t.peer.socket.close(1012)
  assert.equal((await t.hub.welcomed(1)).token, token)
  await until(() => readFileSync(t.file('token'), 'utf8').trim() === token, 'the new token')
  assert.equal(existsSync(t.file('token.next')), false)
})

test('a rotated token that the hub does not know gives way to the old one', async () => {
  await using t = await startConnected()
  t.peer.send({ type: 'token', agentToken: `mst_${'u'.repeat(43)}` })
  await until(() => existsSync(t.file('token.next')), 'the stored token')
  t.peer.socket.close(1012)
  const next = await t.hub.welcomed(1)
  assert.equal(next.token, t.peer.token)
})

test('heartbeats keep coming, and a hub that stops answering is left', async () => {
  await using t = await startConnected(0.2)
  await until(
    () => t.peer.frames.filter(({ type }) => type === 'heartbeat').length >= 5,
    'five beats',
  )
  assert.equal(t.hub.peers.length, 1)
  t.hub.heartbeatAcks = false
  await t.agent.logged('hub is silent, reconnecting')
  t.hub.heartbeatAcks = true
  await t.hub.welcomed(1)
})

test('unknown, broken and binary frames are dropped and harm nothing', async () => {
  await using t = await startConnected()
  const odd = ['nonsense', '[]', 'null', '{"type":"dance"}', '{"type":"command","id":"../x"}', '{}']
  for (const text of odd) t.peer.socket.send(text)
  t.peer.socket.send(Buffer.from([1, 2, 3]))
  t.peer.socket.send('{"type":"token","agentToken":"with\\nline breaks, which no header takes"}')
  assert.equal((await t.hub.run('a', 'ping')).status, 'completed')
  assert.equal(existsSync(t.file('token.next')), false)
})
