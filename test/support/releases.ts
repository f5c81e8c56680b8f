// Releases for tests of the hub: small files with the header of an executable, signed by the tool itself.
import { generateKeyPairSync, randomBytes, type KeyObject } from 'node:crypto'
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { compress } from '../../scripts/release/files.ts'
import { signRelease } from '../../scripts/release/sign.ts'
import type { Arch, Platform } from '../../src/executable.ts'
import { agentFileName, type Manifest } from '../../src/release_manifest.ts'
import type { TestHub } from './hub.ts'
import { until } from './until.ts'

export const linux: Platform = { os: 'linux', arch: 'amd64' }

export interface SigningKey {
  privateKey: KeyObject
  publicKey: KeyObject
}

export interface Folders {
  /** Removed after the test. */
  base: string
  releases: string
  keys: string
  /** For `startHub`. */
  env: { AGENT_RELEASES_DIR: string; AGENT_RELEASE_KEYS: string }
}

/** New folders of releases and keys. */
export function makeReleaseFolders(): Folders {
  const base = mkdtempSync(join(tmpdir(), 'muster-releases-'))
  const [releases, keys] = [join(base, 'releases'), join(base, 'keys')]
  mkdirSync(releases)
  mkdirSync(keys)
  return {
    base,
    releases,
    keys,
    env: { AGENT_RELEASES_DIR: releases, AGENT_RELEASE_KEYS: keys },
  }
}

/** A new key; its public half lies in `folder` where one is given. */
export function makeKey(folder?: string, name = 'test'): SigningKey {
  const pair = generateKeyPairSync('ed25519')
  if (folder !== undefined) writePublicKey(pair, folder, name)
  return pair
}

export function writePublicKey({ publicKey }: SigningKey, folder: string, name: string): void {
  const pem = publicKey.export({ type: 'spki', format: 'pem' })
  writeFileSync(join(folder, `${name}.pub`), pem)
}

/** The bytes of a file that is a Linux executable by its header, and noise. */
export function elfBytes(arch: Arch, size: number): Buffer {
  const bytes = randomBytes(size)
  bytes.fill(0, 0, 64)
  bytes.write('\x7fELF', 'latin1')
  bytes.set([2, 1], 4)
  bytes.writeUInt16LE(2, 16)
  bytes.writeUInt16LE(arch === 'amd64' ? 0x3e : 0xb7, 18)
  return bytes
}

export interface ReleaseOptions {
  key: KeyObject
  platforms?: Platform[]
  /** Bytes of each file. */
  size?: number
  minimumVersion?: string | null
  /** The folder's name, where that is not the version. */
  folder?: string
}

/** Writes and signs a release with its compressed files; returns its folder and manifest. */
export async function makeRelease(
  releases: string,
  version: string,
  { key, platforms = [linux], size = 10_000, minimumVersion = null, ...more }: ReleaseOptions,
): Promise<{ folder: string; manifest: Manifest }> {
  const folder = join(releases, more.folder ?? version)
  mkdirSync(folder, { recursive: true })
  for (const platform of platforms) {
    const path = join(folder, agentFileName(version, platform))
    writeFileSync(path, elfBytes(platform.arch, size))
    await compress(path, 1)
  }
  const manifest = await signRelease({ folder, key, minimumVersion, say: () => {} })
  return { folder, manifest }
}

/** Releases of 64-bit Linux, for hubs whose tests are not about what lies in them. */
export async function makeReleases(versions: readonly string[]): Promise<Folders> {
  const folders = makeReleaseFolders()
  const { privateKey } = makeKey(folders.keys)
  const platforms: Platform[] = [linux, { os: 'linux', arch: 'arm64' }]
  for (const version of versions) {
    await makeRelease(folders.releases, version, { key: privateKey, platforms })
  }
  return folders
}

/** Waits until the hub offers so many releases. */
export function offered(hub: TestHub, count: number): Promise<unknown> {
  return releasesOnce(hub, 'the releases', ({ data }) => data.length === count)
}

/** What the hub says of its releases, once `fact` holds. */
export async function releasesOnce(
  hub: TestHub,
  what: string,
  // oxlint-disable-next-line typescript/no-explicit-any -- as answers of the hub everywhere in tests
  fact: (body: any) => boolean,
  // oxlint-disable-next-line typescript/no-explicit-any -- as above
): Promise<any> {
  return until(what, async () => {
    const { status, body } = await hub.get('/agents/releases', { token: undefined })
    return status === 200 && fact(body) ? body : undefined
  })
}
