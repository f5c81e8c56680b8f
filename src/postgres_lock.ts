// Who holds a PostgreSQL data directory: one living hub at a time, and never a postmaster that a dead
// hub left behind. Removes a lock file only when its process is surely not PostgreSQL any more.

import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, readlinkSync, rmSync, statSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** A hub that holds a folder tells its pid at once; one that is stopped or busy doesn't, and still holds it. */
const askMsMax = 1_000
/** A fast shutdown writes at most shared_buffers (128 MB) out: seconds, a minute on a slow disk. */
const orphanStopMsMax = 60_000
/** After that it is told to quit without writing, which takes no longer than its processes take to end. */
const orphanQuitMsMax = 10_000
/** A container's first process may reap late; nothing else makes a dead postmaster stay visible. */
const zombieMsMax = 2_000
/** Server processes end by themselves when their postmaster is gone; a query notices within a second. */
const leftoverMsMax = 20_000
const pollMs = 50

/** What the postmaster writes into its data directory: pg_ctl waits for the same lines. */
export interface LockFile {
  pid: number
  ready: boolean
}

export function readLock(cluster: string): LockFile | undefined {
  let text: string
  try {
    text = readFileSync(join(cluster, 'postmaster.pid'), 'utf8')
  } catch {
    return undefined
  }
  const lines = text.split('\n')
  return { pid: Number(lines[0]), ready: lines[7]?.trim() === 'ready' }
}

/**
 * Holds `folder` for this process until `release()` or its end, however it ends. Throws, naming the
 * other process, when another one holds it.
 */
export async function claimFolder(folder: string): Promise<{ release(): Promise<void> }> {
  const path = claimPath(folder)
  for (let attempt = 1; ; attempt++) {
    const server = createServer((socket) => {
      socket.on('error', () => {})
      socket.end(`${process.pid}\n`)
    })
    try {
      server.listen({ path, exclusive: true })
      await once(server, 'listening')
      server.unref()
      return { release: () => closed(server) }
    } catch (error) {
      if (!isCode(error, 'EADDRINUSE')) throw error
      const holder = await askHolder(path)
      if (holder !== 'nobody' || attempt === 3) {
        throw new Error(`${folder} is in use by another hub, process ${holder}`, { cause: error })
      }
      // Only a file outlives its process; a name in Linux's abstract namespace is free by now.
      if (!path.startsWith('\0')) rmSync(path, { force: true })
    }
  }
}

/** One name per folder, however it was spelled or mounted; on Linux and Windows it ends with its process. */
function claimPath(folder: string): string {
  const { dev, ino } = statSync(folder, { bigint: true })
  const name = `muster-${dev}-${ino}`
  if (process.platform === 'linux') return `\0${name}`
  return process.platform === 'win32' ? `\\\\.\\pipe\\${name}` : join(tmpdir(), `${name}.sock`)
}

async function askHolder(path: string): Promise<string> {
  const socket = connect({ path, timeout: askMsMax })
  try {
    return await new Promise<string>((resolve, reject) => {
      // Anybody may sit on a free name: only digits are taken over into our message.
      socket.on('data', (data) => resolve(/^\d+/.exec(data.toString())?.[0] ?? 'unknown'))
      socket.on('timeout', () => resolve('unknown: it does not answer'))
      socket.on('end', () => resolve('unknown: it does not say'))
      socket.on('error', reject)
    })
  } catch {
    return 'nobody'
  } finally {
    socket.destroy()
  }
}

async function closed(server: Server): Promise<void> {
  if (!server.listening) return
  server.close()
  await once(server, 'close')
}

/**
 * Makes the data directory free to start on: stops a postmaster that a killed hub left, removes the
 * lock file of one that is dead. Call it only while holding the folder. Throws when it can't be sure.
 */
export async function freeCluster(cluster: string, log: (message: string) => void): Promise<void> {
  // On Windows PostgreSQL itself tells a recycled pid from a postmaster, by a named pipe.
  if (process.platform === 'win32') return
  const startedMs = performance.now()
  const passedMs = () => performance.now() - startedMs
  let told: NodeJS.Signals | undefined
  for (let lock = readLock(cluster); lock !== undefined; lock = readLock(cluster)) {
    const found = processOf(lock.pid, cluster)
    // PostgreSQL removes the file of a process that is gone, with checks of its own.
    if (found === 'gone') break
    if (found === 'unknown') {
      throw new Error(
        `${cluster}/postmaster.pid names process ${lock.pid}, which may be PostgreSQL and can't be looked at`,
      )
    }
    if (found === 'other' || (found === 'zombie' && passedMs() > zombieMsMax)) {
      log(`removing the stale lock file of PostgreSQL process ${lock.pid}`)
      rmSync(join(cluster, 'postmaster.pid'), { force: true })
      break
    }
    if (found === 'postmaster') {
      const signal = passedMs() > orphanStopMsMax ? 'SIGQUIT' : 'SIGINT'
      if (told !== signal) {
        log(`stopping PostgreSQL process ${lock.pid}, left by a hub that was killed (${signal})`)
        kill(lock.pid, signal)
        told = signal
      }
      if (passedMs() > orphanStopMsMax + orphanQuitMsMax) {
        throw new Error(`PostgreSQL process ${lock.pid} on ${cluster} does not stop`)
      }
    }
    await sleep(pollMs)
  }
  await waitForLeftovers(cluster)
}

/** Server processes whose postmaster was killed still have the shared memory; a start beside them fails. */
async function waitForLeftovers(cluster: string): Promise<void> {
  const deadlineMs = performance.now() + leftoverMsMax
  for (let pids = serverProcesses(cluster); pids.length > 0; pids = serverProcesses(cluster)) {
    if (performance.now() > deadlineMs) {
      throw new Error(`PostgreSQL processes ${pids.join(', ')} on ${cluster} do not end`)
    }
    await sleep(pollMs)
  }
}

function serverProcesses(cluster: string): number[] {
  if (process.platform !== 'linux') return []
  const pids = readdirSync('/proc').map(Number).filter(Number.isInteger)
  return pids.filter((pid) => processOf(pid, cluster) === 'postmaster')
}

type Found = 'postmaster' | 'zombie' | 'other' | 'gone' | 'unknown'

/** What the process is to this data directory: PostgreSQL works in its data directory, and in no other. */
export function processOf(pid: number, cluster: string): Found {
  if (!Number.isInteger(pid) || pid <= 0) return 'other'
  return process.platform === 'linux' ? linuxProcess(pid, cluster) : unixProcess(pid, cluster)
}

function linuxProcess(pid: number, cluster: string): Found {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // pid (name) state …: the name may hold anything, the state follows the last parenthesis.
    const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'))
    const state = stat.at(stat.lastIndexOf(')') + 2)
    if (state === 'Z' || state === 'X') return 'zombie'
    if (name !== 'postgres') return 'other'
    // After an update of the package the running file is gone from the disk.
    const isPostgres = /\/postgres(?: \(deleted\))?$/.test(readlinkSync(`/proc/${pid}/exe`))
    return isPostgres && readlinkSync(`/proc/${pid}/cwd`) === cluster ? 'postmaster' : 'other'
  } catch (error) {
    if (isCode(error, 'ENOENT') || isCode(error, 'ESRCH')) return 'gone'
    // Another user's process can't be looked into, and is not what runs on our own data.
    return isCode(error, 'EACCES') && statSync(`/proc/${pid}`).uid !== process.geteuid?.()
      ? 'other'
      : 'unknown'
  }
}

function unixProcess(pid: number, cluster: string): Found {
  const { status, stdout } = spawnSync('ps', ['-o', 'stat=,command=', '-p', String(pid)], {
    encoding: 'utf8',
  })
  if (status !== 0) return 'gone'
  if (stdout.startsWith('Z')) return 'zombie'
  return stdout.includes(`postgres -D ${cluster} `) ? 'postmaster' : 'other'
}

function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!isCode(error, 'ESRCH')) throw error
  }
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code
}
