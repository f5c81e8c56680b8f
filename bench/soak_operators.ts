// The operators of a soak: commands of every kind, cancels, scripts, lists, devices that come and go. Whatever was
// accepted stands in a ledger, with the ends it may have: what the verdict holds against the hub.
import { setTimeout as sleep } from 'node:timers/promises'
import { tally } from './fleet_counts.ts'
import type { Target } from './lab.ts'
import { PatientClient, Refused } from './patient_client.ts'
import { newGround, SimAgent, type Device } from './sim_agent.ts'
import { placeOf } from './sockets.ts'
import { Latencies } from './latency.ts'
import { ticksNowMs } from './ticker.ts'

export type Kind =
  | 'quick'
  | 'awaited'
  | 'repeated'
  | 'failing'
  | 'cancelled'
  | 'late'
  | 'expiring'
  | 'overdue'
  | 'vanishing'
  | 'flood'
  | 'visitor'

/** How a command of each kind may end; whatever else happens, nothing else may. */
export const endsOf: Readonly<Record<Kind, readonly string[]>> = {
  quick: ['completed'],
  awaited: ['completed'],
  repeated: ['completed'],
  flood: ['completed'],
  late: ['completed'],
  failing: ['failed'],
  overdue: ['timeout'],
  vanishing: ['timeout'],
  cancelled: ['cancelled', 'completed'],
  expiring: ['expired', 'completed'],
  visitor: ['completed', 'cancelled'],
}

export interface Asked {
  kind: Kind
  deviceId: string
  /** Seconds since the soak began. */
  atSeconds: number
}

export interface ScriptRun {
  /** Devices that were named. */
  devices: number
}

export interface Plan {
  commandsPerSecond: number
  visitsPerSecond: number
  listsPerSecond: number
  /** Between two scripts. */
  scriptSeconds: number
  scriptDevices: number
  floodCommands: number
}

const waitSeconds = 10
/** Of an expiring command: shorter than its device is away. */
const expiresSeconds = 8
const timeoutSeconds = 2
const sleepSeconds = 60
/** Up to so long an operator thinks before a cancel. */
const cancelMsMax = 1_500
/** Those whose end the hub has to call wait for its grace, and their device's next ones with them: few, apart. */
const lateEndsPerSecond = 0.1
/** Answers outstanding: an outage holds up what is due in it, and no more than this. */
const outstandingMax = 5_000
/** Callers of a flood, each of whom asks again once answered. */
const floodLanes = 256
const visitorCommands = 2
/** Host name of the devices that come and go. */
export const visitorName = 'visitor'

export class SoakOperators {
  readonly client: PatientClient
  readonly ledger = new Map<string, Asked>()
  readonly scripts = new Map<string, ScriptRun>()
  /** Executions that were asked for without an answer: they may be there. */
  scriptsUnknown = 0
  /** Commands accepted under one key with another id. */
  readonly rebuilt: string[] = []
  /** From the moment a command was due to its end, repeats included. */
  readonly latencies = new Latencies()
  readonly visits = { gone: 0, failed: {} as Record<string, number> }
  /** What was due and not asked since too much was outstanding. */
  skipped = 0
  readonly #target: Target
  readonly #plan: Plan
  readonly #steady: readonly Device[]
  readonly #slow: readonly Device[]
  readonly #commuters: readonly Device[]
  readonly #ground
  readonly #startedMs = performance.now()
  readonly #running = new Set<Promise<void>>()
  #scriptId = ''
  #stopped = false
  #turn = 0

  /** `slow` devices get what does not end by itself; `commuters` are away half of the time. */
  constructor(
    target: Target,
    plan: Plan,
    devices: {
      steady: readonly Device[]
      slow: readonly Device[]
      commuters: readonly Device[]
    },
  ) {
    this.#target = target
    this.#plan = plan
    this.#steady = devices.steady
    this.#slow = devices.slow
    this.#commuters = devices.commuters
    this.#ground = newGround(placeOf(target.origin))
    this.client = new PatientClient(target)
  }

  /** Works for so long; resolves when the last answer is there. */
  async work(seconds: number): Promise<void> {
    await this.#makeScript()
    const { commandsPerSecond, visitsPerSecond, listsPerSecond, scriptSeconds } = this.#plan
    await Promise.all([
      this.#every(commandsPerSecond, seconds, (n, dueMs) => this.#command(n, dueMs)),
      this.#every(lateEndsPerSecond, seconds, (n) => this.#lateEnd(n)),
      this.#every(visitsPerSecond, seconds, () => this.#visit()),
      this.#every(listsPerSecond, seconds, (n) => this.#list(n)),
      this.#every(1 / scriptSeconds, seconds, () => this.#script()),
    ])
    while (this.#running.size > 0) await Promise.all(this.#running)
  }

  /** As many commands as fast as the hub takes them, spread over the fleet. */
  async flood(): Promise<void> {
    let left = this.#plan.floodCommands
    const lane = async () => {
      while (left-- > 0)
        await this.#guarded(async () => void (await this.#send('flood', this.#next())))
    }
    await Promise.all(Array.from({ length: floodLanes }, lane))
  }

  /** Begins nothing more. */
  stop(): void {
    this.#stopped = true
    this.client.close()
  }

  /** Begins a piece of work so often, on schedule, whether or not earlier ones are done. */
  async #every(
    perSecond: number,
    seconds: number,
    work: (n: number, dueMs: number) => Promise<void>,
  ): Promise<void> {
    const startedMs = ticksNowMs()
    const count = Math.floor(perSecond * seconds)
    for (let n = 0; n < count && !this.#stopped; n++) {
      const dueMs = startedMs + (n * 1000) / perSecond
      const waitMs = dueMs - ticksNowMs()
      if (waitMs > 0) await sleep(waitMs)
      if (this.#running.size >= outstandingMax) {
        this.skipped++
        continue
      }
      const running = this.#guarded(() => work(n, dueMs))
      this.#running.add(running)
      void running.finally(() => this.#running.delete(running))
    }
  }

  /** What the hub refused is counted already; anything else is the bench's own fault. */
  async #guarded(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (!(error instanceof Refused)) {
        this.client.refusals++
        this.client.refused.push(String(error))
      }
    }
  }

  async #command(n: number, dueMs: number): Promise<void> {
    switch (n % 10) {
      case 0: {
        await this.#send('awaited', this.#next(), `?wait=${waitSeconds}`)
        this.latencies.record(dueMs, ticksNowMs())
        return
      }
      case 1: {
        const id = await this.#send('cancelled', this.#next(), '', `sleep 1`)
        await sleep(Math.random() * cancelMsMax)
        await this.client.ask({
          method: 'POST',
          path: `/api/v1/commands/${id}/cancel`,
          // Conflict: it has ended.
          good: [200, 409],
        })
        return
      }
      case 2:
        await this.#send('failing', this.#next(), '', 'exit 1')
        return
      case 3:
        await this.#send('repeated', this.#next())
        return
      case 4:
        await this.#send('expiring', pick(this.#commuters, n), '', 'uptime', { expiresSeconds })
        return
      case 5:
        await this.#send('late', pick(this.#commuters, n))
        return
      default:
        await this.#send('quick', this.#next())
    }
  }

  async #lateEnd(n: number): Promise<void> {
    const device = pick(this.#slow, n)
    if (n % 2 === 0) {
      await this.#send('vanishing', device, '', 'vanish', { timeoutSeconds })
    } else await this.#send('overdue', device, '', `sleep ${sleepSeconds}`, { timeoutSeconds })
  }

  /** Resolves with the id once it is accepted; whatever had to be asked twice must be the same command. */
  async #send(
    kind: Kind,
    device: Device,
    query = '',
    command = 'uptime',
    more: { expiresSeconds?: number; timeoutSeconds?: number } = {},
  ): Promise<string> {
    const atSeconds = (performance.now() - this.#startedMs) / 1000
    const request = {
      method: 'POST' as const,
      path: `/api/v1/devices/${device.id}/commands${query}`,
      key: PatientClient.key(),
      body: {
        action: 'run_command',
        payload: { command },
        ...(more.timeoutSeconds ? { timeoutSeconds: more.timeoutSeconds } : {}),
        ...(more.expiresSeconds ? { expiresInSeconds: more.expiresSeconds } : {}),
      },
      good: [202],
    }
    const { body, asked } = await this.client.ask(request)
    const { id } = JSON.parse(body) as { id: string }
    this.ledger.set(id, { kind, deviceId: device.id, atSeconds })
    if (asked > 1 || kind === 'repeated') {
      const again = await this.client.ask({ ...request, path: request.path.replace(query, '') })
      const second = (JSON.parse(again.body) as { id: string }).id
      if (second !== id) this.rebuilt.push(`${id} and ${second} under one key`)
    }
    return id
  }

  #next(): Device {
    return pick(this.#steady, this.#turn++)
  }

  async #list(n: number): Promise<void> {
    const paths = [
      '/devices',
      '/devices?status=online&limit=100',
      `/devices/${this.#next().id}/commands`,
      '/audit?action=command.create',
      '/alerts',
      '/executions',
    ]
    const path = `/api/v1${paths[n % paths.length]!}`
    await this.client.ask({ method: 'GET', path, good: [200] })
  }

  async #makeScript(): Promise<void> {
    const device = await this.client.ask({
      method: 'GET',
      path: `/api/v1/devices/${this.#steady[0]!.id}`,
      good: [200],
    })
    const { orgId } = JSON.parse(device.body) as { orgId: string }
    const { body } = await this.client.ask({
      method: 'POST',
      path: '/api/v1/scripts',
      body: { orgId, name: 'soak', language: 'sh', content: 'uptime', os: ['linux'] },
      good: [201],
    })
    this.#scriptId = (JSON.parse(body) as { id: string }).id
  }

  /** An execution knows no Idempotency-Key: one without an answer may be there, and is not asked for again. */
  async #script(): Promise<void> {
    const devices = Array.from({ length: this.#plan.scriptDevices }, () => this.#next().id)
    const deviceIds = [...new Set(devices)]
    const { status, body } = await this.client.ask({
      method: 'POST',
      path: `/api/v1/scripts/${this.#scriptId}/execute`,
      body: { deviceIds },
      good: [202],
      once: true,
    })
    if (status !== 202) this.scriptsUnknown++
    else this.scripts.set((JSON.parse(body) as { id: string }).id, { devices: deviceIds.length })
  }

  /** A device that enrolls, works and is decommissioned with a command on its way. */
  async #visit(): Promise<void> {
    try {
      await this.#comeAndGo()
      this.visits.gone++
    } catch (error) {
      tally(this.visits.failed, String(error).slice(0, 160))
      if (error instanceof Refused) throw error
    }
  }

  async #comeAndGo(): Promise<void> {
    const { enrollmentSecret } = this.#target.credentials
    const { body } = await this.client.ask({
      method: 'POST',
      path: '/api/v1/agents/enroll',
      key: PatientClient.key(),
      body: { enrollmentSecret, hostname: visitorName, os: 'linux', arch: 'amd64' },
      good: [201],
    })
    const answer = JSON.parse(body) as { deviceId: string; agentToken: string }
    const device = { id: answer.deviceId, token: answer.agentToken }
    const agent = new SimAgent(device, this.#ground)
    const stay = this.#stay(agent)
    try {
      const path = `/api/v1/devices/${device.id}`
      await this.#send('visitor', device, `?wait=${waitSeconds}`)
      await this.#send('visitor', device)
      // Gone already, where the answer to the first was lost.
      await this.client.ask({ method: 'DELETE', path, good: [200, 409] })
      const page = await this.client.ask({ method: 'GET', path: `${path}/commands`, good: [200] })
      const { data } = JSON.parse(page.body) as { data: { id: string }[] }
      if (data.length !== visitorCommands) {
        this.rebuilt.push(`device ${device.id} got ${data.length} commands, not ${visitorCommands}`)
      }
    } finally {
      stay.end()
      agent.disconnect()
      for (const id of this.#ground.unacked.keys()) {
        if (this.#ground.unacked.get(id)?.agent === agent) this.#ground.unacked.delete(id)
      }
    }
  }

  /** Keeps a visitor connected: what happens to the hub happens to its socket, too. */
  #stay(agent: SimAgent): { end(): void } {
    const over = new AbortController()
    const look = async () => {
      while (!over.signal.aborted) {
        if (!agent.open) await agent.connect()
        await sleep(500)
      }
    }
    void look()
    return { end: () => over.abort() }
  }
}

function pick<T>(all: readonly T[], n: number): T {
  return all[n % all.length]!
}
