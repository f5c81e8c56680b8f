// What a release says of itself and how it is proved: the same for the release tool, the hub and the agent.
// Ed25519 throughout. A key is its 32 raw bytes in base64; its id is derived from it, so that an id can't lie.
import { createHash, createPublicKey, sign, verify, type KeyObject } from 'node:crypto'
import type { Arch, OsName } from './executable.ts'

export interface ReleaseFile {
  /** `muster-agent_<version>_<os>_<arch>[.exe]` */
  name: string
  os: OsName
  arch: Arch
  /** Bytes. */
  size: number
  /** Hex. */
  sha256: string
  /** Base64; over version, os, arch, size and sha256. */
  signature: string
  /** The same file compressed, `<name>.zst`: a convenience, so what it unpacks to is what is proved. */
  zst: { size: number; sha256: string } | null
}

export interface Manifest {
  version: string
  /** ISO-8601. */
  created: string
  /** An agent that saw this manifest never again installs a version below this one. */
  minimumVersion: string | null
  keyId: string
  files: ReleaseFile[]
  /** Base64; over everything above, so that nothing of it can be changed or left out. */
  signature: string
}

/** The keys that count from now on, signed by one that counted before. */
export interface KeyList {
  /** ISO-8601; a list that is not newer than the last one accepted is refused. */
  created: string
  /** Base64 of 32 bytes each. */
  keys: string[]
  signatures: { keyId: string; signature: string }[]
}

type FileFacts = Pick<ReleaseFile, 'os' | 'arch' | 'size' | 'sha256'>

const spkiPrefix = Buffer.from('302a300506032b6570032100', 'hex')

export function keyIdOf(publicKey: string): string {
  return createHash('sha256').update(Buffer.from(publicKey, 'base64')).digest('hex').slice(0, 16)
}

/** The key's 32 bytes in base64, whether it is private or public. */
export function publicKeyOf(key: KeyObject): string {
  const whole = key.type === 'public' ? key : createPublicKey(key)
  if (whole.asymmetricKeyType !== 'ed25519') throw new Error('the key is no Ed25519 key')
  return whole
    .export({ type: 'spki', format: 'der' })
    .subarray(spkiPrefix.length)
    .toString('base64')
}

/** Whether a text is a public key as this module writes them. */
export function isPublicKey(text: string): boolean {
  return /^[A-Za-z0-9+/]{43}=$/.test(text)
}

export function signFile(version: string, file: FileFacts, key: KeyObject): string {
  return sign(null, fileText(version, file), key).toString('base64')
}

export function isFileSigned(version: string, file: ReleaseFile, publicKey: string): boolean {
  return isSigned(fileText(version, file), file.signature, publicKey)
}

export function signManifest(manifest: Omit<Manifest, 'signature'>, key: KeyObject): Manifest {
  return { ...manifest, signature: sign(null, manifestText(manifest), key).toString('base64') }
}

/** Whether the manifest and each file of it are signed by the key it names, which must be one of `keys`. */
export function isManifestSigned(manifest: Manifest, keys: readonly string[]): boolean {
  const key = keys.find((one) => keyIdOf(one) === manifest.keyId)
  return (
    key !== undefined &&
    isSigned(manifestText(manifest), manifest.signature, key) &&
    manifest.files.every((file) => isFileSigned(manifest.version, file, key))
  )
}

export function signKeyList(list: Omit<KeyList, 'signatures'>, keys: KeyObject[]): KeyList {
  const text = keyListText(list)
  const signatures = keys.map((key) => ({
    keyId: keyIdOf(publicKeyOf(key)),
    signature: sign(null, text, key).toString('base64'),
  }))
  return { ...list, signatures }
}

/** Whether one of `keys` signed the list. */
export function isKeyListSigned(list: KeyList, keys: readonly string[]): boolean {
  const text = keyListText(list)
  return list.signatures.some(({ keyId, signature }) => {
    const key = keys.find((one) => keyIdOf(one) === keyId)
    return key !== undefined && isSigned(text, signature, key)
  })
}

/** The contract of other tools: whoever has a file and its facts can check it with any Ed25519. */
function fileText(version: string, { os, arch, size, sha256 }: FileFacts): Buffer {
  return Buffer.from(['muster-agent', version, os, arch, size, sha256].join('\n'))
}

function manifestText(manifest: Omit<Manifest, 'signature'>): Buffer {
  const { version, created, minimumVersion, keyId, files } = manifest
  const lines = files.map(({ name, os, arch, size, sha256, signature, zst }) =>
    [name, os, arch, size, sha256, signature, zst?.size ?? '', zst?.sha256 ?? ''].join(' '),
  )
  const head = ['muster-manifest', version, created, minimumVersion ?? '', keyId]
  return Buffer.from([...head, ...lines].join('\n'))
}

function keyListText({ created, keys }: Omit<KeyList, 'signatures'>): Buffer {
  return Buffer.from(['muster-release-keys', created, ...keys].join('\n'))
}

function isSigned(text: Buffer, signature: string, publicKey: string): boolean {
  if (!isPublicKey(publicKey)) return false
  const key = createPublicKey({
    key: Buffer.concat([spkiPrefix, Buffer.from(publicKey, 'base64')]),
    type: 'spki',
    format: 'der',
  })
  return verify(null, text, key, Buffer.from(signature, 'base64'))
}
