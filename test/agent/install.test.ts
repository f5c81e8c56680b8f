// The agent as a service of systemd: what is written, that systemd takes it, and that it goes again.

import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { after, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { requireRoot } from '../../agent/image.ts'
import { requireLasting } from '../../agent/install.ts'
import { findProgram } from '../../agent/programs.ts'
import { unitText } from '../../agent/service.ts'
import { agentVersion } from '../../agent/version.ts'
import { buildAgent, thisPlatform } from '../../scripts/release/build.ts'
import { compiled, enrollAt, makeFolder, runCli } from './support/agent.ts'
import { secret, startFakeHub } from './support/fake_hub.ts'

const unit = 'etc/systemd/system/muster-agent.service'
const wanted = 'etc/systemd/system/multi-user.target.wants/muster-agent.service'
const namespace = ['--user', '--map-root-user', '--mount']
const hasNamespaces =
  existsSync('/etc/systemd') &&
  spawnSync('unshare', [...namespace, 'mount', '-t', 'tmpfs', 'none', '/run']).status === 0
const analyze = findProgram('systemd-analyze')

test('--print shows a unit that runs this very program, supervised, for good', async () => {
  using folder = makeFolder()
  const { code, stdout } = await runCli(['install', '--print', '--state', folder.path])
  assert.equal(code, 0)
  const line = /^ExecStart=(.*)$/m.exec(stdout)?.[1] ?? ''
  assert.match(line, new RegExp(`^/.* run --supervised --state ${folder.path}$`))
  for (const setting of ['Restart=always', 'RestartPreventExitStatus=3', 'KillMode=mixed']) {
    assert.ok(stdout.includes(`\n${setting}\n`), setting)
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

test('an image gets program, unit and link, without a systemctl, and uninstall leaves nothing', async () => {
  using folder = makeFolder()
  const root = join(folder.path, 'image')
  mkdirSync(root)
  const program = await binary()
  const run = (args: string[]) =>
    spawnSync(program, [...args, '--root', root], { encoding: 'utf8', env: { PATH: '' } })
  for (const _ of ['once', 'again']) {
    const installed = run(['install'])
    assert.equal(installed.status, 0, installed.stderr)
    const text = readFileSync(join(root, unit), 'utf8')
    const command = '/usr/local/bin/muster-agent run --supervised --state /var/lib/muster-agent'
    assert.equal(/^ExecStart=(.*)$/m.exec(text)?.[1], command)
    assert.equal(readlinkSync(join(root, wanted)), '../muster-agent.service')
    assert.equal(readFileSync(join(root, wanted), 'utf8'), text)
    const copy = join(root, 'usr/local/bin/muster-agent')
    assert.equal(statSync(copy).mode & 0o777, 0o755)
    assert.ok(readFileSync(copy).equals(readFileSync(program)))
    assert.deepEqual(readdirSync(dirname(copy)), ['muster-agent'])
  }
  const removed = run(['uninstall', '--purge'])
  assert.equal(removed.status, 0, removed.stderr)
  const files = readdirSync(root, { recursive: true, withFileTypes: true })
  assert.deepEqual(
    files.filter((file) => !file.isDirectory()),
    [],
  )
  const twice = run(['uninstall'])
  assert.equal(twice.status, 1)
  assert.match(twice.stderr, /nothing is installed/)
})

test('an image takes no identity, and no checkout', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const root = makeImage(folder.path)
  const args = ['install', '--root', root, '--state', join(folder.path, 'state')]
  const enrolling = await runCli([...args, '--url', hub.url, '--secret', secret])
  assert.equal(enrolling.code, 2)
  assert.match(enrolling.stderr, /--url with --root: .* enroll each on its first start/)
  assert.equal(hub.enrolls.length, 0)
  const main = fileURLToPath(new URL('../../agent/main.ts', import.meta.url))
  const checkout = spawnSync(process.execPath, [main, ...args], { encoding: 'utf8' })
  assert.equal(checkout.status, 1)
  assert.match(checkout.stderr, /a checkout can’t be put into an image/)
  assert.ok(!existsSync(join(root, unit)))
})

test('a device on which it can’t be installed is not enrolled', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  const program = await binary()
  const state = join(folder.path, 'state')
  const args = ['install', '--url', hub.url, '--secret', secret, '--state', state]
  // Without a PATH there is no systemctl, wherever the test runs.
  const { code, stderr } = await runProgram(program, args, { PATH: '' })
  assert.equal(code, 1)
  assert.match(stderr, /no systemd|gone after a restart/)
  assert.deepEqual([hub.enrolls.length, existsSync(state)], [0, false])
})

test('a program where a service does not find it again is refused', () => {
  const kept = { file: '/usr/local/bin/muster-agent', args: ['run', '--state', 'tmp'] }
  assert.doesNotThrow(() => requireLasting(kept))
  assert.doesNotThrow(() => requireLasting({ file: '/tmpfiles/muster-agent', args: [] }))
  for (const folder of ['/tmp', '/var/tmp/a', '/dev/shm', '/run/user/0']) {
    const file = `${folder}/muster-agent`
    assert.throws(() => requireLasting({ file, args: [] }), /gone after a restart/, file)
    assert.throws(() => requireLasting({ file: '/usr/bin/node', args: [file] }), /gone after/, file)
  }
})

test(
  'where it can be installed it is enrolled when all is ready, and started after',
  { skip: !hasNamespaces },
  async () => {
    await using hub = await startFakeHub()
    using folder = makeFolder()
    const state = join(folder.path, 'state')
    const wrong = await installApart(folder.path, await binary(), [
      '--url',
      hub.url,
      '--secret',
      'not it',
      '--state',
      state,
    ])
    assert.match(wrong, /INVALID_ENROLLMENT_SECRET/)
    assert.match(wrong, /^daemon-reload: not enrolled$/m)
    assert.doesNotMatch(wrong, /^(enable|restart)|^unit is there$/m)
    const right = await installApart(folder.path, await binary(), [
      '--url',
      hub.url,
      '--secret',
      secret,
      '--state',
      state,
    ])
    const lines = right.split('\n').filter((line) => line.includes(':'))
    assert.deepEqual(lines.slice(0, 3), [
      'daemon-reload: not enrolled',
      'enable muster-agent.service: enrolled',
      'restart muster-agent.service: enrolled',
    ])
    assert.match(right, /is written, enabled and started/)
    assert.match(right, /^unit is there$/m)
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

/**
 * `install` in a mount namespace of its own, root there and with a systemd that is only looked at: its systemctl
 * prints what it is told and whether the device was enrolled by then.
 */
async function installApart(folder: string, program: string, args: string[]): Promise<string> {
  const tools = join(folder, 'tools')
  mkdirSync(tools, { recursive: true })
  const state = args.at(-1) ?? ''
  writeFileSync(
    join(tools, 'systemctl'),
    `#!/bin/sh\n[ -e '${state}/token' ] && is=enrolled || is='not enrolled'\necho "$*: $is" >> '${folder}/calls'\n`,
    { mode: 0o755 },
  )
  rmSync(join(folder, 'calls'), { force: true })
  const script = `
    mount -t tmpfs none /run && mkdir -p /run/systemd/system || exit 1
    mount -t tmpfs none /etc/systemd && mkdir /etc/systemd/system || exit 1
    mount --bind '${dirname(program)}' /mnt || exit 1
    program=$1; shift
    PATH='${tools}':$PATH "/mnt/$program" install "$@" 2>&1
    [ ! -e /${unit} ] || echo 'unit is there'`
  const inside = [...namespace, 'sh', '-c', script, 'sh', basename(program), ...args]
  const { stdout, stderr } = await runProgram('unshare', inside, process.env)
  const calls = existsSync(join(folder, 'calls')) ? readFileSync(join(folder, 'calls'), 'utf8') : ''
  return `${calls}${stdout}${stderr}`
}

// Not spawnSync: the hub of the test answers meanwhile.
async function runProgram(program: string, args: string[], env: NodeJS.ProcessEnv) {
  return new Promise<{ code: unknown; stdout: string; stderr: string }>((resolve) => {
    execFile(program, args, { env }, (error, stdout, stderr) => {
      resolve({ code: error?.code ?? 0, stdout, stderr })
    })
  })
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
