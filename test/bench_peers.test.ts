// The limit programs store what the hub stores, and a run shows every program it measured beside the others.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { readArgs, UsageError } from '../bench/args.ts'
import { commandList, commandRequests, completed, isCompleted } from '../bench/commands.ts'
import { openLoop } from '../bench/http_load.ts'
import { fillHubTables } from '../bench/hub_tables.ts'
import { Lab, type Target } from '../bench/lab.ts'
import { storeAlone } from '../bench/limits/rows_alone.ts'
import { Progress } from '../bench/progress.ts'
import type { Report } from '../bench/report.ts'
import { saturate } from '../bench/saturation.ts'
import { goalScenarios, peerScenarios } from '../bench/scenarios/index.ts'
import {
  markdownSideBySide,
  renderSideBySide,
  sideBySide,
  type FigureSpec,
} from '../bench/side_by_side.ts'
import { checkOptions } from '../bench/suite.ts'
import { bench } from './support/bench.ts'
import { removeFolder } from './support/folders.ts'
import { without } from './support/tools.ts'
import { until } from './support/until.ts'

const agents = 10

const known = ['heartbeats', 'accept', 'lists']
const sets = { goals: ['lists'], peers: ['heartbeats', 'accept'] }

test('peers is all that others do too, beside all of them; --beside chooses', () => {
  const all = readArgs(['peers'], known, sets)
  assert.deepEqual(all.scenarios, ['heartbeats', 'accept'])
  assert.deepEqual(all.beside, ['limit', 'baseline', 'nats', 'mosquitto'])
  const some = readArgs(['peers', '--beside', 'nats,limit'], known, sets)
  assert.deepEqual(some.beside, ['nats', 'limit'])
  assert.equal(readArgs(['heartbeats'], known, sets).beside, undefined)
  assert.deepEqual(
    peerScenarios.map(({ name }) => name),
    ['heartbeats', 'rss', 'connect', 'accept', 'roundtrip'],
  )
})

test('what can stand beside nothing is refused', () => {
  const refused = (args: string[], message: RegExp) =>
    assert.throws(
      () => readArgs(args, known, sets),
      (error: unknown) => error instanceof UsageError && message.test(error.message),
    )
  refused(['accept', '--beside', 'redis'], /--beside takes .*mosquitto: "redis"/)
  const secrets = ['--email', 'a', '--password', 'b', '--enrollment-secret', 'c']
  refused(['peers', '--url', 'http://h', ...secrets], /beside a hub of --url/)
  const lists = goalScenarios.find(({ name }) => name === 'lists')
  assert.ok(lists)
  assert.throws(
    () => checkOptions(lists, readArgs(['lists', '--beside', 'nats'], known, sets)),
    /"lists" has none of --beside nats/,
  )
  const accept = goalScenarios.find(({ name }) => name === 'accept')
  assert.ok(accept)
  assert.throws(
    () => checkOptions(accept, readArgs(['accept', '--seconds', '601'], known, sets)),
    /"accept" takes --seconds up to 600/,
  )
})

test('a program without a figure has none, and medians are those of its rounds', () => {
  const figures: FigureSpec[] = [
    { metric: 'cpuUs', name: 'CPU', unit: 'µs', better: 'lower' },
    { metric: 'perSecond', name: 'rate', unit: '/s', better: 'higher' },
  ]
  const samples = {
    hub: [
      { cpuUs: 3, perSecond: 10 },
      { cpuUs: 5, perSecond: 30 },
      { cpuUs: 4, perSecond: 20 },
    ],
    nats: [{ cpuUs: 2 }],
  }
  const missing = [{ side: 'mosquitto', debian: 'mosquitto' } as const]
  const shown = sideBySide('connect', figures, samples, new Map([['nats', '2.9.10']]), missing)
  assert.deepEqual(
    shown.programs.map(({ side, version, values, rounds }) => [side, version, values, rounds]),
    [
      [
        'hub',
        null,
        [4, 20],
        [
          [3, 5, 4],
          [10, 30, 20],
        ],
      ],
      ['nats', '2.9.10', [2, null], [[2], []]],
    ],
  )
  assert.match(renderSideBySide(shown), /^nats 2\.9\.10\s+2\s+–\s+NATS: nobody checked/m)
  assert.match(renderSideBySide(shown), /left out: mosquitto \(Debian: apt install mosquitto\)$/)
  assert.match(markdownSideBySide(shown), /^\| nats 2\.9\.10 \| 2 \| – \| NATS: nobody checked/m)
})

describe('the limit programs', () => {
  const lab = new Lab(
    readArgs(['x', '--generators', '1'], ['x']),
    new Progress({ write: () => undefined }),
  )
  let target: Target
  before(async () => {
    target = await lab.start('least')
  })
  after(() => lab.close())
  const count = async (from: string) => {
    const rows = await target.database?.read(`select count(*)::int as count from ${from}`)
    return Number(rows?.[0]?.['count'])
  }

  test('least commits a command with its audit entry and its event before 202', async () => {
    const devices = await lab.devices(target, agents)
    const load = await saturate({
      origin: target.origin,
      connections: 4,
      seconds: 0.2,
      requests: await commandList(target, devices),
      good: { status: 202, holds: '"status":"pending"' },
    })
    assert.deepEqual(load.bad, {})
    // In one statement: what the load gave up at its end may still be on its way.
    const [rows] =
      (await target.database?.read(`select
        (select count(*)::int from commands c join devices d on d.id = c.device_id) as commands,
        (select count(*)::int from audit where action = 'command.create') as audit,
        (select count(*)::int from events where type = 'command.queued') as events`)) ?? []
    const stored = Number(rows?.['commands'])
    assert.ok(stored >= load.good && stored <= load.good + 4, `${stored} of ${load.good}`)
    assert.deepEqual(rows, { commands: stored, audit: stored, events: stored })
  })

  test('least passes a command on, and answers ?wait once its end is committed', async () => {
    const devices = await lab.devices(target, agents)
    const fleet = await lab.fleet(target, devices)
    await fleet.connect()
    const next = await commandRequests(target, devices, 10)
    const load = { origin: target.origin, connections: 4, next, good: isCompleted }
    const { good, bad } = await openLoop({ ...load, seconds: 0.5, perSecond: 100 })
    assert.deepEqual([good, bad], [50, {}])
    const { commands, duplicates, acks } = await fleet.counts()
    assert.deepEqual([commands, duplicates, acks], [50, 0, 50])
    assert.equal(
      await count(`commands where status = 'completed' and result->>'exitCode' = '0'`),
      50,
    )
    assert.equal(await count(`events where type = 'command.completed'`), 50)
    await fleet.close()
  })

  test('passing does the same and stores nothing', async () => {
    const passing = await lab.start('passing')
    assert.equal(passing.database, undefined)
    const devices = await lab.devices(passing, agents)
    const fleet = await lab.fleet(passing, devices)
    await fleet.connect()
    const load = await saturate({
      origin: passing.origin,
      connections: 4,
      seconds: 0.2,
      requests: await commandList(passing, devices, 10),
      good: completed,
    })
    assert.deepEqual(load.bad, {})
    assert.ok(load.good > 0)
    assert.ok((await fleet.counts()).commands >= load.good)
    await fleet.close()
  })

  test('online lets in whose token is good, stores that with an event, and what goes', async () => {
    const online = await lab.start('online')
    const devices = await lab.devices(online, agents)
    const rows = async () =>
      (
        await online.database?.read(`select
          (select count(*)::int from device_presence where status = 'online') as online,
          (select count(*)::int from events where type = 'device.online') as events`)
      )?.[0]
    const [thief] = devices.map(({ id }) => ({ id, token: `mst_${'x'.repeat(43)}` }))
    assert.ok(thief)
    const refused = await lab.fleet(online, [thief])
    assert.deepEqual((await refused.connect()).refused, { 'HTTP 401': 1 })
    await refused.close()
    assert.deepEqual(await rows(), { online: 0, events: 0 })
    const fleet = await lab.fleet(online, devices)
    await fleet.connect()
    await until('every welcome', async () => (await fleet.counts()).welcomes === agents)
    assert.deepEqual(await rows(), { online: agents, events: agents })
    await fleet.disconnect()
    await until('all to be offline', async () => (await rows())?.['online'] === 0)
    await fleet.close()
  })

  test('the rows alone are the rows of the server, in whole batches', async () => {
    const url = target.database?.url ?? ''
    const earlier = await count('commands')
    const ids = await fillHubTables(url, 3)
    assert.equal(ids.length, 3)
    const stored = await storeAlone(url, ids, { batch: 32, seconds: 0.1 })
    assert.equal(stored.count % 32, 0)
    assert.equal(await count('commands'), earlier + stored.count)
    assert.equal(await count(`audit where action = 'command.create'`), earlier + stored.count)
    assert.equal(await count(`events where type = 'command.queued'`), earlier + stored.count)
  })

  test('the bare program sends frames back when it is told to', async () => {
    const echo = await lab.start('bare_echo')
    const fleet = await lab.fleet(echo, await lab.devices(echo, agents))
    await fleet.connect()
    await fleet.pace(200)
    await until('50 echoes', async () => (await fleet.counts()).framesIn >= 50)
    const { heartbeats } = await fleet.pace(0)
    await until('the rest', async () => (await fleet.counts()).framesIn === heartbeats)
    await fleet.close()
  })
})

const folder = mkdtempSync(join(tmpdir(), 'muster-bench-peers-'))
after(() => removeFolder(folder))

test(
  'one run shows hub, NATS and Mosquitto in text, JSON and HTML',
  { skip: without('nats-server') || without('mosquitto') },
  async () => {
    const [json, html] = [join(folder, 'report.json'), join(folder, 'report.html')]
    const few = ['--agents', String(agents), '--seconds', '1', '--rounds', '1', '--generators', '1']
    const { status, stdout, stderr } = await bench([
      'connect',
      ...few,
      '--beside',
      'nats,mosquitto',
      '--json',
      json,
      '--html',
      html,
    ])
    assert.equal(status, 0, stderr)
    const report = JSON.parse(readFileSync(json, 'utf8')) as Report
    const [connect] = report.sideBySide
    assert.deepEqual(
      connect?.programs.map(({ side }) => side),
      ['hub', 'nats', 'mosquitto'],
    )
    for (const { side, version, values } of connect?.programs ?? []) {
      assert.ok(
        values.every((value) => value !== null && Number.isFinite(value)),
        side,
      )
      assert.equal(version !== null, side === 'nats' || side === 'mosquitto')
    }
    const page = readFileSync(html, 'utf8')
    for (const side of ['nats 2.', 'mosquitto 2.']) {
      assert.ok(page.includes(`<td>${side}`), `${side} is on the page`)
      assert.match(stdout, new RegExp(`^${side.replace('.', '\\.')}`, 'm'))
    }
    // The bare program was not asked for, so nothing is held against it.
    assert.equal(report.rows.find(({ id }) => id === 'P3e')?.ok, null)
  },
)
