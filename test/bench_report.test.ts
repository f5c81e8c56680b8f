// The report as a page: whole, escaped, readable without the network, and what a browser makes of it.
import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import * as fc from 'fast-check'
import { Findings, type Chart } from '../bench/findings.ts'
import { renderHtml } from '../bench/html.ts'
import { Latencies } from '../bench/latency.ts'
import { figure } from '../bench/markup.ts'
import { renderChart } from '../bench/plot.ts'
import { reportFormat, type Report } from '../bench/report.ts'
import { sideBySide } from '../bench/side_by_side.ts'
import { judge } from '../bench/rows.ts'
import { openPage, startBrowser, withoutBrowser } from './support/browser.ts'
import { removeFolder } from './support/folders.ts'

const chart: Chart = {
  scenario: 'steady',
  title: 'CPU over fleet size',
  x: { name: 'agents', unit: '' },
  y: { name: 'CPU', unit: 'µs' },
  lines: [
    {
      name: 'hub',
      points: [
        [1000, 14],
        [4000, 15],
      ],
    },
    { name: 'nothing', points: [] },
  ],
}

function report(more: Partial<Report> = {}): Report {
  const findings = new Findings('roundtrip')
  const latencies = new Latencies()
  for (let n = 0; n < 500; n++) latencies.record(n * 10, n * 10 + 1 + (n % 7))
  findings.latencies('hub', 'command round trip', latencies)
  const goal = { valueMost: 5 }
  const spec = { id: 'X1', name: 'cost', metric: 'cost', unit: 'µs' }
  return {
    format: reportFormat,
    startedAt: '2026-11-21T10:00:00.000Z',
    seconds: 30,
    scenarios: ['roundtrip'],
    hub: null,
    machine: { cores: 2, cpu: 'a CPU', memoryGiB: 24, kernel: '6.1', node: 'v24.0.0' },
    postgres: '18.4',
    load: { before: 0.1, after: 1 },
    rows: [
      judge({ ...spec, goal }, { hub: [{ cost: 4 }] }),
      judge({ ...spec, id: 'X2', goal }, { hub: [{ cost: 6 }] }),
      judge({ ...spec, id: 'X3' }, { hub: [{ cost: 1234.5 }] }),
    ],
    sideBySide: [],
    latencies: findings.summaries,
    charts: [...findings.charts, chart],
    ...more,
  }
}

test('a page is well formed and loads nothing', () => {
  const text = renderHtml(report())
  assert.deepEqual(unbalanced(text), [])
  assert.doesNotMatch(text, /https?:\/\//)
  assert.doesNotMatch(text, /\b(src|href|srcset)\s*=|@import|url\(|<script/i)
  assert.match(text, /default-src 'none'/)
})

test('a fault is told in a table, and marked where time is an axis, for the place nearest after it', () => {
  const findings = new Findings('soak')
  const points: [number, number][] = [
    [0, 300],
    [10, 310],
    [20, 305],
  ]
  const y = { name: 'RSS', unit: 'MB' }
  const lines = [{ name: 'hub', points }]
  findings.chart({ title: 'over time', x: { name: 'time', unit: 's' }, y, lines })
  findings.chart({ title: 'over size', x: { name: 'agents', unit: '' }, y, lines })
  findings.fault({
    name: 'a <blow>',
    atSeconds: 7,
    unreadySeconds: 1.5,
    heard: { 503: 4, lost: 2 },
  })
  const [time, size] = findings.charts
  assert.deepEqual([time?.marks?.length, size?.marks], [1, undefined])
  const text = renderHtml(report({ charts: findings.charts, faults: findings.faults }))
  assert.deepEqual(unbalanced(text), [])
  assert.match(
    text,
    /<td>a &#60;blow&#62;<\/td><td class="number">1\.50?<\/td><td>4 × 503, 2 × lost<\/td>/,
  )
  assert.equal(text.match(/<line class="mark"/g)?.length, 1)
  assert.match(text, /<title>time 10 s: hub 310 MB, a &#60;blow&#62;<\/title>/)
})

test('a page tells goals, environment, latencies and charts with their units', () => {
  const text = renderHtml(report())
  assert.match(text, /✗ 1 of 2 goals missed: X2\./)
  assert.match(text, /<td>X1<\/td>.*✓ yes/)
  assert.match(text, /<td>X2<\/td>.*✗ no/)
  for (const fact of ['2 cores, 24 GiB', 'a CPU', 'v24.0.0', '18.4', '0.1 before, 1 after']) {
    assert.ok(text.includes(fact), fact)
  }
  for (const axis of ['latency (ms)', 'time (s)', 'agents', 'CPU (µs)']) {
    assert.ok(text.includes(`>${axis}</text>`), axis)
  }
  assert.match(text, /<td class="number">1,235<\/td>/)
  const good = renderHtml(report({ rows: report().rows.slice(0, 1) }))
  assert.match(good, /✓ All goals met: 1 of 1\./)
})

test('a page shows programs side by side, and what is not installed', () => {
  const figures = [
    { metric: 'cost', name: 'CPU <per> connect', unit: 'µs', better: 'lower' },
  ] as const
  const shown = sideBySide(
    'connect',
    figures,
    { hub: [{ cost: 40 }], bare: [{}], nats: [{ cost: 99.5 }] },
    new Map([['nats', '2.9.10']]),
    [{ side: 'mosquitto', debian: 'mosquitto' }],
  )
  const text = renderHtml(report({ sideBySide: [shown] }))
  assert.deepEqual(unbalanced(text), [])
  assert.ok(text.includes('>CPU &#60;per&#62; connect, µs</th>'))
  assert.match(text, /<td>hub<\/td><td class="number">40<\/td><td>Muster/)
  assert.match(text, /<td>bare<\/td><td class="number">–<\/td>/)
  assert.match(text, /<td>nats 2\.9\.10<\/td><td class="number">99\.5<\/td><td>NATS: nobody/)
  assert.ok(text.includes('left out: mosquitto (Debian: apt install mosquitto)'))
})

test('names are text, whatever is in them', () => {
  const name = '<script>alert(1)</script>&"\''
  const rows = [judge({ id: name, name, metric: 'm', unit: name }, { hub: [{ m: 1 }] })]
  const charts = [{ ...chart, title: name, lines: [{ ...chart.lines[0]!, name }] }]
  const text = renderHtml(report({ rows, charts, hub: `https://${name}` }))
  assert.deepEqual(unbalanced(text), [])
  assert.doesNotMatch(text, /<script/)
})

test('every point of a chart lies on it, and its ticks hold the largest value', () => {
  const values = fc.array(
    fc.tuple(fc.nat({ max: 1e6 }), fc.double({ min: 0, max: 1e7, noNaN: true })),
    {
      minLength: 1,
      maxLength: 30,
    },
  )
  fc.assert(
    fc.property(values, fc.boolean(), fc.boolean(), (points, xLog, yLog) => {
      const lines = [{ name: 'a', points }]
      const x = { name: 'x', unit: '', log: xLog }
      const y = { name: 'y', unit: '', log: yLog }
      const svg = renderChart({ scenario: 's', title: 't', x, y, lines }).text
      assert.doesNotMatch(svg, /NaN|Infinity|undefined/)
      const [, path = ''] = /points="([^"]*)"/.exec(svg) ?? []
      const places = path.split(' ').map((place) => place.split(',').map(Number))
      assert.equal(places.length, points.length)
      for (const [px = -1, py = -1] of places) {
        assert.ok(px >= 68 && px <= 656 && py >= 13.9 && py <= 274.1, `${px},${py}`)
      }
    }),
  )
})

test('figures have three digits', () => {
  assert.deepEqual([1234.5, 0.12345, 45.678, 0, null].map(figure), [
    '1,235',
    '0.123',
    '45.7',
    '0',
    '–',
  ])
})

test('a browser shows it without complaint or request', { skip: withoutBrowser }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'muster-bench-report-'))
  const file = join(folder, 'report.html')
  writeFileSync(file, renderHtml(report()))
  const browser = await startBrowser()
  try {
    const address = pathToFileURL(file).href
    const { page, complaints, asked } = await openPage(browser, address)
    assert.deepEqual([complaints, asked], [[], [address]])
    assert.equal(await page.locator('svg').count(), 2)
    assert.equal(await page.locator('svg polyline').count(), 5)
    const background = () => page.evaluate('getComputedStyle(document.body).backgroundColor')
    const light = await background()
    await page.emulateMedia({ colorScheme: 'dark' })
    assert.notEqual(await background(), light)
  } finally {
    await browser.close()
    removeFolder(folder)
  }
})

/** Elements that are not closed in the order they were opened; every one of the page is written with its end. */
function unbalanced(text: string): string[] {
  const wrong: string[] = []
  const open: string[] = []
  const body = text.replace('<!doctype html>', '')
  for (const [, end, name = '', empty] of body.matchAll(/<(\/?)([a-z0-9]+)[^<>]*?(\/?)>/gi)) {
    if (empty) continue
    if (!end) open.push(name)
    else if (open.pop() !== name) wrong.push(name)
  }
  return [...wrong, ...open]
}

test('a scenario that failed is told with its reason, and its goals are not called missed', () => {
  const spec = { id: 'X1', name: 'cost', metric: 'cost', unit: 'µs', goal: { valueMost: 5 } }
  const failures = [{ scenario: 'accept', reason: 'Error: <b>refused</b>' }]
  const text = renderHtml(report({ failures, rows: [judge(spec, {})] }))
  assert.match(text, /Not measured.*accept.*Error: &#60;b&#62;refused/s)
  assert.doesNotMatch(text, /goals missed/)
  assert.doesNotMatch(renderHtml(report()), /Not measured/)
})
