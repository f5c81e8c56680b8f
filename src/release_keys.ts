// The keys that prove releases to this hub: the `.pub` files of a folder, and the signed list beside them that
// replaces them once keys are rotated.
import { createPublicKey } from 'node:crypto'
import { lstat, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { limits } from './limits.ts'
import { readSmall, stampOf } from './release_files.ts'
import {
  isKeyListSigned,
  manifestBytesMax,
  parseKeyList,
  publicKeyOf,
  type KeyList,
} from './release_manifest.ts'

/** Something of the folders that does not count, and why. */
export interface Refused {
  /** The folder of a version; null for the folder of keys. */
  folder: string | null
  file: string | null
  code: string
  message: string
}

export interface ReleaseKeys {
  /** Another text whenever something changed in the folder. */
  stamp: string
  /** Public keys in force, base64 of 32 bytes each. */
  keys: readonly string[]
  list: KeyList | null
  refused: readonly Refused[]
}

export const noKeys: ReleaseKeys = { stamp: '', keys: [], list: null, refused: [] }

/** Reads the folder, which need not be there; `before` is answered where nothing changed since. */
export async function readReleaseKeys(folder: string, before: ReleaseKeys): Promise<ReleaseKeys> {
  const names = await namesIn(folder)
  if (names === undefined) return noKeys
  const stamps = names.map(async (name) =>
    stampOf(await lstat(join(folder, name), { bigint: true })),
  )
  const stamp = [...names, ...(await Promise.all(stamps))].join('\n')
  if (stamp === before.stamp) return before
  const refused: Refused[] = []
  const found = new Set<string>()
  for (const name of names.filter((one) => one.endsWith('.pub'))) {
    const key = await readKey(join(folder, name))
    if (key !== undefined) found.add(key)
    else refused.push(refusal(name, 'KEY_INVALID', 'is no Ed25519 public key in PEM'))
  }
  const keys = [...found]
  if (!names.includes(listName)) return { stamp, keys, list: null, refused }
  const list = await readList(join(folder, listName), keys)
  if (typeof list !== 'string') return { stamp, keys: list.keys, list, refused }
  // Without the list keys would count again that it had left out, perhaps because they were stolen.
  const message = `${list}. No key counts until that is put right or the file is taken away`
  return {
    stamp,
    keys: [],
    list: null,
    refused: [...refused, refusal(listName, 'KEY_LIST', message)],
  }
}

const listName = 'keys.json'

function refusal(file: string, code: string, message: string): Refused {
  return { folder: null, file, code, message: `${file} ${message}` }
}

/** The files that matter; undefined where there is no folder. */
async function namesIn(folder: string): Promise<string[] | undefined> {
  try {
    const names = (await readdir(folder)).toSorted()
    const keys = names.filter((name) => name.endsWith('.pub')).slice(0, limits.releaseKeysMax)
    return names.includes(listName) ? [...keys, listName] : keys
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined
    throw error
  }
}

async function readKey(path: string): Promise<string | undefined> {
  const text = await readSmall(path, limits.releaseKeyBytesMax)
  // A private key would do as well, and must not lie here.
  if (!text || !text.includes('PUBLIC KEY')) return undefined
  try {
    return publicKeyOf(createPublicKey(text))
  } catch {
    return undefined
  }
}

/** The list, or what is wrong with it. */
async function readList(path: string, keys: readonly string[]): Promise<KeyList | string> {
  const text = await readSmall(path, manifestBytesMax)
  if (!text) return `is no file of at most ${manifestBytesMax} bytes`
  let list: KeyList
  try {
    list = parseKeyList(text)
  } catch (error) {
    return `is no key list: ${error instanceof Error ? error.message : String(error)}`
  }
  if (isKeyListSigned(list, keys)) return list
  return 'is signed by none of the .pub files beside it; leave those of its signers here'
}
