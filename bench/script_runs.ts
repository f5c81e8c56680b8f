// A script of the bench's own, run on the bench's own devices: from its POST to the last committed result.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Lab, Target } from './lab.ts'
import { apiOf, signIn } from './operator.ts'
import type { Device } from './sim_agent.ts'

/** As many as one execution may name. */
const namedMax = 10_000
const giveUpMs = 60_000
const pollMs = 10

export interface BenchScript {
  /** Runs it on every device; resolves with the seconds that took. */
  run(): Promise<number>
  /** Nothing where it is removed already. */
  remove(): Promise<void>
}

interface Execution {
  id: string
  counts: Record<string, number>
}

/**
 * Makes a script in the organization of the devices. It runs on them by name where `others` are there too, on
 * all that a filter finds where nobody else is.
 */
export async function newScript(
  lab: Lab,
  target: Target,
  devices: readonly Device[],
  others = target.pid === undefined,
): Promise<BenchScript> {
  const whom = others ? byName(devices) : { filter: { os: 'linux' } }
  const api = apiOf(target.origin, await signIn(target.origin, target.credentials))
  const { orgId } = await api<{ orgId: string }>('GET', `/devices/${devices[0]!.id}`)
  const { id } = await api<{ id: string }>('POST', '/scripts', {
    orgId,
    name: `bench ${randomUUID()}`,
    language: 'sh',
    content: 'uptime',
    os: ['linux'],
  })
  let there = true
  const script: BenchScript = {
    async run() {
      const startedMs = performance.now()
      const execution = await api<Execution>('POST', `/scripts/${id}/execute`, whom)
      // The counts move with each committed result; the execution's own end is told up to half a second later.
      let { counts } = execution
      while ((counts['completed'] ?? 0) < devices.length) {
        if (performance.now() - startedMs > giveUpMs) {
          throw new Error(`not every device completed the script: ${JSON.stringify(counts)}`)
        }
        await sleep(pollMs)
        counts = (await api<Execution>('GET', `/executions/${execution.id}`)).counts
      }
      return (performance.now() - startedMs) / 1000
    },
    async remove() {
      if (!there) return
      there = false
      await api('DELETE', `/scripts/${id}`)
    },
  }
  // Of a hub that is not ours it goes also when the bench is interrupted.
  if (target.pid === undefined) lab.defer(() => script.remove())
  return script
}

/** On somebody else's hub a filter would run the script on their devices too. */
function byName(devices: readonly Device[]): { deviceIds: string[] } {
  if (devices.length > namedMax) {
    throw new Error(`a script names ${namedMax} devices at most: lower --agents`)
  }
  return { deviceIds: devices.map(({ id }) => id) }
}
