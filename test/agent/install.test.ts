// The agent as a service of systemd: what is written, that systemd takes it, and that it goes again.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  symlinkSync,
  readFileSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { after, test } from 'node:test'
import { requireRoot } from '../../agent/image.ts'
import { findProgram } from '../../agent/programs.ts'
import { unitText } from '../../agent/service.ts'
import { agentVersion } from '../../agent/version.ts'
import { buildAgent, thisPlatform } from '../../scripts/release/build.ts'
import { compiled, enrollAt, makeFolder, runCli } from './support/agent.ts'
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

test('uninstall --purge --root takes what lies below, and nothing of the running machine', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const root = makeImage(folder.path)
  const state = join(folder.path, 'state')
  await enrollAt(hub.url, state)
  const program = join(folder.path, 'muster-agent')
  copyFileSync(await binary(), program)
  mkdirSync(join(root, state), { recursive: true })
  const inside = [unit, `${state}/token`, 'usr/local/bin/muster-agent'].map((path) =>
    join(root, path),
  )
  for (const path of inside) writeFileSync(path, '')

  const args = ['uninstall', '--purge', '--root', root, '--state', state]
  const { status, stderr } = spawnSync(program, args, { encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  assert.deepEqual([existsSync(program), existsSync(join(state, 'token'))], [true, true])
  for (const path of inside) assert.ok(!existsSync(path), path)
  assert.ok(!existsSync(join(root, state)))
})

test('a link of an image that leads out of it is not followed', async () => {
  using folder = makeFolder()
  const root = makeImage(folder.path)
  const outside = join(folder.path, 'outside')
  mkdirSync(join(outside, 'state'), { recursive: true })
  mkdirSync(join(root, dirname(folder.path)), { recursive: true })
  symlinkSync(outside, join(root, folder.path))
  writeFileSync(join(root, unit), '')
  const state = join(folder.path, 'state')
  const args = ['uninstall', '--purge', '--root', root, '--state', state]
  const { code, stderr } = await runCli(args)
  assert.equal(code, 1)
  assert.match(stderr, /leads out of .*; nothing was changed/)
  assert.ok(existsSync(join(outside, 'state')) && existsSync(join(root, unit)))
})

test('this machine is no image, and neither is a folder that is not there', () => {
  using folder = makeFolder()
  assert.throws(() => requireRoot('/'), /leave --root out/)
  assert.throws(() => requireRoot(join(folder.path, 'none')), /is no folder/)
})

/** An image's root with the folders that every system has. */
function makeImage(folder: string): string {
  const root = join(folder, 'image')
  for (const path of ['etc/systemd/system', 'usr/local/bin']) {
    mkdirSync(join(root, path), { recursive: true })
  }
  return root
}

let built: Promise<string> | undefined
/** The agent in one file, built once. */
function binary(): Promise<string> {
  if (compiled !== undefined) return Promise.resolve(compiled)
  out ??= makeFolder()
  built ??= buildAgent({ version: agentVersion, platform: thisPlatform(), out: out.path })
  return built
}

let out: ReturnType<typeof makeFolder> | undefined
after(() => out?.[Symbol.dispose]())
