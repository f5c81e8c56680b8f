// docs/operations.md beside what it explains: each metric that a hub tells, each alert, each setting of deploy.sh, and
// no name that is not there any more.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { parse } from 'yaml'
import { metricsToken, startHub, type TestHub } from '../support/hub.ts'

const root = join(import.meta.dirname, '..', '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const guide = read('docs/operations.md')

interface Rule {
  alert: string
  labels: { severity: string }
  annotations: { runbook: string }
}
const alerts = (parse(read('deploy/alerts.yml')) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  ({ rules }) => rules,
)

/** The text between a heading and the next one of its level or above. */
function section(heading: string): string {
  const level = /^#+/.exec(heading)?.[0].length ?? 0
  const lines = guide.split('\n')
  const from = lines.indexOf(heading)
  assert.notEqual(from, -1, `there is no "${heading}"`)
  const rest = lines.slice(from + 1)
  const to = rest.findIndex((line) => new RegExp(`^#{1,${level}} `).test(line))
  return rest.slice(0, to === -1 ? undefined : to).join('\n')
}

/** Rows of the tables below a heading: names in backticks of the first column, and the other columns. */
function rowsOf(heading: string): { names: string[]; rest: string[] }[] {
  return section(heading)
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .map((line) => {
      const [first = '', ...rest] = line.split('|').slice(1, -1)
      return {
        names: [...first.matchAll(/`(\w+)`/g)].map(([, name = '']) => name),
        rest: rest.map((cell) => cell.trim()),
      }
    })
}

const dashboards = ['fleet', 'commands', 'http', 'runtime'].map(
  (name) => `grafana/dashboards/${name}.json`,
)
/** Names of the deployment that look like a metric's. */
const volumes = new Set(
  Object.keys((parse(read('docker-compose.yml')) as { volumes: object }).volumes).map(
    (name) => `muster_${name}`,
  ),
)

describe('metrics', () => {
  let hub: TestHub
  let told: string[]
  before(async () => {
    hub = await startHub()
    const { text } = await hub.get('{origin}/metrics', { token: metricsToken })
    told = [...text.matchAll(/^# TYPE (\S+) /gm)].map(([, name = '']) => name)
  })
  after(() => hub.close())

  test('each one that a hub tells is explained, and no other', () => {
    const rows = rowsOf('## Metrics')
    assert.deepEqual(rows.flatMap(({ names }) => names).toSorted(), told.toSorted())
    for (const { names, rest } of rows) {
      assert.equal(rest.length, 3, `${names.join(', ')}: what it is, normal, when it is not`)
      for (const cell of rest) assert.notEqual(cell, '', names.join(', '))
    }
  })

  test('each label is in its row', () => {
    const rows = rowsOf('## Metrics')
    let labels = 0
    // The registry knows them before anything happens that would show them.
    for (const metric of hub.hub.ctx.metrics.registry.getMetricsAsArray()) {
      const { name, labelNames = [] } = metric as { name: string; labelNames?: string[] }
      if (!name.startsWith('muster_')) continue
      const [what = ''] = rows.find(({ names }) => names.includes(name))?.rest ?? []
      for (const label of labelNames) assert.ok(what.includes(`\`${label}\``), `${name} ${label}`)
      labels += labelNames.length
    }
    assert.ok(labels > 10, `${labels} labels`)
  })

  test('what the guide, an alert or a dashboard names is told by a hub', () => {
    const files = ['alerts.yml', ...dashboards].map((file) => read(`deploy/${file}`))
    const named = [guide, ...files].flatMap((text) =>
      text.match(/\b(?:muster|process|nodejs)_\w+/g),
    )
    assert.ok(named.length > 100)
    for (const name of named) {
      // The role of the database is no metric.
      if (name === null || name === 'muster_hub' || volumes.has(name)) continue
      const metric = name.replace(/_(bucket|sum|count)$/, '')
      assert.ok(told.includes(name) || told.includes(metric), name)
    }
  })
})

test('every alert has a section with its severity, and its runbook leads there', () => {
  const headings = [...section('## Alerts').matchAll(/^### (\w+)$/gm)].map(([, name = '']) => name)
  assert.deepEqual(headings.toSorted(), alerts.map(({ alert }) => alert).toSorted())
  for (const { alert, labels, annotations } of alerts) {
    const text = section(`### ${alert}`).trim()
    assert.ok(text.startsWith(`${labels.severity} · `), `${alert} is a ${labels.severity}`)
    assert.ok(text.split('\n').length > 2, `${alert}: says nothing of what to do`)
    assert.ok(
      annotations.runbook.trim().endsWith(`docs/operations.md#${alert.toLowerCase()}`),
      alert,
    )
  }
})

test('what the guide links to inside itself is there', () => {
  const anchors = new Set(
    [...guide.matchAll(/^#+ (.+)$/gm)].map(([, title = '']) =>
      title.toLowerCase().replaceAll(' ', '-'),
    ),
  )
  const links = [...guide.matchAll(/\]\(#([^)]+)\)/g)].map(([, anchor = '']) => anchor)
  assert.ok(links.length > 20)
  for (const anchor of links) assert.ok(anchors.has(anchor), `#${anchor}`)
})

test('every setting of deploy.sh is in the guide', () => {
  const script = read('deploy.sh')
  const listed = ['required', 'optional'].flatMap((list) => {
    const [, names = ''] = new RegExp(`^readonly ${list}=\\(([^)]*)\\)`, 'm').exec(script) ?? []
    return names.trim().split(/\s+/)
  })
  assert.ok(listed.length > 30)
  for (const name of listed) assert.ok(guide.includes(`\`${name}\``), name)
})
