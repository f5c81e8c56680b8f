// Hubs of one database whose settings differ: what is told of it, by whom, and what is not.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { createLog } from '../src/log.ts'
import { createMetrics } from '../src/metrics.ts'
import { aboutOf, differencesOf, Peers, type About, type Peer } from '../src/peers.ts'
import { Lease, PeerWatch } from '../workers/nodes.ts'
import { removeFolder } from './support/folders.ts'
import { startHub, type TestHub } from './support/hub.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'

const a = 'the first secret of more than 32 bytes'
const b = 'the second secret, of more than 32 bytes'

interface Settings {
  jwt?: [string, string?]
  enrollment?: [string, string?]
  redis?: boolean
}

function about({ jwt = [a], enrollment = ['enroll'], redis = true }: Settings = {}): About {
  const [jwtSecret, jwtSecretPrevious] = jwt
  const [enrollmentSecret, enrollmentSecretPrevious] = enrollment
  const secrets = { jwtSecret, jwtSecretPrevious, enrollmentSecret, enrollmentSecretPrevious }
  const redisUrl = redis ? 'redis://localhost' : undefined
  return aboutOf({ ...secrets, redisUrl }, 'https://hub.example.org')
}

describe('what differs', () => {
  const cases: [string, Settings, Settings, string[]][] = [
    ['nothing between the same settings', {}, {}, []],
    ['nothing at the first step of a change of JWT_SECRET', { jwt: [a] }, { jwt: [a, b] }, []],
    ['nothing at the second', { jwt: [a, b] }, { jwt: [b, a] }, []],
    ['nothing at the third', { jwt: [b, a] }, { jwt: [b] }, []],
    ['one way, where the first step is left out', { jwt: [a] }, { jwt: [b, a] }, ['one_way']],
    ['one way, where the second is', { jwt: [a, b] }, { jwt: [b] }, ['one_way']],
    ['all of it between strangers', { jwt: [a] }, { jwt: [b] }, ['jwt']],
    [
      'nothing at any step of a change of AGENT_ENROLLMENT_SECRET',
      { enrollment: ['old'] },
      { enrollment: ['new', 'old'] },
      [],
    ],
    ['nothing at its end', { enrollment: ['new', 'old'] }, { enrollment: ['new'] }, []],
    [
      'another AGENT_ENROLLMENT_SECRET',
      { enrollment: ['old'] },
      { enrollment: ['new'] },
      ['enrollment'],
    ],
    [
      'it also while JWT_SECRET is changed',
      { jwt: [a, b], enrollment: ['old'] },
      { jwt: [b, a], enrollment: ['new'] },
      ['enrollment'],
    ],
    ['Redis, which one has', { redis: true }, { redis: false }, ['redis']],
    ['Redis, which none has', { redis: false }, { redis: false }, ['no_redis']],
  ]
  for (const [what, one, other, expected] of cases) {
    test(`is ${what}, whoever looks`, () => {
      assert.deepEqual(differencesOf(about(one), about(other)), expected)
      assert.deepEqual(differencesOf(about(other), about(one)), expected)
    })
  }

  test('is nothing where a hub of another version tells nothing of it', () => {
    assert.deepEqual(differencesOf(about(), {}), [])
    assert.deepEqual(differencesOf(about(), { secrets: [] }), [])
  })

  test('is found without any secret in what hubs tell, and no mark fits under another secret', () => {
    const text = JSON.stringify(about({ jwt: [a, b], enrollment: ['guess', 'me'] }))
    for (const secret of [a, b, 'guess']) assert.ok(!text.includes(secret), text)
    const marksOf = (jwt: string) =>
      about({ jwt: [jwt] }).secrets.flatMap((one) => [one.jwt, ...one.enrollment])
    assert.equal(new Set([...marksOf(a), ...marksOf(b)]).size, 4)
  })
})

describe('what a hub says', () => {
  function hears(own: About, generated: string[] = []) {
    const lines: { level: number; msg: string; hubs?: { host: string }[] }[] = []
    const log = createLog('info', 'test', { write: (line) => void lines.push(JSON.parse(line)) })
    const metrics = createMetrics('0.0.0')
    const peers = new Peers({ own, generated, log, metrics })
    const differs = async () =>
      [...(await metrics.text()).matchAll(/^muster_settings_differ\{setting="(\w+)"\} 1$/gm)].map(
        ([, setting]) => setting,
      )
    return { peers, lines, differs }
  }
  const peer = (settings: Settings): Peer => ({
    id: newId(),
    version: '1.0.0',
    startedAt: '2026-11-21T05:57:50.394Z',
    about: about(settings),
  })

  test('is said once, with what to do, and its end', async () => {
    const { peers, lines, differs } = hears(about())
    assert.equal(peers.state(), 'ok')
    assert.deepEqual(await differs(), [])
    peers.heard([peer({}), peer({ jwt: [b] })])
    assert.equal(lines.length, 1)
    assert.equal(lines[0]?.level, 50)
    assert.match(lines[0].msg, /another JWT_SECRET: .*; set the same JWT_SECRET on every hub$/)
    assert.equal(lines[0].hubs?.length, 1)
    assert.equal(peers.state(), 'another hub has another JWT_SECRET')
    assert.deepEqual(await differs(), ['JWT_SECRET'])
    peers.heard([peer({ jwt: [b] }), peer({ jwt: [b] })])
    assert.equal(lines.length, 1)
    peers.heard([peer({})])
    assert.equal(lines.length, 2)
    assert.equal(lines[1]?.level, 30)
    assert.equal(peers.state(), 'ok')
    assert.deepEqual(await differs(), [])
  })

  test('names what to set where the hub made its own secrets', () => {
    const { peers, lines } = hears(about(), ['JWT_SECRET', 'AGENT_ENROLLMENT_SECRET'])
    peers.heard([peer({ jwt: [b] })])
    assert.match(
      lines[0]?.msg ?? '',
      /this hub made its own, for it is not set: set JWT_SECRET and AGENT_ENROLLMENT_SECRET to /,
    )
  })

  test('of a step that was left out is a warning', () => {
    const { peers, lines } = hears(about({ jwt: [b, a] }))
    peers.heard([peer({ jwt: [a] })])
    assert.equal(lines[0]?.level, 40)
    assert.match(lines[0].msg, /a step of its change was left out/)
    assert.equal(peers.state(), 'another hub has another JWT_SECRET')
  })

  test('of Redis says which side lacks it; without any it is a choice', async () => {
    const without = hears(about({ redis: false }))
    without.peers.heard([peer({ redis: true })])
    assert.match(without.lines[0]?.msg ?? '', /^this hub has no REDIS_URL, and others/)
    assert.equal(without.peers.state(), 'another hub has another REDIS_URL')
    const having = hears(about({ redis: true }))
    having.peers.heard([peer({ redis: false })])
    assert.match(having.lines[0]?.msg ?? '', /^other hubs of this database have no REDIS_URL/)
    const none = hears(about({ redis: false }))
    none.peers.heard([peer({ redis: false })])
    none.peers.heard([])
    none.peers.heard([peer({ redis: false })])
    assert.deepEqual(
      none.lines.map(({ level }) => level),
      [40],
    )
    assert.match(none.lines[0]?.msg ?? '', /none has a REDIS_URL/)
    assert.equal(none.peers.state(), 'ok')
    assert.deepEqual(await none.differs(), [])
  })
})

describe('whom a hub hears of', () => {
  let database: TestDatabase
  let db: Database
  before(async () => {
    database = await createDatabase()
    db = openDatabase({ url: database.url, name: 'peers', connections: 2 })
  })
  after(async () => {
    await db.close()
    await database.drop()
  })

  test('is who renewed its lease meanwhile: not one that was killed, left, or tells nothing', async () => {
    const node = () => ({ id: newId(), version: '1.0.0', about: about() })
    const [alive, killed, left] = [node(), node(), node()]
    const old = new Lease(db, { id: newId(), version: '0.9.0' })
    const leases = [alive, killed, left].map((one) => new Lease(db, one))
    for (const lease of [...leases, old]) await lease.renew()
    const watch = new PeerWatch(db, newId())
    const ids = async () => (await watch.look())?.map(({ id }) => id)
    assert.equal(await ids(), undefined, 'the first look can tell nothing')
    assert.deepEqual(await ids(), [], 'nobody has renewed yet')
    await leases[0]?.renew()
    await leases[2]?.leave(75)
    await old.renew()
    const [peer] = (await watch.look()) ?? []
    assert.equal(peer?.id, alive.id)
    assert.deepEqual(peer.about, alive.about)
    assert.ok(Date.parse(peer.startedAt) > 0)
    assert.equal(await ids(), undefined, 'nothing changed')
    await db.query('delete from nodes where id = $1', [alive.id])
    assert.deepEqual(await ids(), [])
    assert.deepEqual(await new PeerWatch(db, alive.id).look(), undefined)
  })
})

describe('real hubs', () => {
  let hub: TestHub
  let stranger: HubProcess
  let folder: string
  before(async () => {
    hub = await startHub()
    folder = mkdtempSync(join(tmpdir(), 'muster-peers-'))
    // As `npm start` with nothing but the database of others.
    const env = { DATABASE_URL: hub.database.url, DATA_DIR: folder }
    stranger = new HubProcess(await freePort(), env)
    await stranger.start()
  })
  after(async () => {
    await stranger.kill('SIGKILL')
    await hub.close()
    removeFolder(folder)
  })

  const ready = async (origin: string) => {
    const answer = await fetch(`${origin}/health/ready`)
    const body = (await answer.json()) as { status: string; checks: Record<string, string> }
    return [answer.status, body.status, body.checks['hubs']]
  }

  test('with other secrets serve on, degraded, and say what to set', async () => {
    const [own, its] = await until('both to hear of each other', async () => {
      const both = [await ready(hub.origin), await ready(stranger.origin)]
      return both.every(([, , hubs]) => hubs !== 'ok') && both
    })
    const differ = [200, 'degraded', 'another hub has another JWT_SECRET']
    assert.deepEqual(own, differ)
    assert.deepEqual(its, differ)
    const said = await until('its log', () =>
      stranger.output.split('\n').find((line) => line.includes('other hubs of this database have')),
    )
    assert.match(said, /^\{"level":50,.*set JWT_SECRET and AGENT_ENROLLMENT_SECRET to what/)
    // Each keeps a data key of its own, under which nothing is sealed.
    assert.match(stranger.output, /"level":40,.*"keys":1,"executions":0,.*made its own JWT_SECRET/)
    assert.match(stranger.output, /"level":40,.*none has a REDIS_URL/)
  })

  test('hear that one is gone', async () => {
    await stranger.kill('SIGTERM')
    await until('the others to be fine', async () => {
      const [status, word] = await ready(hub.origin)
      return status === 200 && word === 'ok'
    })
  })
})
