// One process of a fleet: many simulated agents, driven by messages from fleet.ts. It ends when its
// parent does, and holds at most what the limit of open files allows.
import type { FleetCounts } from './fleet_counts.ts'
import { LastingAgents } from './lasting_agents.ts'
import { PeerAgent } from './peer_agent.ts'
import { newGround, SimAgent, type Device } from './sim_agent.ts'
import type { Place } from './sockets.ts'
import { wires, type Broker } from './wires.ts'

export type FleetRequest =
  | {
      type: 'load'
      devices: Device[]
      place: Place
      sourceAddress?: string
      broker?: Broker
      lasting: boolean
    }
  /** Opens agents `from` to `to` that are not open: at `perSecond`, or as fast as `inFlight` at a time goes. */
  | { type: 'connect'; from: number; to: number; inFlight: number; perSecond: number }
  /** Heartbeats in all from now on, spread evenly over the open agents; 0 is silence. */
  | { type: 'pace'; perSecond: number }
  /** Every `of`th agent from the `turn`th on loses its socket at once. */
  | { type: 'storm'; of: number; turn: number }
  /** Adds what lasting agents did to a file, see lasting_agents.ts. */
  | { type: 'ledger'; file: string }
  | { type: 'counts' }
  | { type: 'disconnect' }

export interface FleetAnswer {
  id: number
  counts?: FleetCounts
  error?: string
}

const resendMs = 10_000
/** The finest a timer goes. At 20,000/s on two processes that is ten frames at a time from each. */
const tickMs = 1

let agents: (SimAgent | PeerAgent)[] = []
let ground = newGround({ host: '', port: 0, secure: false })
let lasting: LastingAgents | undefined
const pace = { perSecond: 0, sinceMs: 0, sent: 0, next: 0 }

process.on('message', (request: FleetRequest & { id: number }) => {
  carryOut(request).then(
    (counts) => answer({ id: request.id, counts }),
    (error: unknown) => answer({ id: request.id, error: String(error) }),
  )
})
process.on('disconnect', () => process.exit(0))
setInterval(beat, tickMs)
setInterval(resend, 1000)

async function carryOut(request: FleetRequest): Promise<FleetCounts> {
  switch (request.type) {
    case 'load':
      ground = newGround(request.place, request.sourceAddress)
      if (request.lasting) lasting = ground.conduct = new LastingAgents(ground.counts)
      agents = newAgents(request.devices, request.broker)
      break
    case 'connect':
      lasting?.arrive(simulated().slice(request.from, request.to))
      await connectAll(
        agents.slice(request.from, request.to).filter((agent) => !agent.open),
        request.inFlight,
        request.perSecond,
      )
      break
    case 'pace':
      Object.assign(pace, { perSecond: request.perSecond, sinceMs: performance.now(), sent: 0 })
      break
    case 'disconnect':
      pace.perSecond = 0
      for (const agent of agents) agent.disconnect()
      lasting?.leave(simulated())
      ground.unacked.clear()
      break
    case 'storm': {
      const hit = simulated().filter(
        (agent, index) => agent.open && index % request.of === request.turn % request.of,
      )
      for (const agent of hit) agent.disconnect()
      lasting?.comeBack(hit)
      break
    }
    case 'ledger':
      lasting?.write(request.file, simulated())
      break
    case 'counts':
      break
  }
  ground.counts.unacked = lasting?.unacked ?? ground.unacked.size
  ground.counts.unsentBytes = agents.reduce((sum, agent) => sum + agent.unsentBytes, 0)
  return ground.counts
}

function newAgents(devices: readonly Device[], broker: Broker | undefined): typeof agents {
  const wire = broker && wires[broker]
  return wire
    ? devices.map((device, index) => new PeerAgent(device, index, wire, ground))
    : devices.map((device) => new SimAgent(device, ground))
}

/** Those that speak to a hub. */
function simulated(): SimAgent[] {
  return agents.filter((agent) => agent instanceof SimAgent)
}

async function connectAll(
  queue: typeof agents,
  inFlight: number,
  perSecond: number,
): Promise<void> {
  const startedMs = performance.now()
  let next = 0
  const work = async () => {
    for (;;) {
      const index = next++
      const agent = queue[index]
      if (!agent) return
      const waitMs = perSecond > 0 ? startedMs + (index * 1000) / perSecond - performance.now() : 0
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs))
      await agent.connect()
    }
  }
  await Promise.all(Array.from({ length: Math.min(inFlight, queue.length) }, work))
}

/** Open loop: sends what is due by the clock, whether or not the server keeps up. One frame, one write. */
function beat(): void {
  if (pace.perSecond === 0 || ground.counts.open === 0) return
  const due = Math.floor(((performance.now() - pace.sinceMs) / 1000) * pace.perSecond) - pace.sent
  // A process that stood still must not send one agent two frames in a row.
  const count = Math.min(due, agents.length)
  pace.sent += due
  for (let i = 0; i < count; i++) {
    const agent = agents[pace.next++ % agents.length]
    if (!agent?.open) continue
    agent.beat(pace.next)
  }
}

function resend(): void {
  lasting?.repeat(resendMs)
  const before = performance.now() - resendMs
  for (const result of ground.unacked.values()) {
    if (result.sentMs > before || !result.agent.open) continue
    result.sentMs = performance.now()
    result.agent.send(result.frames, 3)
  }
}

function answer(message: FleetAnswer): void {
  if (process.connected) process.send?.(message)
}
