// How the files of a release are called: the name alone tells version and platform.
import type { Arch, OsName, Platform } from '../../src/executable.ts'
import { isVersion } from '../../src/versions.ts'

/** `muster-agent_1.2.3_linux_amd64`, with `.exe` for Windows. */
export function agentFileName(version: string, { os, arch }: Platform): string {
  return `muster-agent_${version}_${os}_${arch}${os === 'windows' ? '.exe' : ''}`
}

/** What a name tells; undefined for one that is none of a release's executables. */
export function parseAgentFileName(
  name: string,
): { version: string; platform: Platform } | undefined {
  const match = /^muster-agent_([^_]+)_(linux|darwin|windows)_(amd64|arm64)(?:\.exe)?$/.exec(name)
  if (match === null) return undefined
  const [, version = '', os, arch] = match
  // The pattern allows nothing else.
  const platform = { os: os as OsName, arch: arch as Arch }
  if (!isVersion(version) || agentFileName(version, platform) !== name) return undefined
  return { version, platform }
}
