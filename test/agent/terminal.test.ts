// The agent's end of a terminal against a hub of a few lines: what it answers to frames that a good hub does not
// send, how long it waits for a hub that is away, and that no shell outlives it.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import fc from 'fast-check'
import { accountOf, ownAccount } from '../../agent/account.ts'
import { shellEnv } from '../../agent/shell.ts'
import { terminalsMax } from '../../agent/limits.ts'
import { newId } from '../../src/ids.ts'
import {
  dataBytesMax,
  decodeBase,
  decodeFrame,
  decodeText,
  encodeFrame,
  encodeSize,
  frameKinds,
  windowBytes,
} from '../../src/terminal_frames.ts'
import type { FrameKind, TerminalFrame } from '../../src/terminal_frames.ts'
import { enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'
import { until } from './support/until.ts'

const size = encodeSize({ cols: 80, rows: 24 }, false)
const again = encodeSize({ cols: 80, rows: 24 }, true)

/** An agent, and the terminals' side of its hub. */
async function startWatched(env: Record<string, string | undefined> = {}) {
  const folder = makeFolder()
  const hub = await startFakeHub()
  await enrollAt(hub.url, folder.path)
  const agent = startAgent(folder.path, [], env)
  await hub.welcomed()
  const frames = () =>
    hub.peers.flatMap((peer) => peer.binary.map((bytes) => decodeFrame(bytes))).filter(isFrame)
  return {
    hub,
    agent,
    frames,
    say(kind: FrameKind, id: string, seq = 0, body?: Uint8Array) {
      hub.peers
        .findLast(({ closed }) => closed === null)
        ?.socket.send(encodeFrame(kind, id, seq, body))
    },
    heard: (kind: FrameKind, id: string) =>
      until(() => frames().find((one) => one.kind === kind && one.id === id), `${kind} of ${id}`),
    shown: (id: string) => {
      const pieces = frames().filter((one) => one.kind === 'data' && one.id === id)
      return Buffer.concat(pieces.map(({ body }) => body)).toString()
    },
    async [Symbol.asyncDispose]() {
      await agent[Symbol.asyncDispose]()
      await hub[Symbol.asyncDispose]()
      folder[Symbol.dispose]()
    },
  }
}

function isFrame(frame: TerminalFrame | undefined): frame is TerminalFrame {
  return frame !== undefined
}

const newTerminal = () => `term-${newId()}`

test('a shell is begun once, however often it is asked for, and replays what is not acknowledged', async () => {
  await using t = await startWatched()
  const id = newTerminal()
  t.say('open', id, 0, size)
  await t.heard('opened', id)
  t.say('data', id, 0, Buffer.from('stty -echo; echo pid-$$\n'))
  await until(() => /pid-\d+\r\n/.test(t.shown(id)), 'its pid')
  const bytes = Buffer.byteLength(t.shown(id))
  const before = t.frames().length
  t.say('ack', id, bytes - 5)
  t.say('open', id, 0, size)
  const opened = await until(
    () =>
      t
        .frames()
        .slice(before)
        .find(({ kind }) => kind === 'opened'),
    'a second answer',
  )
  assert.equal(decodeBase(opened.body), bytes - 5)
  assert.equal(opened.seq, 'stty -echo; echo pid-$$\n'.length)
  const data = await until(
    () =>
      t
        .frames()
        .slice(before)
        // The prompt may come in between.
        .find(({ kind, seq }) => kind === 'data' && seq !== bytes),
    'the replay',
  )
  assert.equal(data.seq, bytes - 5)
})

test('a service’s agent, which has but a path, runs the shell of its account', async () => {
  const none = Object.fromEntries(Object.keys(process.env).map((name) => [name, undefined]))
  using home = makeFolder()
  await using t = await startWatched({
    ...none,
    PATH: '/usr/bin:/bin',
    MUSTER_AGENT_HOME: home.path,
  })
  const own = accountOf(readFileSync('/etc/passwd', 'utf8'), process.geteuid?.() ?? -1)
  const id = newTerminal()
  t.say('open', id, 0, size)
  const answer = await until(
    () => t.frames().find(({ kind }) => kind === 'opened' || kind === 'close'),
    'an answer',
  )
  assert.equal(answer.kind, 'opened', decodeText(answer.body))
  const line = 'stty -echo; echo "<$USER $LOGNAME $HOME $SHELL $PWD>"\n'
  t.say('data', id, 0, Buffer.from(line))
  const said = await until(
    () => /<(\S+) (\S+) (\S+) (\S+) (\S+)>\r\n/.exec(t.shown(id)),
    'who it is',
  )
  assert.deepEqual(said.slice(1), [own?.name, own?.name, home.path, own?.shell, home.path])
  // Else the home of its account, whatever the environment of who started it says.
  assert.equal(ownAccount().home, own?.home)
})

test('a session that it does not know is not begun by going on with it', async () => {
  await using t = await startWatched()
  const id = newTerminal()
  t.say('open', id, 0, again)
  const { body } = await t.heard('close', id)
  assert.match(decodeText(body), /restarted/)
})

test('there are no more shells than allowed, and a place is free again', async () => {
  await using t = await startWatched()
  const ids = Array.from({ length: terminalsMax + 1 }, newTerminal)
  for (const id of ids) t.say('open', id, 0, size)
  const last = ids.at(-1) ?? ''
  assert.match(decodeText((await t.heard('close', last)).body), /3 terminals/)
  const first = ids[0] ?? ''
  await t.heard('opened', first)
  t.say('close', first)
  await t.agent.logged('terminal ends')
  const next = newTerminal()
  t.say('open', next, 0, size)
  await t.heard('opened', next)
})

test('an agent that stops takes its shells along', async () => {
  await using t = await startWatched()
  const id = newTerminal()
  t.say('open', id, 0, size)
  await t.heard('opened', id)
  t.say('data', id, 0, Buffer.from('echo pid-$$-\n'))
  await until(() => /pid-\d+-\r/.test(t.shown(id)), 'its pid')
  const pid = Number(/pid-(\d+)-\r/.exec(t.shown(id))?.[1])
  assert.equal(await t.agent.kill('SIGTERM'), 0)
  await until(() => !isThere(pid), 'the shell to be gone')
})

test('what no program reads is bounded, and nonsense harms nothing', async () => {
  await using t = await startWatched()
  const id = newTerminal()
  t.say('open', id, 0, size)
  await t.heard('opened', id)
  t.say('data', id, 0, Buffer.from('stty raw -echo; echo go-$((1+1)); sleep 1000\n'))
  await until(() => t.shown(id).includes('go-2'), 'a program that does not read')
  const begin = 'stty raw -echo; echo go-$((1+1)); sleep 1000\n'.length
  for (let n = 0; n < 20; n++) {
    t.say('data', id, begin + n * dataBytesMax, new Uint8Array(dataBytesMax).fill(97))
  }
  const noise = fc.sample(fc.uint8Array({ maxLength: 100 }), 200)
  for (const bytes of noise) t.hub.peers[0]?.socket.send(bytes)
  const bodies = fc.tuple(
    fc.constantFrom(...(Object.keys(frameKinds) as FrameKind[])),
    fc.maxSafeNat(),
    fc.uint8Array({ maxLength: 64 }),
  )
  for (const [kind, seq, body] of fc.sample(bodies, 300)) {
    if (kind !== 'close' && kind !== 'open') t.say(kind, id, seq, body)
    else if (kind === 'close') t.say(kind, newTerminal(), seq, body)
  }
  assert.equal((await t.hub.run('a', 'ping')).status, 'completed')
  const acked = Math.max(
    ...t
      .frames()
      .filter(({ kind, id: of }) => kind === 'ack' && of === id)
      .map(({ seq }) => seq),
  )
  assert.ok(acked <= begin + windowBytes, `${acked} is acknowledged, though nobody reads`)
})

test('an account is found by its number in any list', () => {
  const text = [
    '# root:x:0:0:no account:/nowhere:/bin/no',
    'nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin',
    '+@ldap::::::',
    '',
    'short:x:7',
    'root:x:0:0:the, first:/root:/bin/zsh\r',
    'toor:x:0:0:::/bin/csh',
    'plain:x:7:7:::',
  ].join('\n')
  assert.deepEqual(accountOf(text, 0), { name: 'root', home: '/root', shell: '/bin/zsh' })
  assert.deepEqual(accountOf(text, 7), { name: 'plain', home: '', shell: '' })
  assert.equal(accountOf(text, 70), undefined)
  assert.equal(accountOf('', 0), undefined)
})

test('the shell’s environment has nothing of the agent’s own', () => {
  const env = shellEnv({
    PATH: '/bin',
    LANG: 'de_CH.UTF-8',
    MUSTER_AGENT_X: 'a',
    BUN_BE_BUN: '1',
    NODE_OPTIONS: 'x',
    npm_config_y: 'z',
    EMPTY: undefined,
  })
  assert.deepEqual(env, { PATH: '/bin', LANG: 'de_CH.UTF-8', TERM: 'xterm-256color' })
})

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}
