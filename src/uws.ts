// The only file that loads the uWebSockets.js addon. Its Linux binaries ask for glibc 2.38 for the
// sake of three C23 number parsers; where glibc is older (Debian 12) a fitted copy is loaded instead.
// Never writes into the package, never loads bytes it does not know.

import { createHash, randomUUID } from 'node:crypto'
import {
  closeSync,
  lstatSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { isMainThread } from 'node:worker_threads'
import type * as Uws from 'uWebSockets.js'
import { limits } from './limits.ts'
import { cacheFolder, privateFolder } from './private_folder.js'

/**
 * SHA-256 of each addon that may be fitted → SHA-256 of its fitted copy: uWebSockets.js 20.57.0,
 * Node 24 (ABI 137). A new version is a new row, made with `fitted()` and tried on an older glibc.
 */
export const fittedHashes: Readonly<Record<string, string>> = {
  // linux x64
  '98128405dba2fb608448e921a979530f70c946a2cc9889c15f2fa70c2d00ab05':
    '7fb96c76c3e6dc82ccffc49f610eeac2297a22124c3c6d5898a17d05d94a5f0b',
  // linux arm64
  '88618b30ddf6b2b62310db89f40a701616676352aac5e0f6184dd8ef876199ce':
    '93c7f9543679f84c7993347756744eb97792ec0c356e76f82fc6b36de30de2e7',
}

// ELF, 64-bit little-endian: names and numbers of the System V gABI and, for versions, of the LSB.
const SHT_DYNSYM = 11
const SHT_GNU_VERNEED = 0x6ffffffe
const SHT_GNU_VERSYM = 0x6fffffff
const VER_FLG_WEAK = 2
const VER_NDX_GLOBAL = 1
const symbolBytes = 24
const prefix = '__isoc23_'

const require = createRequire(import.meta.url)

/** uWebSockets.js. Lives on the main thread: an open app in a worker aborts the process at exit. */
export const uWS: typeof Uws = isMainThread ? load() : refuseInWorker()

function load(): typeof Uws {
  // Read by the addon once, while it is loaded; its own default is 4 KiB.
  process.env['UWS_HTTP_MAX_HEADERS_SIZE'] = String(limits.headerBytesMax)
  try {
    // The package's own type declarations describe what its CommonJS entry exports.
    return require('uWebSockets.js') as typeof Uws
  } catch (error) {
    if (!(error instanceof Error && /GLIBC_2\.38' not found/.test(error.message))) throw error
    return loadFitted()
  }
}

function loadFitted(): typeof Uws {
  const addon = `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`
  const source = join(dirname(require.resolve('uWebSockets.js')), addon)
  const cache = privateFolder(cacheFolder())
  // A folder of our own that nobody could prepare; removed at once, the loaded addon stays mapped.
  const folder = cache ?? mkdtempSync(join(tmpdir(), 'muster-uws-'))
  try {
    const copy = fittedCopy(source, folder)
    require(copy)
    // The package's entry adds to the addon: hand it the fitted one under the name it asks for.
    require.cache[source] = require.cache[copy]
    return require('uWebSockets.js') as typeof Uws
  } finally {
    if (cache === undefined) rmSync(folder, { recursive: true, force: true })
  }
}

function refuseInWorker(): typeof Uws {
  const get = (): never => {
    throw new Error('uWebSockets.js may be used on the main thread only')
  }
  // Stands for the module until somebody touches it.
  return new Proxy({}, { get }) as typeof Uws
}

/**
 * The path of a fitted copy of `source` in `folder`, made when it is missing or not what it was.
 * Throws when `source` is not one of the addons we know.
 */
export function fittedCopy(source: string, folder: string): string {
  const sourceHash = sha256OfFile(source)
  const hash = fittedHashes[sourceHash]
  if (hash === undefined) {
    throw new Error(
      `${source} needs glibc 2.38 and is not a file we can fit to this system (SHA-256 ${sourceHash}). ` +
        'Run `npm ci` to get the pinned version back, use a system with glibc 2.38 or newer ' +
        '(Debian 13, Ubuntu 24.04, our image), or add the new version to the table in src/uws.ts.',
    )
  }
  const copy = join(folder, `uws-${hash.slice(0, 16)}.node`)
  if (hashOfCopy(copy) === hash) return copy
  const bytes = fitted(readFileSync(source))
  if (sha256(bytes) !== hash) throw new Error(`fitting ${source} gave bytes we do not know`)
  const draft = `${copy}.${randomUUID()}`
  try {
    writeFileSync(draft, bytes, { mode: 0o600, flag: 'wx' })
    // Another hub may be loading the old file: replaced whole, never written into.
    renameSync(draft, copy)
  } finally {
    rmSync(draft, { force: true })
  }
  return copy
}

function hashOfCopy(path: string): string | undefined {
  try {
    return lstatSync(path).isFile() ? sha256OfFile(path) : undefined
  } catch {
    return undefined
  }
}

/** In pieces: the whole of both files would stay in memory for as long as the hub runs. */
function sha256OfFile(path: string): string {
  const digest = createHash('sha256')
  const piece = Buffer.alloc(64 * 1024)
  const file = openSync(path, 'r')
  try {
    for (let read; (read = readSync(file, piece)) > 0;) digest.update(piece.subarray(0, read))
  } finally {
    closeSync(file)
  }
  return digest.digest('hex')
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}

interface Section {
  type: number
  offset: number
  size: number
  link: number
}

/**
 * A copy of the addon whose `__isoc23_strtol` and siblings are plain `strtol` and siblings again (they
 * differ in accepting `0b` numbers) and whose need for GLIBC_2.38 is weak. Fitting twice changes nothing.
 */
export function fitted(binary: Buffer): Buffer {
  const elf = Buffer.from(binary)
  const sections = sectionsOf(elf)
  const symbols = sectionOfType(sections, SHT_DYNSYM)
  const versions = sectionOfType(sections, SHT_GNU_VERSYM)
  const names = sections[symbols.link]
  if (names === undefined) throw new Error('an ELF file whose symbols have no names')

  const version = weaken(elf, sectionOfType(sections, SHT_GNU_VERNEED), names, 'GLIBC_2.38')
  for (let index = 0; index < symbols.size / symbolBytes; index++) {
    const versionAt = versions.offset + index * 2
    if (elf.readUInt16LE(versionAt) !== version) continue
    const nameAt = symbols.offset + index * symbolBytes
    const name = elf.readUInt32LE(nameAt)
    if (!textAt(elf, names.offset + name).startsWith(prefix)) {
      throw new Error(`${textAt(elf, names.offset + name)} needs GLIBC_2.38 and has no older form`)
    }
    elf.writeUInt32LE(name + prefix.length, nameAt)
    elf.writeUInt16LE(VER_NDX_GLOBAL, versionAt)
  }
  return elf
}

function sectionsOf(elf: Buffer): Section[] {
  const magic = elf.subarray(0, 6).toString('latin1')
  if (magic !== '\x7fELF\x02\x01') throw new Error('not a 64-bit little-endian ELF file')
  const start = Number(elf.readBigUInt64LE(0x28))
  const bytes = elf.readUInt16LE(0x3a)
  return Array.from({ length: elf.readUInt16LE(0x3c) }, (_, index) => {
    const at = start + index * bytes
    return {
      type: elf.readUInt32LE(at + 4),
      offset: Number(elf.readBigUInt64LE(at + 24)),
      size: Number(elf.readBigUInt64LE(at + 32)),
      link: elf.readUInt32LE(at + 40),
    }
  })
}

function sectionOfType(sections: Section[], type: number): Section {
  const section = sections.find((candidate) => candidate.type === type)
  if (section === undefined) throw new Error(`an ELF file without section type ${type}`)
  return section
}

/** Marks the needed version weak, so that the loader does not insist on it; returns its index. */
function weaken(elf: Buffer, needs: Section, names: Section, wanted: string): number {
  for (let need = needs.offset; ; need += elf.readUInt32LE(need + 12)) {
    for (let aux = need + elf.readUInt32LE(need + 8); ; aux += elf.readUInt32LE(aux + 12)) {
      if (textAt(elf, names.offset + elf.readUInt32LE(aux + 8)) === wanted) {
        elf.writeUInt16LE(elf.readUInt16LE(aux + 4) | VER_FLG_WEAK, aux + 4)
        return elf.readUInt16LE(aux + 6)
      }
      if (elf.readUInt32LE(aux + 12) === 0) break
    }
    if (elf.readUInt32LE(need + 12) === 0) throw new Error(`an ELF file that needs no ${wanted}`)
  }
}

function textAt(elf: Buffer, at: number): string {
  return elf.toString('latin1', at, elf.indexOf(0, at))
}
