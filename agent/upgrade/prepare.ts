// The old version's part of an upgrade: find, bring, prove, put beside itself, hand over. Until the record is
// written nothing has changed; from then on the supervisor decides.

import { accessSync, constants, renameSync, rmSync, statSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import type { ActionContext, ActionOutcome } from '../action.ts'
import { fullJitterMs } from '../backoff.ts'
import { ask } from '../request.ts'
import { downloadTriesMax, offerBytesMax, trialMsMin } from '../limits.ts'
import { archName, osName } from '../platform.ts'
import { installedProgram, isCompiled } from '../programs.ts'
import { requireIdentity } from '../state.ts'
import { isSupervised } from '../supervise.ts'
import { killPoint } from '../test_build.ts'
import { agentVersion } from '../version.ts'
import type { Platform } from '../../src/executable.ts'
import type { ReleaseFile } from '../../src/release_manifest.ts'
import { syncFolder } from '../files.ts'
import { download } from './download.ts'
import { chooseFile, parseOffer } from './offer.ts'
import { discardParts, placesOf } from './places.ts'
import type { Places } from './places.ts'
import { UpgradeError } from './reasons.ts'
import { writeRecord } from './record.ts'
import { keepTrust, learn, readTrust } from './trust.ts'
import { verifyBytes, verifyStart } from './verify.ts'

interface Job {
  version: string
  own: Platform
  hubUrl: string
  places: Places
  context: ActionContext
}

type Phase = 'preparing' | 'downloading' | 'verifying'

/** Upgrades to a version as far as the old program can: the rest is the supervisor's. */
export async function prepareUpgrade(
  version: string,
  context: ActionContext,
): Promise<ActionOutcome> {
  const moved = { from: agentVersion, to: version }
  if (version === agentVersion) return { status: 'completed', data: moved }
  let phase: Phase = 'preparing'
  try {
    const places = requirePlaces()
    const own: Platform = { os: osName(), arch: archName() }
    const { hubUrl } = requireIdentity(context.state)
    const job: Job = { version, own, hubUrl, places, context }
    const file = await findFile(job)
    context.phase((phase = 'downloading'))
    await bring(job, file)
    context.phase((phase = 'verifying'))
    await prove(job, file)
    return handOver(job)
  } catch (error) {
    if (!(error instanceof UpgradeError)) throw error
    const { message, reason } = error
    return { status: 'failed', error: message, data: { reason, ...moved, phase } }
  }
}

function requirePlaces(): Places {
  if (!isCompiled()) {
    const text = 'this agent runs from a checkout: upgrade it by updating that and restarting it'
    throw new UpgradeError('not_compiled', text)
  }
  if (!isSupervised()) {
    const text =
      'this agent runs without a supervisor: start it with "run --supervised" to upgrade it'
    throw new UpgradeError('not_supervised', text)
  }
  const places = placesOf(installedProgram())
  try {
    accessSync(places.folder, constants.W_OK)
  } catch (error) {
    const text = `the agent may not write to ${places.folder}, where its program lies`
    throw new UpgradeError('not_writable', text, { cause: error })
  }
  return places
}

async function findFile({ version, own, hubUrl, context }: Job): Promise<ReleaseFile> {
  const { state } = context
  const offer = parseOffer(await askReleases(hubUrl, context.signal))
  const before = readTrust(state, requireIdentity(state))
  const trust = learn(before, offer.keyList, offer.manifests)
  // Kept before it is obeyed: what was seen once counts from then on, whatever comes of this upgrade.
  if (JSON.stringify(trust) !== JSON.stringify(before)) keepTrust(state, trust)
  return chooseFile(version, own, offer, trust)
}

/** A hub that restarts, is busy or does not know yet is asked again; what it says clearly counts. */
async function askReleases(hubUrl: string, signal: AbortSignal): Promise<unknown> {
  const url = `${hubUrl}/api/v1/agents/releases`
  let refusal = new UpgradeError('releases_unavailable', 'the hub did not say what it offers')
  for (let tries = 0; tries < downloadTriesMax; tries++) {
    if (tries > 0) await delay(fullJitterMs(tries, Math.random()), undefined, { signal })
    try {
      const { status, body } = await ask(url, { signal }, offerBytesMax)
      if (status === 200) return body
      const text = `the hub answered ${status} when asked what it offers`
      refusal = new UpgradeError('releases_unavailable', text)
      if (status !== 429 && status < 500) break
    } catch (error) {
      signal.throwIfAborted()
      const text = 'the hub did not say what it offers'
      refusal = new UpgradeError('releases_unavailable', text, { cause: error })
    }
  }
  throw refusal
}

async function bring({ version, own, hubUrl, places, context }: Job, file: ReleaseFile) {
  discardParts(places, file.sha256)
  await download({
    url: `${hubUrl}/api/v1/agents/download/${own.os}/${own.arch}?version=${version}`,
    part: places.part(file.sha256),
    size: file.size,
    signal: context.signal,
  })
  killPoint('download.done')
}

async function prove({ version, own, places }: Job, file: ReleaseFile): Promise<void> {
  const part = places.part(file.sha256)
  try {
    await verifyBytes(part, file, own)
    killPoint('verify.bytes')
    renameSync(part, places.next)
    syncFolder(places.folder)
    killPoint('verify.placed')
    await verifyStart(places.next, version, statSync(places.program).mode)
    killPoint('verify.started')
  } catch (error) {
    // Wrong bytes must not be gone on with by the next try.
    rmSync(part, { force: true })
    rmSync(places.next, { force: true })
    throw error
  }
}

function handOver({ version, context }: Job): ActionOutcome {
  const { signal, endsByMs, state, agent, id } = context
  signal.throwIfAborted()
  if (endsByMs - Date.now() < trialMsMin) {
    throw new UpgradeError('no_time_left', "the command's time is over before the trial could end")
  }
  context.phase('trial')
  writeRecord(state, {
    commandId: id,
    from: agentVersion,
    to: version,
    phase: 'trial',
    endsByMs,
    process: null,
    reason: null,
    error: null,
  })
  killPoint('record.trial')
  agent.upgrade()
  return { status: 'completed', handedOver: true }
}
