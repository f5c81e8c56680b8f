// Devices that come and go for good: each enrolls, connects, runs a command, and is decommissioned with another
// one on its way. What became of both is counted, since the end of a device is where work gets stuck.
import { enrollOne, signIn } from './operator.ts'
import { tally } from './fleet_counts.ts'
import { HttpConnection, requestBytes } from './http_connection.ts'
import type { Target } from './lab.ts'
import { newGround, SimAgent, type Ground } from './sim_agent.ts'
import { placeOf } from './sockets.ts'
import { tick } from './ticker.ts'

const waitSeconds = 30
/** An access token lives 15 minutes. */
const signInMs = 10 * 60_000
const terminal = new Set(['completed', 'failed', 'timeout', 'cancelled', 'expired'])
/** One that is waited for, one that is under way when its device goes. */
const commandsEach = 2

export interface VisitorCounts {
  /** Devices that came, worked and went. */
  gone: number
  /** Commands of theirs that the hub showed at last. */
  stored: number
  /** Their ends, by status. */
  ends: Record<string, number>
  /** Commands without an end after their device was decommissioned. */
  stuck: number
  /** Commands that were accepted once and stored twice, or not at all. */
  doubled: number
  lost: number
  /** What went wrong with a visit, by its first words. */
  failed: Record<string, number>
}

export class Visitors {
  readonly counts: VisitorCounts = {
    gone: 0,
    stored: 0,
    ends: {},
    stuck: 0,
    doubled: 0,
    lost: 0,
    failed: {},
  }
  readonly #target: Target
  readonly #ground: Ground
  #headers: Promise<{ Authorization: string }> | undefined
  #signedInMs = 0
  #index = 0

  constructor(target: Target) {
    this.#target = target
    this.#ground = newGround(placeOf(target.origin))
  }

  /** Visits at a fixed rate; resolves when the last one is over. */
  async come(perSecond: number, seconds: number): Promise<VisitorCounts> {
    const visits: Promise<void>[] = []
    await tick(perSecond, Math.round(perSecond * seconds), () => visits.push(this.#visit()))
    await Promise.all(visits)
    return this.counts
  }

  async #visit(): Promise<void> {
    try {
      await this.#comeAndGo()
      this.counts.gone++
    } catch (error) {
      tally(this.counts.failed, String(error).slice(0, 120))
    }
  }

  async #comeAndGo(): Promise<void> {
    const { origin, credentials } = this.#target
    const { counts } = this
    const connection = await HttpConnection.open(origin)
    try {
      const index = this.#index++
      const device = await enrollOne(origin, credentials.enrollmentSecret, connection, index)
      const agent = new SimAgent(device, this.#ground)
      if (!(await agent.connect())) throw new Error('a new device was not let in')
      const path = `/api/v1/devices/${device.id}`
      const command = { action: 'run_command', payload: { command: 'uptime' } }
      const ask = async <T>(method: string, where: string, body?: object): Promise<T> => {
        const headers = await this.#signedIn()
        const answer = await connection.send(
          requestBytes(origin, { method, path: where, headers, body }),
        )
        if (answer.status >= 400) throw new Error(`${method}: ${answer.status} ${answer.body}`)
        // The hub's own schema: what is read of it is what was asked for.
        return JSON.parse(answer.body) as T
      }
      await ask('POST', `${path}/commands?wait=${waitSeconds}`, command)
      await ask('POST', `${path}/commands`, command)
      await ask('DELETE', path)
      const { data } = await ask<{ data: { id: string; status: string }[] }>(
        'GET',
        `${path}/commands`,
      )
      for (const { id, status } of data) {
        this.#ground.ran.delete(id)
        this.#ground.unacked.delete(id)
        if (terminal.has(status)) tally(counts.ends, status)
        else counts.stuck++
      }
      counts.stored += data.length
      counts.doubled += Math.max(0, data.length - commandsEach)
      counts.lost += Math.max(0, commandsEach - data.length)
      agent.disconnect()
    } finally {
      connection.close()
    }
  }

  #signedIn(): Promise<{ Authorization: string }> {
    if (this.#headers && performance.now() - this.#signedInMs < signInMs) return this.#headers
    this.#signedInMs = performance.now()
    this.#headers = signIn(this.#target.origin, this.#target.credentials)
    return this.#headers
  }
}
