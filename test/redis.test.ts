// What may stand at REDIS_URL instead of a Redis that works: each is noticed, told once, and in nobody's way.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { busKeys, joinBus } from '../src/bus.ts'
import { ConfigError, readConfig } from '../src/config.ts'
import { newId } from '../src/ids.ts'
import { rateDefaults } from '../src/limits.ts'
import { createLog, type Logger } from '../src/log.ts'
import { createMetrics } from '../src/metrics.ts'
import { shareRates } from '../src/rate_sharing.ts'
import { rateLimits } from '../src/rates.ts'
import { RedisNews } from '../src/redis.ts'
import { makeCertificate } from './support/certificate.ts'
import { startHub } from './support/hub.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { createDatabase } from './support/postgres.ts'
import { startRedis, withoutRedis } from './support/redis.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

describe('what is no Redis, or not ours', () => {
  const password = 'not the right one'

  test('is nothing: the hub is ready but degraded', async () => {
    const hub = await startHub({ LIMIT_API: '1', REDIS_URL: `redis://:${password}@127.0.0.1:1` })
    try {
      const { status, body } = await hub.get('{origin}/health/ready', { token: undefined })
      assert.deepEqual([status, body.status, body.checks.redis], [200, 'degraded', 'down'])
      const { headers } = await hub.get('/auth/me')
      assert.equal(headers.get('ratelimit-remaining'), '119')
    } finally {
      await hub.close()
    }
  })

  test('is something else: down, and rates are limited all the same', async () => {
    const talk: [string, (socket: Socket) => void][] = [
      ['says nothing', () => {}],
      ['hangs up', (socket) => socket.destroy()],
      ['talks another language', (socket) => socket.write('HTTP/1.1 400 Bad Request\r\n\r\n<p>')],
      [
        'answers with anything',
        (socket) => socket.on('data', () => socket.write('+OK\r\n:-1\r\n')),
      ],
      ['never ends', (socket) => socket.write(`$${2 ** 30}\r\n${'x'.repeat(100_000)}`)],
    ]
    for (const [what, say] of talk) {
      const server = await listenWith(say)
      const log = collectingLog()
      const { tally, limiter, sharing } = share(server.url, log)
      try {
        await until(`${what}: to be noticed`, () => log.lines.length > 0)
        assert.equal(sharing.state(), 'down', what)
        for (let n = 0; n < 5; n++) limiter.loginFailed('192.0.2.1', 'ann@example.org')
        assert.throws(() => limiter.login('192.0.2.1', 'ann@example.org'), what)
        assert.equal(tally.size, 2, what)
      } finally {
        await sharing.close()
        await server.close()
      }
      assert.equal(log.lines.length, 1, `${what}: ${log.lines.join()}`)
    }
  })

  test(
    'refuses a wrong password, which nobody reads in the log',
    { skip: withoutRedis },
    async () => {
      const redis = await startRedis({ password: 'the right one' })
      const log = collectingLog()
      const { sharing } = share(
        `redis://:${encodeURIComponent(password)}@localhost:${redis.port}`,
        log,
      )
      try {
        await until('the refusal', () => log.lines.length > 0)
        assert.match(log.lines.join(), /WRONGPASS/)
        assert.doesNotMatch(log.lines.join(), /not( |%20)the/)
        // The password is set right: it comes back by itself.
        const set = ['CONFIG', 'SET', 'requirepass', password]
        assert.equal(await redis.command(...set), 'OK')
        await until('the connection', () => sharing.state() === 'ok')
      } finally {
        await sharing.close()
        await redis.close()
      }
    },
  )

  test('takes no writes: down until it does', { skip: withoutRedis }, async () => {
    const redis = await startRedis()
    const log = collectingLog()
    const { sharing } = share(redis.url, log)
    try {
      await until('the connection', () => sharing.state() === 'ok')
      await redis.command('REPLICAOF', '127.0.0.1', '1')
      await until('the refusal', () => sharing.state() === 'down')
      assert.match(log.lines.join(), /READONLY/)
      await redis.command('REPLICAOF', 'NO', 'ONE')
      await until('the connection', () => sharing.state() === 'ok')
      assert.equal(log.lines.length, 1)
    } finally {
      await sharing.close()
      await redis.close()
    }
  })

  test(
    'speaks TLS with a certificate that is vouched for, or not at all',
    { skip: withoutRedis },
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'muster-redis-tls-'))
      const file = join(folder, 'redis.pem')
      const { key, cert } = makeCertificate(folder, 'localhost')
      writeFileSync(file, key + cert)
      const redis = await startRedis({ tls: file })
      const database = await createDatabase()
      const env = {
        DATABASE_URL: database.url,
        DATA_DIR: folder,
        REDIS_URL: redis.url,
        LOG_LEVEL: 'info',
      }
      const trusting = new HubProcess(await freePort(), { ...env, NODE_EXTRA_CA_CERTS: file })
      const log = collectingLog()
      const { sharing } = share(redis.url, log)
      try {
        await until('the refusal', () => log.lines.length > 0)
        assert.match(log.lines.join(), /self-signed certificate/)
        assert.equal(sharing.state(), 'down')
        await trusting.start()
        await until('Redis over TLS', async () => {
          const answer = await fetch(`${trusting.origin}/health/ready`)
          return ((await answer.json()) as { status: string }).status === 'ok'
        })
      } finally {
        await sharing.close()
        await trusting.kill('SIGTERM')
        await redis.close()
        await database.drop()
        removeFolder(folder)
      }
    },
  )

  /** Rates shared through `url`, without a hub around them. */
  function share(url: string, log: CollectingLog) {
    const key = Buffer.from('a key of a test')
    const news = new RedisNews(log.log, ['rates'])
    const sharing = shareRates({ url, key, news, metrics: createMetrics('0.0.0') })
    const limiter = rateLimits(rateDefaults, undefined, sharing.tally)
    return { tally: sharing.tally, limiter, sharing }
  }
})

test('two uses of one Redis tell of its outage once, and of its return when both are back', () => {
  const log = collectingLog('info')
  const news = new RedisNews(log.log)
  const told = () =>
    log.lines.splice(0).map((line) => {
      const { level, use } = JSON.parse(line) as { level: number; use?: string }
      return [level, use]
    })
  news.back('rates')
  assert.deepEqual(told(), [])
  news.back('bus')
  assert.deepEqual(told(), [[30, undefined]])
  news.lost('rates', new Error('closed'))
  news.lost('bus', new Error('closed'))
  assert.deepEqual(told(), [[40, 'rates']])
  news.back('bus')
  // It was told of, and still is not whole.
  news.lost('bus', new Error('closed'))
  news.back('rates')
  assert.deepEqual(told(), [])
  news.back('bus')
  assert.deepEqual(told(), [[30, undefined]])
  news.lost('bus', new Error('closed'))
  assert.deepEqual(told(), [[40, 'bus']])
})

test(
  'what no secret of a hub opens is counted each time, and told once',
  { skip: withoutRedis },
  async () => {
    const redis = await startRedis()
    const log = collectingLog()
    const member = (secret: string) => {
      const nodeId = newId()
      const metrics = createMetrics('0.0.0')
      const news = new RedisNews(log.log, ['bus'])
      const keys = busKeys(secret, undefined)
      const bus = joinBus({ nodeId, url: redis.url, keys, log: log.log, news, metrics })
      return { nodeId, bus, metrics }
    }
    const [one, other, same] = [member('one'), member('another'), member('one')]
    try {
      const all = [one, other, same]
      await until('all to be there', () => all.every(({ bus }) => bus.state() === 'ok'))
      const dropped = async () =>
        /^muster_bus_messages_total\{kind="any",outcome="sealed_otherwise"\} (\d+)$/m.exec(
          await one.metrics.text(),
        )?.[1]
      assert.equal(await dropped(), '0')
      const heard: string[] = []
      one.bus.on('handed', (from) => heard.push(from))
      for (let n = 1; n <= 3; n++) {
        other.bus.send(one.nodeId, 'handed', '')
        await until('the message', async () => (await dropped()) === String(n))
      }
      assert.deepEqual(log.lines.length, 1)
      assert.match(log.lines[0] ?? '', /opens with no JWT_SECRET of this hub/)
      same.bus.send(one.nodeId, 'handed', '')
      await until('the other message', () => heard.length > 0)
      assert.deepEqual(heard, [same.nodeId])
    } finally {
      for (const { bus } of [one, other, same]) await bus.close()
      await redis.close()
    }
  },
)

test('an address of Redis that can not be used is named at the start, without its password', () => {
  const problemOf = (url: string) => {
    try {
      readConfig({ REDIS_URL: url, JWT_SECRET: 'x'.repeat(32), AGENT_ENROLLMENT_SECRET: 'x' })
    } catch (error) {
      return error instanceof ConfigError ? error.message : String(error)
    }
    return ''
  }
  for (const url of [
    'http://localhost',
    'localhost:6379',
    'redis:6379',
    'redis://',
    'redis://:hidden@/0',
    'redis://:hidden@localhost/name',
    'redis://:hidden@localhost/0?x=1',
    'redis://:hidden%@localhost',
    'unix:/run/redis.sock',
  ]) {
    assert.match(problemOf(url), /REDIS_URL/, url)
    assert.doesNotMatch(problemOf(url), /hidden/, url)
  }
  for (const url of [
    'redis://localhost',
    'rediss://user:p%40ss@redis.example:6380/3',
    'redis://[::1]/',
  ]) {
    assert.equal(problemOf(url), '', url)
  }
})

interface CollectingLog {
  log: Logger
  lines: string[]
}

/** A logger of ours whose lines are kept, warnings unless told. */
function collectingLog(level = 'warn'): CollectingLog {
  const lines: string[] = []
  const log = createLog(level, 'test', { write: (line) => void lines.push(line) })
  return { log, lines }
}

async function listenWith(say: (socket: Socket) => void) {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    say(socket)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      for (const socket of sockets) socket.destroy()
      server.close()
      await once(server, 'close')
    },
  }
}
