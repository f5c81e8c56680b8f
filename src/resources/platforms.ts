// What agents and people call operating systems and processors, and the one word of the contract for each.

export const osNames = {
  linux: 'linux',
  darwin: 'darwin',
  macos: 'darwin',
  windows: 'windows',
} as const

export const archNames = {
  amd64: 'amd64',
  x64: 'amd64',
  x86_64: 'amd64',
  arm64: 'arm64',
  aarch64: 'arm64',
} as const

export type OsWord = keyof typeof osNames
export type ArchWord = keyof typeof archNames

/** For schemas. */
export const osWords = Object.keys(osNames) as OsWord[]
export const archWords = Object.keys(archNames) as ArchWord[]
