// The releases of agents that this hub offers: what lies proved in its folder, looked at again and again. Reads
// only; each hub looks at its own folder.
import { lstat, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Piscina } from 'piscina'
import type * as Check from '../workers/release_check.ts'
import { AppError } from './errors.ts'
import type { Platform } from './executable.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'
import { noKeys, readReleaseKeys, type Refused } from './release_keys.ts'
import {
  proveRelease,
  stampOfFolder,
  type Measure,
  type Release,
  type ReleaseBinary,
} from './release_folder.ts'
import type { KeyList } from './release_manifest.ts'
import { compareVersions, isPrerelease, isVersion } from './versions.ts'

interface Options {
  /** A folder per version. */
  folder: string
  keysFolder: string
  log: Logger
}

/** What a folder was found to be, and what it was then. */
interface Verdict {
  stamp: string
  keysStamp: string
  found: Release | Refused
  /** By path: other keys ask for no other hash. */
  measured: Map<string, MeasureResult>
}

type MeasureResult = Awaited<ReturnType<Measure>>

/** Looks until it is closed. */
export class Releases {
  private readonly options: Options
  private readonly closing = new AbortController()
  private readonly verdicts = new Map<string, Verdict>()
  private readonly pool = new Piscina<string, MeasureResult>({
    filename: new URL('../workers/release_check.ts', import.meta.url).href,
    name: 'measure' satisfies keyof typeof Check,
    // A release comes once in a while; between them no thread waits.
    minThreads: 0,
    maxThreads: 1,
    idleTimeout: 5_000,
    recordTiming: false,
  })
  private readonly running: Promise<void>
  private keysFound = noKeys
  private looked = false
  private trouble = ''
  /** More folders than are looked at. */
  private surplus: Refused[] = []

  constructor(options: Options) {
    this.options = options
    this.running = this.run()
  }

  /** Public keys in force, base64 of 32 bytes each. */
  get keys(): readonly string[] {
    return this.keysFound.keys
  }

  get keyList(): KeyList | null {
    return this.keysFound.list
  }

  /** Throws UNAVAILABLE until the folder was looked at once: what is offered is not known before. */
  requireKnown(): void {
    this.requireLooked(undefined)
  }

  /** What is offered, the highest version first. */
  offered(): Release[] {
    return [...this.verdicts.values()]
      .flatMap(({ found }) => ('manifest' in found ? [found] : []))
      .toSorted((a, b) => compareVersions(b.manifest.version, a.manifest.version))
  }

  /** What lies there and is not offered, by folder. */
  refused(): Refused[] {
    const folders = [...this.verdicts.values()].flatMap(({ found }) =>
      'code' in found ? [found] : [],
    )
    return [...this.keysFound.refused, ...folders, ...this.surplus]
  }

  /**
   * The binary of a version, or of the highest one that is no pre-release. Throws AGENT_BINARY_NOT_FOUND, or
   * UNAVAILABLE where a hub that has just started, or sees new files, can't tell yet.
   */
  require({ os, arch }: Platform, version?: string): { release: Release; binary: ReleaseBinary } {
    for (const release of this.offered()) {
      const named = release.manifest.version
      if (version === undefined ? isPrerelease(named) : named !== version) continue
      const binary = release.binaries.find(({ file }) => file.os === os && file.arch === arch)
      if (binary) return { release, binary }
    }
    this.requireLooked(version)
    const which = version === undefined ? 'release' : `release ${version}`
    throw new AppError(
      'AGENT_BINARY_NOT_FOUND',
      `this hub has no ${which} of the agent for ${os}/${arch}; GET /agents/releases lists what it has`,
    )
  }

  /** What a version has binaries for. Throws as `require`. */
  platformsOf(version: string): Platform[] {
    const release = this.offered().find(({ manifest }) => manifest.version === version)
    if (release) return release.binaries.map(({ file: { os, arch } }) => ({ os, arch }))
    this.requireLooked(version)
    throw new AppError(
      'AGENT_BINARY_NOT_FOUND',
      `this hub has no release ${version} of the agent; GET /agents/releases lists what it has`,
    )
  }

  async close(): Promise<void> {
    this.closing.abort()
    await this.pool.destroy()
    await this.running
  }

  private requireLooked(version: string | undefined): void {
    if (this.looked && (version === undefined || !this.isChecking(version))) return
    const message = 'the hub is still checking its releases; try again shortly'
    throw new AppError('UNAVAILABLE', message, { retryAfterSeconds: 2 })
  }

  private isChecking(version: string): boolean {
    const found = this.verdicts.get(version)?.found
    return found !== undefined && 'code' in found && found.code === checking
  }

  private async run(): Promise<void> {
    const { signal } = this.closing
    while (!signal.aborted) {
      try {
        await this.look()
        this.trouble = ''
      } catch (error) {
        this.complain(error)
      }
      await delay(limits.releaseLookMs, undefined, { signal, ref: false }).catch(() => {})
    }
  }

  /** A folder that can't be read is said once, not every two seconds. */
  private complain(error: unknown): void {
    const trouble = String(error)
    if (this.closing.signal.aborted || trouble === this.trouble) return
    this.trouble = trouble
    this.options.log.error({ err: error }, 'the releases of agents could not be looked at')
  }

  private async look(): Promise<void> {
    this.keysFound = await readReleaseKeys(this.options.keysFolder, this.keysFound)
    const names = (await foldersIn(this.options.folder)).toSorted(newestFirst)
    const looked = names.slice(0, limits.releasesMax)
    this.surplus = names.slice(limits.releasesMax).map((folder) => ({
      folder,
      file: null,
      code: 'TOO_MANY',
      message: `${folder} is not looked at: only the ${limits.releasesMax} highest versions are`,
    }))
    for (const name of this.verdicts.keys()) {
      if (!looked.includes(name)) this.verdicts.delete(name)
    }
    const failures: unknown[] = []
    for (const name of looked) {
      // One that fails must not hide the others.
      await this.judge(name).catch((error: unknown) => failures.push(error))
    }
    if (failures.length > 0) throw new AggregateError(failures, String(failures[0]))
    this.looked = true
  }

  private async judge(name: string): Promise<void> {
    const path = join(this.options.folder, name)
    const keysStamp = this.keysFound.stamp
    const stamp = await stampOf(path)
    const before = this.verdicts.get(name)
    if (stamp === undefined) return void this.verdicts.delete(name)
    if (before?.stamp === stamp && before.keysStamp === keysStamp) return
    const same = before?.stamp === stamp
    const measured = same ? before.measured : new Map<string, MeasureResult>()
    // What is new here was not proved: nothing of it is offered meanwhile.
    const found = same ? before.found : refused(name, checking, 'is being checked')
    const verdict = { stamp, keysStamp: undetermined, found, measured }
    this.verdicts.set(name, verdict)
    verdict.found = await this.prove(name, stamp, measured)
    verdict.keysStamp = keysStamp
    this.tell(name, verdict.found)
  }

  private async prove(
    name: string,
    stamp: string,
    measured: Verdict['measured'],
  ): Promise<Release | Refused> {
    if (stamp === notAFolder) {
      return refused(name, 'NOT_A_FOLDER', 'is no folder; links are not followed')
    }
    if (!isVersion(name)) return refused(name, 'WRONG_VERSION', 'is no version such as 1.2.3')
    return proveRelease(this.options.folder, name, this.keysFound, async (path) => {
      const result = measured.get(path) ?? (await this.pool.run(path))
      measured.set(path, result)
      return result
    })
  }

  private tell(version: string, found: Release | Refused): void {
    const { log } = this.options
    if ('code' in found) log.warn({ ...found }, 'a release is not offered')
    else log.info({ version, files: found.binaries.length }, 'a release is offered')
  }
}

const checking = 'CHECKING'
/** No stamp of keys: what broke off is looked at again. */
const undetermined = '?'
const notAFolder = 'not a folder'

function refused(folder: string, code: string, message: string): Refused {
  return { folder, file: null, code, message: `${folder} ${message}` }
}

/** Folders, and links where one would be; files and hidden ones are nobody's release. */
async function foldersIn(folder: string): Promise<string[]> {
  try {
    const entries = await readdir(folder, { withFileTypes: true })
    return entries
      .filter((entry) => !entry.isFile() && !entry.name.startsWith('.'))
      .map((entry) => entry.name)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return []
    throw error
  }
}

/** Undefined for a folder that has gone. */
async function stampOf(path: string): Promise<string | undefined> {
  try {
    if (!(await lstat(path)).isDirectory()) return notAFolder
    return await stampOfFolder(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined
    throw error
  }
}

/** What is no version comes last. */
function newestFirst(a: string, b: string): number {
  if (isVersion(a) && isVersion(b)) return compareVersions(b, a)
  return Number(isVersion(b)) - Number(isVersion(a)) || (a < b ? -1 : 1)
}
