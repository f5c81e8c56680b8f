// What an executable is made for, by its own header. Runs nothing, trusts no name.

export type OsName = 'linux' | 'darwin' | 'windows'
export type Arch = 'amd64' | 'arm64'

export interface Platform {
  os: OsName
  arch: Arch
}

/** Where the headers end that are looked at: a PE's own begins within the first page. */
export const headerBytes = 4096

const elfMachines: Record<number, Arch> = { 0x3e: 'amd64', 0xb7: 'arm64' }
const machCpus: Record<number, Arch> = { 0x01000007: 'amd64', 0x0100000c: 'arm64' }
const peMachines: Record<number, Arch> = { 0x8664: 'amd64', 0xaa64: 'arm64' }

/**
 * The platform of a 64-bit little-endian executable whose first `headerBytes` are given; undefined for
 * anything else. Layouts: ELF-64 (System V ABI), Mach-O (`mach/loader.h`), PE (Microsoft's PE format).
 */
export function platformOf(header: Buffer): Platform | undefined {
  return elf(header) ?? mach(header) ?? pe(header)
}

/**
 * The least size of a file with this header, by what it says of its own parts: one that is shorter was cut off.
 * Zero where the header says nothing, or lists parts beyond the bytes that are given.
 */
export function declaredBytes(header: Buffer): number {
  const platform = platformOf(header)
  try {
    if (platform?.os === 'linux') return elfBytes(header)
    if (platform?.os === 'darwin') return machBytes(header)
    if (platform?.os === 'windows') return peBytes(header)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
  }
  return 0
}

/** Where the table of sections ends: it stands last. */
function elfBytes(header: Buffer): number {
  const table = Number(header.readBigUInt64LE(0x28))
  return table + header.readUInt16LE(0x3a) * header.readUInt16LE(0x3c)
}

/** Where the farthest segment (LC_SEGMENT_64) ends. */
function machBytes(header: Buffer): number {
  let most = 0
  let at = 32
  for (let left = header.readUInt32LE(16); left > 0; left--) {
    if (header.readUInt32LE(at) === 0x19) {
      const end = header.readBigUInt64LE(at + 40) + header.readBigUInt64LE(at + 48)
      most = Math.max(most, Number(end))
    }
    const bytes = header.readUInt32LE(at + 4)
    if (bytes === 0) break
    at += bytes
  }
  return most
}

/** Where the farthest section ends. */
function peBytes(header: Buffer): number {
  const begin = header.readUInt32LE(60)
  let most = 0
  let at = begin + 24 + header.readUInt16LE(begin + 20)
  for (let left = header.readUInt16LE(begin + 6); left > 0; left--, at += 40) {
    most = Math.max(most, header.readUInt32LE(at + 16) + header.readUInt32LE(at + 20))
  }
  return most
}

function elf(header: Buffer): Platform | undefined {
  if (header.length < 20 || header.toString('latin1', 0, 4) !== '\x7fELF') return undefined
  const [wide, little, type] = [header[4], header[5], header.readUInt16LE(16)]
  // An executable, or one that may lie anywhere in memory.
  if (wide !== 2 || little !== 1 || (type !== 2 && type !== 3)) return undefined
  return found('linux', elfMachines[header.readUInt16LE(18)])
}

function mach(header: Buffer): Platform | undefined {
  if (header.length < 16 || header.readUInt32LE(0) !== 0xfeedfacf) return undefined
  const isExecutable = header.readUInt32LE(12) === 2
  return isExecutable ? found('darwin', machCpus[header.readUInt32LE(4)]) : undefined
}

function pe(header: Buffer): Platform | undefined {
  if (header.length < 64 || header.toString('latin1', 0, 2) !== 'MZ') return undefined
  const at = header.readUInt32LE(60)
  if (at + 24 > header.length || header.toString('latin1', at, at + 4) !== 'PE\0\0')
    return undefined
  const flags = header.readUInt16LE(at + 22)
  const isProgram = (flags & 0x0002) !== 0 && (flags & 0x2000) === 0
  return isProgram ? found('windows', peMachines[header.readUInt16LE(at + 4)]) : undefined
}

function found(os: OsName, arch: Arch | undefined): Platform | undefined {
  return arch && { os, arch }
}
