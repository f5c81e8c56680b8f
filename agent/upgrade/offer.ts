// What the hub offers, read with suspicion, and the one file of it that this device may take.

import {
  isFileSigned,
  isManifestSigned,
  keyIdOf,
  parseKeyList,
  parseManifest,
} from '../../src/release_manifest.ts'
import type { KeyList, Manifest, ReleaseFile } from '../../src/release_manifest.ts'
import { compareVersions } from '../../src/versions.ts'
import type { Platform } from '../../src/executable.ts'
import { UpgradeError } from './reasons.ts'
import type { Trust } from './trust.ts'

export interface Offer {
  manifests: Manifest[]
  keyList: KeyList | null
}

/** Reads `GET /agents/releases`. What is no manifest is as if it were not there. */
export function parseOffer(body: unknown): Offer {
  const { data, keyList } = (body ?? {}) as { data?: unknown; keyList?: unknown }
  const items = Array.isArray(data) ? (data as unknown[]) : []
  return {
    manifests: items
      .map((item) => orNull(() => parseManifest(manifestText(item))))
      .filter((one) => one !== null),
    keyList: keyList ? orNull(() => parseKeyList(JSON.stringify(keyList))) : null,
  }
}

/** The file to install. Throws UpgradeError where there is none that may be installed. */
export function chooseFile(
  version: string,
  { os, arch }: Platform,
  { manifests }: Offer,
  trust: Trust,
): ReleaseFile {
  if (trust.keys.length === 0) {
    throw new UpgradeError('no_trusted_key', 'this agent pins no release key: enroll it again')
  }
  const manifest = manifests.find((one) => one.version === version)
  if (!manifest) throw new UpgradeError('not_offered', `the hub offers no version ${version}`)
  requireSignature(manifest, trust)
  const minimum = trust.minimumVersion
  if (minimum !== null && compareVersions(version, minimum) < 0) {
    const text = `version ${version} is below ${minimum}, the lowest that a signed release allows`
    throw new UpgradeError('below_minimum', text)
  }
  const file = manifest.files.find((one) => one.os === os && one.arch === arch)
  if (file && isFileSigned(version, file, keyOf(manifest, trust) ?? '')) return file
  throw new UpgradeError('not_offered', `version ${version} has no file for ${os}/${arch}`)
}

function requireSignature(manifest: Manifest, { keys }: Trust): void {
  if (isManifestSigned(manifest, keys)) return
  const why = keys.some((key) => keyIdOf(key) === manifest.keyId)
    ? 'its signature does not fit it'
    : `it is signed with key ${manifest.keyId}, which this agent does not trust`
  throw new UpgradeError('bad_signature', `version ${manifest.version} was refused: ${why}`)
}

function keyOf({ keyId }: Manifest, { keys }: Trust): string | undefined {
  return keys.find((key) => keyIdOf(key) === keyId)
}

// The hub says more of a manifest than what is signed, and newer ones may say more still.
function manifestText(item: unknown): string {
  const { version, created, minimumVersion, keyId, files, signature } = (item ?? {}) as Manifest
  return JSON.stringify({ version, created, minimumVersion, keyId, files, signature })
}

function orNull<T>(read: () => T): T | null {
  try {
    return read()
  } catch {
    return null
  }
}
