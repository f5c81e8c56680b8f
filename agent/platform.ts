// What this device calls itself: names of system and processor, its version, a private machine id.

import { createHmac } from 'node:crypto'
import { hostname, release, version } from 'node:os'
import { AgentError } from './errors.ts'
import { readIfThere } from './files.ts'
import { askTool } from './tools.ts'

export type OsName = 'linux' | 'darwin' | 'windows'
export type Arch = 'amd64' | 'arm64'

export interface Platform {
  hostname: string
  os: OsName
  arch: Arch
  osVersion: string
}

/** How the contract names this device. Throws where the agent can't run. */
export async function describePlatform(): Promise<Platform> {
  return { hostname: hostname(), os: osName(), arch: archName(), osVersion: await osVersion() }
}

/** The operating system in the contract's words. */
export function osName(platform: string = process.platform): OsName {
  if (platform === 'win32') return 'windows'
  if (platform === 'linux' || platform === 'darwin') return platform
  throw new AgentError(`the agent does not run on ${platform}`)
}

/** The processor in the contract's words. */
export function archName(arch: string = process.arch): Arch {
  if (arch === 'x64') return 'amd64'
  if (arch === 'arm64') return arch
  throw new AgentError(`the agent does not run on ${arch} processors`)
}

/** The version a person would name: a distribution's own, macOS's, Windows'. */
export async function osVersion(): Promise<string> {
  if (process.platform === 'darwin') {
    return (await askTool('sw_vers', ['-productVersion'])).trim() || release()
  }
  if (process.platform === 'win32') return `${version()} ${release()}`
  return parseOsRelease(readIfThere('/etc/os-release') ?? '')['PRETTY_NAME'] ?? release()
}

/** The variables of an os-release file. */
export function parseOsRelease(text: string): Record<string, string> {
  const variables: Record<string, string> = {}
  for (const [, name = '', , value = ''] of text.matchAll(/^([A-Z_]+)=(["']?)(.*)\2$/gm)) {
    variables[name] = value
  }
  return variables
}

/**
 * A stable id of this machine, or undefined where it has none. Keyed with our own name, as
 * machine-id(5) asks: the raw id must not leave the device, nor match other software's.
 */
export async function machineId(): Promise<string | undefined> {
  const raw = (await rawMachineId())?.trim()
  return raw
    ? createHmac('sha256', raw).update('muster-agent machine id v1').digest('hex')
    : undefined
}

async function rawMachineId(): Promise<string | null | undefined> {
  if (process.platform === 'linux') {
    return readIfThere('/etc/machine-id') || readIfThere('/var/lib/dbus/machine-id')
  }
  if (process.platform === 'darwin') {
    const text = await askTool('ioreg', ['-rd1', '-c', 'IOPlatformExpertDevice'])
    return /"IOPlatformUUID" = "([^"]+)"/.exec(text)?.[1]
  }
  const key = 'HKLM\\SOFTWARE\\Microsoft\\Cryptography'
  return /REG_SZ\s+(\S+)/.exec(await askTool('reg', ['query', key, '/v', 'MachineGuid']))?.[1]
}
