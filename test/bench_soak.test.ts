// The soak that faults are injected into: its verdict by value, each rule broken once, and a short one in earnest.
// What is counted is checked, how long anything took is not.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { faults } from '../bench/faults.ts'
import type { Report } from '../bench/report.ts'
import { endsOf, type Asked, type Kind } from '../bench/soak_operators.ts'
import { judgeSoak, rules, type Evidence, type Rule } from '../bench/soak_verdict.ts'
import { growthOf, type Quiet } from '../bench/soak_watch.ts'
import { endedStatuses } from '../src/protocol.ts'
import { bench } from './support/bench.ts'
import { removeFolder } from './support/folders.ts'

const folder = mkdtempSync(join(tmpdir(), 'muster-bench-soak-'))
after(() => removeFolder(folder))

const asked = (kind: Kind): Asked => ({ kind, deviceId: 'box', atSeconds: 1 })
const row = (id: string, status: string, executionId: string | null = null) => ({
  id,
  deviceId: 'box',
  status,
  executionId,
  lateSeconds: 0,
  lateStatus: '',
})
const deed = (end: string, runs = 1) => ({ runs, frames: 1, end })

/** One command of each way to end, and an execution: nothing to hold against anybody. */
function story() {
  return {
    ledger: new Map([
      ['a', asked('quick')],
      ['b', asked('failing')],
      ['c', asked('cancelled')],
      ['d', asked('expiring')],
      ['e', asked('vanishing')],
      ['f', asked('visitor')],
    ]),
    scripts: new Map([['x', { devices: 1 }]]),
    scriptsUnknown: 0,
    stored: [
      row('a', 'completed'),
      row('b', 'failed'),
      row('c', 'cancelled'),
      row('d', 'expired'),
      row('e', 'timeout'),
      row('f', 'completed'),
      row('g', 'completed', 'x'),
    ],
    executions: [{ id: 'x', status: 'completed', total: 1, completed: 1 }],
    deeds: new Map([
      ['a', deed('completed')],
      ['b', deed('failed')],
      ['c', deed('cancelled', 0)],
      ['e', deed('open')],
      ['g', deed('completed')],
    ]),
    oddEnds: [] as { id: string; ends: number }[],
    heard: new Map(['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((id) => [id, 1])),
  } satisfies Evidence
}

type Story = ReturnType<typeof story>

function judged(spoil: (told: Story) => void): Rule[] {
  const told = story()
  spoil(told)
  const violations = judgeSoak(told)
  return rules.filter((rule) => violations[rule].length > 0)
}

describe('the verdict', () => {
  test('of a story that everybody tells alike holds nothing against anybody', () => {
    assert.deepEqual(
      judged(() => undefined),
      [],
    )
  })

  test('a cancel that crossed the end is nobody’s fault where the command shows both', () => {
    assert.deepEqual(
      judged(({ stored, deeds }) => {
        deeds.set('c', deed('completed'))
        stored[2]!.lateStatus = 'completed'
      }),
      [],
    )
  })

  const spoiled: [string, Rule[], (told: Story) => void][] = [
    [
      'an accepted command is not in the table',
      ['lost'],
      ({ ledger }) => ledger.set('z', asked('quick')),
    ],
    ['a command completed that never ran', ['lost'], ({ deeds }) => deeds.delete('a')],
    [
      'a command failed that its agent completed',
      ['lost'],
      ({ deeds }) => deeds.set('b', deed('completed')),
    ],
    [
      'an agent got what is not in the table',
      ['lost'],
      ({ deeds }) => deeds.set('z', deed('open')),
    ],
    ['a command ran twice', ['doubled'], ({ deeds }) => deeds.set('a', deed('completed', 2))],
    ['a row that nobody was answered for', ['doubled'], (told) => void told.ledger.delete('a')],
    ['two ends of a command', ['doubled'], ({ oddEnds }) => oddEnds.push({ id: 'a', ends: 2 })],
    [
      'a device got a script twice',
      ['doubled'],
      (told) => {
        told.stored.push(row('h', 'completed', 'x'))
        told.deeds.set('h', deed('completed'))
        told.heard.set('h', 1)
      },
    ],
    ['a command that never ends', ['stuck'], ({ stored }) => (stored[3] = row('d', 'sent'))],
    ['an end long after the deadline', ['stuck'], ({ stored }) => (stored[4]!.lateSeconds = 61)],
    ['a script that never ends', ['stuck'], ({ stored }) => (stored[6] = row('g', 'running', 'x'))],
    [
      'a quick command expired',
      ['wrong'],
      (told) => {
        told.stored[0] = row('a', 'expired')
        told.deeds.delete('a')
      },
    ],
    [
      'a command was called cancelled that its agent completed',
      ['wrong'],
      ({ deeds }) => deeds.set('c', deed('completed')),
    ],
    [
      'an execution is not complete',
      ['scripts'],
      ({ executions }) => (executions[0]!.completed = 0),
    ],
    ['an execution is gone', ['scripts'], ({ executions }) => void executions.pop()],
    [
      'an execution that nobody asked for',
      ['scripts'],
      ({ executions }) => executions.push({ ...executions[0]!, id: 'y' }),
    ],
    ['an end without an event', ['events'], ({ oddEnds }) => oddEnds.push({ id: 'a', ends: 0 })],
    ['an end that nobody heard', ['events'], ({ heard }) => void heard.delete('a')],
    ['an end that was heard twice', ['events'], ({ heard }) => heard.set('a', 2)],
  ]
  for (const [name, expected, spoil] of spoiled) {
    test(`${name}: ${expected.join()}`, () => {
      assert.deepEqual(judged(spoil), expected)
    })
  }

  test('an execution without an answer may be there or not', () => {
    const unknown = (told: Story) => (told.scriptsUnknown = 1)
    assert.deepEqual(judged(unknown), [])
    assert.deepEqual(
      judged((told) => {
        unknown(told)
        told.executions.push({ ...told.executions[0]!, id: 'y' })
      }),
      [],
    )
  })

  test('every kind of command has ends, and every end a kind', () => {
    assert.deepEqual(new Set(Object.values(endsOf).flat()), new Set(endedStatuses))
  })
})

test('growth is from the first round of faults after the warm-up to the last', () => {
  const quiets = Array.from({ length: 60 }, (_, period): Quiet => {
    // Warming up, then level, and higher by a tenth in the last round; one period in each round is odd.
    const rssMegabytes = period < 5 ? 100 : period % 7 === 0 ? 500 : period < 53 ? 200 : 220
    return { atSeconds: period, rssMegabytes, descriptors: 70, connections: 20, lagMs: period }
  })
  assert.deepEqual(growthOf(quiets, 'rssMegabytes', 7), { from: 200, to: 220 })
  assert.deepEqual(growthOf(quiets, 'lagMs', 7), { from: 8, to: 56 })
  assert.deepEqual(growthOf(quiets.slice(0, 1), 'lagMs', 7), { from: 0, to: 0 })
  assert.throws(() => growthOf([], 'lagMs', 7), /no quiet moment/)
})

test('three minutes with a fault each 20 s: nothing is lost, doubled or stuck', async () => {
  const [json, html] = [join(folder, 'soak.json'), join(folder, 'soak.html')]
  const load = ['--agents', '1000', '--rate', '30', '--generators', '1']
  const length = ['--minutes', '3', '--faults', '20']
  const run = await bench(['soak', ...load, ...length, '--json', json, '--html', html])
  assert.equal(run.status, 0, `${run.stderr}\n${run.stdout}`)
  const report = JSON.parse(readFileSync(json, 'utf8')) as Report
  const value = (name: string) => report.rows.find((one) => one.name === name)?.value ?? 0
  assert.deepEqual(
    report.rows.filter(({ goal, ok }) => goal !== null && ok !== true),
    [],
  )
  // It did what it says: every fault, and commands that ended in every way.
  assert.deepEqual(
    new Set(report.faults?.map(({ name }) => name)),
    new Set(faults.map(({ name }) => name)),
  )
  for (const status of endedStatuses) assert.ok(value(`commands that ended ${status}`) > 0, status)
  assert.ok(value('devices that came and went') > 0)
  assert.ok(value('requests repeated') > 0)
  const page = readFileSync(html, 'utf8')
  const memory = report.charts.find(({ title }) => title.startsWith('Memory'))
  assert.equal(memory?.marks?.length, report.faults?.length)
  for (const { name } of faults) assert.ok(page.includes(name), name)
})
