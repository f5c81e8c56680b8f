// Starts a hub's parts in one visible order and stops them in reverse. `npm start` comes here through `start.js` and
// `program.ts`; tests call `run()` themselves.
import { createSecretKey } from 'node:crypto'
import { abuseWatch } from './abuse.ts'
import { auditTrail } from './audit.ts'
import { accessTokens, derivedKey } from './auth.ts'
import { bootstrap, introduce } from './bootstrap.ts'
import { busKeys, joinBus } from './bus.ts'
import { Commands } from './commands.ts'
import { readConfig } from './config.ts'
import { DataKeys, tellLostKeys, wrappingKeys } from './data_keys.ts'
import { startDatabase } from './database.ts'
import { openDatabase, type Database } from './db.ts'
import { Downloads } from './downloads.ts'
import { EventStreams } from './event_streams.ts'
import { serveAgents, type Front } from './front.ts'
import { collectGarbage } from './garbage.ts'
import { greeting, hostOf } from './greeting.ts'
import { serveHttp, type HttpOptions } from './http.ts'
import { Handoffs } from './handoffs.ts'
import { identities } from './identities.ts'
import { newId } from './ids.ts'
import { handOver, leave } from './leaving.ts'
import { limits } from './limits.ts'
import { listen } from './listen.ts'
import { createLog } from './log.ts'
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
  /** In every thread: for who measures what is held. Nothing where V8 lets nobody ask (`--expose-gc`). */
  readonly collectGarbage: () => void
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
      downloads: new Downloads(config.downloadBytesPerSecond),
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
      collectGarbage: () => {
        collectGarbage()
        shards.broadcast({ type: 'gc' })
        jobs.collectGarbage()
      },
      close: stopAll,
    }
  } catch (error) {
    await stopAll()
    throw error
  }
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
