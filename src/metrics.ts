// Every metric of the hub, named and explained once. Labels are route templates and closed sets, never ids.
import { readdir, stat } from 'node:fs/promises'
import {
  collectDefaultMetrics,
  Counter,
  Gauge,
  Histogram,
  Registry,
  type CounterConfiguration,
  type GaugeConfiguration,
  type HistogramConfiguration,
} from 'prom-client'

const latencySeconds = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600,
]
const batchSizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]

export type Metrics = ReturnType<typeof createMetrics>

/** Makes a registry with every metric of the hub in it. */
export function createMetrics(version: string) {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  countOpenFiles(registry)
  const samplers: (() => void)[] = []
  const registers = [registry]
  const counter = <L extends string>(options: Omit<CounterConfiguration<L>, 'registers'>) =>
    new Counter<L>({ ...options, registers })
  const gauge = <L extends string>(options: Omit<GaugeConfiguration<L>, 'registers'>) =>
    new Gauge<L>({ ...options, registers })
  const histogram = <L extends string>(options: Omit<HistogramConfiguration<L>, 'registers'>) =>
    new Histogram<L>({ ...options, registers })

  gauge({
    name: 'muster_build_info',
    help: 'Always 1; the version of the running hub is in the label.',
    labelNames: ['version'],
  }).set({ version }, 1)

  return {
    registry,
    /** Calls `sampler` before each scrape: for values that are read, not counted. */
    onScrape(sampler: () => void): void {
      samplers.push(sampler)
    },
    /** Everything in the text format of Prometheus. */
    text(): Promise<string> {
      for (const sampler of samplers) sampler()
      return registry.metrics()
    },
    http: histogram({
      name: 'muster_http_request_seconds',
      help: 'Time from the request to its last byte, by route template.',
      labelNames: ['method', 'route', 'status'],
      buckets: latencySeconds,
    }),
    httpInFlight: gauge({
      name: 'muster_http_requests_in_flight',
      help: 'Requests being answered, those held by ?wait included.',
    }),
    mails: counter({
      name: 'muster_mails_total',
      help: 'Mails by outcome: sent, failed for good, or tried again.',
      labelNames: ['outcome'],
    }),
    devices: gauge({
      name: 'muster_shard_devices',
      help: 'Device actors of a shard: connected devices.',
      labelNames: ['thread'],
    }),
    agents: gauge({ name: 'muster_agents_connected', help: 'Agent sockets open on this hub.' }),
    connects: counter({
      name: 'muster_agent_connects_total',
      help: 'Upgrade requests of agents, by outcome.',
      labelNames: ['outcome'],
    }),
    closes: counter({
      name: 'muster_agent_closes_total',
      help: 'Agent sockets closed, by close code.',
      labelNames: ['code'],
    }),
    framesIn: counter({ name: 'muster_frames_received_total', help: 'Frames from agents.' }),
    framesOut: counter({ name: 'muster_frames_sent_total', help: 'Frames to agents.' }),
    framesDropped: counter({
      name: 'muster_frames_dropped_total',
      help: 'Frames from agents that were not acted on, by reason.',
      labelNames: ['reason'],
    }),
    heartbeats: counter({ name: 'muster_heartbeats_total', help: 'Heartbeats handled.' }),
    commandsAccepted: counter({
      name: 'muster_commands_accepted_total',
      help: 'Commands committed and answered with 202.',
    }),
    commandsEnded: counter({
      name: 'muster_commands_ended_total',
      help: 'Commands that reached an end on this hub, by end.',
      labelNames: ['status'],
    }),
    commandSeconds: histogram({
      name: 'muster_command_seconds',
      help: 'From acceptance to: delivered (in the agent’s inbox), ended (committed).',
      labelNames: ['stage'],
      buckets: latencySeconds,
    }),
    queued: gauge({
      name: 'muster_queue_depth',
      help: 'Items waiting inside the hub, by queue and thread.',
      labelNames: ['queue', 'thread'],
    }),
    batch: histogram({
      name: 'muster_batch_rows',
      help: 'Rows of one statement, by what it writes.',
      labelNames: ['statement'],
      buckets: batchSizes,
    }),
    pool: gauge({
      name: 'muster_pool_connections',
      help: 'PostgreSQL connections and callers waiting for one, by pool.',
      labelNames: ['pool', 'state'],
    }),
    loopDelay: gauge({
      name: 'muster_event_loop_delay_seconds',
      help: 'Event-loop delay per thread: since the last scrape, in workers over the last second.',
      labelNames: ['thread', 'percentile'],
    }),
    terminals: gauge({ name: 'muster_terminals', help: 'Terminal sessions open on this hub.' }),
    terminalsEnded: counter({
      name: 'muster_terminals_ended_total',
      help: 'Terminal sessions that ended, by reason.',
      labelNames: ['reason'],
    }),
    terminalFramesDropped: counter({
      name: 'muster_terminal_frames_dropped_total',
      help: 'Frames of terminals that were not passed on, by reason.',
      labelNames: ['reason'],
    }),
    eventStreams: gauge({ name: 'muster_event_streams', help: 'Event streams open on this hub.' }),
    eventStreamsClosed: counter({
      name: 'muster_event_streams_closed_total',
      help: 'Event streams that ended, by reason.',
      labelNames: ['reason'],
    }),
    shardRestarts: counter({
      name: 'muster_shard_restarts_total',
      help: 'Shard threads that died and were replaced.',
    }),
    jobsRestarts: counter({
      name: 'muster_jobs_restarts_total',
      help: 'Times the jobs thread died and was replaced.',
    }),
    leaseLosses: counter({
      name: 'muster_node_lease_losses_total',
      help: 'Times this hub could not renew its lease in time and was taken for dead.',
    }),
    redisUp: gauge({
      name: 'muster_redis_up',
      help: 'Whether Redis answers, by what it is used for; absent without REDIS_URL.',
      labelNames: ['use'],
    }),
    busMessages: counter({
      name: 'muster_bus_messages_total',
      help: 'Messages between hubs, by kind and outcome: sent, refused (not sent), or dropped on arrival.',
      labelNames: ['kind', 'outcome'],
    }),
    settingsDiffer: gauge({
      name: 'muster_settings_differ',
      help: 'Whether another hub that is alive has another value of this setting.',
      labelNames: ['setting'],
    }),
    handoffs: counter({
      name: 'muster_handoffs_total',
      help: 'Changes that other hubs handed to this one, by what found them: hint (Redis) or sweep.',
      labelNames: ['found'],
    }),
    rateExchanges: counter({
      name: 'muster_rate_exchanges_total',
      help: 'Batches in which rates were shared through Redis, by outcome: done or lost.',
      labelNames: ['outcome'],
    }),
    swept: counter({
      name: 'muster_swept_rows_total',
      help: 'Rows the sweeps of this hub handled, by sweep.',
      labelNames: ['sweep'],
    }),
  }
}

/**
 * In place of prom-client's own, which reads the names of all descriptors: with 10,000 agents that stands the front
 * still for some 50 ms at every scrape. Linux 6.2 and newer tell the number; before, a thread of the pool counts.
 */
function countOpenFiles(registry: Registry): void {
  const name = 'process_open_fds'
  // Only Linux has it.
  if (registry.getSingleMetric(name) === undefined) return
  registry.removeSingleMetric(name)
  registry.registerMetric(
    new Gauge({
      name,
      help: 'Number of open file descriptors.',
      registers: [],
      async collect() {
        this.set(await openFiles())
      },
    }),
  )
}

async function openFiles(): Promise<number> {
  const folder = '/proc/self/fd'
  const { size } = await stat(folder)
  // One of the names is that of reading them.
  return size > 0 ? size : (await readdir(folder)).length - 1
}
