import assert from 'node:assert/strict'
import { generateKeyPairSync, verify } from 'node:crypto'
import { test } from 'node:test'
import {
  isKeyListSigned,
  isManifestSigned,
  isPublicKey,
  keyIdOf,
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
