// Commands through the real agent: once, bounded, stoppable, and answered until the hub has heard.

import assert from 'node:assert/strict'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { encodedBytes } from '../../agent/output.ts'
import { startTimeOf } from '../../agent/processes.ts'
import type { AgentFrame } from '../../src/protocol.ts'
import { compiled, enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

// One agent for all of these: they prove what commands do, not how an agent starts.
const stack = new AsyncDisposableStack()
const folder = stack.use(makeFolder())
let hub: Awaited<ReturnType<typeof startFakeHub>>
let agent: ReturnType<typeof startAgent>

before(async () => {
  hub = stack.use(await startFakeHub())
  await enrollAt(hub.url, folder.path)
  agent = stack.use(startAgent(folder.path))
  await hub.welcomed()
})
after(() => stack.disposeAsync())

function path(name: string): string {
  return join(folder.path, name)
}

async function readPid(name: string): Promise<number> {
  const text = await until(
    () => existsSync(path(name)) && readFileSync(path(name), 'utf8').trim(),
    name,
  )
  return Number(text)
}

function waitUntilDead(pid: number): Promise<boolean> {
  return until(async () => (await startTimeOf(pid)) === null, `end of process ${pid}`)
}

test('a command past its deadline is killed with its children and reported as timeout', async () => {
  const command = `sleep 300 & echo $! > ${path('t1')}; echo before; wait`
  const result = await hub.run('t1', 'run_command', { command }, 0.5)
  assert.deepEqual([result.status, result.exitCode, result.stdout], ['timeout', null, 'before\n'])
  await waitUntilDead(await readPid('t1'))
})

test('a process that ignores SIGTERM is killed after the grace', async () => {
  const command = `trap '' TERM; echo $$ > ${path('t2')}; while :; do sleep 0.2; done`
  const result = await hub.run('t2', 'run_command', { command, shell: 'bash' }, 0.3)
  assert.equal(result.status, 'timeout')
  assert.ok((result.durationMs ?? 0) >= 5000)
  await waitUntilDead(await readPid('t2'))
})

test('cancel kills the whole process group of a running command', async () => {
  const command = `sh -c 'sleep 300 & echo $! > ${path('x1')}; wait'`
  hub.command('x1', 'run_command', { command })
  const pid = await readPid('x1')
  hub.peers[0]?.send({ type: 'cancel', id: 'x1' })
  assert.equal((await hub.result('x1')).status, 'cancelled')
  await waitUntilDead(pid)
})

test('cancel of a waiting command means it never starts; of an unknown one nothing', async () => {
  hub.command('x2', 'run_command', { command: 'sleep 300' })
  await hub.seen('started', 'x2')
  hub.command('x3', 'run_command', { command: `touch ${path('x3')}` })
  await hub.seen('delivered', 'x3')
  hub.peers[0]?.send({ type: 'cancel', id: 'x3' })
  hub.peers[0]?.send({ type: 'cancel', id: 'nobody' })
  assert.equal((await hub.result('x3')).status, 'cancelled')
  hub.peers[0]?.send({ type: 'cancel', id: 'x2' })
  await hub.result('x2')
  await hub.run('x4', 'run_command', { command: 'true' })
  assert.equal(existsSync(path('x3')), false)
  assert.equal(hub.results('x3').length, 1)
})

test('ping and list_processes answer while another command runs', async () => {
  hub.command('b1', 'run_command', { command: 'sleep 300' })
  await hub.seen('started', 'b1')
  assert.equal((await hub.run('b2', 'ping')).status, 'completed')
  const list = await hub.run('b3', 'list_processes')
  const rows = list.data as { pid: number; name: string; memoryBytes: number; user: string }[]
  const own =
    rows.find(({ pid }) => pid === agent.pid) ?? assert.fail('the agent is not in its list')
  assert.ok(own.memoryBytes > 0 && own.user !== '')
  assert.equal(hub.results('b1').length, 0)
  hub.peers[0]?.send({ type: 'cancel', id: 'b1' })
  await hub.result('b1')
})

test('many commands at once run one at a time in the order they came', async () => {
  const ids = Array.from({ length: 30 }, (_, at) => `f${at}`)
  for (const id of ids) {
    hub.command(id, 'run_command', { command: `echo ${id} >> ${path('order')}` })
  }
  await Promise.all(ids.map((id) => hub.result(id)))
  assert.deepEqual(readFileSync(path('order'), 'utf8').trim().split('\n'), ids)
})

test('output is cut at 1 MiB of JSON-encoded bytes, escapes counted', async () => {
  const command = 'head -c 3000000 /dev/zero; head -c 3000000 /dev/zero | tr "\\0" "\\"" >&2'
  const result = await hub.run('o1', 'run_command', { command })
  assert.deepEqual([result.status, result.truncated], ['completed', true])
  for (const text of [result.stdout ?? '', result.stderr ?? '']) {
    assert.ok(encodedBytes(text) <= 1024 * 1024)
    assert.ok(encodedBytes(text) > 1024 * 1024 - 6)
  }
  assert.ok(Buffer.byteLength(JSON.stringify(result)) <= 4 * 1024 * 1024)
})

test('endless output is drained, not kept: the command ends at its deadline', async () => {
  const result = await hub.run('o2', 'run_command', { command: 'yes' }, 1)
  assert.deepEqual([result.status, result.truncated], ['timeout', true])
  assert.equal((await hub.run('o3', 'ping')).status, 'completed')
})

test('invalid UTF-8 becomes U+FFFD and whole characters stay whole', async () => {
  const command = `printf '\\303'; sleep 0.2; printf '\\251\\377!'`
  const result = await hub.run('o4', 'run_command', { command })
  assert.equal(result.stdout, 'é\uFFFD!')
})

test('a background child that keeps the pipes open does not hold the result', async () => {
  const result = await hub.run('o5', 'run_command', { command: 'sleep 4 & echo started' })
  assert.deepEqual([result.status, result.stdout], ['completed', 'started\n'])
  assert.ok((result.durationMs ?? 0) < 3500)
})

test('live output is coalesced and numbered', async () => {
  const command = 'for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done'
  const result = await hub.run('p1', 'run_command', { command })
  const live = hub.frames().filter(isProgressOf('p1'))
  assert.ok(live.length >= 2 && live.length <= 6, `${live.length} frames for one second`)
  assert.deepEqual(
    live.map(({ seq }) => seq),
    live.map((_, at) => at),
  )
  assert.equal(live.map(({ data }) => data).join(''), result.stdout)
})

test('run_script gets its parameters as environment, and its file goes away', async () => {
  const env = { PARAM_NAME: `it's "$(quoted)"` }
  const content = 'printf "%s|%s" "$PARAM_NAME" "$0"'
  const result = await hub.run('s1', 'run_script', { language: 'sh', content, env })
  const [value, script] = (result.stdout ?? '').split('|')
  assert.equal(value, env.PARAM_NAME)
  assert.ok(script?.startsWith(join(folder.path, 'scripts')))
  assert.deepEqual(readdirSync(path('scripts')), [])
  const node = await hub.run('s2', 'run_script', {
    language: 'node',
    content: 'console.log(process.env.PARAM_N * 2)',
    env: { PARAM_N: '21' },
  })
  assert.equal(node.stdout, '42\n')
})

test('a script and its secrets leave the disk with its end and never reach the log', async () => {
  const env = { PARAM_SECRET: 'swordfish-8131' }
  await hub.run('s3', 'run_script', { language: 'sh', content: 'true # script-8131', env })
  // In words: digits alone are in a time now and then.
  const told = /swordfish|script-8131/
  await until(() => !told.test(readFileSync(path('journal.jsonl'), 'utf8')), 'a clean journal')
  assert.doesNotMatch(JSON.stringify(agent.lines()), told)
})

test('the secrets of a script that never started leave the disk when it is cancelled', async () => {
  const env = { PARAM_SECRET: 'halibut' }
  hub.command('s4', 'run_command', { command: 'sleep 300' })
  hub.command('s5', 'run_script', { language: 'sh', content: 'true', env })
  const journal = () => readFileSync(path('journal.jsonl'), 'utf8')
  await until(() => journal().includes('halibut'), 'the script in the journal')
  hub.peers[0]?.send({ type: 'cancel', id: 's5' })
  assert.equal((await hub.result('s5')).status, 'cancelled')
  await until(() => !journal().includes('halibut'), 'a clean journal')
  hub.peers[0]?.send({ type: 'cancel', id: 's4' })
  assert.equal((await hub.result('s4')).status, 'cancelled')
})

test('bad payloads fail with a sentence that quotes no secret', async () => {
  const env = { PARAM_A: 'hush\0hush' }
  const cases: [string, object, RegExp][] = [
    ['run_command', {}, /command must be/],
    ['run_script', { language: 'cobol', content: 'x' }, /language must be one of/],
    ['run_script', { language: 'sh', content: 'x', env }, /PARAM_A must be a string without/],
    ['kill_process', { pid: 1 }, /greater than 1/],
    ['kill_process', { pid: agent.pid }, /the agent itself/],
    ['kill_process', { pid: -5 }, /greater than 1/],
    ['reboot', { delaySeconds: -1 }, /delaySeconds/],
    [
      'upgrade_agent',
      { version: '9.9.9' },
      compiled ? /without a supervisor/ : /runs from a checkout/,
    ],
  ]
  for (const [at, [action, payload, error]] of cases.entries()) {
    const result = await hub.run(`e${at}`, action, payload)
    assert.equal(result.status, 'failed')
    assert.match(String(result.error), error)
    assert.ok(!String(result.error).includes('hush'))
  }
})

test('kill_process ends another process', async () => {
  hub.command('k1', 'run_command', { command: `echo $$ > ${path('k1')}; exec sleep 300` })
  const pid = await readPid('k1')
  const result = await hub.run('k2', 'kill_process', { pid })
  assert.deepEqual([result.status, result.data], ['completed', { pid, signal: 'SIGTERM' }])
  assert.deepEqual(
    [(await hub.result('k1')).status, (await hub.result('k1')).error],
    ['failed', 'killed by SIGTERM'],
  )
})

test('refresh_inventory sends one, collect_logs answers both logs within the bound', async () => {
  const count = () => hub.frames().filter(({ type }) => type === 'inventory').length
  const sent = count()
  assert.equal((await hub.run('i1', 'refresh_inventory')).status, 'completed')
  assert.equal(count(), sent + 1)
  const logs = await hub.run('i2', 'collect_logs', { maxBytes: 4096 })
  const data = logs.data as { agentLog: string; systemLog: string }
  assert.match(data.agentLog, /"msg":"command ended"/)
  assert.ok(encodedBytes(data.agentLog) + encodedBytes(data.systemLog) <= 4096)
})

test('a duplicate command never runs twice, and is answered truthfully after its ack', async () => {
  const payload = { command: `echo once >> ${path('d1')}; exit 3` }
  await hub.run('d1', 'run_command', payload)
  hub.command('d1', 'run_command', payload)
  const again = await until(() => hub.results('d1')[1], 'a second answer')
  assert.deepEqual([again.type, 'status' in again && again.status], ['result', 'failed'])
  assert.equal('exitCode' in again && again.exitCode, 3)
  await hub.run('d2', 'run_command', { command: 'true' })
  assert.equal(readFileSync(path('d1'), 'utf8'), 'once\n')
})

test('a full outbox keeps every end and lets output go', async () => {
  hub.acks = false
  const command =
    'head -c 1000000 /dev/zero | tr "\\0" a; head -c 1000000 /dev/zero | tr "\\0" b >&2'
  const ids = Array.from({ length: 9 }, (_, at) => `q${at}`)
  for (const id of ids) hub.command(id, 'run_command', { command })
  const results = await Promise.all(ids.map((id) => hub.result(id)))
  hub.acks = true
  for (const id of ids) hub.peers[0]?.send({ type: 'ack', id })
  assert.ok(results.every(({ status, exitCode }) => status === 'completed' && exitCode === 0))
  assert.deepEqual([results[0]?.stdout?.length, results[0]?.truncated], [1_000_000, false])
  assert.deepEqual([results[8]?.stdout, results[8]?.truncated], ['', true])
  assert.equal((await hub.run('q9', 'run_command', { command })).stdout?.length, 1_000_000)
})

test('a result is sent again until it is acknowledged, and not after', async () => {
  hub.acks = false
  const first = await hub.run('r1', 'run_command', { command: 'echo out' })
  const second = await until(() => hub.results('r1')[1], 'the result again', 20_000)
  assert.deepEqual(second, first)
  hub.acks = true
  hub.peers[0]?.send({ type: 'ack', id: 'r1' })
  await hub.run('r2', 'ping')
  hub.peers[0]?.socket.close(1012)
  await hub.welcomed(1)
  await hub.run('r3', 'ping')
  assert.equal(hub.results('r1').length, 2)
})

function isProgressOf(id: string) {
  return (frame: AgentFrame): frame is Extract<AgentFrame, { type: 'progress' }> =>
    frame.type === 'progress' && frame.id === id
}
