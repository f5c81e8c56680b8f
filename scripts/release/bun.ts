// Brings the Bun of a platform: packed by npm from the registry that npm uses, its digest compared with ours,
// unpacked once into a cache of our own. Runs no script of a package.
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync } from 'node:fs'
import { mkdtemp, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { promisify } from 'node:util'
import { cacheFolder, privateFolder } from '../../src/private_folder.js'
import { bunVersion, type BunPackage } from './platforms.ts'
import { Refusal } from './refusal.ts'

const run = promisify(execFile)

/** The path of the program of a package, fetched when it is not in the cache. Throws Refusal. */
export async function bunProgram(bun: BunPackage, say: (line: string) => void): Promise<string> {
  const cache = ownCache()
  const folder = join(cache, folderName(bun))
  const program = join(folder, basename(bun.program))
  if (existsSync(program)) return program
  say(`fetching ${bun.name}@${bunVersion}`)
  const draft = await mkdtemp(join(cache, 'bun-draft-'))
  try {
    const packed = await pack(bun, draft)
    await requireIntegrity(bun, packed)
    await run('tar', ['-xzf', packed, '-C', draft, '--strip-components=2', bun.program])
    await rm(packed)
    await keep(draft, folder, program)
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
  return program
}

/** Of two builds that fetch the same at once, the second finds the folder of the first. */
async function keep(draft: string, folder: string, program: string): Promise<void> {
  try {
    await rename(draft, folder)
  } catch (error) {
    if (!existsSync(program)) throw error
  }
}

/** The digest is part of the name: another pin never meets an older file. */
function folderName({ name, integrity }: BunPackage): string {
  const digest = Buffer.from(integrity.slice('sha512-'.length), 'base64').toString('hex')
  return `${name.slice('@oven/'.length)}-${bunVersion}-${digest.slice(0, 16)}`
}

/** What comes out of it is signed: nobody else may put something into it. */
function ownCache(): string {
  const cache = cacheFolder()
  if (!windows) {
    mkdirSync(dirname(cache), { recursive: true, mode: 0o700 })
    if (privateFolder(cache)) return cache
    throw new Refusal(
      `${cache} can be changed by others, or not by you; set XDG_CACHE_HOME to a folder of your own`,
    )
  }
  // A profile is its user's alone.
  mkdirSync(cache, { recursive: true })
  return cache
}

async function pack({ name }: BunPackage, folder: string): Promise<string> {
  const args = ['pack', `${name}@${bunVersion}`, '--pack-destination', folder, '--json']
  // npm tells what it runs where it started us; without it the one on the PATH is asked.
  const npm = process.env['npm_execpath']
  const [file, first] = npm ? [process.execPath, [npm]] : ['npm', []]
  try {
    // In the new folder: the checkout's own scripts and settings are none of its business.
    const { stdout } = await run(file, [...first, ...args], { cwd: folder, shell: !npm && windows })
    return join(folder, namePacked(JSON.parse(stdout)))
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error)
    throw new Refusal(`npm could not fetch ${name}@${bunVersion}: ${text}`)
  }
}

const windows = process.platform === 'win32'

/** npm 11 answers a list, npm 12 an object by package. */
function namePacked(answer: unknown): string {
  const [first] = Object.values(answer as Record<string, { filename?: string }>)
  return basename(first?.filename ?? '')
}

async function requireIntegrity({ name, integrity }: BunPackage, file: string): Promise<void> {
  const hash = createHash('sha512')
  await pipeline(createReadStream(file), hash)
  const found = `sha512-${hash.digest('base64')}`
  if (found === integrity) return
  throw new Refusal(
    `${name}@${bunVersion} is not what this version was built with: ${found} instead of ${integrity}`,
  )
}
