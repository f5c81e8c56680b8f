// What a release says of itself and how it is proved: the same for the release tool, the hub and the agent.
// Ed25519 throughout. A key is its 32 raw bytes in base64; its id is derived from it, so that an id can't lie.
import { createHash, createPublicKey, sign, verify, type KeyObject } from 'node:crypto'
import type { Arch, OsName, Platform } from './executable.ts'
import { compareVersions, isVersion } from './versions.ts'

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

/** A manifest with every platform has about 4 KB, a list of keys as it is less than 3 KB. */
export const manifestBytesMax = 64 * 1024
/** Larger ones are none of ours: the agent has about 110 MB. */
export const releaseFileBytesMax = 1024 * 1024 * 1024
/** Keys, and signatures, of a list: a rotation has two of each. */
export const listedKeysMax = 16

type FileFacts = Pick<ReleaseFile, 'os' | 'arch' | 'size' | 'sha256'>

const publicKeyPattern = /^[A-Za-z0-9+/]{43}=$/
const spkiPrefix = Buffer.from('302a300506032b6570032100', 'hex')

/** `muster-agent_1.2.3_linux_amd64`, with `.exe` for Windows: the name alone tells version and platform. */
export function agentFileName(version: string, { os, arch }: Platform): string {
  return `muster-agent_${version}_${os}_${arch}${os === 'windows' ? '.exe' : ''}`
}

/** What a name tells; undefined for one that is none of a release's executables. */
export function parseAgentFileName(
  name: string,
): { version: string; platform: Platform } | undefined {
  const match = /^muster-agent_([^_]+)_(linux|darwin|windows)_(amd64|arm64)(?:\.exe)?$/.exec(name)
  if (match === null) return undefined
  const [, version = '', os, arch] = match
  // The pattern allows nothing else.
  const platform = { os: os as OsName, arch: arch as Arch }
  if (!isVersion(version) || agentFileName(version, platform) !== name) return undefined
  return { version, platform }
}

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
  return publicKeyPattern.test(text)
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

// ---- reading ---------------------------------------------------------------------------------

/**
 * Reads a manifest. Strict, so that what is signed means one thing: every member there and none besides, names
 * that fit version and platform, one file per platform. Throws an Error that names the member.
 */
export function parseManifest(text: string): Manifest {
  const names = ['version', 'created', 'minimumVersion', 'keyId', 'files', 'signature']
  const from = members(parseJson(text), 'the manifest', names)
  const version = versionAt(from['version'], 'version')
  const minimum = from['minimumVersion']
  const minimumVersion = minimum === null ? null : versionAt(minimum, 'minimumVersion')
  if (minimumVersion !== null && compareVersions(minimumVersion, version) > 0) {
    throw new Error('minimumVersion is above version')
  }
  const files = listAt(from['files'], 'files', 16).map((file, index) =>
    fileAt(file, `files/${index}`, version),
  )
  if (files.length === 0) throw new Error('files is empty')
  const places = new Set(files.map(({ os, arch }) => `${os}/${arch}`))
  if (places.size < files.length) throw new Error('files has a platform twice')
  return {
    version,
    created: timeAt(from['created'], 'created'),
    minimumVersion,
    keyId: textAt(from['keyId'], 'keyId', /^[0-9a-f]{16}$/),
    files,
    signature: signatureAt(from['signature'], 'signature'),
  }
}

/** Reads a list of keys, as strictly. Throws an Error that names the member. */
export function parseKeyList(text: string): KeyList {
  const from = members(parseJson(text), 'the key list', ['created', 'keys', 'signatures'])
  const keys = listAt(from['keys'], 'keys', listedKeysMax).map((key, index) =>
    textAt(key, `keys/${index}`, publicKeyPattern),
  )
  if (keys.length === 0) throw new Error('keys is empty')
  const signatures = listAt(from['signatures'], 'signatures', listedKeysMax).map((one, index) => {
    const at = `signatures/${index}`
    const signed = members(one, at, ['keyId', 'signature'])
    return {
      keyId: textAt(signed['keyId'], `${at}/keyId`, /^[0-9a-f]{16}$/),
      signature: signatureAt(signed['signature'], `${at}/signature`),
    }
  })
  return { created: timeAt(from['created'], 'created'), keys, signatures }
}

function fileAt(value: unknown, at: string, version: string): ReleaseFile {
  const names = ['name', 'os', 'arch', 'size', 'sha256', 'signature', 'zst']
  const from = members(value, at, names)
  const name = textAt(from['name'], `${at}/name`, /^[\w.-]{1,200}$/)
  const told = parseAgentFileName(name)
  if (told?.version !== version) throw new Error(`${at}/name is no executable of ${version}`)
  const { os, arch } = told.platform
  if (from['os'] !== os || from['arch'] !== arch) {
    throw new Error(`${at} is ${os}/${arch} by its name and another by os and arch`)
  }
  const packed = from['zst']
  const zst = packed === null ? null : members(packed, `${at}/zst`, ['size', 'sha256'])
  return {
    name,
    os,
    arch,
    size: sizeAt(from['size'], `${at}/size`),
    sha256: hashAt(from['sha256'], `${at}/sha256`),
    signature: signatureAt(from['signature'], `${at}/signature`),
    zst: zst && {
      size: sizeAt(zst['size'], `${at}/zst/size`),
      sha256: hashAt(zst['sha256'], `${at}/zst/sha256`),
    },
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error('it is no JSON', { cause: error })
  }
}

function members(value: unknown, at: string, names: string[]): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Error(`${at} is no object`)
  }
  const missing = names.find((name) => !Object.hasOwn(value, name))
  if (missing !== undefined) throw new Error(`${at} has no ${missing}`)
  const foreign = Object.keys(value).find((name) => !names.includes(name))
  if (foreign !== undefined) throw new Error(`${at} has ${foreign}, which means nothing`)
  return { ...value }
}

function listAt(value: unknown, at: string, max: number): unknown[] {
  if (!Array.isArray(value) || value.length > max) {
    throw new Error(`${at} is no list of at most ${max}`)
  }
  return value
}

function textAt(value: unknown, at: string, pattern: RegExp): string {
  if (typeof value === 'string' && pattern.test(value)) return value
  throw new Error(`${at} is not what it has to be`)
}

function versionAt(value: unknown, at: string): string {
  if (typeof value === 'string' && isVersion(value)) return value
  throw new Error(`${at} is no version such as 1.2.3 or 1.2.3-rc.1`)
}

function sizeAt(value: unknown, at: string): number {
  const size = typeof value === 'number' && Number.isInteger(value) ? value : 0
  if (size > 0 && size <= releaseFileBytesMax) return size
  throw new Error(`${at} is no number of bytes up to ${releaseFileBytesMax}`)
}

const timeAt = (value: unknown, at: string) =>
  textAt(value, at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
const hashAt = (value: unknown, at: string) => textAt(value, at, /^[0-9a-f]{64}$/)
const signatureAt = (value: unknown, at: string) => textAt(value, at, /^[A-Za-z0-9+/]{86}==$/)
