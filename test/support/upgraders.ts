// Agents that are told to upgrade: each does what its fate says, and proves a version before it claims it.
import { FakeAgent } from './agent.ts'
import type { Device } from './hub.ts'
import { until } from './until.ts'

/** `hold`: it takes the command and says nothing more, until `finish`. `deaf`: it does not even confirm. */
export type Fate = 'succeed' | 'fail' | 'hold' | 'deaf'

export class Upgrader {
  readonly device: Device
  readonly agent: FakeAgent
  fate: Fate
  /** Ids of upgrade commands in the order in which they came, with the versions. */
  readonly asked = new Map<string, string>()

  private constructor(device: Device, agent: FakeAgent, fate: Fate) {
    this.device = device
    this.agent = agent
    this.fate = fate
  }

  static async connect(device: Device, origin: string, fate: Fate): Promise<Upgrader> {
    const agent = await FakeAgent.open(device, origin)
    const upgrader = new Upgrader(device, agent, fate)
    agent.onCommand = ({ id, action, payload }) => {
      if (action !== 'upgrade_agent' || upgrader.asked.has(id)) return
      upgrader.asked.set(id, String(payload['version']))
      upgrader.act(id)
    }
    await agent.frame('welcome')
    for (const frame of agent.frames) if (frame.type === 'command') agent.onCommand(frame)
    return upgrader
  }

  /** Ends what it held back. */
  finish(fate: 'succeed' | 'fail'): void {
    this.fate = fate
    const id = [...this.asked.keys()].at(-1)
    if (id !== undefined) this.end(id)
  }

  async asks(count = 1): Promise<void> {
    await until(`${this.device.deviceId} to be asked`, () => this.asked.size >= count)
  }

  private act(id: string): void {
    if (this.fate === 'deaf') return
    this.agent.send({ type: 'delivered', id })
    this.agent.send({ type: 'started', id })
    if (this.fate !== 'hold') this.end(id)
  }

  private end(id: string): void {
    const failed = this.fate === 'fail'
    if (!failed) this.agent.heartbeat({ agentVersion: this.asked.get(id) })
    const result = failed ? { status: 'failed', error: 'crashed' } : { status: 'completed' }
    this.agent.send({ type: 'result', id, ...result })
  }
}
