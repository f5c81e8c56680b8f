// The course of a soak: a period without a fault, then one with each in turn, and a look at the hub at the end of each.
import { setTimeout as sleep } from 'node:timers/promises'
import type { EventListener } from './event_listener.ts'
import { faultOf, faults, type Scene } from './faults.ts'
import { total } from './fleet_counts.ts'
import { restPerSecond } from './fleet_phases.ts'
import type { Fleet } from './fleet.ts'
import type { Lab, Target } from './lab.ts'
import { collectedRss, type Look } from './rss_watch.ts'
import type { SoakOperators } from './soak_operators.ts'
import { agree, lookAt, type Quiet } from './soak_watch.ts'

/** Whoever was hit is back before the next blow; a busy machine takes its time. */
export const agreeMsMax = 60_000

/** Everybody who takes part in a soak. */
export interface Soak {
  lab: Lab
  target: Target
  scene: Scene
  operators: SoakOperators
  listener: EventListener
  fleet: Fleet
  commuters: Fleet
}

export interface Course {
  quiets: Quiet[]
  /** MB after each round of faults and at the end, with all garbage collected. */
  held: number[]
  /** Periods that ended with other devices shown online than have a socket. */
  disagreed: string[]
}

/** Strikes for so long; what disagreed with the sockets that are held at the end of a period is told by its fault. */
export async function strikeInTurn(
  soaked: Soak,
  seconds: number,
  looks: readonly Look[],
  readiness: Readiness,
): Promise<Course> {
  const { target, scene, operators, listener, fleet, commuters } = soaked
  const { faultSeconds } = scene
  const { progress, findings } = soaked.lab
  const startedMs = performance.now()
  const elapsed = () => (performance.now() - startedMs) / 1000
  const quiets: Quiet[] = []
  const held: number[] = []
  const disagreed: string[] = []
  const periods = Math.max(1, Math.floor(seconds / faultSeconds))
  for (let period = 0; period < periods; period++) {
    // What was late does not make what follows denser.
    const atSeconds = elapsed()
    const endMs = performance.now() + faultSeconds * 1000
    if (period > 1 && period % faults.length === 1) held.push(...(await heldMegabytes(soaked)))
    let name = 'nothing yet'
    if (period > 0) {
      if (period % 2 === 1) await commuters.disconnect()
      else {
        void commuters.connect()
        await commuters.pace(restPerSecond(commuters.size))
      }
      listener.breakOff()
      const { fault, turn } = faultOf(period - 1)
      name = fault.name
      progress.note(`soak: ${Math.round(atSeconds)} s: ${name}`)
      await fault.strike(scene, turn)
    }
    const struckMs = performance.now()
    await sleep(Math.max(0, endMs - performance.now()))
    const giveUpMs = performance.now() + agreeMsMax
    if (!(await agree(target, [fleet, commuters], () => performance.now() > giveUpMs))) {
      disagreed.push(`after ${name} at ${Math.round(atSeconds)} s`)
    }
    quiets.push(await lookAt(soaked, looks, faultSeconds / 4))
    const heard = operators.client.takeHeard()
    const unreadySeconds = Math.max(0, (readiness.lastUnreadyMs() - struckMs) / 1000)
    if (period > 0) findings.fault({ name, atSeconds, unreadySeconds, heard })
    else if (total(heard) > 0) progress.note(`soak: without a fault: ${JSON.stringify(heard)}`)
    const { rssMegabytes, descriptors, connections, lagMs } = quiets.at(-1)!
    progress.note(
      `soak: ${Math.round(elapsed())} s: ${operators.ledger.size} commands, RSS ${Math.round(rssMegabytes)} MB, ` +
        `${descriptors} descriptors, ${connections} connections, lag ${Math.round(lagMs)} ms, ` +
        `unready ${unreadySeconds.toFixed(1)} s, repeated ${JSON.stringify(heard)}`,
    )
  }
  held.push(...(await heldMegabytes(soaked)))
  return { quiets, held, disagreed }
}

/** With all garbage collected; none where the program is not ours to look at. */
async function heldMegabytes({ lab, target: { pid } }: Soak): Promise<number[]> {
  if (pid === undefined) return []
  const megabytes = (await collectedRss(pid)) / 2 ** 20
  lab.progress.note(`soak: ${Math.round(megabytes)} MB without garbage`)
  return [megabytes]
}

export interface Readiness {
  /** Of `performance.now()`; 0 while it always was ready. */
  lastUnreadyMs(): number
  stop(): void
}

export function watchReadiness(origin: string): Readiness {
  let lastMs = 0
  const over = new AbortController()
  const look = async () => {
    while (!over.signal.aborted) {
      const askedMs = performance.now()
      const answer = await fetch(`${origin}/health/ready`).catch(() => undefined)
      await answer?.body?.cancel()
      if (answer?.status !== 200) lastMs = askedMs
      await sleep(250)
    }
  }
  void look()
  return { lastUnreadyMs: () => lastMs, stop: () => over.abort() }
}
