// npm run release: keys, binaries of every platform, what it signs and what it refuses to.
import assert from 'node:assert/strict'
import { execFile, spawn, spawnSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, before, describe, test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { bunProgram } from '../scripts/release/bun.ts'
import { buildAgent, thisPlatform } from '../scripts/release/build.ts'
import { create, measure, measureUnpacked, platformOfFile } from '../scripts/release/files.ts'
import { readPublicKeys } from '../scripts/release/keys.ts'
import { nameOf, targets } from '../scripts/release/platforms.ts'
import { cacheFolder } from '../src/private_folder.js'
import {
  agentFileName,
  isKeyListSigned,
  isManifestSigned,
  keyIdOf,
  parseKeyList,
  parseManifest,
} from '../src/release_manifest.ts'
import { removeFolder } from './support/folders.ts'
import { enrollmentSecret, startHub } from './support/hub.ts'
import { elfBytes, linux, makeKey, releasesOnce } from './support/releases.ts'
import { until } from './support/until.ts'

const script = fileURLToPath(new URL('../scripts/release.ts', import.meta.url))
const version = '7.6.5-test.1'
const here = thisPlatform()

let base: string

before(() => {
  base = mkdtempSync(join(tmpdir(), 'muster-release-'))
})
after(() => removeFolder(base))

interface Ran {
  code: unknown
  stdout: string
  stderr: string
}

function release(...args: string[]): Promise<Ran> {
  return new Promise((resolve) => {
    execFile(process.execPath, [script, ...args], { cwd: base }, (error, stdout, stderr) => {
      resolve({ code: error?.code ?? 0, stdout, stderr })
    })
  })
}

/** A folder of its own below the base. */
function newFolder(name: string): string {
  const path = join(base, name)
  mkdirSync(path)
  return path
}

describe('keys and usage', () => {
  test('keys makes a pair by its id, the private half for its owner alone, and nothing else', async () => {
    const folder = join(base, 'keys')
    assert.equal((await release('keys', '--out', 'keys')).code, 0)
    const names = readdirSync(folder).toSorted()
    const [key] = await readPublicKeys(folder)
    const keyId = keyIdOf(key ?? '')
    assert.deepEqual(names, [`${keyId}.key`, `${keyId}.pub`])
    assert.equal(statSync(join(folder, `${keyId}.key`)).mode & 0o777, 0o600)
    assert.ok(!readFileSync(join(folder, `${keyId}.pub`), 'utf8').includes('PRIVATE'))
    // Once more: another key beside the first, which stays.
    const kept = readFileSync(join(folder, `${keyId}.key`), 'utf8')
    assert.equal((await release('keys', '--out', 'keys')).code, 0)
    assert.equal(readdirSync(folder).length, 4)
    assert.equal(readFileSync(join(folder, `${keyId}.key`), 'utf8'), kept)
    await assert.rejects(create(join(folder, `${keyId}.key`), 'x', 0o600), /is there already/)
  })

  test('a wrong call says what is missing or wrong, and how it is done', async () => {
    const help = await release('--help')
    assert.deepEqual([help.code, help.stderr], [0, ''])
    for (const [args, said] of [
      [[], /^Usage:/],
      [['destroy'], /^Usage:/],
      [['build', '--out', 'x'], /--version is missing/],
      [['build', '--version', 'v1', '--out', 'x'], /--version is no version .* "v1"/],
      [['build', '--version', '1.0.0', '--platform', 'linux/mips', '--out', 'x'], /linux\/amd64/],
      [['keys', '--force'], /--force/],
      [['sign', '--dir', 'x'], /--key is missing/],
      [['key-list', '--keys', 'keys', '--out', 'x'], /--key is missing/],
    ] as const) {
      const { code, stderr } = await release(...args)
      assert.equal(code, 2, args.join(' '))
      assert.match(stderr, said)
      assert.ok(!/\n +at /.test(stderr), 'a stack is shown')
    }
    assert.ok(!existsSync(join(base, 'x')))
    const nowhere = await release('build', '--version', '1.0.0', '--keys', 'nowhere', '--out', 'x')
    assert.equal(nowhere.code, 1)
    assert.match(nowhere.stderr, /^ENOENT.*nowhere'\n$/)
  })

  test('key-list names the keys of a folder, signed by each key that is given', async () => {
    const [keys, old] = [newFolder('listed'), newFolder('old')]
    const listed = makeKey(keys)
    assert.ok(listed)
    assert.equal((await release('keys', '--out', old)).code, 0)
    const secret = readdirSync(old).find((name) => name.endsWith('.key')) ?? ''
    const out = join(base, 'keys.json')
    const { code } = await release(
      'key-list',
      '--keys',
      keys,
      '--key',
      join(old, secret),
      '--out',
      out,
    )
    assert.equal(code, 0)
    const list = parseKeyList(readFileSync(out, 'utf8'))
    assert.deepEqual(list.keys, await readPublicKeys(keys))
    assert.ok(isKeyListSigned(list, await readPublicKeys(old)))
    assert.ok(!isKeyListSigned(list, list.keys))
  })
})

describe('build', () => {
  let built: string
  let keys: string
  let binary: string

  before(async () => {
    built = newFolder('built')
    keys = newFolder('pinned')
    makeKey(keys)
    const args = [
      '--version',
      version,
      '--platform',
      nameOf(here),
      '--keys',
      keys,
      '--out',
      'built',
    ]
    const { code, stderr } = await release('build', ...args)
    assert.equal(code, 0, stderr)
    binary = join(built, agentFileName(version, here))
  })

  test('one file for this platform and the same compressed come out, and nothing else', async () => {
    const name = basename(binary)
    assert.deepEqual(readdirSync(built).toSorted(), [name, `${name}.zst`])
    assert.deepEqual(await platformOfFile(binary), here)
    const plain = await measure(binary)
    assert.deepEqual(await measureUnpacked(`${binary}.zst`, plain.size), plain)
    assert.ok(statSync(`${binary}.zst`).size < plain.size / 2)
  })

  test('it runs where no Node is, and has its version and its keys inside', async () => {
    const bare = { env: { PATH: '/nonexistent' }, encoding: 'utf8' as const, cwd: '/' }
    assert.equal(spawnSync(binary, ['version'], bare).stdout, `${version}\n`)
    assert.match(spawnSync(binary, ['help'], bare).stdout, /muster-agent run/)
    const [key = 'no key'] = await readPublicKeys(keys)
    assert.ok(readFileSync(binary).includes(key))
  })

  test('what lies in the folder it is started from does not change it', () => {
    const folder = newFolder('dotenv')
    writeFileSync(join(folder, '.env'), 'MUSTER_AGENT_SUPERVISED=1\nXDG_STATE_HOME=/nonexistent\n')
    writeFileSync(join(folder, 'bunfig.toml'), 'preload = ["./evil.ts"]\n')
    writeFileSync(join(folder, 'evil.ts'), 'console.log("evil")\n')
    const run = spawnSync(binary, ['version'], { cwd: folder, encoding: 'utf8' })
    assert.deepEqual([run.stdout, run.stderr], [`${version}\n`, ''])
  })

  test('the same source and version make the same bytes', async () => {
    const again = await buildAgent({
      version,
      platform: here,
      out: newFolder('again'),
      keys: await readPublicKeys(keys),
    })
    assert.deepEqual(await measure(again), await measure(binary))
  })

  test('it is signed, offered, downloaded, enrolls and works for a hub', async (t) => {
    const releases = newFolder('releases')
    const key = makeKey()
    const secret = join(base, 'signing.key')
    writeFileSync(secret, key.privateKey.export({ type: 'pkcs8', format: 'pem' }))
    const pubs = newFolder('pubs')
    writeFileSync(join(pubs, 'a.pub'), key.publicKey.export({ type: 'spki', format: 'pem' }))
    const folder = join(releases, version)
    renameSync(built, folder)
    binary = join(folder, basename(binary))
    const signed = await release(
      'sign',
      '--dir',
      folder,
      '--key',
      secret,
      '--minimum-version',
      '1.0.0',
    )
    assert.equal(signed.code, 0, signed.stderr)
    const manifest = parseManifest(readFileSync(join(folder, 'manifest.json'), 'utf8'))
    assert.ok(isManifestSigned(manifest, await readPublicKeys(pubs)))
    assert.deepEqual([manifest.minimumVersion, manifest.files[0]?.zst === null], ['1.0.0', false])

    const hub = await startHub({ AGENT_RELEASES_DIR: releases, AGENT_RELEASE_KEYS: pubs })
    t.after(() => hub.close())
    await releasesOnce(hub, 'the release', ({ data }) => data.length === 1)
    const path = `/api/v1/agents/download/${nameOf(here)}?version=${version}`
    const agent = join(newFolder('device'), 'muster-agent')
    const answer = await fetch(`${hub.origin}${path}`)
    writeFileSync(agent, Buffer.from(await answer.arrayBuffer()), { mode: 0o755 })
    await works(t, hub, agent)
  })

  test('every other platform is built: by header, version and size, not run here', async (t) => {
    const out = newFolder('foreign')
    const others = targets.filter(({ platform }) => nameOf(platform) !== nameOf(here))
    for (const { platform } of others) {
      const path = await buildAgent({ version, platform, out })
      assert.equal(basename(path), agentFileName(version, platform))
      assert.deepEqual(await platformOfFile(path), platform)
      const { size } = statSync(path)
      assert.ok(size > 60e6 && size < 150e6, `${path}: ${size} bytes`)
      const bytes = readFileSync(path)
      assert.ok(bytes.includes(`"${version}"`), `${path} holds no version`)
      assert.ok(bytes.includes('muster-agent enroll'), `${path} holds no agent`)
      t.diagnostic(`${basename(path)}: ${(size / 1e6).toFixed(1)} MB`)
      if (nameOf(platform) !== 'linux/arm64') rmSync(path)
    }
    assert.equal(others.length, targets.length - 1)
  })

  const emulator = '/usr/bin/qemu-aarch64'
  const libraries = '/usr/aarch64-linux-gnu'
  const needed = [emulator, `${libraries}/lib/ld-linux-aarch64.so.1`]
  const missing = needed.filter((path) => !existsSync(path))
  // .ci/run installs both.
  const skip = missing.length > 0 && `${missing.join(' and ')} not installed`
  test('the one for linux/arm64 runs, emulated', { skip }, () => {
    const path = join(base, 'foreign', agentFileName(version, { os: 'linux', arch: 'arm64' }))
    const run = spawnSync(emulator, ['-L', libraries, path, 'version'], { encoding: 'utf8' })
    assert.equal(run.stdout, `${version}\n`, run.stderr)
  })

  test('a package that is not the pinned one is refused and not kept', async () => {
    const { bun } =
      targets.find(({ platform }) => nameOf(platform) === nameOf(here)) ?? assert.fail()
    const other = { ...bun, integrity: `sha512-${Buffer.alloc(64, 7).toString('base64')}` }
    const kept = readdirSync(cacheFolder()).toSorted()
    await assert.rejects(
      bunProgram(other, () => {}),
      /is not what this version was built with/,
    )
    assert.deepEqual(readdirSync(cacheFolder()).toSorted(), kept)
  })
})

/** Enrolls and runs a binary where there is a shell and nothing else, and has it run a command. */
async function works(t: TestContext, hub: Awaited<ReturnType<typeof startHub>>, agent: string) {
  const state = newFolder('state')
  const path = newFolder('path')
  symlinkSync('/bin/sh', join(path, 'sh'))
  const bare = { env: { PATH: path }, cwd: '/' }
  const flags = ['--url', hub.origin, '--secret', '-', '--state', state]
  const enroll = spawn(agent, ['enroll', ...flags], { ...bare, stdio: ['pipe', 'pipe', 'inherit'] })
  enroll.stdin.end(`${enrollmentSecret}\n`)
  let said = ''
  enroll.stdout.on('data', (chunk: Buffer) => (said += String(chunk)))
  await until('the enrollment', () => enroll.exitCode === 0)
  const deviceId = /Enrolled as device (\S+)/.exec(said)?.[1] ?? assert.fail(said)

  const running = spawn(agent, ['run', '--supervised', '--state', state], {
    ...bare,
    stdio: 'ignore',
  })
  t.after(async () => {
    running.kill('SIGTERM')
    await until('the agent to end', () => running.exitCode !== null)
    assert.equal(running.exitCode, 0)
  })
  const device = () => hub.get(`/devices/${deviceId}`).then(({ body }) => body)
  await until('the device to be online', async () => (await device()).status === 'online')
  await until('its inventory', async () => (await device()).inventory !== null)
  const { agentVersion, os, arch } = await device()
  assert.deepEqual({ agentVersion, os, arch }, { agentVersion: version, ...here })
  const command = { action: 'run_command', payload: { command: 'echo "from $0"' } }
  const { body } = await hub.post(`/devices/${deviceId}/commands?wait=20`, command)
  assert.deepEqual([body.status, body.result.exitCode], ['completed', 0], JSON.stringify(body))
  assert.match(body.result.stdout, /^from /)
}

describe('sign', () => {
  const sign = async (folder: string, ...more: string[]) => {
    const secret = join(base, 'sign.key')
    if (!existsSync(secret)) {
      writeFileSync(secret, makeKey().privateKey.export({ type: 'pkcs8', format: 'pem' }))
    }
    const { code, stderr } = await release('sign', '--dir', folder, '--key', secret, ...more)
    return { code, stderr, wrote: existsSync(join(folder, 'manifest.json')) }
  }
  const good = agentFileName('1.0.0', linux)

  /** What is wrong with a folder → what is said of it. */
  const wrongs: [string, RegExp, (folder: string) => void][] = [
    ['empty', /holds no executable of an agent/, () => {}],
    [
      'for another platform',
      /is an executable for linux\/arm64, and its name says linux\/amd64/,
      (folder) => writeFileSync(join(folder, good), elfBytes('arm64', 1000)),
    ],
    [
      'cut off',
      /is no executable, or one that was cut off/,
      (folder) =>
        writeFileSync(join(folder, good), readFileSync(process.execPath).subarray(0, 5000)),
    ],
    ['a script', /is no executable/, (folder) => writeFileSync(join(folder, good), '#!/bin/sh\n')],
    [
      'misnamed',
      /is not called muster-agent_<version>/,
      (folder) => writeFileSync(join(folder, 'muster-agent-1.0.0'), elfBytes('amd64', 1000)),
    ],
    [
      'of two versions',
      /holds 1\.0\.0 and 1\.1\.0; a release is one version/,
      (folder) => {
        for (const one of ['1.0.0', '1.1.0']) {
          writeFileSync(join(folder, agentFileName(one, linux)), elfBytes('amd64', 1000))
        }
      },
    ],
    [
      'with a compressed file of another',
      /unpacks to (another file|more than 1000 bytes)|does not unpack/,
      (folder) => {
        writeFileSync(join(folder, good), elfBytes('amd64', 1000))
        writeFileSync(join(folder, `${good}.zst`), 'x')
      },
    ],
    [
      'a link',
      /is no file/,
      (folder) => {
        writeFileSync(join(base, 'elsewhere'), elfBytes('amd64', 1000))
        symlinkSync(join(base, 'elsewhere'), join(folder, good))
      },
    ],
  ]

  for (const [index, [what, said, spoil]] of wrongs.entries()) {
    test(`a folder that is ${what} is not signed`, async () => {
      const folder = newFolder(`wrong-${index}`)
      spoil(folder)
      const { code, stderr, wrote } = await sign(folder)
      assert.deepEqual([code, wrote], [1, false])
      assert.match(stderr, said)
      assert.ok(!/\n +at /.test(stderr), 'a stack is shown')
    })
  }

  test('a minimum version above what is signed, or that is none, is refused', async () => {
    const folder = newFolder('minimum')
    writeFileSync(join(folder, good), elfBytes('amd64', 1000))
    assert.match((await sign(folder, '--minimum-version', '1.0.1')).stderr, /is above 1\.0\.0/)
    assert.equal((await sign(folder, '--minimum-version', 'new')).code, 2)
    assert.deepEqual(await sign(folder), { code: 0, stderr: '', wrote: true })
    assert.ok(!readdirSync(folder).some((name) => name.includes('draft')))
  })

  test('a key that is none of ours is refused and not shown', async () => {
    const folder = newFolder('badkey')
    writeFileSync(join(folder, good), elfBytes('amd64', 1000))
    const secret = join(base, 'bad.key')
    writeFileSync(secret, 'sEcReT')
    const { code, stderr } = await release('sign', '--dir', folder, '--key', secret)
    assert.equal(code, 1)
    assert.equal(stderr, `${secret} is no Ed25519 key in PEM\n`)
  })
})
