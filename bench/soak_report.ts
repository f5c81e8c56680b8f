// What a soak leaves to be looked at: plots over time, and where something was violated, what and where.
import { copyFileSync, existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Lab } from './lab.ts'
import type { Measured, Quiet } from './soak_watch.ts'

const examplesMax = 8

export function plotQuiets(lab: Lab, quiets: readonly Quiet[]): void {
  const x = { name: 'time', unit: 's' }
  const line = (name: string, measured: Measured) => ({
    name,
    points: quiets.map((quiet): [number, number] => [quiet.atSeconds, quiet[measured]]),
  })
  lab.findings.chart({
    title: 'Open descriptors and connections to PostgreSQL, at quiet moments',
    x,
    y: { name: 'count', unit: '' },
    lines: [line('descriptors', 'descriptors'), line('connections', 'connections')],
  })
  lab.findings.chart({
    title: 'Event-loop lag of the slowest thread, p99, at quiet moments',
    x,
    y: { name: 'lag', unit: 'ms' },
    lines: [line('hub', 'lagMs')],
  })
}

/** Says what was violated, by example, and keeps all of it with the hub's log where it can be looked at. */
export function tellViolations(lab: Lab, violations: Record<string, readonly string[]>): void {
  const broken = Object.entries(violations).filter(([, texts]) => texts.length > 0)
  if (broken.length === 0) return
  for (const [name, texts] of broken) {
    lab.progress.note(`soak: ${name}: ${texts.length}`)
    for (const text of texts.slice(0, examplesMax)) lab.progress.note(`  ${text}`)
  }
  const folder = keepEvidence(lab)
  const evidence = { violations: Object.fromEntries(broken), faults: lab.findings.faults }
  writeFileSync(join(folder, 'violations.json'), `${JSON.stringify(evidence, undefined, 2)}\n`)
  lab.progress.note(`soak: all of them, the hub's log and what the agents did are in ${folder}`)
}

/** Takes the hub's log and the agents' deeds out of the lab, which is about to go; returns where they are. */
export function keepEvidence(lab: Lab): string {
  const folder = mkdtempSync(join(tmpdir(), 'muster-soak-'))
  for (const name of ['hub.log', 'agents']) {
    const file = join(lab.folder, name)
    if (existsSync(file)) copyFileSync(file, join(folder, name))
  }
  return folder
}

/** What the hub's log says of its threads: why one ended, and that it was replaced. */
export function threadsInLog(lab: Lab): string[] {
  return readFileSync(join(lab.folder, 'hub.log'), 'utf8')
    .split('\n')
    .filter((line) => /thread (ended|died|does not answer)|shard died/.test(line))
}
