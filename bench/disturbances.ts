// What a hub has to bear while somebody else waits for a command: each is begun, lasts while that is measured, and is
// ended. `isolation` measures beside them all, `export` and `downloads` each by itself.
import { generateKeyPairSync } from 'node:crypto'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { thisPlatform } from '../scripts/release/build.ts'
import { signRelease } from '../scripts/release/sign.ts'
import { agentFileName } from '../src/release_manifest.ts'
import { startDownloads, type DownloadLoad } from './download_load.ts'
import { knock } from './faults.ts'
import { requestBytes } from './http_connection.ts'
import { failures, openLoop } from './http_load.ts'
import type { Lab, Target } from './lab.ts'

export const readers = 1000
export const readersBytesPerSecond = 100e6
const loginsPerSecond = 200
/** How long a shard stands still, and after how much of the measurement. */
const blockedMs = 2000
const blockedAfterMs = 1000
const version = '1.0.0'

/** Begins; the returned function ends it, and throws when it was not what it should have been. */
export type Disturbance = (seconds: number) => Promise<() => Promise<void>>

/** One shard thread of a hub with a door computes, and hears nothing meanwhile. */
export function blockedShard(door: string, index: number): Disturbance {
  return () => {
    const blocked = sleep(blockedAfterMs).then(() => knock(door, `block ${index} ${blockedMs}`))
    return Promise.resolve(() => blocked)
  }
}

/** Somebody exports the whole audit, and again when he has it. */
export function auditExport(
  { origin }: Target,
  headers: Record<string, string>,
  rows: number,
): Disturbance {
  return () => {
    const stop = new AbortController()
    const reading = (async () => {
      while (!stop.signal.aborted) {
        const lines = await exportedLines(origin, headers, stop.signal)
        if (!stop.signal.aborted && lines < rows) throw shortExport(lines, rows)
      }
    })()
    return Promise.resolve(() => {
      stop.abort()
      return reading
    })
  }
}

/** People sign in at a rate at which hashing has to refuse most of them. */
export function logins({ origin, credentials: { email, password } }: Target): Disturbance {
  const path = '/api/v1/auth/login'
  const request = requestBytes(origin, { method: 'POST', path, body: { email, password } })
  return (seconds) => {
    const load = openLoop({
      origin,
      connections: 64,
      seconds,
      perSecond: loginsPerSecond,
      next: () => request,
      good: ({ status }) => status === 200 || status === 503,
    })
    return Promise.resolve(async () => {
      const result = await load
      if (failures(result) > 0) throw new Error(`sign-ins failed: ${JSON.stringify(result.bad)}`)
    })
  }
}

/** A thousand agents download a release, at a pace. */
export function pacedDownloads(target: Target, lab: Lab): Disturbance {
  return async () => {
    const load = await beginDownloads(target, lab)
    return async () => {
      const open = load.open()
      await load.stop()
      if (open < readers) throw new Error(`only ${open} downloads were open`)
    }
  }
}

export function beginDownloads({ origin }: Target, lab: Lab): Promise<DownloadLoad> {
  const { os, arch } = thisPlatform()
  const path = `/api/v1/agents/download/${os}/${arch}`
  return lab.starting(() =>
    startDownloads({ origin, path, readers, bytesPerSecond: readersBytesPerSecond }),
  )
}

/** Before the hub of this side starts: a release of the largest executable that is surely there, Node itself. */
export async function makeRelease(lab: Lab): Promise<void> {
  const dataFolder = join(lab.folder, 'hub-data')
  const folder = join(dataFolder, 'releases', version)
  const keys = join(dataFolder, 'release-keys')
  for (const path of [folder, keys]) mkdirSync(path, { recursive: true })
  const { privateKey, publicKey } = generateKeyPairSync('ed25519')
  writeFileSync(join(keys, 'bench.pub'), publicKey.export({ type: 'spki', format: 'pem' }))
  copyFileSync(process.execPath, join(folder, agentFileName(version, thisPlatform())))
  await signRelease({ folder, key: privateKey, minimumVersion: null, say: () => {} })
}

/** Rows for an export of the whole audit. */
export async function fillAudit({ side, database }: Target, lab: Lab, rows: number): Promise<void> {
  lab.progress.step(`${side}: adding ${rows} audit rows`)
  await database?.read(
    `insert into audit (id, org_id, at, actor_type, actor_email, action, resource_type,
       resource_id, result, ip, user_agent, request_id, details)
     select overlay(gen_random_uuid()::text
         placing left(uuid7_floor(now() - n * interval '1 millisecond')::text, 13) from 1)::uuid,
       o.id, now(), 'user', 'bench@example.com', 'command.create', 'command', n::text, 'success',
       '127.0.0.1', 'bench', 'bench-' || n, '{"after": {"action": "run_command"}}'
     from (select id from organizations limit 1) o, generate_series(1, ${rows}) as n`,
  )
  await database?.read('analyze audit')
}

/** Exports the audit; counts line ends, keeps nothing. One that was given up ends with what there was. */
export async function exportedLines(
  origin: string,
  headers: Record<string, string>,
  signal?: AbortSignal,
): Promise<number> {
  let lines = 0
  try {
    const given = signal ? { headers, signal } : { headers }
    const answer = await fetch(`${origin}/api/v1/audit/export`, given)
    if (!answer.ok || !answer.body) throw new Error(`the export was refused: ${answer.status}`)
    for await (const chunk of answer.body) {
      const bytes = Buffer.from(chunk)
      for (let at = bytes.indexOf(10); at !== -1; at = bytes.indexOf(10, at + 1)) lines++
    }
  } catch (error) {
    if (!signal?.aborted) throw error
  }
  return lines
}

export function shortExport(lines: number, rows: number): Error {
  return new Error(`the export holds ${lines} lines, not ${rows}`)
}
