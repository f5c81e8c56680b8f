// What `bench compare` calls worse: by direction, tolerance and spread, and what a shell sees of it.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { compareReports, differences, isNoise } from '../bench/compare.ts'
import { reportFormat, type Report } from '../bench/report.ts'
import { judge, type Row, type RowSpec } from '../bench/rows.ts'
import { bench } from './support/bench.ts'
import { removeFolder } from './support/folders.ts'

const folder = mkdtempSync(join(tmpdir(), 'muster-bench-compare-'))
after(() => removeFolder(folder))

function row(values: number[], more: Partial<RowSpec> = {}, rival?: number[]): Row {
  const spec: RowSpec = { id: 'X', name: 'cost', metric: 'm', unit: 'ms', ...more }
  const samples = (numbers: number[]) => numbers.map((m) => ({ m }))
  return judge(
    rival ? { ...spec, rival: 'bare' } : spec,
    rival ? { hub: samples(values), bare: samples(rival) } : { hub: samples(values) },
  )
}

function report(rows: Row[], more: Partial<Report> = {}): Report {
  return {
    format: reportFormat,
    startedAt: '2026-11-21T10:00:00.000Z',
    seconds: 30,
    scenarios: ['roundtrip'],
    hub: null,
    machine: { cores: 2, cpu: 'a CPU', memoryGiB: 24, kernel: '6.1', node: 'v24.0.0' },
    postgres: '18.4',
    load: { before: 0.1, after: 1 },
    rows,
    sideBySide: [],
    latencies: [],
    charts: [],
    ...more,
  }
}

const verdict = (a: Row, b: Row, tolerance = 0.1) =>
  compareReports(report([a]), report([b]), tolerance)[0]?.verdict

test('worse is up where lower is better, and down where higher is', () => {
  assert.equal(verdict(row([10]), row([12])), 'worse')
  assert.equal(verdict(row([10]), row([8])), 'better')
  const rate = { unit: '/s' }
  assert.equal(verdict(row([10], rate), row([12], rate)), 'better')
  assert.equal(verdict(row([10], rate), row([8], rate)), 'worse')
})

test('within the tolerance nothing happened, at its bound neither', () => {
  assert.equal(verdict(row([10]), row([10.9])), 'same')
  assert.equal(verdict(row([10]), row([11]), 0.1), 'same')
  assert.equal(verdict(row([10]), row([12]), 0.25), 'same')
  assert.equal(verdict(row([0]), row([0])), 'same')
  assert.equal(verdict(row([0]), row([1])), 'worse')
})

test('beside a rival the ratios are compared: a slower machine is no worse hub', () => {
  const [a, b] = [row([10], {}, [5]), row([20], {}, [10])]
  const [compared] = compareReports(report([a]), report([b]), 0.1)
  assert.deepEqual(
    [compared?.verdict, compared?.change, compared?.besideRival, compared?.a, compared?.b],
    ['same', 1, true, 10, 20],
  )
})

test('a figure that failed is worse; new and dropped ones are told and judged by nobody', () => {
  const failed = judge({ id: 'X', name: 'cost', metric: 'm', unit: 'ms' }, {})
  assert.equal(verdict(row([10]), failed), 'worse')
  assert.equal(verdict(failed, failed), 'same')
  assert.equal(verdict(failed, row([10])), 'only in B')
  const other = row([1], { id: 'Y' })
  assert.deepEqual(
    compareReports(report([row([1])]), report([other]), 0.1).map((one) => [one.id, one.verdict]),
    [
      ['Y', 'only in B'],
      ['X', 'only in A'],
    ],
  )
})

test('what moved no further than rounds differ is noise, but with one round nobody knows', () => {
  const noisy = (a: number[], b: number[]) =>
    compareReports(report([row(a)]), report([row(b)]), 0.1).map(isNoise)[0]
  assert.equal(noisy([8, 10, 12], [12, 12, 12]), true)
  assert.equal(noisy([10, 10, 10.5], [12, 12, 12]), false)
  assert.equal(noisy([10], [12]), false)
})

test('another machine or PostgreSQL is told', () => {
  const a = report([])
  const b = report([], { postgres: '19.1', machine: { ...a.machine, cores: 8 } })
  assert.deepEqual(differences(a, b), ['cores: 2 in A, 8 in B', 'PostgreSQL: 18.4 in A, 19.1 in B'])
  assert.deepEqual(differences(a, a), [])
})

test('the command ends with 1 when something is worse, and writes table and page', async () => {
  const [a, b, html] = ['a.json', 'b.json', 'c.html'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ]
  writeFileSync(a, JSON.stringify(report([row([8, 14]), row([5], { id: 'Y' })])))
  writeFileSync(b, JSON.stringify(report([row([13, 20]), row([2], { id: 'Y' })])))
  const worse = await bench(['compare', a, b, '--html', html])
  assert.equal(worse.status, 1)
  assert.match(worse.stdout, /^X .* worse \(within the spread\)$/m)
  assert.match(worse.stdout, /^Y .* 0\.4 .* better$/m)
  const page = readFileSync(html, 'utf8')
  assert.match(page, /✗ 1 of 2 figures worse, 1 better/)
  assert.doesNotMatch(page, /https?:\/\/|<script|\bsrc=|\bhref=/)
  assert.equal((await bench(['compare', a, a])).status, 0)
  assert.equal((await bench(['compare', a, b, '--tolerance', '200'])).status, 0)
})

test('the command refuses what is no report, naming the file or the flag', async () => {
  const file = join(folder, 'old.json')
  writeFileSync(file, '{"rows":[]}')
  const refused = async (...args: string[]) => {
    const { status, stderr } = await bench(['compare', ...args])
    assert.equal(status, 64)
    return stderr
  }
  assert.match(await refused(file), /compare takes two reports/)
  assert.match(await refused(file, file), /old\.json is no report/)
  assert.match(await refused(file, join(folder, 'none.json')), /none\.json can't be read|no report/)
  assert.match(await refused(file, file, '--tolerance', '-1'), /--tolerance/)
  assert.match(await refused(file, file, '--tolerance', 'x'), /--tolerance is no percentage: "x"/)
})
