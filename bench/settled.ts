// When a program and its PostgreSQL are done with what a load left behind: sealing the audit, autovacuum, checkpoints.
// Whoever is measured next on the same cores would pay for it.
import { setTimeout as sleep } from 'node:timers/promises'
import { cpuMs, type Target } from './lab.ts'

/** Of a second's CPU; what an idle hub of 100,000 devices needs is below. */
const calmMs = 150
const settleMsMax = 600_000

/**
 * Clears the tables up as a night does, and waits until the program rests: else autovacuum, which looks once a
 * minute, would take half of the cores from one measurement in some.
 */
export async function clearUp(target: Target, calmSeconds = 1): Promise<void> {
  await target.database?.read('vacuum (analyze)')
  await settled(target, calmSeconds)
}

/** Resolves after so many calm seconds in a row; at once where its processes are not ours. */
export async function settled(target: Target, calmSeconds: number): Promise<void> {
  const endMs = performance.now() + settleMsMax
  for (let calm = 0; calm < calmSeconds;) {
    const before = cpuMs(target)
    if (!before) return
    await sleep(1000)
    const after = cpuMs(target)
    if (!after) return
    const usedMs = after.program - before.program + after.postgres - before.postgres
    calm = usedMs < calmMs ? calm + 1 : 0
    if (performance.now() > endMs) {
      throw new Error(`${target.side} is still busy: ${usedMs} ms of CPU/s`)
    }
  }
}
