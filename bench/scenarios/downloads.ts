// P8d: a thousand downloads of the agent at 100 MB/s in all: how much the hub grows, and what commands notice of it.
import { generateKeyPairSync } from 'node:crypto'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { thisPlatform } from '../../scripts/release/build.ts'
import { signRelease } from '../../scripts/release/sign.ts'
import { agentFileName } from '../../src/release_manifest.ts'
import { commandRequests } from '../commands.ts'
import { startDownloads } from '../download_load.ts'
import { connectAll, restPerSecond } from '../fleet_phases.ts'
import { openLoop, refusals } from '../http_load.ts'
import type { Lab, Target } from '../lab.ts'
import { rssBytes } from '../proc.ts'
import type { Measure, Scenario } from '../suite.ts'

const readers = 1000
const bytesPerSecond = 100e6
const commandsPerSecond = 200
const version = '1.0.0'

export const downloads: Scenario = {
  name: 'downloads',
  about: '1,000 downloads of the agent at 100 MB/s in all, while commands run',
  rivals: [],
  agents: 1000,
  seconds: 10,
  warmUpSeconds: 2,
  ownHub: 'puts a release into the data folder of a hub that it starts',
  rows: [
    {
      id: 'P8d1',
      name: 'growth of the hub during 1,000 downloads',
      metric: 'grownMb',
      unit: 'MB',
      goal: { valueMost: 64 },
    },
    { id: 'P8d2', name: 'sent', metric: 'mbPerSecond', unit: 'MB/s' },
    { id: 'P8d3', name: 'round trip p99 meanwhile', metric: 'busyP99Ms', unit: 'ms' },
    { id: 'P8d4', name: 'round trip p99 before it', metric: 'quietP99Ms', unit: 'ms' },
  ],
  async enter(side, lab, agents) {
    await makeRelease(join(lab.folder, `${side}-data`))
    const target = await lab.start(side)
    const devices = await lab.devices(target, agents)
    const fleet = await lab.fleet(target, devices)
    await connectAll(fleet, lab.progress)
    await fleet.pace(restPerSecond(agents))
    return measureDownloads(target, lab, (seconds) =>
      timedCommands(target, () => commandRequests(target, devices, 30), seconds),
    )
  },
}

/** A release of the largest executable that is surely there: Node itself. */
async function makeRelease(dataFolder: string): Promise<void> {
  const folder = join(dataFolder, 'releases', version)
  const keys = join(dataFolder, 'release-keys')
  for (const path of [folder, keys]) mkdirSync(path, { recursive: true })
  const { privateKey, publicKey } = generateKeyPairSync('ed25519')
  writeFileSync(join(keys, 'bench.pub'), publicKey.export({ type: 'spki', format: 'pem' }))
  copyFileSync(process.execPath, join(folder, agentFileName(version, thisPlatform())))
  await signRelease({ folder, key: privateKey, minimumVersion: null, say: () => {} })
}

function measureDownloads(
  { origin, pid }: Target,
  lab: Lab,
  commands: (seconds: number) => Promise<number>,
): Measure {
  const { os, arch } = thisPlatform()
  const path = `/api/v1/agents/download/${os}/${arch}`
  return async (seconds) => {
    const quietP99Ms = await commands(seconds)
    const before = pid === undefined ? 0 : rssBytes(pid)
    let most = before
    const load = await lab.starting(() => startDownloads({ origin, path, readers, bytesPerSecond }))
    const watch = setInterval(() => {
      if (pid !== undefined) most = Math.max(most, rssBytes(pid))
    }, 100)
    try {
      const [bytes, startedMs] = [load.bytes(), performance.now()]
      const busyP99Ms = await commands(seconds)
      const tookSeconds = (performance.now() - startedMs) / 1000
      if (load.open() < readers) throw new Error(`only ${load.open()} downloads were open`)
      const mbPerSecond = (load.bytes() - bytes) / 1e6 / tookSeconds
      return { grownMb: (most - before) / 2 ** 20, mbPerSecond, busyP99Ms, quietP99Ms }
    } finally {
      clearInterval(watch)
      await load.stop()
    }
  }
}

/** The p99 of commands sent at a fixed rate and run, in milliseconds. */
async function timedCommands(
  { origin }: Target,
  requests: () => Promise<() => Buffer>,
  seconds: number,
): Promise<number> {
  const load = await openLoop({
    origin,
    connections: 64,
    next: await requests(),
    good: ({ status, body }) => status === 202 && body.includes('"status":"completed"'),
    seconds,
    perSecond: commandsPerSecond,
  })
  const refused = refusals(load)
  if (refused) throw new Error(`commands failed: ${refused}`)
  return load.latencies.ms(99)
}
