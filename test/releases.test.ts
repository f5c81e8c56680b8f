// What the hub offers of its folder, and what it refuses: with files that are wrong in every way.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import {
  appendFileSync,
  copyFileSync,
  cpSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { publicKeyOf, signKeyList, signManifest, type Manifest } from '../src/release_manifest.ts'
import { removeFolder } from './support/folders.ts'
import { startHub, type TestHub } from './support/hub.ts'
import {
  elfBytes,
  linux,
  makeKey,
  makeRelease,
  makeReleaseFolders,
  releasesOnce,
  writePublicKey,
  type Folders,
} from './support/releases.ts'

let folders: Folders
let hub: TestHub
const key = makeKey()

before(async () => {
  folders = makeReleaseFolders()
  writePublicKey(key, folders.keys, 'one')
  hub = await startHub(folders.env)
})
after(async () => {
  await hub.close()
  removeFolder(folders.base)
})

const sign = { key: key.privateKey }
const nameOf = (version: string) => `muster-agent_${version}_linux_amd64`
const make = async (version: string) => (await makeRelease(folders.releases, version, sign)).folder
const download = (version: string) =>
  hub.get(`/agents/download/linux/amd64?version=${version}`, { token: undefined })
const isOffered = (version: string) => (body: { data: Manifest[] }) =>
  body.data.some((one) => one.version === version)
const isRefused = (folder: string, code: string) => (body: { refused: Refused[] }) =>
  body.refused.some((one) => one.folder === folder && one.code === code)

interface Refused {
  folder: string | null
  file: string | null
  code: string
  message: string
}

/** Writes another manifest over the one of a folder. */
function rewrite(folder: string, change: (manifest: Manifest) => object): void {
  const path = join(folder, 'manifest.json')
  writeFileSync(path, JSON.stringify(change(JSON.parse(readFileSync(path, 'utf8')) as Manifest)))
}

test('a signed folder is offered with its manifest, word for word', async () => {
  const { manifest } = await makeRelease(folders.releases, '1.0.0', {
    ...sign,
    platforms: [linux, { os: 'linux', arch: 'arm64' }],
    minimumVersion: '0.9.0',
  })
  const body = await releasesOnce(hub, '1.0.0', isOffered('1.0.0'))
  assert.deepEqual(body, { data: [{ ...manifest, offered: true }], refused: [], keyList: null })
  assert.equal((await download('1.0.0')).status, 200)
})

/** What is wrong with a folder that was right → code and the file it names. */
const wrongs: [string, string, string | null, (folder: string, name: string) => void][] = [
  ['written by half', 'NO_MANIFEST', null, (folder) => rmSync(join(folder, 'manifest.json'))],
  [
    'for another platform than it says',
    'WRONG_PLATFORM',
    'file',
    (folder, name) => writeFileSync(join(folder, name), elfBytes('arm64', 10_000)),
  ],
  [
    'no executable',
    'WRONG_PLATFORM',
    'file',
    (folder, name) => writeFileSync(join(folder, name), randomBytes(10_000)),
  ],
  ['longer', 'WRONG_SIZE', 'file', (folder, name) => appendFileSync(join(folder, name), 'x')],
  ['cut off', 'WRONG_SIZE', 'file', (folder, name) => truncateSync(join(folder, name), 9_999)],
  [
    'of other bytes',
    'WRONG_HASH',
    'file',
    (folder, name) => writeFileSync(join(folder, name), elfBytes('amd64', 10_000)),
  ],
  ['without a file', 'NO_FILE', 'file', (folder, name) => rmSync(join(folder, name))],
  [
    'with a compressed file of other bytes',
    'WRONG_SIZE',
    'zst',
    (folder, name) => writeFileSync(join(folder, `${name}.zst`), 'x'),
  ],
  [
    'a link out of the folder',
    'NOT_A_FILE',
    'file',
    (folder, name) => {
      const elsewhere = join(folders.base, name)
      renameSync(join(folder, name), elsewhere)
      symlinkSync(elsewhere, join(folder, name))
    },
  ],
  [
    'with a manifest that is a link',
    'BAD_MANIFEST',
    'manifest.json',
    (folder) => {
      const elsewhere = join(folders.base, 'manifest.json')
      renameSync(join(folder, 'manifest.json'), elsewhere)
      symlinkSync(elsewhere, join(folder, 'manifest.json'))
    },
  ],
  [
    'signed by a key nobody knows',
    'UNKNOWN_KEY',
    'manifest.json',
    (folder) =>
      rewrite(folder, ({ signature: _old, ...manifest }) => {
        const other = makeKey()
        const keyId = 'ab'.repeat(8)
        return signManifest({ ...manifest, keyId }, other.privateKey)
      }),
  ],
  [
    'signed by another key than it names',
    'BAD_SIGNATURE',
    'manifest.json',
    (folder) =>
      rewrite(folder, ({ signature: _old, ...manifest }) =>
        signManifest(manifest, makeKey().privateKey),
      ),
  ],
  [
    'edited',
    'BAD_SIGNATURE',
    'manifest.json',
    (folder) => rewrite(folder, (manifest) => ({ ...manifest, minimumVersion: '0.0.1' })),
  ],
  [
    'with a member that means nothing',
    'BAD_MANIFEST',
    'manifest.json',
    (folder) => rewrite(folder, (manifest) => ({ ...manifest, files2: [] })),
  ],
  [
    'no JSON',
    'BAD_MANIFEST',
    'manifest.json',
    (folder) => truncateSync(join(folder, 'manifest.json'), 40),
  ],
  [
    'with a manifest of megabytes',
    'BAD_MANIFEST',
    'manifest.json',
    (folder) => appendFileSync(join(folder, 'manifest.json'), ' '.repeat(2_000_000)),
  ],
]

test('a folder of which anything is false is refused, and the file and the reason are named', async () => {
  for (const [index, [, , , spoil]] of wrongs.entries()) {
    const version = `2.0.${index}`
    // Right somewhere else first: it must never be seen as it was.
    const folder = join(folders.base, version)
    await makeRelease(folders.base, version, sign)
    spoil(folder, nameOf(version))
    renameSync(folder, join(folders.releases, version))
  }
  const body = await releasesOnce(
    hub,
    'every folder to be judged',
    ({ refused }: { refused: Refused[] }) =>
      wrongs.every((_, index) =>
        refused.some((one) => one.folder === `2.0.${index}` && one.code !== 'CHECKING'),
      ),
  )
  for (const [index, [what, code, kind]] of wrongs.entries()) {
    const version = `2.0.${index}`
    const name = nameOf(version)
    const file = kind === 'file' ? name : kind === 'zst' ? `${name}.zst` : kind
    const found: Refused = body.refused.find((one: Refused) => one.folder === version)
    assert.deepEqual([found.code, found.file], [code, file], `${what}: ${found.message}`)
    assert.ok(found.message.startsWith(join(version, file ?? '')), found.message)
    assert.ok(!found.message.includes(folders.base), 'a path of the machine is told')
    const answer = await download(version)
    assert.deepEqual([answer.status, answer.body.error.code], [404, 'AGENT_BINARY_NOT_FOUND'])
  }
  assert.deepEqual(
    body.data.map((one: Manifest) => one.version),
    ['1.0.0'],
  )
})

// Each has folders and keys of its own; the hub looks every two seconds.
describe('while others come and go', { concurrency: true }, () => {
  test('a folder called otherwise than its version, or a link, is refused; a hidden one is not looked at', async () => {
    await makeRelease(folders.releases, '3.0.0', { ...sign, folder: '3.0.1' })
    await makeRelease(folders.releases, '3.0.2', { ...sign, folder: 'latest' })
    await makeRelease(folders.releases, '3.0.3', { ...sign, folder: '.3.0.3' })
    const elsewhere = join(folders.base, '3.0.4')
    await makeRelease(folders.base, '3.0.4', sign)
    symlinkSync(elsewhere, join(folders.releases, '3.0.4'))
    await releasesOnce(hub, 'the wrong version', isRefused('3.0.1', 'WRONG_VERSION'))
    await releasesOnce(hub, 'no version', isRefused('latest', 'WRONG_VERSION'))
    const body = await releasesOnce(hub, 'a link', isRefused('3.0.4', 'NOT_A_FOLDER'))
    assert.ok(!JSON.stringify(body).includes('3.0.3'))
  })

  test('a refused folder that is put right is offered', async () => {
    const folder = await make('4.0.0')
    const path = join(folder, nameOf('4.0.0'))
    copyFileSync(path, join(folders.base, 'kept'))
    truncateSync(path, 100)
    await releasesOnce(hub, 'the refusal', isRefused('4.0.0', 'WRONG_SIZE'))
    renameSync(join(folders.base, 'kept'), path)
    await releasesOnce(hub, '4.0.0', isOffered('4.0.0'))
  })

  test('a file that is replaced after it was proved is not sent, and its release is withdrawn', async () => {
    const folder = await make('5.0.0')
    await releasesOnce(hub, '5.0.0', isOffered('5.0.0'))
    const path = join(folder, nameOf('5.0.0'))
    const good = readFileSync(path)
    const evil = elfBytes('amd64', good.length)
    // In place, with the size of before; and as another file of the same name.
    for (const replace of [
      () => writeFileSync(path, evil),
      () => {
        writeFileSync(`${path}.new`, evil)
        renameSync(`${path}.new`, path)
      },
    ]) {
      replace()
      const answer = await download('5.0.0')
      assert.ok([404, 503].includes(answer.status), String(answer.status))
      await releasesOnce(hub, 'the refusal', isRefused('5.0.0', 'WRONG_HASH'))
      assert.equal((await download('5.0.0')).status, 404)
      writeFileSync(path, good)
      await releasesOnce(hub, '5.0.0 again', isOffered('5.0.0'))
      assert.equal((await download('5.0.0')).status, 200)
    }
    rmSync(folder, { recursive: true })
    await releasesOnce(hub, '5.0.0 to go', (body) => !isOffered('5.0.0')(body))
  })

  test('a new key counts at once, also for what lies there already', async () => {
    const next = makeKey()
    const privateKey = next.privateKey
    await makeRelease(folders.releases, '6.0.0', { key: privateKey })
    await releasesOnce(hub, 'the refusal', isRefused('6.0.0', 'UNKNOWN_KEY'))
    writePublicKey(next, folders.keys, 'two')
    await releasesOnce(hub, '6.0.0', isOffered('6.0.0'))
    const { releaseKeys } = (await hub.enroll()) as unknown as { releaseKeys: string[] }
    const both = [key, next].map((one) => publicKeyOf(one.publicKey))
    assert.deepEqual(releaseKeys.toSorted(), both.toSorted())
    rmSync(join(folders.keys, 'two.pub'))
    await releasesOnce(hub, 'the refusal', isRefused('6.0.0', 'UNKNOWN_KEY'))
  })

  test('a private key among the public ones is no key, and is not told', async () => {
    const secret = makeKey()
    const pem = secret.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
    writeFileSync(join(folders.keys, 'oops.pub'), pem)
    const body = await releasesOnce(hub, 'the refusal', ({ refused }) =>
      refused.some(({ file, code }: Refused) => file === 'oops.pub' && code === 'KEY_INVALID'),
    )
    assert.ok(!JSON.stringify(body).includes('PRIVATE'))
    rmSync(join(folders.keys, 'oops.pub'))
  })

  test('upgrade_agent is for a version that this hub has for this device', async () => {
    const { deviceId } = await hub.enroll({ os: 'linux', arch: 'x86_64' })
    const { deviceId: mac } = await hub.enroll({ os: 'macos', arch: 'arm64' })
    const upgrade = (id: string, version: string, headers: Record<string, string> = {}) =>
      hub.post(
        `/devices/${id}/commands`,
        { action: 'upgrade_agent', payload: { version } },
        { headers },
      )
    assert.equal((await upgrade(deviceId, '1.0.0')).status, 202)
    for (const [id, version] of [
      [deviceId, '9.9.9'],
      [deviceId, '2.0.5'],
      [mac, '1.0.0'],
    ] as const) {
      const { status, body } = await upgrade(id, version)
      assert.deepEqual([status, body.error.code], [404, 'AGENT_BINARY_NOT_FOUND'])
    }
    const unknown = await upgrade('0192f0c1-2345-7abc-8def-0123456789ab', '1.0.0')
    assert.deepEqual([unknown.status, unknown.body.error.code], [404, 'NOT_FOUND'])
    const malformed = await upgrade(deviceId, '1.0')
    assert.deepEqual([malformed.status, malformed.body.error.code], [400, 'VALIDATION_ERROR'])

    const folder = await make('8.0.0')
    await releasesOnce(hub, '8.0.0', isOffered('8.0.0'))
    const once = { 'idempotency-key': 'upgrade-1' }
    const first = await upgrade(deviceId, '8.0.0', once)
    assert.equal(first.status, 202)
    cpSync(folder, join(folders.base, '8.0.0'), { recursive: true })
    rmSync(folder, { recursive: true })
    await releasesOnce(hub, '8.0.0 to go', (body) => !isOffered('8.0.0')(body))
    // A retry gets the first answer, though the release is gone.
    const retry = await upgrade(deviceId, '8.0.0', once)
    assert.deepEqual([retry.status, retry.body.id], [202, first.body.id])
    assert.equal((await upgrade(deviceId, '8.0.0')).status, 404)
  })
})

test('a signed list takes the place of the keys beside it; any other is refused', async () => {
  const next = makeKey()
  const keys = [publicKeyOf(next.publicKey)]
  const path = join(folders.keys, 'keys.json')
  const list = (signer: typeof key) =>
    signKeyList({ created: new Date().toISOString(), keys }, [signer.privateKey])
  await makeRelease(folders.releases, '7.0.0', { key: next.privateKey })
  for (const [wrong, message] of [
    [JSON.stringify(list(makeKey())), 'is signed by none'],
    ['{"created":', 'is no JSON'],
    ['{}', 'has no created'],
  ] as const) {
    writeFileSync(path, wrong)
    const body = await releasesOnce(hub, `"${message}"`, ({ refused }) =>
      refused.some((one: Refused) => one.file === 'keys.json' && one.message.includes(message)),
    )
    assert.equal(body.keyList, null)
    await releasesOnce(hub, 'the refusal', isRefused('7.0.0', 'UNKNOWN_KEY'))
    // Nor does what the list might have left out.
    await releasesOnce(hub, '1.0.0 to be refused', isRefused('1.0.0', 'UNKNOWN_KEY'))
  }
  const good = list(key)
  writeFileSync(path, JSON.stringify(good))
  const body = await releasesOnce(hub, '7.0.0', isOffered('7.0.0'))
  assert.deepEqual(body.keyList, good)
  // What the old key signed does not count any more.
  await releasesOnce(hub, '1.0.0 to be refused', isRefused('1.0.0', 'UNKNOWN_KEY'))
  const { releaseKeys } = (await hub.enroll()) as unknown as { releaseKeys: string[] }
  assert.deepEqual(releaseKeys, keys)
  rmSync(path)
  await releasesOnce(hub, '1.0.0 again', isOffered('1.0.0'))
})

test('only the highest versions are looked at', async () => {
  for (let n = 0; n < 40; n++) mkdirSync(join(folders.releases, `0.0.${n}`))
  await releasesOnce(hub, 'what is too many', isRefused('0.0.0', 'TOO_MANY'))
  const body = await releasesOnce(hub, 'the rest', isRefused('0.0.39', 'NO_MANIFEST'))
  assert.ok(isOffered('1.0.0')(body))
  for (let n = 0; n < 40; n++) rmSync(join(folders.releases, `0.0.${n}`), { recursive: true })
})
