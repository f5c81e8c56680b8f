// The agent as a service of systemd: what is written, that systemd takes it, and that it goes again.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, lstatSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { findProgram } from '../../agent/programs.ts'
import { unitText } from '../../agent/service.ts'
import { enrollAt, makeFolder, runCli } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'

const unit = 'etc/systemd/system/muster-agent.service'
const systemctl = findProgram('systemctl')
const analyze = findProgram('systemd-analyze')

test('--print shows a unit that runs this very program, supervised, for good', async () => {
  using folder = makeFolder()
  const { code, stdout } = await runCli(['install', '--print', '--state', folder.path])
  assert.equal(code, 0)
  const line = /^ExecStart=(.*)$/m.exec(stdout)?.[1] ?? ''
  assert.match(line, new RegExp(`^/.* run --supervised --state ${folder.path}$`))
  for (const wanted of ['Restart=always', 'RestartPreventExitStatus=3', 'KillMode=mixed']) {
    assert.ok(stdout.includes(`\n${wanted}\n`), wanted)
  }
  assert.match(stdout, /^UnsetEnvironment=BUN_BE_BUN /m)
})

test('systemd finds nothing to blame in it', { skip: analyze === null }, async () => {
  using folder = makeFolder()
  const { stdout } = await runCli(['install', '--print', '--state', join(folder.path, 'a b%i')])
  const path = join(folder.path, 'muster-agent.service')
  writeFileSync(path, stdout)
  const { status, stderr } = spawnSync(analyze ?? '', ['verify', path], { encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  assert.ok(!stderr.includes('muster-agent'), stderr)
})

test('a path of any characters reaches the program as it is', () => {
  const text = unitText(['/opt/my agents/100%/$HOME', 'a"b', 'c\\d'])
  assert.ok(text.includes('\nExecStart="/opt/my agents/100%%/$$HOME" "a\\"b" "c\\\\d"\n'), text)
})

test(
  'below another root it is enabled there, and uninstall leaves nothing',
  { skip: systemctl === null },
  async () => {
    using folder = makeFolder()
    const root = join(folder.path, 'image')
    mkdirSync(root)
    const state = join(folder.path, 'state')
    const installed = await runCli(['install', '--root', root, '--state', state])
    assert.equal(installed.code, 0, installed.stderr)
    assert.match(readFileSync(join(root, unit), 'utf8'), /^WantedBy=multi-user\.target$/m)
    const wanted = join(root, 'etc/systemd/system/multi-user.target.wants/muster-agent.service')
    assert.ok(lstatSync(wanted).isSymbolicLink())
    const again = await runCli(['install', '--root', root, '--state', state])
    assert.equal(again.code, 0, again.stderr)

    const removed = await runCli(['uninstall', '--root', root, '--state', state])
    assert.equal(removed.code, 0, removed.stderr)
    assert.ok(!existsSync(join(root, unit)))
    assert.throws(() => lstatSync(wanted))
    const twice = await runCli(['uninstall', '--root', root, '--state', state])
    assert.equal(twice.code, 1)
    assert.match(twice.stderr, /nothing is installed/)
  },
)

test(
  'it enrolls first where a hub is named, and an identity stays until it is purged',
  { skip: systemctl === null },
  async () => {
    await using hub = await startFakeHub()
    using folder = makeFolder()
    const root = join(folder.path, 'image')
    mkdirSync(root)
    const state = join(folder.path, 'state')
    await enrollAt(hub.url, state)
    const args = ['--root', root, '--state', state]
    const wrong = await runCli(['install', '--url', hub.url, '--secret', 'not it', ...args])
    assert.deepEqual([wrong.code, existsSync(join(root, unit))], [1, false])
    assert.equal((await runCli(['install', ...args])).code, 0)
    assert.equal((await runCli(['uninstall', ...args])).code, 0)
    assert.ok(existsSync(join(state, 'token')))
    assert.equal((await runCli(['install', ...args])).code, 0)
    const purged = await runCli(['uninstall', '--purge', ...args])
    assert.equal(purged.code, 0, purged.stderr)
    assert.ok(!existsSync(state))
  },
)
