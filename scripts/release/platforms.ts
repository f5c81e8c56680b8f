// The platforms an agent is built for, and the Bun that each is built with: packages of the npm registry, by
// version and digest, so that a build is the same whatever the registry answers.
import type { Platform } from '../../src/executable.ts'

export const bunVersion = '1.4.5'

export interface BunPackage {
  name: string
  /** As npm writes it: of the packed package. */
  integrity: string
  /** Where the program lies in it. */
  program: string
}

export interface Target {
  platform: Platform
  /** What Bun's `--target` calls it. */
  target: string
  bun: BunPackage
}

/** "linux/amd64": how people name a platform. */
export function nameOf({ os, arch }: Platform): string {
  return `${os}/${arch}`
}

/**
 * Every platform of the contract. For amd64 the baseline build of Bun, which asks for no AVX2: servers of
 * 2012, and Rosetta, have none, and it is no larger.
 */
export const targets: readonly Target[] = [
  target(
    'linux',
    'amd64',
    'linux-x64-baseline',
    's8yMwYcFnnrA178gji0gZbkE2WVDej/Ti1x770oPfihxyRxSMNhGhiAQNXV53aDeraZxksdvKV/RAdQBCd0qPA==',
  ),
  target(
    'linux',
    'arm64',
    'linux-aarch64',
    '4BXmsSKnjOrlGWqZV4x/oWa7AVoR+B6lCXddMzOAXBIm3t50eslg9wb66gmtW1AamEQ1l1CDvmmruysEhqOWMg==',
  ),
  target(
    'darwin',
    'amd64',
    'darwin-x64-baseline',
    'zqfLA5A4B+hYMh5WYzYSot3uZ06FzhdP0OEwQisEzdirYtXGj5cQFlfy31BGfNsAsk1Gd/w/OxJ/jqqJ3cMclw==',
  ),
  target(
    'darwin',
    'arm64',
    'darwin-aarch64',
    '4MIFXHmctH2EhAxLXm2/qxNtv17dFtLJylvaOCsrgq6KSqHTs6eW5YSrJjRbJxYUJaR901fsN8JfZOa+CsWpWQ==',
  ),
  target(
    'windows',
    'amd64',
    'windows-x64-baseline',
    '/U3Dc74uGqE6EUqef7mPtg9KwJs7iJH4JHRMfIZIn18MrJh6Xz4gVvWDXRvzCL2j8wPlTnJVyrO4n7Qq4uM7TQ==',
  ),
  target(
    'windows',
    'arm64',
    'windows-aarch64',
    'MiPFZnBNDnBXgr1oONc5pizC4fOLjnIOfNkYdFEnWzLmoFTg86naZIG3SvS7d/GglpQSAnCKMAzSjI/TAckiRw==',
  ),
]

/** The target of a platform; undefined for one that no agent is built for. */
export function targetOf(platform: Platform): Target | undefined {
  return targets.find((one) => nameOf(one.platform) === nameOf(platform))
}

function target(os: Platform['os'], arch: Platform['arch'], bun: string, sha512: string): Target {
  return {
    platform: { os, arch },
    target: `bun-${bun}-v${bunVersion}`,
    bun: {
      name: `@oven/bun-${bun}`,
      integrity: `sha512-${sha512}`,
      program: os === 'windows' ? 'package/bin/bun.exe' : 'package/bin/bun',
    },
  }
}
