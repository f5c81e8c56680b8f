import assert from 'node:assert/strict'
import { generateKeyPairSync, verify } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  isKeyListSigned,
  isManifestSigned,
  isPublicKey,
  keyIdOf,
  parseAgentFileName,
  parseKeyList,
  parseManifest,
  publicKeyOf,
  signFile,
  signKeyList,
  signManifest,
  type Manifest,
} from '../src/release_manifest.ts'
import { compareVersions, isVersion } from '../src/versions.ts'

const one = generateKeyPairSync('ed25519')
const two = generateKeyPairSync('ed25519')
const [oneKey, twoKey] = [publicKeyOf(one.privateKey), publicKeyOf(two.publicKey)]

const facts = { os: 'linux', arch: 'amd64', size: 7, sha256: 'ab'.repeat(32) } as const
const manifest = signManifest(
  {
    version: '1.2.3',
    created: '2026-11-21T10:00:00.000Z',
    minimumVersion: '1.0.0',
    keyId: keyIdOf(oneKey),
    files: [
      {
        name: 'muster-agent_1.2.3_linux_amd64',
        ...facts,
        signature: signFile('1.2.3', facts, one.privateKey),
        zst: { size: 3, sha256: 'cd'.repeat(32) },
      },
    ],
  },
  one.privateKey,
)

test('a key is the same whichever half it is read from, and its id is its own', () => {
  assert.equal(publicKeyOf(one.publicKey), oneKey)
  assert.ok(isPublicKey(oneKey))
  assert.notEqual(keyIdOf(oneKey), keyIdOf(twoKey))
  const other = generateKeyPairSync('x25519')
  assert.throws(() => publicKeyOf(other.publicKey), /no Ed25519 key/)
})

test("a file's signature is what the contract says, for any Ed25519", () => {
  const text = `muster-agent\n1.2.3\nlinux\namd64\n7\n${'ab'.repeat(32)}`
  const signature = Buffer.from(manifest.files[0]?.signature ?? '', 'base64')
  assert.ok(verify(null, Buffer.from(text), one.publicKey, signature))
})

test('a manifest is proved by the key it names and no other', () => {
  assert.ok(isManifestSigned(manifest, [twoKey, oneKey]))
  assert.ok(!isManifestSigned(manifest, [twoKey]))
  assert.ok(!isManifestSigned({ ...manifest, keyId: keyIdOf(twoKey) }, [oneKey, twoKey]))
  assert.ok(!isManifestSigned(manifest, ['not a key']))
})

test('no member of a manifest can be changed, taken away or put in', () => {
  const [file] = manifest.files
  assert.ok(file)
  const changed: Partial<Manifest>[] = [
    { version: '1.2.4' },
    { created: '2026-11-22T10:00:00.000Z' },
    { minimumVersion: null },
    { files: [] },
    { files: [file, file] },
    ...[
      { name: 'muster-agent_1.2.3_linux_arm64' },
      { os: 'darwin' as const },
      { arch: 'arm64' as const },
      { size: 8 },
      { sha256: 'ac'.repeat(32) },
      { signature: signFile('1.2.3', facts, two.privateKey) },
      { zst: null },
      { zst: { size: 4, sha256: 'cd'.repeat(32) } },
    ].map((more) => ({ files: [{ ...file, ...more }] })),
  ]
  for (const more of changed) {
    assert.ok(!isManifestSigned({ ...manifest, ...more }, [oneKey]), JSON.stringify(more))
  }
})

test('a list of keys counts where one of the present keys signed it', () => {
  const list = signKeyList({ created: manifest.created, keys: [twoKey] }, [one.privateKey])
  assert.ok(isKeyListSigned(list, [oneKey]))
  assert.ok(!isKeyListSigned(list, [twoKey]))
  assert.ok(!isKeyListSigned({ ...list, keys: [twoKey, oneKey] }, [oneKey]))
  assert.ok(!isKeyListSigned({ ...list, created: '2027-01-01T00:00:00.000Z' }, [oneKey]))
})

test('what the tool writes is read back as it was', () => {
  assert.deepEqual(parseManifest(JSON.stringify(manifest, null, 2)), manifest)
  const list = signKeyList({ created: manifest.created, keys: [oneKey, twoKey] }, [one.privateKey])
  assert.deepEqual(parseKeyList(JSON.stringify(list)), list)
})

test('a manifest that is not wholly what it has to be is refused, and the member named', () => {
  const [file] = manifest.files
  assert.ok(file)
  const withFile = (more: object) => ({ files: [{ ...file, ...more }] })
  const wrongs: [object, RegExp][] = [
    [{ version: '1.2' }, /^version is no version/],
    [{ version: '1.2.4' }, /^files\/0\/name is no executable of 1\.2\.4/],
    [{ created: 'today' }, /^created/],
    [{ minimumVersion: '1.2.4' }, /^minimumVersion is above version/],
    [{ keyId: 'AB' }, /^keyId/],
    [{ signature: 'AA' }, /^signature/],
    [{ extra: 1 }, /has extra, which means nothing/],
    [{ files: {} }, /^files is no list/],
    [{ files: [] }, /^files is empty/],
    [{ files: [file, file] }, /^files has a platform twice/],
    [withFile({ name: '../../etc/passwd' }), /^files\/0\/name/],
    [withFile({ name: 'muster-agent_1.2.3_linux_arm64' }), /^files\/0 is linux\/arm64 by its name/],
    [withFile({ name: 'muster-agent_1.2.3_linux_amd64.exe' }), /^files\/0\/name/],
    [withFile({ size: 0 }), /^files\/0\/size/],
    [withFile({ size: 1.5 }), /^files\/0\/size/],
    [withFile({ sha256: 'AB'.repeat(32) }), /^files\/0\/sha256/],
    [withFile({ signature: `${'A'.repeat(86)}=\n` }), /^files\/0\/signature/],
    [withFile({ zst: {} }), /^files\/0\/zst has no size/],
  ]
  for (const [more, said] of wrongs) {
    const text = JSON.stringify({ ...manifest, ...more })
    assert.throws(() => parseManifest(text), { message: said }, text)
  }
  for (const name of Object.keys(manifest)) {
    const { [name as 'version']: _gone, ...rest } = manifest
    assert.throws(() => parseManifest(JSON.stringify(rest)), new RegExp(`has no ${name}`))
  }
})

test('whatever is read, it is a sentence that says what is wrong, and nothing of it gets through', () => {
  fc.assert(
    fc.property(fc.json(), (text) => {
      for (const parse of [parseManifest, parseKeyList]) {
        assert.throws(() => parse(text), { name: 'Error' })
      }
    }),
  )
  for (const text of ['', '[]', 'null', '{', '"x"']) assert.throws(() => parseManifest(text))
})

test('a name is one of ours or nothing', () => {
  assert.deepEqual(parseAgentFileName('muster-agent_1.0.0-rc.1_windows_amd64.exe'), {
    version: '1.0.0-rc.1',
    platform: { os: 'windows', arch: 'amd64' },
  })
  for (const name of [
    'muster-agent_1.0.0_windows_amd64',
    'muster-agent_1.0.0_linux_amd64.exe',
    'muster-agent_1.0.0_linux_amd64.zst',
    'muster-agent_1.0_linux_amd64',
    'muster-agent_1.0.0_linux_mips',
    'x/muster-agent_1.0.0_linux_amd64',
  ])
    assert.equal(parseAgentFileName(name), undefined, name)
})

test('versions are ordered as semver.org says', () => {
  const ordered = [
    '0.9.10',
    '1.0.0-alpha',
    '1.0.0-alpha.1',
    '1.0.0-alpha.beta',
    '1.0.0-beta.2',
    '1.0.0-beta.11',
    '1.0.0-rc.1',
    '1.0.0-rc-2',
    '1.0.0',
    '1.0.1',
    '1.10.0',
    '2.0.0',
  ]
  for (const [index, a] of ordered.entries()) {
    assert.ok(isVersion(a), a)
    for (const [place, b] of ordered.entries()) {
      assert.equal(Math.sign(compareVersions(a, b)), Math.sign(index - place), `${a} and ${b}`)
    }
  }
  for (const text of ['1.2', 'v1.2.3', '1.2.3-', '1.2.3-a..b', '1.2.3/../x', ''])
    assert.ok(!isVersion(text), text)
})
