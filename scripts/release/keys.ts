// Signing keys as files: PEM, a private one readable by its owner alone.
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { mkdir, readFile, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { keyIdOf, publicKeyOf } from '../../src/release_manifest.ts'
import { create } from './files.ts'
import { Refusal } from './refusal.ts'

/** Makes a key pair in `folder`; returns its id. */
export async function makeKeys(folder: string): Promise<string> {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519')
  const keyId = keyIdOf(publicKeyOf(publicKey))
  await mkdir(folder, { recursive: true })
  const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
  await create(join(folder, `${keyId}.key`), pem, 0o600)
  const open = publicKey.export({ type: 'spki', format: 'pem' }).toString()
  await create(join(folder, `${keyId}.pub`), open, 0o644)
  return keyId
}

/** Reads a private key. Throws Refusal, which never holds what the file says. */
export async function readPrivateKey(path: string): Promise<KeyObject> {
  const key = read(path, createPrivateKey, await readFile(path, 'utf8'))
  // For its refusal of other kinds of keys.
  publicKeyOf(key)
  return key
}

/** The public keys of all `.pub` files of a folder, by name. Throws Refusal where there is none. */
export async function readPublicKeys(folder: string): Promise<string[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.pub')).toSorted()
  if (names.length === 0) throw new Refusal(`${folder} holds no .pub file`)
  const files = names.map(async (name) => {
    const path = join(folder, name)
    return read(path, (text) => publicKeyOf(createPublicKey(text)), await readFile(path, 'utf8'))
  })
  return [...new Set(await Promise.all(files))]
}

function read<T>(path: string, parse: (text: string) => T, text: string): T {
  try {
    return parse(text)
  } catch {
    throw new Refusal(`${path} is no Ed25519 key in PEM`)
  }
}
