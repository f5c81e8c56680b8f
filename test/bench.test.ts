// The bench's own arithmetic, by value: a number in a report is only as good as these.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import * as fc from 'fast-check'
import { readArgs, UsageError } from '../bench/args.ts'
import { addCounts, emptyCounts } from '../bench/fleet_counts.ts'
import { Findings } from '../bench/findings.ts'
import { clientFrame, opcodes, readFrames } from '../bench/frames.ts'
import { heartbeat, heartbeatFrames } from '../bench/heartbeat.ts'
import {
  cpuTimes,
  parseCpuTimes,
  parseRollup,
  parseStat,
  processCpuMs,
  treeCpuMs,
} from '../bench/proc.ts'
import { renderMarkdown, renderTable } from '../bench/report.ts'
import { alone, judge, median, type RowSpec } from '../bench/rows.ts'
import { stolenShare, takeTurns } from '../bench/turns.ts'

const known = ['heartbeats', 'rss', 'accept']

test('goals stands for every scenario, each once', () => {
  assert.deepEqual(readArgs(['rss', 'goals'], known).scenarios, ['rss', 'heartbeats', 'accept'])
})

test('flags arrive as numbers, and have defaults', () => {
  const options = readArgs(['rss', '--agents', '20', '--seconds', '2', '--json', 'a.json'], known)
  assert.equal(options.agents, 20)
  assert.equal(options.seconds, 2)
  assert.equal(options.rounds, 3)
  assert.equal(options.generators, 2)
  assert.equal(options.json, 'a.json')
  assert.equal(options.foreign, undefined)
})

test('a foreign hub is its origin and three credentials', () => {
  const credentials = ['--email', 'a@b', '--password', 'p', '--enrollment-secret', 's']
  assert.deepEqual(
    readArgs(['rss', '--url', 'http://127.0.0.1:8080/', ...credentials], known).foreign,
    {
      origin: 'http://127.0.0.1:8080',
      credentials: { email: 'a@b', password: 'p', enrollmentSecret: 's' },
    },
  )
})

test('secrets may come from the environment, the address may not; a flag wins', () => {
  const env = {
    BENCH_URL: 'http://leftover',
    BENCH_EMAIL: 'a@b',
    BENCH_PASSWORD: 'p',
    BENCH_ENROLLMENT_SECRET: 's',
  }
  const given = ['rss', '--url', 'https://hub.example', '--email', 'c@d']
  assert.deepEqual(readArgs(given, known, { env }).foreign, {
    origin: 'https://hub.example',
    credentials: { email: 'c@d', password: 'p', enrollmentSecret: 's' },
  })
  assert.equal(readArgs(['rss'], known, { env }).foreign, undefined)
})

test('rates come as a list in order, goals as those that have goals', () => {
  const options = readArgs(['goals', '--rate', '200,50'], known, { goals: ['rss'] })
  assert.deepEqual(options.rates, [50, 200])
  assert.deepEqual(options.scenarios, ['rss'])
})

test('a soak with faults is one round that is checked; minutes are sixty seconds', () => {
  const options = readArgs(['soak', '--minutes', '60', '--faults', '60'], ['soak'])
  const { seconds, faults, rounds, check } = options
  assert.deepEqual([seconds, faults, rounds, check], [3600, 60, 1, true])
  const without = readArgs(['soak'], ['soak'])
  assert.deepEqual([without.faults, without.rounds, without.check], [undefined, 3, false])
  assert.throws(
    () => readArgs(['soak', '--faults', '60', '--rounds', '2'], ['soak']),
    /one round: drop --rounds/,
  )
})

const refused: [string[], RegExp][] = [
  [['rss', '--minutes', '1', '--seconds', '60'], /--seconds and --minutes/],
  [['rss', '--faults', '60'], /--faults goes with soak alone/],
  [['rss', '--faults', '9'], /--faults is no whole number from 10 to 3600: "9"/],
  [[], /name a scenario/],
  [['walk'], /no scenario "walk"; there are heartbeats, rss, accept, goals and peers/],
  [['rss', '--agents', 'many'], /--agents is no whole number from 1 to 60000: "many"/],
  [['rss', '--agents', '0'], /--agents/],
  [['rss', '--seconds', '1.5'], /--seconds/],
  [['rss', '--speed', '9'], /--speed/],
  [['rss', '--json'], /--json/],
  [['rss', '--email', 'a@b'], /--email goes with --url/],
  [['rss', '--url', 'http://h', '--email', 'a@b', '--password', 'p'], /needs --enrollment-secret/],
  [['rss', '--rate', '5,x'], /--rate is no whole number from 1 to 100000: "x"/],
  [['rss', '--rate', '1,2,3,4,5,6,7,8,9,10,11,12,13'], /--rate takes 12 rates at most/],
  [['rss', '--ca', 'a.pem'], /--ca goes with --url https/],
  [
    ['rss', '--url', 'ftp://h', '--email', 'a', '--password', 'p', '--enrollment-secret', 's'],
    /--url is no http:\/\/ or https:\/\/ origin/,
  ],
  [
    ['rss', '--url', 'http://h/x', '--email', 'a', '--password', 'p', '--enrollment-secret', 's'],
    /--url is an origin, without a path/,
  ],
]
for (const [args, message] of refused) {
  test(`bench ${args.join(' ')} is refused with ${message}`, () => {
    assert.throws(
      () => readArgs(args, known),
      (error: unknown) => error instanceof UsageError && message.test(error.message),
    )
  })
}

test('a stat line is read past a name with spaces and brackets', () => {
  const line = '4242 (node (x) y) S 17 4242 4242 0 -1 4194560 1 2 0 0 150 25 7 3 20 0 11 0 99 1 1'
  assert.deepEqual(parseStat(line), { parentPid: 17, cpuMs: 1750, endedChildrenCpuMs: 100 })
})

test('what is no stat line is an error, not a zero', () => {
  assert.throws(() => parseStat('4242 (node) S 17'), /no stat line/)
})

test('Rss of a roll-up is in bytes', () => {
  const text = '55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:               14336 kB\nPss: 9 kB\n'
  assert.equal(parseRollup(text), 14_336 * 1024)
  assert.throws(() => parseRollup('Pss: 9 kB\n'), /no Rss/)
})

test('the CPU of a process covers what it burnt, and of a tree what ended children burnt', () => {
  const own = processCpuMs(process.pid)
  const tree = treeCpuMs(process.pid)
  const burn = 'while (process.cpuUsage().user < 200_000);'
  assert.equal(spawnSync(process.execPath, ['-e', burn]).status, 0)
  assert.ok(treeCpuMs(process.pid) - tree >= 190)
  const before = process.cpuUsage().user
  while (process.cpuUsage().user < before + 100_000);
  assert.ok(processCpuMs(process.pid) - own >= 90)
})

test('the median is the middle, or the mean of two', () => {
  assert.equal(median([3, 1, 2]), 2)
  assert.equal(median([4, 1, 2, 3]), 2.5)
  assert.equal(median([undefined, 7, false]), 7)
  assert.equal(median([]), null)
  assert.equal(median(undefined), null)
})

const spec: RowSpec = {
  id: 'X',
  name: 'cost',
  metric: 'cpuUs',
  unit: 'µs',
  rival: 'bare',
  goal: { ratioMost: 2 },
}

test('a ratio is the median of the rounds, not the ratio of the medians', () => {
  const row = judge(spec, {
    hub: [{ cpuUs: 10 }, { cpuUs: 30 }, { cpuUs: 20 }],
    bare: [{ cpuUs: 10 }, { cpuUs: 10 }, { cpuUs: 5 }],
  })
  assert.deepEqual(row, {
    id: 'X',
    name: 'cost',
    value: 20,
    unit: 'µs',
    limit: 10,
    ratio: 3,
    goal: '≤ 2 × bare',
    ok: false,
    better: 'lower',
    rounds: [10, 30, 20],
    ratios: [1, 3, 4],
  })
})

test('each kind of goal is met at its bound and missed beyond', () => {
  const met = (goal: RowSpec['goal'] & {}, hub: number) =>
    judge({ ...spec, goal }, { hub: [{ cpuUs: hub }], bare: [{ cpuUs: 10 }] }).ok
  assert.deepEqual([met({ ratioMost: 2 }, 20), met({ ratioMost: 2 }, 21)], [true, false])
  assert.deepEqual([met({ ratioLeast: 2 }, 20), met({ ratioLeast: 2 }, 19)], [true, false])
  assert.deepEqual([met({ valueMost: 5 }, 5), met({ valueMost: 5 }, 6)], [true, false])
  assert.deepEqual([met({ valueLeast: 5 }, 5), met({ valueLeast: 5 }, 4)], [true, false])
})

test('which way is better is told by the row, its goal, its unit', () => {
  const better = (more: Partial<RowSpec>) =>
    judge({ id: 'X', name: 'x', metric: 'x', unit: 'ms', ...more }, {}).better
  assert.deepEqual(
    [{}, { unit: '/s' }, { goal: { ratioLeast: 1 } }, { unit: '/s', goal: { valueMost: 1 } }].map(
      better,
    ),
    ['lower', 'higher', 'higher', 'lower'],
  )
  assert.equal(better({ unit: '/s', better: 'lower' }), 'lower')
})

test('without a rival a ratio is open; without samples a goal is missed', () => {
  const open = judge(spec, { hub: [{ cpuUs: 4 }] })
  assert.deepEqual([open.value, open.limit, open.ratio, open.ok], [4, null, null, null])
  assert.equal(judge(spec, {}).ok, false)
  const { goal: _, ...info } = spec
  assert.equal(judge(info, { hub: [{ cpuUs: 4 }] }).ok, null)
})

test('beside no rival each metric is one row, held against its own unit alone', () => {
  const specs: RowSpec[] = [
    { ...spec, id: 'A', name: 'cost, beside bare uWebSockets.js' },
    { ...spec, id: 'B', name: 'cost, beside the least', rival: 'least' },
    { ...spec, id: 'C', name: 'time', metric: 'ms', goal: { valueMost: 5 } },
    { id: 'D', name: 'cost again', metric: 'cpuUs', unit: 'µs' },
  ]
  const { goal: _goal, rival: _rival, ...bare } = spec
  assert.deepEqual(alone(specs), [
    { ...bare, id: 'A', name: 'cost' },
    { ...bare, id: 'C', name: 'time', metric: 'ms', goal: { valueMost: 5 } },
    specs[3],
  ])
})

test('a turn while other machines had the cores is taken again, and the least stolen ones count', async () => {
  const turnsOf = async (shares: number[], wanted: number, turnsMax: number) => {
    const { counted, repeated } = await takeTurns(wanted, turnsMax, (number) =>
      Promise.resolve({
        samples: {},
        found: new Findings('x').take(),
        stolenShare: shares[number - 1] ?? assert.fail('one turn too many'),
      }),
    )
    return { counted: counted.map((turn) => turn.stolenShare), repeated }
  }
  assert.deepEqual(await turnsOf([0, 0.01, 0.02], 3, 6), {
    counted: [0, 0.01, 0.02],
    repeated: 0,
  })
  assert.deepEqual(await turnsOf([0, 0.4, 0.3, 0.01], 2, 4), { counted: [0, 0.01], repeated: 2 })
  // None was good: those that are least bad, in the order they were taken.
  assert.deepEqual(await turnsOf([0.4, 0.2, 0.5, 0.1], 2, 4), { counted: [0.2, 0.1], repeated: 2 })
  assert.deepEqual(await turnsOf([0.4, 0.2], 2, 2), { counted: [0.4, 0.2], repeated: 0 })
})

test('how much CPU was stolen is read from the machine', () => {
  const before = parseCpuTimes('cpu  100 10 50 800 20 0 5 15 7 3\ncpu0 1 2 3 4 5 6 7 8 9 10\n')
  assert.deepEqual(before, { allMs: 10_000, stolenMs: 150 })
  const after = parseCpuTimes('cpu  150 10 60 820 20 0 5 35 7 3\n')
  assert.equal(stolenShare(before, after), 0.2)
  assert.equal(stolenShare(before, before), 0)
  // A kernel that does not know it.
  assert.deepEqual(parseCpuTimes('cpu  1 2 3 4\n'), { allMs: 100, stolenMs: 0 })
  assert.throws(() => parseCpuTimes('intr 1'), /no cpu line/)
  assert.ok(cpuTimes().allMs > 0)
})

test('a row that was not measured says so', () => {
  assert.match(renderTable([judge(spec, {})]), / not measured$/m)
})

test('a table shows every row, as text and as markdown', () => {
  const rows = [judge(spec, { hub: [{ cpuUs: 12_345.6 }], bare: [{ cpuUs: 10 }] })]
  assert.match(renderTable(rows), /^X\s+cost\s+12,346\s+10\s+µs\s+1,235\s+≤ 2 × bare\s+NO$/m)
  const machine = { cores: 2, cpu: 'a CPU', memoryGiB: 24, kernel: '6', node: 'v24' }
  const load = { before: 0.1, after: 1.2 }
  const stolen = [
    { scenario: 'x', mostPercent: 0.4, repeated: 0 },
    { scenario: 'y', mostPercent: 2.5, repeated: 1 },
  ]
  const markdown = renderMarkdown({ machine, load, stolen, rows })
  assert.match(
    markdown,
    /^2 cores, 24 GiB, a CPU; load average 0\.1 before, 1\.2 after; at most 2\.5 % of the CPU stolen in a turn \(y\), 1 turn repeated for it\.$/m,
  )
  assert.match(renderMarkdown({ machine, load, rows }), /; stolen CPU unknown\.$/m)
  assert.match(markdown, /^\| X \| cost \| 12,346 \| 10 \| µs \| 1,235 \| ≤ 2 × bare \| NO \|$/m)
})

test('a heartbeat is 100 bytes, in every variant', () => {
  heartbeatFrames.forEach((frame, variant) => {
    assert.equal(JSON.stringify(heartbeat(variant)).length, 100)
    assert.equal(frame.length, 100 + 2 + 4)
  })
})

test('frames are read whole however the bytes were cut', () => {
  // Around the bounds of the three ways to write a length.
  const lengths = fc.array(fc.constantFrom(0, 1, 125, 126, 127, 65_535, 65_536, 70_000), {
    maxLength: 4,
  })
  fc.assert(
    fc.property(lengths, fc.integer({ min: 1, max: 90_000 }), (sizes, cut) => {
      const sent = sizes.map((size, index) => Buffer.alloc(size, index + 1))
      const bytes = Buffer.concat(sent.map(unmasked))
      const got: Buffer[] = []
      let rest: Buffer = Buffer.alloc(0)
      for (let at = 0; at < bytes.length; at += cut) {
        rest = readFrames(Buffer.concat([rest, bytes.subarray(at, at + cut)]), (_, payload) => {
          got.push(Buffer.from(payload))
        })
      }
      assert.equal(rest.length, 0)
      assert.ok(got.length === sent.length && got.every((one, index) => one.equals(sent[index]!)))
    }),
    { numRuns: 30 },
  )
})

test('counts of several processes add up', () => {
  const one = { ...emptyCounts(), open: 2, commands: 3, closed: { 1012: 1 }, refused: { a: 1 } }
  const two = { ...emptyCounts(), open: 5, commands: 4, closed: { 1012: 2, 4002: 1 } }
  assert.deepEqual(addCounts([one, two]), {
    ...emptyCounts(),
    open: 7,
    commands: 7,
    closed: { 1012: 3, 4002: 1 },
    refused: { a: 1 },
  })
})

/** The same frame as a server would send it: the mask taken out, the payload as it was. */
function unmasked(payload: Buffer): Buffer {
  const frame = clientFrame(opcodes.binary, payload)
  const head = Buffer.from(frame.subarray(0, frame.length - payload.length - 4))
  head[1] = head[1]! & 127
  return Buffer.concat([head, payload])
}
