// Whom this agent believes about releases: the keys it pins, those that a pinned one named since, and the
// lowest version that any signed manifest allowed. Pure but for reading and keeping it.

import { readIfThere, replaceDurably } from '../files.ts'
import { compiledKeys } from '../release_keys.ts'
import type { Identity, State } from '../state.ts'
import { isKeyListSigned, isManifestSigned, isPublicKey } from '../../src/release_manifest.ts'
import type { KeyList, Manifest } from '../../src/release_manifest.ts'
import { compareVersions } from '../../src/versions.ts'

export interface Trust {
  /** Compiled in, else those of enrollment. */
  pins: string[]
  /** In force: the pins, or the last list that was accepted. */
  keys: string[]
  /** When that list was made; ISO-8601. */
  keysCreated: string | null
  /** Never again below this one. */
  minimumVersion: string | null
}

/** What holds now. A list that was accepted under other pins counts no more; the lowest version does. */
export function readTrust(state: State, { releaseKeys }: Identity): Trust {
  const enrolled = releaseKeys.filter((key) => typeof key === 'string' && isPublicKey(key))
  const pins = compiledKeys.length > 0 ? [...compiledKeys] : (enrolled as string[]) // just filtered
  const text = readIfThere(state.releases)
  const kept = text === null ? null : (JSON.parse(text) as Trust) // replaced whole by keepTrust
  const fresh = {
    pins,
    keys: pins,
    keysCreated: null,
    minimumVersion: kept?.minimumVersion ?? null,
  }
  return kept && kept.pins.join() === pins.join() ? kept : fresh
}

export function keepTrust(state: State, trust: Trust): void {
  replaceDurably(state.releases, JSON.stringify(trust))
}

/** What holds after this list of keys and these manifests were seen. */
export function learn(trust: Trust, list: KeyList | null, manifests: readonly Manifest[]): Trust {
  const accepted = list !== null && isNewer(list, trust) && isKeyListSigned(list, trust.keys)
  const { keys, keysCreated } = accepted ? { keys: list.keys, keysCreated: list.created } : trust
  let { minimumVersion } = trust
  for (const manifest of manifests) {
    const minimum = manifest.minimumVersion
    if (minimum === null || !isManifestSigned(manifest, keys)) continue
    if (minimumVersion === null || compareVersions(minimum, minimumVersion) > 0) {
      minimumVersion = minimum
    }
  }
  return { ...trust, keys, keysCreated, minimumVersion }
}

function isNewer({ created }: KeyList, { keysCreated }: Trust): boolean {
  return keysCreated === null || Date.parse(created) > Date.parse(keysCreated)
}
