// What an agent that was killed finds when it comes back. Nothing runs twice, nothing is forgotten.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { startTimeOf } from '../../agent/processes.ts'
import { enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

test('after SIGKILL mid-command the orphan dies and is reported interrupted exactly once', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const state = join(folder.path, 'state')
  const mark = join(folder.path, 'runs')
  await enrollAt(hub.url, state)
  await using first = startAgent(state)
  await hub.welcomed()
  hub.command('a', 'run_command', {
    command: `echo $$ >> ${mark}; sleep 300; echo late >> ${mark}`,
  })
  hub.command('b', 'run_command', { command: `echo b >> ${mark}` })
  const pid = Number(
    await until(() => existsSync(mark) && readFileSync(mark, 'utf8'), 'the command'),
  )
  await hub.seen('delivered', 'b')
  await first.kill('SIGKILL')
  assert.notEqual(await startTimeOf(pid), null)

  await using second = startAgent(state)
  const interrupted = await hub.result('a')
  assert.deepEqual([interrupted.status, interrupted.error], ['failed', 'interrupted'])
  await until(async () => (await startTimeOf(pid)) === null, 'the orphan to die')
  // Delivered but not started before the crash: it runs now, once.
  assert.equal((await hub.result('b')).status, 'completed')
  assert.equal(readFileSync(mark, 'utf8'), `${pid}\nb\n`)
  // A round trip later it has taken the acks; before that it would rightly tell the next life to repeat them.
  await hub.run('c', 'ping')
  await second.kill('SIGTERM')

  await using _third = startAgent(state)
  await hub.welcomed(2)
  await hub.run('d', 'ping')
  assert.equal(hub.results('a').length, 1)
  assert.equal(hub.results('b').length, 1)
})

test('children that outlive their killed shell are found by their mark', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const state = join(folder.path, 'state')
  const mark = join(folder.path, 'pid')
  await enrollAt(hub.url, state)
  await using first = startAgent(state)
  await hub.welcomed()
  hub.command('a', 'run_command', { command: `sleep 300 & echo $! $$ > ${mark}; wait` })
  const text = await until(
    () => existsSync(mark) && readFileSync(mark, 'utf8').trim(),
    'the command',
  )
  // 0 would be the process group of the tests themselves.
  const [child = NaN, shell = NaN] = text.split(' ').map(Number)
  await first.kill('SIGKILL')
  process.kill(shell, 'SIGKILL')
  await until(async () => (await startTimeOf(shell)) === null, 'the shell to die')
  await using _second = startAgent(state)
  await hub.result('a')
  await until(async () => (await startTimeOf(child)) === null, 'the child to die')
})

test('a recorded pid that now is another process is left alone', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  // A group of its own, as a command's would be: only the start time tells it apart.
  const bystander = spawn('sleep', ['60'], { detached: true, stdio: 'ignore' })
  const pid = bystander.pid as number
  const command = {
    type: 'command',
    id: 'a',
    action: 'run_command',
    payload: {},
    attempt: 1,
    timeoutSeconds: 9,
  }
  const records = [
    { type: 'command', command, at: 1 },
    { type: 'started', id: 'a', at: 2 },
    { type: 'process', id: 'a', process: { pid, startTime: 'another life' } },
  ]
  writeFileSync(
    join(folder.path, 'journal.jsonl'),
    records.map((r) => `${JSON.stringify(r)}\n`).join(''),
  )
  await using _agent = startAgent(folder.path)
  assert.equal((await hub.result('a')).error, 'interrupted')
  assert.equal(bystander.exitCode ?? bystander.signalCode, null)
  assert.notEqual(await startTimeOf(pid), null)
  bystander.kill('SIGKILL')
  await once(bystander, 'exit')
})

test('a torn last line of the journal is dropped, the rest counts', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  hub.acks = false
  await using first = startAgent(folder.path)
  await hub.welcomed()
  await hub.run('a', 'run_command', { command: 'echo kept' })
  await first.kill('SIGKILL')
  appendFileSync(join(folder.path, 'journal.jsonl'), '{"type":"result","result":{"type":"res')
  await using second = startAgent(folder.path)
  assert.equal((await second.logged('journal had torn lines'))['broken'], 1)
  const again = await until(() => hub.results('a')[1], 'the kept result')
  assert.equal('stdout' in again && again.stdout, 'kept\n')
})

test('nothing is reported delivered while the disk refuses it; later it runs', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const [state, away] = [join(folder.path, 'state'), join(folder.path, 'away')]
  hub.heartbeatSeconds = 0.2
  await enrollAt(hub.url, state)
  await using agent = startAgent(state)
  await hub.welcomed()
  // The script takes the folder away; its secrets then ask for a journal that can't be rewritten.
  const script = { language: 'sh', content: `mv ${state} ${away}`, env: { PARAM_A: 'x' } }
  hub.command('a', 'run_script', script)
  await agent.logged('journal cannot be written, commands wait')
  hub.command('b', 'ping')
  const beats = () => hub.frames().filter(({ type }) => type === 'heartbeat').length
  const before = beats()
  await until(() => beats() >= before + 3, 'three more heartbeats')
  assert.ok(!hub.frames().some((frame) => 'id' in frame && frame.id === 'b'))
  renameSync(away, state)
  assert.equal((await hub.result('b')).status, 'completed')
})

test('SIGTERM ends a running command as interrupted and exits 0', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path)
  await hub.welcomed()
  hub.command('a', 'run_command', { command: 'echo begun; sleep 300' })
  await hub.seen('progress', 'a')
  assert.equal(await agent.kill('SIGTERM'), 0)
  const result = await hub.result('a')
  assert.deepEqual(
    [result.status, result.error, result.stdout],
    ['failed', 'interrupted', 'begun\n'],
  )
})

test('a second agent on one state folder is refused; a dead one leaves no lock', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using first = startAgent(folder.path)
  await hub.welcomed()
  await using second = startAgent(folder.path)
  assert.equal(await second.exited, 1)
  assert.match(second.stderr(), new RegExp(`another agent \\(pid ${first.pid}\\)`))
  await first.kill('SIGKILL')
  await using _third = startAgent(folder.path)
  await hub.welcomed(1)
})
