// Installed software, from each system's own records. Sorted by name, so that unchanged is equal.

import { readdir } from 'node:fs/promises'
import { readIfThere } from './files.ts'
import { askPowerShell, askTool } from './tools.ts'

export interface SoftwarePackage {
  name: string
  version: string
}

/** What is installed; empty where the system keeps no records we know. */
export async function readSoftware(): Promise<SoftwarePackage[]> {
  const found = await readUnsorted()
  return found.toSorted((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))
}

/** The packages of a dpkg status file that are installed now. */
export function parseDpkg(text: string): SoftwarePackage[] {
  return text.split('\n\n').flatMap((block) => {
    if (!/^Status: .* installed$/m.test(block)) return []
    return packageOf(field(block, /^Package: (.+)$/m), field(block, /^Version: (.+)$/m))
  })
}

/** The packages of an apk database. */
export function parseApk(text: string): SoftwarePackage[] {
  const blocks = text.split('\n\n')
  return blocks.flatMap((block) => packageOf(field(block, /^P:(.+)$/m), field(block, /^V:(.+)$/m)))
}

/** Lines of a name, a tab and a version. */
export function parseTabbed(text: string): SoftwarePackage[] {
  return text.split('\n').flatMap((line) => {
    const [name, version] = line.split('\t')
    return packageOf(name, version)
  })
}

async function readUnsorted(): Promise<SoftwarePackage[]> {
  if (process.platform === 'darwin') return macApplications()
  if (process.platform === 'win32') return windowsPrograms()
  const dpkg = readIfThere('/var/lib/dpkg/status')
  if (dpkg) return parseDpkg(dpkg)
  const apk = readIfThere('/lib/apk/db/installed')
  if (apk) return parseApk(apk)
  return parseTabbed(await askTool('rpm', ['-qa', '--qf', '%{NAME}\t%{VERSION}-%{RELEASE}\n']))
}

async function macApplications(): Promise<SoftwarePackage[]> {
  const entries = await readdir('/Applications').catch(() => [])
  const apps = entries.filter((entry) => entry.endsWith('.app'))
  const paths = apps.map((app) => `/Applications/${app}/Contents/Info.plist`)
  // One call for all of them: a fork per application would be felt on a laptop.
  const script = 'for p; do defaults read "$p" CFBundleShortVersionString 2>/dev/null || echo; done'
  const versions = (await askTool('/bin/sh', ['-c', script, 'sh', ...paths])).split('\n')
  return apps.map((app, at) => ({
    name: app.slice(0, -'.app'.length),
    version: versions[at] ?? '',
  }))
}

async function windowsPrograms(): Promise<SoftwarePackage[]> {
  const key = 'Software\\Microsoft\\Windows\\CurrentVersion\\Uninstall\\*'
  const answer = await askPowerShell(
    `Get-ItemProperty HKLM:\\${key},HKLM:\\${key.replace('Software', 'Software\\WOW6432Node')}` +
      ' -ErrorAction SilentlyContinue | Where-Object DisplayName |' +
      ' Select-Object DisplayName,DisplayVersion | ConvertTo-Json -Compress',
  )
  // One program alone comes as an object, several as an array.
  const rows = [answer ?? []].flat() as { DisplayName?: string; DisplayVersion?: string }[]
  return rows.flatMap((row) => packageOf(row.DisplayName, row.DisplayVersion))
}

function field(block: string, pattern: RegExp): string | undefined {
  return pattern.exec(block)?.[1]
}

function packageOf(name: string | undefined, version: string | undefined): SoftwarePackage[] {
  return name ? [{ name, version: version ?? '' }] : []
}
