// Signs the executables of a folder: what they are is told by their names and proved by their headers and
// bytes. Runs none of them.
import type { KeyObject } from 'node:crypto'
import { lstat, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import {
  keyIdOf,
  parseAgentFileName,
  parseManifest,
  publicKeyOf,
  signFile,
  signManifest,
  type Manifest,
  type ReleaseFile,
} from '../../src/release_manifest.ts'
import { compareVersions } from '../../src/versions.ts'
import { measure, measureUnpacked, platformOfFile, replace } from './files.ts'
import { nameOf } from './platforms.ts'
import { Refusal } from './refusal.ts'

export interface Signing {
  folder: string
  key: KeyObject
  minimumVersion: string | null
  say: (line: string) => void
}

/** Writes `manifest.json`, last and whole. Throws Refusal. */
export async function signRelease({ folder, key, ...options }: Signing): Promise<Manifest> {
  const names = await executablesIn(folder)
  const version = oneVersion(folder, names)
  const { minimumVersion, say } = options
  if (minimumVersion !== null && compareVersions(minimumVersion, version) > 0) {
    throw new Refusal(`the minimum version ${minimumVersion} is above ${version}, which is signed`)
  }
  const files: ReleaseFile[] = []
  for (const name of names) {
    files.push(await signedFile(folder, name, key))
    say(`${name} is what its name says`)
  }
  const created = new Date().toISOString()
  const keyId = keyIdOf(publicKeyOf(key))
  const manifest = signManifest({ version, created, minimumVersion, keyId, files }, key)
  const text = `${JSON.stringify(manifest, null, 2)}\n`
  // What no hub would read is not written.
  parseManifest(text)
  await replace(join(folder, 'manifest.json'), text)
  return manifest
}

async function executablesIn(folder: string): Promise<string[]> {
  const names = (await readdir(folder)).toSorted()
  const ours = names.filter((name) => name.startsWith('muster-agent') && !name.endsWith('.zst'))
  const odd = ours.find((name) => parseAgentFileName(name) === undefined)
  if (odd !== undefined) {
    throw new Refusal(
      `${join(folder, odd)} is not called muster-agent_<version>_<os>_<arch>, with .exe for Windows`,
    )
  }
  if (ours.length === 0) throw new Refusal(`${folder} holds no executable of an agent`)
  return ours
}

function oneVersion(folder: string, names: string[]): string {
  const versions = new Set(names.map((name) => parseAgentFileName(name)?.version ?? ''))
  const [version = '', other] = versions
  if (other === undefined) return version
  throw new Refusal(`${folder} holds ${version} and ${other}; a release is one version`)
}

async function signedFile(folder: string, name: string, key: KeyObject): Promise<ReleaseFile> {
  const told = parseAgentFileName(name)
  if (told === undefined) throw new Error('the names were checked before')
  const { version, platform } = told
  const path = join(folder, name)
  await requireFile(path)
  const found = await platformOfFile(path)
  if (found === undefined || nameOf(found) !== nameOf(platform)) {
    const instead = found
      ? `an executable for ${nameOf(found)}`
      : 'no executable, or one that was cut off'
    throw new Refusal(`${path} is ${instead}, and its name says ${nameOf(platform)}`)
  }
  const facts = { ...platform, ...(await measure(path)) }
  const zst = await signedZst(`${path}.zst`, facts)
  return { name, ...facts, signature: signFile(version, facts, key), zst }
}

async function signedZst(
  path: string,
  { size, sha256 }: Pick<ReleaseFile, 'size' | 'sha256'>,
): Promise<ReleaseFile['zst']> {
  if (!(await lstat(path).catch(() => undefined))) return null
  await requireFile(path)
  const unpacked = await measureUnpacked(path, size)
  if (unpacked.sha256 === sha256) return measure(path)
  throw new Refusal(`${path} unpacks to another file; remove it or build it anew`)
}

async function requireFile(path: string): Promise<void> {
  if (!(await lstat(path)).isFile()) throw new Refusal(`${path} is no file`)
}
