// npm run release: makes keys, builds agents, signs a folder of them, signs a list of keys. Reads and writes
// files; the hub offers what lies signed in its folder.
import { parseArgs, type ParseArgsConfig } from 'node:util'
import { basename } from 'node:path'
import { stat } from 'node:fs/promises'
import { signKeyList } from '../src/release_manifest.ts'
import { isVersion } from '../src/versions.ts'
import { buildAgent } from './release/build.ts'
import { compress, replace } from './release/files.ts'
import { makeKeys, readPrivateKey, readPublicKeys } from './release/keys.ts'
import { nameOf, targets, type Target } from './release/platforms.ts'
import { Refusal } from './release/refusal.ts'
import { signRelease } from './release/sign.ts'

const usage = `Usage:
  npm run release -- keys --out DIR
      Makes a signing key: DIR/<keyId>.key, which stays secret, and DIR/<keyId>.pub.
  npm run release -- build --version V [--platform OS/ARCH]... [--keys DIR] --out DIR
      Builds muster-agent_<V>_<os>_<arch>[.exe] and the same compressed, .zst. Without --platform all of
      ${targets.map(({ platform }) => nameOf(platform)).join(', ')}.
      --keys DIR  compiles the keys of DIR/*.pub in; without it agents pin those of their enrollment
  npm run release -- sign --dir DIR --key FILE [--minimum-version V]
      Checks the executables of DIR against their names and writes DIR/manifest.json.
      --minimum-version V  who has seen this manifest never installs a version below V again
  npm run release -- key-list --keys DIR --key FILE... --out FILE
      Writes the list of keys that count from now on, those of DIR/*.pub, signed with keys that count
      before. It belongs into the folder AGENT_RELEASE_KEYS of the hub, as keys.json.`

/** Best for its time: level 19 takes ten times as long and saves a tenth. */
const zstdLevel = 12

const text = { type: 'string' } as const
const texts = { type: 'string', multiple: true } as const
const commands: Record<string, { options: NonNullable<ParseArgsConfig['options']>; run: Run }> = {
  keys: { options: { out: text }, run: keys },
  build: { options: { version: text, platform: texts, keys: text, out: text }, run: build },
  sign: { options: { dir: text, key: text, 'minimum-version': text }, run: sign },
  'key-list': { options: { keys: text, key: texts, out: text }, run: keyList },
}
type Flags = Record<string, unknown>
type Run = (flags: Flags) => Promise<void>

try {
  await main(process.argv.slice(2))
} catch (error) {
  const { message, exitCode } = refusalOf(error)
  const out = exitCode === 0 ? process.stdout : process.stderr
  out.write(`${message}\n`)
  process.exitCode = exitCode
}

async function main([name = '', ...args]: string[]): Promise<void> {
  if (name === '--help' || name === '-h' || args.includes('--help')) throw new Refusal(usage, 0)
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined
  if (command === undefined) throw new Refusal(usage, 2)
  const { values } = parseArgs({ args, options: command.options })
  await command.run(values)
}

function optional(flags: Flags, name: string): string | undefined {
  const value = flags[name]
  return typeof value === 'string' ? value : undefined
}

function required(flags: Flags, name: string): string {
  const value = optional(flags, name)
  if (value) return value
  throw new Refusal(`--${name} is missing\n\n${usage}`, 2)
}

function list(flags: Flags, name: string): string[] {
  const value = flags[name]
  // parseArgs makes a list of a flag that may be repeated, and of no other.
  return Array.isArray(value) ? (value as string[]) : []
}

function requireVersion(name: string, value: string): string {
  if (isVersion(value)) return value
  throw new Refusal(`--${name} is no version such as 1.2.3 or 1.2.3-rc.1: "${value}"`, 2)
}

async function keys(flags: Flags): Promise<void> {
  const folder = required(flags, 'out')
  const keyId = await makeKeys(folder)
  say(`${folder}/${keyId}.key signs releases: keep it secret, and a copy of it`)
  say(`${folder}/${keyId}.pub is for hubs (AGENT_RELEASE_KEYS) and for build --keys`)
}

async function build(flags: Flags): Promise<void> {
  const version = requireVersion('version', required(flags, 'version'))
  const out = required(flags, 'out')
  const chosen = chosenTargets(list(flags, 'platform'))
  const from = optional(flags, 'keys')
  const pinned = from === undefined ? [] : await readPublicKeys(from)
  for (const { platform } of chosen) {
    const path = await buildAgent({ version, platform, out, keys: pinned, say })
    say(`${basename(path)}: ${megabytes((await stat(path)).size)}, compressing`)
    const bytes = await compress(path, zstdLevel)
    say(`${basename(path)}.zst: ${megabytes(bytes)}`)
  }
}

function chosenTargets(names: string[]): readonly Target[] {
  if (names.length === 0) return targets
  return [...new Set(names)].map((name) => {
    const found = targets.find(({ platform }) => nameOf(platform) === name)
    if (found !== undefined) return found
    const known = targets.map(({ platform }) => nameOf(platform)).join(', ')
    throw new Refusal(`--platform "${name}" is none of ${known}`, 2)
  })
}

async function sign(flags: Flags): Promise<void> {
  const folder = required(flags, 'dir')
  const key = await readPrivateKey(required(flags, 'key'))
  const minimum = optional(flags, 'minimum-version')
  const minimumVersion = minimum === undefined ? null : requireVersion('minimum-version', minimum)
  const { version, keyId, files } = await signRelease({ folder, key, minimumVersion, say })
  const count = `${files.length} ${files.length === 1 ? 'file' : 'files'}`
  say(`${folder}/manifest.json: ${version}, ${count}, signed by ${keyId}`)
}

async function keyList(flags: Flags): Promise<void> {
  const listed = await readPublicKeys(required(flags, 'keys'))
  const out = required(flags, 'out')
  const files = list(flags, 'key')
  if (files.length === 0) throw new Refusal(`--key is missing\n\n${usage}`, 2)
  const signers = await Promise.all(files.map(readPrivateKey))
  const signed = signKeyList({ created: new Date().toISOString(), keys: listed }, signers)
  await replace(out, `${JSON.stringify(signed, null, 2)}\n`)
  say(`${out}: ${listed.length} ${listed.length === 1 ? 'key' : 'keys'}, signed by ${files.length}`)
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

function refusalOf(error: unknown): { message: string; exitCode: number } {
  if (error instanceof Refusal) return error
  if (error instanceof TypeError && 'code' in error) {
    return { message: `${error.message}\n\n${usage}`, exitCode: 2 }
  }
  // Of the system, such as a folder that is not there: its sentence says it.
  if (error instanceof Error && 'syscall' in error) return { message: error.message, exitCode: 1 }
  return { message: (error instanceof Error && error.stack) || String(error), exitCode: 1 }
}
