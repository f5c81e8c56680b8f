// Proves that a downloaded file is the one that was signed, for this device, and that it starts at all. Nothing
// of it runs before its bytes are proved.

import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { chmod, open, stat } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { describe, errorCode } from '../errors.ts'
import { smokeMsMax, smokeTriesMax } from '../limits.ts'
import { headerBytes, platformOf } from '../../src/executable.ts'
import type { Platform } from '../../src/executable.ts'
import type { ReleaseFile } from '../../src/release_manifest.ts'
import { UpgradeError } from './reasons.ts'

const run = promisify(execFile)

/** Throws UpgradeError unless the bytes are those of the release, for this platform. */
export async function verifyBytes(path: string, file: ReleaseFile, own: Platform): Promise<void> {
  const { size } = await stat(path)
  if (size !== file.size || (await sha256Of(path)) !== file.sha256) {
    throw new UpgradeError('bad_checksum', `${file.name} arrived with other bytes than were signed`)
  }
  const found = platformOf(await headerOf(path))
  if (found?.os === own.os && found.arch === own.arch) return
  const what = found ? `for ${found.os}/${found.arch}` : 'no executable'
  throw new UpgradeError('wrong_platform', `${file.name} is ${what}, this is ${own.os}/${own.arch}`)
}

/** Lets the program say its version; throws UpgradeError unless it is this one. */
export async function verifyStart(path: string, version: string, mode: number): Promise<void> {
  await chmod(path, mode)
  const said = await sayVersion(path)
  if (said === version) return
  throw new UpgradeError(
    'cannot_start',
    `the new program calls itself version ${said.slice(0, 64)}`,
  )
}

async function sayVersion(path: string): Promise<string> {
  for (let attempt = 1; ; attempt++) {
    try {
      const { stdout } = await run(path, ['version'], { timeout: smokeMsMax })
      return stdout.trim()
    } catch (error) {
      // A command that was starting while the file was written holds it open for a moment.
      const busy = errorCode(error) === 'ETXTBSY' && attempt < smokeTriesMax
      if (!busy)
        throw new UpgradeError('cannot_start', `the new program does not start: ${why(error)}`)
      await delay(100 * attempt)
    }
  }
}

// A missing library is named on standard error; the message alone repeats the command line.
function why(error: unknown): string {
  const { stderr } = error as { stderr?: string }
  return (stderr?.trim() || describe(error)).slice(-500)
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    hash.update(chunk as Buffer)
  }
  return hash.digest('hex')
}

async function headerOf(path: string): Promise<Buffer> {
  const file = await open(path)
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(headerBytes), 0, headerBytes, 0)
    return buffer.subarray(0, bytesRead)
  } finally {
    await file.close()
  }
}
