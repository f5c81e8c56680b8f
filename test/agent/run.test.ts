// The running agent against a hub: connecting, staying, moving, leaving.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { enrollAt, makeFolder, runCli, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

test('run connects at once, beats, sends its inventory and ends with 0 on SIGTERM', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path)
  const peer = await hub.welcomed()
  assert.equal(peer.subprotocol, 'muster.v1')
  const beat =
    peer.frames.find((frame) => frame.type === 'heartbeat') ?? assert.fail('no heartbeat')
  assert.equal(typeof beat.seq, 'number')
  assert.equal(typeof beat.metrics?.memoryPercent, 'number')
  assert.equal(typeof beat.metrics?.diskPercent, 'number')
  const inventory = await until(
    () => peer.frames.find(({ type }) => type === 'inventory'),
    'inventory',
  )
  assert.ok('software' in inventory && 'hardware' in inventory && 'network' in inventory)
  assert.ok(Buffer.byteLength(JSON.stringify(inventory)) <= 256 * 1024)
  assert.equal(await agent.kill('SIGTERM'), 0)
  await until(() => peer.closed === 1000, 'a polite close')
  const [token] = hub.tokens
  assert.ok(!JSON.stringify(agent.lines()).includes(String(token)), 'the token is in the log')
  assert.equal(agent.stderr(), '')
})

test('run_command answers output and exit code, and a failing one is failed', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using _agent = startAgent(folder.path)
  await hub.welcomed()
  const good = await hub.run('c1', 'run_command', { command: 'echo out; echo err >&2' })
  assert.deepEqual(
    [good.status, good.exitCode, good.stdout, good.stderr, good.error, good.truncated],
    ['completed', 0, 'out\n', 'err\n', null, false],
  )
  const types = hub
    .frames()
    .flatMap((frame) => ('id' in frame && frame.id === 'c1' ? frame.type : []))
  assert.deepEqual(
    types.filter((type) => type !== 'progress'),
    ['delivered', 'started', 'result'],
  )
  const bad = await hub.run('c2', 'run_command', { command: 'exit 7', shell: 'bash' })
  assert.deepEqual([bad.status, bad.exitCode], ['failed', 7])
  const ping = await hub.run('c3', 'ping')
  assert.equal(ping.status, 'completed')
  const odd = await hub.run('c4', 'constructor')
  assert.deepEqual([odd.status, odd.error], ['failed', 'unsupported action "constructor"'])
  const shell = await hub.run('c5', 'run_command', { command: 'x', shell: 'fish' })
  assert.match(String(shell.error), /shell must be one of/)
})

test('status tells what is true, for people and as JSON', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const before = await runCli(['status', '--state', folder.path])
  assert.equal(before.code, 1)
  assert.match(before.stdout, /not enrolled/)
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path)
  await agent.logged('connected')
  const during = JSON.parse((await runCli(['status', '--json', '--state', folder.path])).stdout)
  assert.deepEqual([during.running, during.pid, during.connected], [true, agent.pid, true])
  await agent.kill('SIGINT')
  const after = await runCli(['status', '--state', folder.path])
  assert.equal(after.code, 0)
  assert.match(after.stdout, /not running/)
})
