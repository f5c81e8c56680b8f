// Files as the release tool writes and measures them: whole or not at all, piece by piece.
import { createHash } from 'node:crypto'
import { constants, createReadStream, createWriteStream } from 'node:fs'
import { chmod, open, rename, rm, stat } from 'node:fs/promises'
import type { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import {
  constants as zlib,
  createZstdCompress,
  createZstdDecompress,
  type ZstdOptions,
} from 'node:zlib'
import { declaredBytes, headerBytes, platformOf, type Platform } from '../../src/executable.ts'
import { Refusal } from './refusal.ts'

export interface Measured {
  size: number
  /** Hex. */
  sha256: string
}

/** Size and hash of a file. */
export async function measure(path: string): Promise<Measured> {
  return measureStream(path)
}

/** Size and hash of what a file compressed with zstd unpacks to. Throws Refusal past `sizeMax`. */
export async function measureUnpacked(path: string, sizeMax: number): Promise<Measured> {
  try {
    return await measureStream(path, createZstdDecompress(), sizeMax)
  } catch (error) {
    if (error instanceof Refusal) throw error
    throw new Refusal(`${path} does not unpack: ${error instanceof Error ? error.message : ''}`)
  }
}

async function measureStream(
  path: string,
  step?: Transform,
  sizeMax = Infinity,
): Promise<Measured> {
  const hash = createHash('sha256')
  let size = 0
  const sink = async (chunks: AsyncIterable<Buffer>) => {
    for await (const chunk of chunks) {
      size += chunk.length
      if (size > sizeMax) throw new Refusal(`${path} unpacks to more than ${sizeMax} bytes`)
      hash.update(chunk)
    }
  }
  const file = createReadStream(path)
  await (step ? pipeline(file, step, sink) : pipeline(file, sink))
  return { size, sha256: hash.digest('hex') }
}

/** What an executable is for, by its header. */
export async function platformOfFile(path: string): Promise<Platform | undefined> {
  const file = await open(path)
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(headerBytes))
    const header = buffer.subarray(0, bytesRead)
    const { size } = await file.stat()
    return size < declaredBytes(header) ? undefined : platformOf(header)
  } finally {
    await file.close()
  }
}

/** Writes `<path>.zst`; returns its size in bytes. */
export async function compress(path: string, level: number): Promise<number> {
  const target = `${path}.zst`
  const { size } = await stat(path)
  const options: ZstdOptions = {
    params: { [zlib.ZSTD_c_compressionLevel]: level, [zlib.ZSTD_c_checksumFlag]: 1 },
    pledgedSrcSize: size,
  }
  await whole(target, (draft) =>
    pipeline(createReadStream(path), createZstdCompress(options), createWriteStream(draft)),
  )
  return (await stat(target)).size
}

/** Replaces a file by a text, so that nobody ever reads half of it. */
export async function replace(path: string, text: string): Promise<void> {
  await whole(path, async (draft) => {
    const file = await open(draft, 'w')
    try {
      await file.writeFile(text)
      await file.sync()
    } finally {
      await file.close()
    }
  })
}

/** Writes a new file; throws Refusal where one is. */
export async function create(path: string, text: string, mode: number): Promise<void> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL
  const file = await open(path, flags, mode).catch((error: unknown) => {
    if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error
    throw new Refusal(`${path} is there already and is not overwritten`)
  })
  try {
    // The umask may have taken something away.
    if (process.platform !== 'win32') await chmod(path, mode)
    await file.writeFile(text)
    await file.sync()
  } finally {
    await file.close()
  }
}

async function whole(path: string, write: (draft: string) => Promise<void>): Promise<void> {
  const draft = `${path}.draft-${process.pid}`
  try {
    await write(draft)
    await rename(draft, path)
  } finally {
    await rm(draft, { force: true })
  }
}
