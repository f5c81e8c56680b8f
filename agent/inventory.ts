// What this device is: system, hardware, network, software, in one frame that always fits.
// Only what lasts belongs here; what changes by the minute is a metric.

import { statfs } from 'node:fs/promises'
import { arch, cpus, hostname, networkInterfaces, release, totalmem, version } from 'node:os'
import type { InventoryFrame } from '../src/protocol.ts'
import { readIfThere } from './files.ts'
import { inventoryBytesMax } from './limits.ts'
import { systemDisk } from './metrics.ts'
import { osName, osVersion } from './platform.ts'
import { readSoftware } from './software.ts'
import type { SoftwarePackage } from './software.ts'
import { askPowerShell, askTool } from './tools.ts'

/** Reads everything anew. */
export async function readInventory(): Promise<InventoryFrame> {
  const [os, hardware, software] = await Promise.all([readOs(), readHardware(), readSoftware()])
  return fitInventory({ type: 'inventory', os, hardware, network: readNetwork() }, software)
}

/** Adds as many packages as fit into the bound, in their order, and says when some do not. Pure. */
export function fitInventory(frame: InventoryFrame, packages: SoftwarePackage[]): InventoryFrame {
  const empty = { ...frame, software: { packages: [], total: packages.length, truncated: false } }
  let bytesLeft = inventoryBytesMax - Buffer.byteLength(JSON.stringify(empty))
  let count = 0
  for (const item of packages) {
    bytesLeft -= Buffer.byteLength(JSON.stringify(item)) + 1
    if (bytesLeft < 0) break
    count++
  }
  const truncated = count < packages.length
  const software = { packages: packages.slice(0, count), total: packages.length, truncated }
  return { ...frame, software }
}

async function readOs(): Promise<unknown> {
  return {
    name: osName(),
    version: await osVersion(),
    kernel: release(),
    build: version(),
    hostname: hostname(),
    timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
  }
}

async function readHardware(): Promise<unknown> {
  const processors = cpus()
  return {
    ...(await readMachine()),
    arch: arch(),
    cpuModel: processors[0]?.model.trim() ?? '',
    cpuCount: processors.length,
    memoryBytes: totalmem(),
    systemDiskBytes: await diskBytes(),
  }
}

async function diskBytes(): Promise<number | null> {
  try {
    const { blocks, bsize } = await statfs(systemDisk())
    return blocks * bsize
  } catch {
    return null
  }
}

interface Machine {
  manufacturer: string
  model: string
  serialNumber: string
}

async function readMachine(): Promise<Machine> {
  if (process.platform === 'linux') return linuxMachine()
  if (process.platform === 'darwin') return macMachine()
  return windowsMachine()
}

function linuxMachine(): Machine {
  return {
    manufacturer: dmi('sys_vendor'),
    model: dmi('product_name') || (readIfThere('/proc/device-tree/model') ?? '').replace(/\0/g, ''),
    serialNumber: dmi('product_serial'),
  }
}

// Serial numbers are root's alone to read.
function dmi(name: string): string {
  try {
    return (readIfThere(`/sys/class/dmi/id/${name}`) ?? '').trim()
  } catch {
    return ''
  }
}

async function macMachine(): Promise<Machine> {
  const registry = await askTool('ioreg', ['-rd1', '-c', 'IOPlatformExpertDevice'])
  return {
    manufacturer: 'Apple',
    model: (await askTool('sysctl', ['-n', 'hw.model'])).trim(),
    serialNumber: /"IOPlatformSerialNumber" = "([^"]+)"/.exec(registry)?.[1] ?? '',
  }
}

async function windowsMachine(): Promise<Machine> {
  const answer = await askPowerShell(
    '$c = Get-CimInstance Win32_ComputerSystem; $b = Get-CimInstance Win32_BIOS;' +
      ' @{ m = $c.Manufacturer; o = $c.Model; s = $b.SerialNumber } | ConvertTo-Json -Compress',
  )
  const { m = '', o = '', s = '' } = (answer ?? {}) as Record<string, string>
  return { manufacturer: m, model: o, serialNumber: s }
}

function readNetwork(): unknown {
  const interfaces = Object.entries(networkInterfaces()).map(([name, addresses = []]) => ({
    name,
    mac: addresses[0]?.mac ?? '',
    addresses: addresses
      .filter(({ internal }) => !internal)
      .map(({ cidr, address }) => cidr ?? address),
  }))
  return { interfaces: interfaces.filter(({ addresses }) => addresses.length > 0) }
}
