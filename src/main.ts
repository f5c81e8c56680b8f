// Starts a hub's parts in one visible order and stops them in reverse. `npm start` comes here through
// `start.js`; tests call `run()` themselves.
import { createSecretKey } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { us_listen_socket } from 'uWebSockets.js'
import { abuseWatch } from './abuse.ts'
import { auditTrail } from './audit.ts'
import { accessTokens, derivedKey } from './auth.ts'
import { bootstrap, introduce } from './bootstrap.ts'
import { busKeys, joinBus } from './bus.ts'
import { Commands } from './commands.ts'
import { ConfigError, readConfig, secretFile, type Config } from './config.ts'
import { DataKeys, tellLostKeys, wrappingKeys } from './data_keys.ts'
import { startDatabase, StartError } from './database.ts'
import { openDatabase, type Database } from './db.ts'
import { Downloads } from './downloads.ts'
import { EventStreams } from './event_streams.ts'
import { serveAgents, type Front } from './front.ts'
import { serveHttp, type HttpOptions, type HttpServer } from './http.ts'
import { collectGarbage } from './garbage.ts'
import { Handoffs } from './handoffs.ts'
import { identities } from './identities.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'
import { createLog, withoutPasswords } from './log.ts'
import { mailer } from './mail.ts'
import { createMetrics } from './metrics.ts'
import { observeFront, observeShard } from './observe.ts'
import { passwords } from './passwords.ts'
import { aboutOf, Peers, tellOrigin } from './peers.ts'
import { Jobs } from './queue.ts'
import { shareRates } from './rate_sharing.ts'
import { rateLimits } from './rates.ts'
import { RedisNews } from './redis.ts'
import { Releases } from './releases.ts'
import { routes } from './resources/index.ts'
import type { Context } from './route.ts'
import { Shards } from './shards.ts'
import { Slots } from './slots.ts'
import { serveTerminals } from './terminal_sockets.ts'
import { TerminalRelay } from './terminal_relay.ts'
import { Terminals } from './terminals.ts'
import { uWS } from './uws.ts'
import { sealKeys } from './webhook_secrets.ts'

export interface Hub {
  /** Scheme, host and port it listens on. */
  origin: string
  port: number
  ctx: Context
  front: Front
  jobs: Jobs
  /** The connection string of its database. */
  databaseUrl: string
  /** Stops accepting, lets what runs end, writes what waits, closes everything. */
  close(): Promise<void>
}

export interface RunOptions extends HttpOptions {
  env: Record<string, string | undefined>
  /** Told what people should see while it starts. */
  say?: (line: string) => void
}

/** Runs a hub. Throws ConfigError, StartError, or what a part could not do. */
export async function run(options: RunOptions): Promise<Hub> {
  const say = options.say ?? (() => {})
  const config = readConfig(options.env)
  const log = createLog(config.logLevel, 'front')
  const stops: (() => Promise<void>)[] = []
  // Whatever was started is stopped, in reverse, also when the next part fails.
  const stopAll = async () => {
    for (const stop of stops.splice(0).toReversed()) await stop()
  }
  try {
    const database = await startDatabase(config, say)
    stops.push(() => database.stop())
    const pool = (name: string, connections: number, plan?: 'planOnce' | 'planEach') => {
      const db = openDatabase({
        url: database.url,
        name,
        connections,
        ...(plan ? { [plan]: true } : {}),
        onIdleError: (error) => log.warn({ err: error, pool: name }, 'a connection broke'),
      })
      stops.push(() => db.close())
      return db
    }
    // A list's plan depends on its filters, its limit and where it goes on.
    const db = pool('operators', limits.poolOperators, 'planEach')
    const commandDb = pool('commands', limits.poolCommands, 'planOnce')
    const connectDb = pool('connect', limits.poolConnect, 'planOnce')
    const auditDb = pool('audit', limits.poolAudit, 'planEach')
    const metrics = createMetrics(config.version)
    const hasher = passwords()
    stops.push(() => hasher.close())

    const people = identities({ db, url: database.url, log })
    stops.push(() => people.close())
    const audit = auditTrail(db, log)
    stops.push(() => audit.close())
    const mail = mailer({ config, db, log, metrics })
    if (mail) stops.push(() => mail.close())
    const abuse = abuseWatch(db, log)
    stops.push(() => abuse.close())
    const wrapping = wrappingKeys(config.jwtSecret, config.jwtSecretPrevious)
    const dataKeys = new DataKeys(db, wrapping)
    tellLostKeys(log, await dataKeys.prepare(), config.generated.includes('JWT_SECRET'))
    const nodeId = newId()
    const shards = new Shards({
      count: config.shards,
      nodeId,
      databaseUrl: database.url,
      logLevel: config.logLevel,
      heartbeatSeconds: config.heartbeatSeconds,
      wrappingKeys: wrapping,
      log,
      onObserved: (shard, observed) => observeShard(metrics, shard, observed),
      onRestart: () => metrics.shardRestarts.inc(),
      onBatch: (entries) => metrics.batch.observe({ statement: 'front_to_shard' }, entries),
      onClaimedFrom: (nodes) => handoffs.wake(nodes),
      onEndedAnywhere: (ids) => handoffs.tellEveryHub(ids),
      onTerminals: ({ deviceId, conn, sessions }) => relay.learn(deviceId, conn, sessions),
      onSuperseded: () => void handoffs.take('sweep'),
    })
    stops.push(() => shards.close())
    const redisNews = new RedisNews(log)
    const bus = joinBus({
      nodeId,
      url: config.redisUrl,
      keys: busKeys(config.jwtSecret, config.jwtSecretPrevious),
      log,
      news: redisNews,
      metrics,
    })
    stops.push(() => bus.close())
    people.onChange((kind, id) => {
      if (kind === 'organization') shards.organizationChanged(id)
      // Changes may have passed while nobody listened: look at every organization with agents here.
      else if (kind === 'missed') shards.broadcast({ type: 'organizations' })
    })
    const commands = new Commands({
      nodeId,
      db: commandDb,
      shards,
      onHanded: (nodes) => handoffs.wake(nodes),
      onAccepted: (count) => metrics.commandsAccepted.inc(count),
    })
    const eventsDb = pool('events', limits.poolEvents, 'planEach')
    const streams = new EventStreams({ db: eventsDb, identities: people, log, metrics })
    stops.push(async () => streams.close())
    const terminals = new Terminals({
      nodeId,
      db,
      identities: people,
      audit,
      log,
      metrics,
      absenceSeconds: config.terminalAbsenceSeconds,
    })
    stops.push(() => terminals.close())
    const relay = new TerminalRelay({ bus, db, terminals, identities: people, log })
    stops.push(async () => relay.close())
    const handoffs = new Handoffs({
      nodeId,
      db: commandDb,
      bus,
      shards,
      log,
      metrics,
      onSite: (deviceId, siteId) => terminals.deviceMoved(deviceId, siteId),
      awaited: () => commands.awaited(),
    })
    stops.push(() => handoffs.close())
    let publicOrigin = config.publicOrigin ?? `http://${hostOf(config)}:${config.port}`
    const isPortKnown = config.publicOrigin !== undefined || config.port !== 0
    const own = aboutOf(config, isPortKnown ? publicOrigin : null)
    const peers = new Peers({ own, generated: config.generated, log, metrics })
    const webhookKeys = sealKeys(config.jwtSecret, config.jwtSecretPrevious)
    const jobs = new Jobs({
      nodeId,
      version: config.version,
      about: own,
      databaseUrl: database.url,
      ownerUrl: database.url,
      logLevel: config.logLevel,
      log,
      metrics,
      webhooks: { keys: webhookKeys, allowedCidrs: config.webhookAllowedCidrs },
      restartGraceSeconds: config.heartbeatSeconds * limits.heartbeatIntervalsMax,
      onEnded(ended) {
        for (const { deviceId, id } of ended) shards.tell(deviceId, { type: 'ended', deviceId, id })
        shards.ended(ended.map(({ id }) => id))
      },
      onCommands(added) {
        for (const { deviceId, command } of added) shards.tellCommand(deviceId, command)
      },
      onUntold(untold) {
        for (const { deviceId, id } of untold) shards.check(deviceId, id)
      },
      onCancels(cancels) {
        for (const { deviceId, id } of cancels) shards.tellCancel(deviceId, id)
      },
      onInterrupted: () => relay.interrupted(),
      onHanded: (nodes) => handoffs.wake(nodes),
      // Others may have taken this hub for dead and its devices for offline: claim them anew.
      onLeaseRegained: () => {
        shards.broadcast({ type: 'reclaim' })
        void relay.review()
      },
      onPeers: (others) => peers.heard(others),
    })
    stops.push(() => jobs.close())

    const releases = new Releases({
      folder: config.agentReleasesDir,
      keysFolder: config.agentReleaseKeys,
      log,
    })
    stops.push(() => releases.close())

    const rateKey = derivedKey(config.jwtSecret, 'rates')
    const sharing = config.redisUrl
      ? shareRates({ url: config.redisUrl, key: rateKey, news: redisNews, metrics })
      : undefined
    if (sharing) stops.push(() => sharing.close())

    let draining = false
    const ctx: Context = {
      nodeId,
      config,
      log,
      metrics,
      db,
      commandDb,
      connectDb,
      auditDb,
      exports: new Slots('export', limits.exportsMax, limits.exportsPerUserMax),
      verifications: new Slots(
        'verification',
        limits.verificationsMax,
        limits.verificationsPerUserMax,
      ),
      tokens: accessTokens(config.jwtSecret, config.jwtSecretPrevious),
      passwords: hasher,
      dataKeys,
      identities: people,
      rates: rateLimits(config.rates, undefined, sharing?.tally),
      abuse,
      audit,
      mailer: mail,
      shards,
      commands,
      handoffs,
      streams,
      terminals,
      relay,
      releases,
      downloads: new Downloads(),
      webhookKeys,
      // A key object: of raw bytes each signature would make one, at five times the cost.
      cursorKey: createSecretKey(derivedKey(config.jwtSecret, 'cursor')),
      get publicOrigin() {
        return publicOrigin
      },
      checks: async () => ({
        ...(await readiness(db, shards, jobs, both(bus.state(), sharing?.state()))),
        hubs: peers.state(),
      }),
      draining: () => draining,
    }
    observeFront(ctx)
    const admin = await bootstrap({
      config,
      inviteEmail: config.acmeEmail,
      publicOrigin: ctx.publicOrigin,
      db,
      passwords: hasher,
    })

    const app = uWS.App()
    const server = serveHttp(app, ctx, routes, options)
    const front = serveAgents(app, ctx)
    serveTerminals(app, ctx)
    // Before the first agent: another hub's sweep must know this node when it meets its claims.
    await jobs.ready()
    const listening = await listen(app, config)
    const origin = `http://${hostOf(config)}:${listening.port}`
    stops.push(async () => {
      draining = true
      const { drainSeconds } = config
      if (drainSeconds > 0) {
        const agents = front.connected()
        log.info({ agents, drainSeconds }, 'draining: readiness says 503, agents are asked to move')
        await handOver(drainSeconds * 1000, front)
        log.info({ agents: front.connected() }, 'drained: takes no more connections')
      }
      uWS.us_listen_socket_close(listening.socket)
      await leave(ctx, front, server)
      app.close()
    })
    if (!isPortKnown) {
      publicOrigin = origin
      await tellOrigin(db, nodeId, origin)
    }
    const addresses = { origin, publicOrigin, database: database.where }
    for (const line of greeting(config, addresses)) say(line)
    if (admin) for (const line of introduce(admin)) say(line)
    return {
      origin,
      port: listening.port,
      ctx,
      front,
      jobs,
      databaseUrl: database.url,
      close: stopAll,
    }
  } catch (error) {
    await stopAll()
    throw error
  }
}

/**
 * Other hubs take over while this one still serves: readiness says so, and only then agents move, for what
 * stands in front would send them here again. Each keeps its socket until the new one is open.
 */
async function handOver(noticeMs: number, front: Front): Promise<void> {
  const spreadMs = Math.min(
    limits.drainSpreadMsMax,
    (front.connected() / limits.drainAgentsPerSecond) * 1000,
  )
  const startedMs = performance.now()
  await front.moveAll(noticeMs, spreadMs)
  const giveUpMs = startedMs + noticeMs + spreadMs + limits.drainLateMs
  const isOver = () => performance.now() >= startedMs + noticeMs && front.connected() === 0
  while (!isOver() && performance.now() < giveUpMs) await sleep(50)
}

/** Lets requests end, then closes the sockets; what the actors still hold is written by the shards. */
async function leave(ctx: Context, front: Front, server: HttpServer): Promise<void> {
  ctx.commands.release()
  ctx.streams.close()
  ctx.shards.broadcast({ type: 'leaving' })
  await ctx.terminals.close()
  await ctx.commands.drained()
  front.closeAll()
  const giveUpMs = performance.now() + limits.checkoutMsMax
  while (server.inFlight() > 0 && performance.now() < giveUpMs) {
    await sleep(10)
  }
}

// The addon takes options beside a host, its type declarations only without one.
type ListenWithOptions = (
  host: string,
  port: number,
  options: number,
  listening: (socket: us_listen_socket | false) => void,
) => void
const listenExclusive = 1

function listen(
  app: ReturnType<typeof uWS.App>,
  config: Config,
): Promise<{ socket: us_listen_socket; port: number }> {
  return new Promise((resolve, reject) => {
    const listenOn = app.listen.bind(app) as unknown as ListenWithOptions
    // Exclusive: by default two hubs would share a port and each see half of the agents.
    listenOn(config.host, config.port, listenExclusive, (socket) => {
      if (socket) resolve({ socket, port: uWS.us_socket_local_port(socket) })
      else {
        const message = `port ${config.port} on ${config.host} is taken or not allowed; set PORT to another`
        reject(new StartError(message, 1))
      }
    })
  })
}

function hostOf(config: Config): string {
  if (config.host === '0.0.0.0' || config.host === '::') return 'localhost'
  return config.host.includes(':') ? `[${config.host}]` : config.host
}

/** Two uses of one Redis. */
function both(bus: 'ok' | 'down' | 'off', rates: 'ok' | 'down' | undefined) {
  return bus === 'down' || rates === 'down' ? 'down' : bus
}

async function readiness(db: Database, shards: Shards, jobs: Jobs, redis: 'ok' | 'down' | 'off') {
  const database = await db.query('select 1 as one').then(
    () => 'ok',
    () => 'PostgreSQL does not answer',
  )
  return {
    database,
    // A hub that could not migrate does not get this far.
    migrations: 'ok',
    shards: shards.healthy() ? 'ok' : 'a shard is behind',
    jobs: jobs.healthy() ? 'ok' : 'the jobs thread does not answer',
    redis,
  }
}

interface Addresses {
  /** Where it listens. */
  origin: string
  publicOrigin: string
  database: string
}

function greeting(config: Config, { origin, publicOrigin, database }: Addresses): string[] {
  const made = config.generated.map(
    (name) => `${name} is kept in ${secretFile(config.dataDir, name)}`,
  )
  const secret = config.generated.includes('AGENT_ENROLLMENT_SECRET')
    ? `"$(cat '${secretFile(config.dataDir, 'AGENT_ENROLLMENT_SECRET')}')"`
    : '"$AGENT_ENROLLMENT_SECRET"'
  return [
    `Muster ${config.version} runs on ${origin} with ${database}`,
    `API ${publicOrigin}/api/v1 · reference ${publicOrigin}/docs · health ${publicOrigin}/health/ready`,
    'Enroll this machine:',
    `  npm run -s agent -- enroll --url ${publicOrigin} --secret ${secret}`,
    '  npm run -s agent -- run',
    ...made,
  ]
}

// ---- npm start -------------------------------------------------------------------------------

/** Runs a hub until a signal ends it. */
export async function start(): Promise<void> {
  const say = (line: string) => process.stdout.write(`${line}\n`)
  try {
    const hub = await run({ env: process.env, say })
    let signals = 0
    const stop = (signal: string) => {
      if (++signals > 1) process.exit(130)
      say(`${signal}: stopping; once more ends it at once`)
      void hub.close().then(() => process.exit(0), fail)
    }
    process.on('SIGTERM', stop)
    process.on('SIGINT', stop)
    const collect = () => {
      collectGarbage()
      hub.ctx.shards.broadcast({ type: 'gc' })
      hub.jobs.collectGarbage()
    }
    setTimeout(collect, limits.startedMs).unref()
    // Measuring memory needs the garbage gone, in every thread.
    process.on('SIGUSR2', collect)
  } catch (error) {
    fail(error)
  }
}

/** Says why in one message and exits; a stack only for what nobody expected. */
function fail(error: unknown): void {
  const expected = error instanceof ConfigError || error instanceof StartError || isRefusal(error)
  const text = error instanceof Error ? (expected ? error.message : error.stack) : String(error)
  process.stderr.write(`${withoutPasswords(text ?? '')}\n`)
  const exitCode = error instanceof ConfigError ? 78 : isRefusal(error) ? error.exitCode : 1
  process.exit(exitCode)
}

function isRefusal(error: unknown): error is Error & { exitCode: number } {
  return error instanceof Error && 'exitCode' in error && typeof error.exitCode === 'number'
}
