// One folder of a release: what it says of itself, and whether that is true. Refuses the whole of it for the first
// thing that is wrong: a release of which something is false is no release.
import { lstat, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Measured, Unmeasured } from '../workers/release_check.ts'
import { limits } from './limits.ts'
import { readSmall, stampOf } from './release_files.ts'
import type { Refused, ReleaseKeys } from './release_keys.ts'
import {
  isFileSigned,
  isManifestSigned,
  keyIdOf,
  manifestBytesMax,
  parseManifest,
  type Manifest,
  type ReleaseFile,
} from './release_manifest.ts'

/** A file that was proved to be what its manifest says. */
export interface ProvedFile {
  path: string
  /** Of the file that was proved: another one of this name is not it. */
  stamp: string
  /** Bytes. */
  size: number
  /** Hex; of these bytes. */
  sha256: string
}

export interface ReleaseBinary {
  file: ReleaseFile
  plain: ProvedFile
  zst: ProvedFile | null
}

export interface Release {
  manifest: Manifest
  binaries: readonly ReleaseBinary[]
}

export type Measure = (path: string) => Promise<Measured | Unmeasured>

/** What is in a folder, to be compared: another text whenever a file came, went or was written. */
export async function stampOfFolder(path: string): Promise<string> {
  const names = (await readdir(path)).toSorted().slice(0, limits.releaseFolderFilesMax)
  const stamps = names.map(async (name) => {
    // One that went meanwhile is gone at the next look too.
    const stats = await lstat(join(path, name), { bigint: true }).catch(() => undefined)
    return stats ? `${name}:${stampOf(stats)}` : name
  })
  return (await Promise.all(stamps)).join('\n')
}

/** Proves a folder, whose name is the version, or says what is wrong with it. */
export async function proveRelease(
  root: string,
  folder: string,
  { keys }: ReleaseKeys,
  measure: Measure,
): Promise<Release | Refused> {
  try {
    const manifest = await readManifest(join(root, folder), folder, keys)
    const binaries: ReleaseBinary[] = []
    for (const file of manifest.files) {
      binaries.push(await proveBinary(join(root, folder), file, measure))
    }
    return { manifest, binaries }
  } catch (error) {
    if (!(error instanceof Wrong)) throw error
    const { code, file, message } = error
    return { folder, file, code, message: `${join(folder, file ?? '')} ${message}` }
  }
}

/** What is wrong with a folder; `message` goes on after the name of the file. */
class Wrong extends Error {
  readonly code: string
  readonly file: string | null

  constructor(code: string, file: string | null, message: string) {
    super(message)
    this.code = code
    this.file = file
  }
}

const manifestName = 'manifest.json'

async function readManifest(
  path: string,
  folder: string,
  keys: readonly string[],
): Promise<Manifest> {
  const manifest = parse(await textOf(path))
  if (manifest.version !== folder) {
    const message = `is the manifest of ${manifest.version}; the folder has to be called that`
    throw new Wrong('WRONG_VERSION', manifestName, message)
  }
  if (!keys.some((key) => keyIdOf(key) === manifest.keyId)) {
    const message = `is signed by ${manifest.keyId}, which is none of the ${keys.length} keys in force`
    throw new Wrong('UNKNOWN_KEY', manifestName, message)
  }
  if (isManifestSigned(manifest, keys)) return manifest
  const key = keys.find((one) => keyIdOf(one) === manifest.keyId) ?? ''
  const file = manifest.files.find((one) => !isFileSigned(manifest.version, one, key))
  const message = `has another signature than what it says would have${file ? `, for ${file.name}` : ''}`
  throw new Wrong('BAD_SIGNATURE', manifestName, message)
}

async function textOf(path: string): Promise<string> {
  const text = await readSmall(join(path, manifestName), manifestBytesMax).catch(
    (error: unknown) => {
      if (!isSystemError(error)) throw error
      const missing = error.code === 'ENOENT'
      throw missing
        ? new Wrong('NO_MANIFEST', null, `has no ${manifestName}: sign it, or wait for its upload`)
        : new Wrong('UNREADABLE', manifestName, `can't be read: ${error.code}`)
    },
  )
  if (text) return text
  const message =
    text === undefined
      ? 'is no regular file'
      : `is empty or has more than ${manifestBytesMax} bytes`
  throw new Wrong('BAD_MANIFEST', manifestName, message)
}

function parse(text: string): Manifest {
  try {
    return parseManifest(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw new Wrong('BAD_MANIFEST', manifestName, `is no manifest: ${reason}`)
  }
}

async function proveBinary(
  path: string,
  file: ReleaseFile,
  measure: Measure,
): Promise<ReleaseBinary> {
  const plain = await proveFile(path, file.name, file, measure, (found) => {
    const { platform } = found
    if (platform?.os === file.os && platform.arch === file.arch) return
    const instead = platform
      ? `an executable for ${platform.os}/${platform.arch}`
      : 'no executable, or one that was cut off'
    const message = `is ${instead}, and is to be one for ${file.os}/${file.arch}`
    throw new Wrong('WRONG_PLATFORM', file.name, message)
  })
  const zst = file.zst && (await proveFile(path, `${file.name}.zst`, file.zst, measure))
  return { file, plain, zst }
}

async function proveFile(
  folder: string,
  name: string,
  { size, sha256 }: { size: number; sha256: string },
  measure: Measure,
  more?: (found: Measured) => void,
): Promise<ProvedFile> {
  const path = join(folder, name)
  const found = await measured(path, name, measure)
  if (found.size !== size) {
    throw new Wrong('WRONG_SIZE', name, `has ${found.size} bytes instead of ${size}`)
  }
  more?.(found)
  if (found.sha256 === sha256) return { path, stamp: found.stamp, size, sha256 }
  throw new Wrong('WRONG_HASH', name, `has the SHA-256 ${found.sha256} instead of ${sha256}`)
}

async function measured(path: string, name: string, measure: Measure): Promise<Measured> {
  const found = await measure(path)
  if (!('failed' in found)) return found
  const { failed } = found
  const known = unmeasured[failed]
  throw known
    ? new Wrong(known.code, name, known.message)
    : new Wrong('UNREADABLE', name, `can't be read: ${failed}`)
}

const unmeasured: Record<string, { code: string; message: string }> = {
  ENOENT: { code: 'NO_FILE', message: 'is in the manifest and not in the folder' },
  NOT_A_FILE: { code: 'NOT_A_FILE', message: 'is no regular file; links are not followed' },
  CHANGING: { code: 'CHANGING', message: 'is being written' },
}

function isSystemError(error: unknown): error is Error & { code: string } {
  return error instanceof Error && 'code' in error && typeof error.code === 'string'
}
