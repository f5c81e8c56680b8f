// How simulated agents of a soak live: they work for a while, remember for ever what they ran, keep results until
// the hub acknowledges them, and come back with back-off when their socket is lost. What they did is the truth that
// the hub's word is held against.
import { appendFileSync } from 'node:fs'
import type { FleetCounts } from './fleet_counts.ts'
import { jsonFrame } from './frames.ts'
import type { CommandFrame, Conduct, SimAgent } from './sim_agent.ts'

/** As real agents: full jitter. */
const backOffMsMin = 1_000
const backOffMsMax = 30_000
/** From the inbox to the start, and of work that names no time of its own. */
const quickMsMax = 40
const repeatJitter = 0.2

type End = 'completed' | 'failed' | 'timeout' | 'cancelled'

/** What an agent remembers of an id, for good: 31 days are longer than any soak. */
interface Deed {
  runs: number
  /** Frames that brought it. */
  frames: number
  end: End | 'open'
}

/** What is on an agent's disk until the hub acknowledges the end. */
interface Work {
  id: string
  state: 'delivered' | 'running' | 'ended'
  timer: NodeJS.Timeout | undefined
  result: Buffer | undefined
  dueMs: number
}

export class LastingAgents implements Conduct {
  readonly #counts: FleetCounts
  readonly #deeds = new Map<string, Deed>()
  readonly #works = new Map<SimAgent, Map<string, Work>>()
  /** Lost sockets in a row. */
  readonly #losses = new Map<SimAgent, number>()
  readonly #away = new Set<SimAgent>()

  constructor(counts: FleetCounts) {
    this.#counts = counts
  }

  get unacked(): number {
    let sum = 0
    for (const works of this.#works.values()) {
      for (const { state } of works.values()) if (state === 'ended') sum++
    }
    return sum
  }

  onWelcome(agent: SimAgent): void {
    this.#losses.delete(agent)
    for (const work of this.#works.get(agent)?.values() ?? []) this.#report(agent, work)
  }

  onCommand(agent: SimAgent, { id, payload, timeoutSeconds }: CommandFrame): void {
    const deed = this.#deeds.get(id)
    if (deed) {
      deed.frames++
      this.#counts.duplicates++
      const work = this.#works.get(agent)?.get(id)
      if (work) this.#report(agent, work)
      else if (deed.end !== 'open') this.#keepEnd(agent, this.#newWork(agent, id), deed.end)
      // Of what vanished only the inbox is left: it is known, and more will never be told.
      else this.#tellState(agent, id, 'running')
      return
    }
    this.#counts.commands++
    this.#deeds.set(id, { runs: 0, frames: 1, end: 'open' })
    const work = this.#newWork(agent, id)
    this.#report(agent, work)
    const text = typeof payload['command'] === 'string' ? payload['command'] : ''
    work.timer = setTimeout(
      () => this.#begin(agent, work, text, timeoutSeconds),
      Math.random() * quickMsMax,
    )
  }

  onCancel(agent: SimAgent, id: string): void {
    const work = this.#works.get(agent)?.get(id)
    if (work && work.state !== 'ended') this.#end(agent, work, 'cancelled')
  }

  onAck(agent: SimAgent, id: string): void {
    const works = this.#works.get(agent)
    const work = works?.get(id)
    if (!work) return
    clearTimeout(work.timer)
    works?.delete(id)
    if (works?.size === 0) this.#works.delete(agent)
  }

  onLost(agent: SimAgent): void {
    this.comeBack([agent])
  }

  /** Agents that lost their sockets return by themselves, each after its own back-off. */
  comeBack(agents: readonly SimAgent[]): void {
    for (const agent of agents) {
      if (this.#away.has(agent)) continue
      const losses = this.#losses.get(agent) ?? 0
      this.#losses.set(agent, losses + 1)
      const capMs = Math.min(backOffMsMax, backOffMsMin * 2 ** losses)
      setTimeout(() => {
        if (!this.#away.has(agent) && !agent.open) void agent.connect()
      }, Math.random() * capMs)
    }
  }

  /** Agents that are switched on try until they are there. */
  arrive(agents: readonly SimAgent[]): void {
    for (const agent of agents) this.#away.delete(agent)
  }

  /** Agents that were switched off stay away until they arrive. */
  leave(agents: readonly SimAgent[]): void {
    for (const agent of agents) this.#away.add(agent)
  }

  /** Says again what was not acknowledged for so long. */
  repeat(afterMs: number): void {
    const nowMs = performance.now()
    for (const [agent, works] of this.#works) {
      if (!agent.open) continue
      for (const work of works.values()) {
        if (work.dueMs + afterMs < nowMs) this.#report(agent, work)
      }
    }
  }

  /** Adds lines to a file: `open DEVICE` for each socket held, `ran COMMAND RUNS FRAMES END` for each command. */
  write(file: string, agents: readonly SimAgent[]): void {
    const lines = agents.filter(({ open }) => open).map(({ device }) => `open ${device.id}\n`)
    for (const [id, { runs, frames, end }] of this.#deeds) {
      lines.push(`ran ${id} ${runs} ${frames} ${end}\n`)
    }
    appendFileSync(file, lines.join(''))
  }

  #newWork(agent: SimAgent, id: string): Work {
    const work: Work = { id, state: 'delivered', timer: undefined, result: undefined, dueMs: 0 }
    const works = this.#works.get(agent) ?? new Map<string, Work>()
    this.#works.set(agent, works.set(id, work))
    return work
  }

  #begin(agent: SimAgent, work: Work, text: string, timeoutSeconds: number): void {
    const deed = this.#deeds.get(work.id)!
    deed.runs++
    work.state = 'running'
    this.#report(agent, work)
    if (text === 'vanish') {
      // As with a disk that was replaced: nobody will ever tell the end.
      this.#works.get(agent)?.delete(work.id)
      return
    }
    const seconds = /^sleep (\d+)/.exec(text)?.[1]
    const workMs = seconds === undefined ? Math.random() * quickMsMax : Number(seconds) * 1000
    const killMs = timeoutSeconds * 1000
    const end: End = workMs > killMs ? 'timeout' : text.startsWith('exit') ? 'failed' : 'completed'
    work.timer = setTimeout(() => this.#end(agent, work, end), Math.min(workMs, killMs))
  }

  #end(agent: SimAgent, work: Work, end: End): void {
    clearTimeout(work.timer)
    this.#deeds.get(work.id)!.end = end
    this.#keepEnd(agent, work, end)
  }

  #keepEnd(agent: SimAgent, work: Work, end: End): void {
    work.state = 'ended'
    work.result = jsonFrame({
      type: 'result',
      id: work.id,
      status: end,
      exitCode: end === 'completed' ? 0 : end === 'failed' ? 1 : null,
      stdout: ' 10:42:01 up 12 days,  3:04,  1 user,  load average: 0.10, 0.08, 0.05\n',
      stderr: '',
      truncated: false,
      error: null,
      durationMs: 3,
    })
    this.#report(agent, work)
  }

  #report(agent: SimAgent, work: Work): void {
    const { id, state, result } = work
    work.dueMs = performance.now() + (Math.random() * 2 - 1) * repeatJitter * 10_000
    if (!agent.open) return
    if (state === 'ended' && result) agent.send(result, 1)
    else this.#tellState(agent, id, state)
  }

  #tellState(agent: SimAgent, id: string, state: Work['state']): void {
    agent.send(jsonFrame({ type: 'delivered', id }), 1)
    if (state === 'running') agent.send(jsonFrame({ type: 'started', id }), 1)
  }
}
