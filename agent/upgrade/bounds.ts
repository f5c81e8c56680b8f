// How long a trial may take, and what follows from that. MUSTER_AGENT_TRIAL_SECONDS shortens it: whoever sets
// the agent's environment could stop it as well, and shorter can only bring the old version back sooner.

import { trialBeatsMax, trialMsMax, trialMsMin, trialQuietShare } from '../limits.ts'

/** Milliseconds a trial has to be acknowledged. */
export function trialMs(env: NodeJS.ProcessEnv = process.env): number {
  const asked = Number(env['MUSTER_AGENT_TRIAL_SECONDS']) * 1000
  return asked > 0 ? Math.min(trialMsMax, Math.max(trialMsMin, asked)) : trialMsMax
}

/** Milliseconds between its heartbeats: 5 s of 5 minutes. */
export function beatMs(): number {
  return trialMs() / trialBeatsMax
}

/** Milliseconds after which a silent trial hangs: a minute of 5. */
export function quietMsMax(): number {
  return trialMs() * trialQuietShare
}
