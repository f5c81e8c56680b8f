// Brings one file from the hub, going on where a broken download ended. Proves nothing: verify.ts does.

import { open, rm, stat, statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fullJitterMs } from '../backoff.ts'
import { describe, errorCode, isFull } from '../errors.ts'
import { downloadSpareBytes, downloadStallMs, downloadTriesMax } from '../limits.ts'
import { parseRetryAfter } from '../request.ts'
import { killPoint } from '../test_build.ts'
import { UpgradeError } from './reasons.ts'

export interface Download {
  url: string
  /** Where the bytes are collected; what lies there already counts. */
  part: string
  /** Bytes of the whole file. */
  size: number
  signal: AbortSignal
}

/** Resolves when the part is as long as the file. Throws UpgradeError, or the signal's reason. */
export async function download(wanted: Download): Promise<void> {
  await requireSpace(wanted)
  // A link that breaks often but brings something each time goes on until the command's own deadline.
  for (let vain = 0; vain < downloadTriesMax; vain++) {
    const before = await sizeOf(wanted.part)
    if (before === wanted.size) return
    const waitMs = await tryOnce(wanted, before)
    const after = await sizeOf(wanted.part)
    if (after === wanted.size) return
    if (after > before) vain = -1
    await delay(waitMs + fullJitterMs(vain + 1, Math.random()), undefined, {
      signal: wanted.signal,
    })
  }
  const has = await sizeOf(wanted.part)
  throw new UpgradeError(
    'download_failed',
    `the download ended at ${has} of ${wanted.size} bytes and could not be resumed`,
  )
}

/** One request; answers how long the hub asks to wait. Broken connections are no error here. */
async function tryOnce(wanted: Download, from: number): Promise<number> {
  const stalled = new AbortController()
  const signal = AbortSignal.any([wanted.signal, stalled.signal])
  const timer = setTimeout(() => stalled.abort(), downloadStallMs)
  try {
    const headers = from > 0 ? { range: `bytes=${from}-` } : {}
    const response = await fetch(wanted.url, { headers, redirect: 'manual', signal })
    const { status } = response
    if (status === 416 || from > wanted.size) {
      await rm(wanted.part, { force: true })
      return 0
    }
    if (status !== 200 && status !== 206) return refused(response)
    // A whole file where a part was asked for begins anew.
    const file = await open(wanted.part, status === 206 ? 'a' : 'w', 0o600)
    try {
      let size = status === 206 ? from : 0
      for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
        timer.refresh()
        size += chunk.length
        if (size > wanted.size)
          throw new UpgradeError('bad_checksum', 'the file is longer than its release says')
        await file.appendFile(chunk)
        killPoint('download.begun')
      }
      await file.datasync()
    } finally {
      await file.close()
    }
  } catch (error) {
    wanted.signal.throwIfAborted()
    if (error instanceof UpgradeError) throw error
    throwForDisk(error)
  } finally {
    clearTimeout(timer)
  }
  return 0
}

// The disk's own refusals; what the network says is tried again.
function throwForDisk(error: unknown): void {
  const code = errorCode(error) ?? ''
  if (isFull(error)) throw new UpgradeError('disk_full', describe(error))
  if (['EACCES', 'EPERM', 'EROFS'].includes(code)) {
    throw new UpgradeError('not_writable', describe(error))
  }
}

function refused(response: Response): number {
  const { status } = response
  if (status === 429 || status >= 500) {
    return (parseRetryAfter(response.headers.get('retry-after')) ?? 0) * 1000
  }
  throw new UpgradeError('download_failed', `the hub answered the download with ${status}`)
}

async function requireSpace({ part, size }: Download): Promise<void> {
  const folder = dirname(part)
  const { bavail, bsize } = await statfs(folder)
  const needed = size - (await sizeOf(part)) + downloadSpareBytes
  if (bavail * bsize >= needed) return
  throw new UpgradeError('disk_full', `${folder} has less than the ${needed} bytes needed`)
}

async function sizeOf(path: string): Promise<number> {
  try {
    return (await stat(path)).size
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return 0
    throw error
  }
}
