// NATS and Mosquitto as Debian brings them: found where they are installed, started for one scenario with nobody to
// check and nothing to keep, which is the least such a server can do.
import { execFileSync } from 'node:child_process'
import { accessSync, constants, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { randomUUID } from 'node:crypto'
import { PeerClient } from './peer_client.ts'
import { freePort, startProgram, type Program } from './programs.ts'
import { topicsOf, wires, type Broker } from './wires.ts'

interface Package {
  command: string
  /** What Debian calls the package that brings it. */
  debian: string
  versionFlag: string
  start: (port: number, folder: string) => string[]
}

const packages: Record<Broker, Package> = {
  nats: {
    command: 'nats-server',
    debian: 'nats-server',
    versionFlag: '--version',
    start: (port) => ['--addr', '127.0.0.1', '--port', String(port)],
  },
  mosquitto: {
    command: 'mosquitto',
    debian: 'mosquitto',
    versionFlag: '-h',
    start: (port, folder) => {
      const file = join(folder, 'mosquitto.conf')
      writeFileSync(file, mosquittoConfig(port))
      return ['-c', file]
    },
  },
}

/** Without the last line small packets wait for those before them, which no other program here does. */
function mosquittoConfig(port: number): string {
  return `listener ${port} 127.0.0.1
allow_anonymous true
persistence false
log_dest stderr
log_type error
log_type warning
set_tcp_nodelay true
`
}

/** Where Debian puts servers; not in every user's PATH. */
const serverFolders = ['/usr/sbin', '/usr/local/sbin']

export interface InstalledBroker {
  file: string
  version: string
}

/** The broker's program, or the Debian package to install. */
export function findBroker(
  broker: Broker,
  folders: readonly string[] = (process.env['PATH'] ?? '').split(delimiter).concat(serverFolders),
): InstalledBroker | { missing: string } {
  const { command, debian, versionFlag } = packages[broker]
  const file = folders.map((folder) => join(folder, command)).find(isProgram)
  if (file === undefined) return { missing: debian }
  return { file, version: versionOf(file, versionFlag) }
}

export interface RunningBroker {
  program: Program
  /** Heartbeats that came through to the one who subscribed to them. */
  heard: () => number
  stop(): Promise<void>
}

/** Starts a broker, and somebody who takes all heartbeats: one that nobody hears costs less, and is worth nothing. */
export async function startBroker(broker: Broker, folder: string): Promise<RunningBroker> {
  const found = findBroker(broker)
  if ('missing' in found)
    throw new Error(`${broker} is not installed: apt install ${found.missing}`)
  const wire = wires[broker]
  const port = await freePort()
  const program = await startProgram({
    command: [found.file, ...packages[broker].start(port, folder)],
    env: {},
    logFile: join(folder, `${broker}.log`),
    port,
    readyMsMax: 10_000,
    isReady: async (origin) => {
      const options = { name: randomUUID(), topics: ['ready'], onMessage: () => undefined }
      const client = await PeerClient.open(origin, wire, options).catch(() => undefined)
      client?.close()
      return client !== undefined
    },
  })
  let heard = 0
  const listener = await PeerClient.open(program.origin, wire, {
    name: randomUUID(),
    topics: [topicsOf(wire).heartbeats],
    onMessage: () => heard++,
  }).catch(async (error: unknown) => {
    await program.stop()
    throw error
  })
  const stop = async () => {
    listener.close()
    await program.stop()
  }
  return { program, heard: () => heard, stop }
}

function isProgram(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/** Mosquitto prints its version above its usage and then fails. */
function versionOf(file: string, flag: string): string {
  const read = () => {
    try {
      return execFileSync(file, [flag], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
    } catch (error) {
      return (error as { stdout?: string }).stdout ?? ''
    }
  }
  return /\d+\.\d+\.\d+/.exec(read())?.[0] ?? 'unknown'
}
