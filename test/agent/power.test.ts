// What ends the agent or the device: announced first, done after the ack.

import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { startTimeOf } from '../../agent/processes.ts'
import { enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

test('reboot is announced, waits for the ack, then runs the replaced command', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const mark = join(folder.path, 'rebooted')
  await enrollAt(hub.url, folder.path)
  hub.acks = false
  await using agent = startAgent(folder.path, [], { MUSTER_AGENT_REBOOT_COMMAND: `touch ${mark}` })
  await hub.welcomed()
  const result = await hub.run('a', 'reboot')
  assert.deepEqual([result.status, result.data], ['completed', { scheduled: true }])
  // A round trip later it still waits.
  await hub.run('b', 'ping')
  assert.equal(existsSync(mark), false)
  assert.ok(!agent.lines().some(({ msg }) => msg === 'power command starts'))
  hub.peers[0]?.send({ type: 'ack', id: 'a' })
  await until(() => existsSync(mark), 'the reboot')
})

test('a hub that never acknowledges delays a shutdown by five seconds, no longer', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const mark = join(folder.path, 'off')
  await enrollAt(hub.url, folder.path)
  hub.acks = false
  await using agent = startAgent(folder.path, [], {
    MUSTER_AGENT_SHUTDOWN_COMMAND: `touch ${mark}`,
  })
  await hub.welcomed()
  await hub.run('a', 'shutdown', { delaySeconds: 0 })
  const waited = await until(() => existsSync(mark) && agent.lines(), 'the shutdown')
  const at = (msg: string) => Date.parse(waited.find((line) => line.msg === msg)?.time ?? '')
  const waitMs = at('power command starts') - at('command ended')
  assert.ok(waitMs >= 4900 && waitMs < 8000, `${waitMs} ms`)
})

test('restart_agent under a supervisor comes back as a new process', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, ['--supervised'])
  await hub.welcomed()
  const { pid: before } = await agent.logged('agent starts')
  assert.notEqual(before, agent.pid)
  assert.equal((await hub.run('a', 'restart_agent')).status, 'completed')
  await hub.welcomed(1)
  const starts = agent.lines().filter(({ msg }) => msg === 'agent starts')
  assert.equal(starts.length, 2)
  assert.notEqual(starts[1]?.['pid'], before)
  assert.equal(await agent.kill('SIGTERM'), 0)
  assert.equal(hub.results('a').length, 1)
})

test('a supervisor starts a killed agent again, and passes a decommissioning on', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, ['--supervised'])
  await hub.welcomed()
  process.kill(Number((await agent.logged('agent starts'))['pid']), 'SIGKILL')
  const peer = await hub.welcomed(1)
  peer.socket.close(4003)
  assert.equal(await agent.exited, 3)
})

test('an agent whose supervisor was killed ends too', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, ['--supervised'])
  await hub.welcomed()
  const { pid } = await agent.logged('agent starts')
  process.kill(agent.pid, 'SIGKILL')
  await until(async () => (await startTimeOf(Number(pid))) === null, 'the end of the child')
})

test('restart_agent without a supervisor starts a successor', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, [], { INVOCATION_ID: '' })
  await hub.welcomed()
  await hub.run('a', 'restart_agent')
  await hub.welcomed(1)
  const pids = agent.lines().flatMap(({ msg, pid }) => (msg === 'agent starts' ? Number(pid) : []))
  assert.equal(new Set(pids).size, 2)
  process.kill(pids[1] as number, 'SIGTERM')
  await until(async () => (await startTimeOf(pids[1] as number)) === null, 'the successor to end')
})

test('uninstall_agent runs its command and ends with 0', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const mark = join(folder.path, 'gone')
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, [], {
    MUSTER_AGENT_UNINSTALL_COMMAND: `touch ${mark}`,
  })
  await hub.welcomed()
  assert.deepEqual((await hub.run('a', 'uninstall_agent')).data, { scheduled: true })
  assert.equal(await agent.exited, 0)
  await until(() => existsSync(mark), 'the uninstallation')
})
