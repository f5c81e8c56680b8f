// Prometheus itself reads our metrics, judges our rules and answers every panel of our dashboards.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { parse, stringify } from 'yaml'
import { FakeAgent } from '../support/agent.ts'
import { removeFolder } from '../support/folders.ts'
import { metricsToken, startHub, type TestHub } from '../support/hub.ts'
import { freePort } from '../support/hub_process.ts'
import { without } from '../support/tools.ts'
import { until } from '../support/until.ts'

const run = promisify(execFile)
const deploy = join(import.meta.dirname, '..', '..', 'deploy')
const skip = without('promtool', 'prometheus')

interface ScrapeConfig {
  job_name: string
  authorization?: { credentials_file: string }
  dns_sd_configs?: { names: string[]; type: string; port: number }[]
  static_configs?: { targets: string[] }[]
}
interface Configuration {
  global: Record<string, string>
  rule_files: string[]
  scrape_configs: ScrapeConfig[]
}
interface Panel {
  title: string
  type: string
  description?: string
  targets?: { expr: string }[]
}
interface Dashboard {
  title: string
  uid: string
  panels: Panel[]
}

const configuration = (): Configuration =>
  parse(readFileSync(join(deploy, 'prometheus.yml'), 'utf8')) as Configuration
const dashboards = readdirSync(join(deploy, 'grafana', 'dashboards')).map(
  (file) =>
    JSON.parse(readFileSync(join(deploy, 'grafana', 'dashboards', file), 'utf8')) as Dashboard,
)

test('the configuration and the rules are valid', { skip }, async () => {
  await run('promtool', ['check', 'config', '--syntax-only', join(deploy, 'prometheus.yml')])
  await run('promtool', ['check', 'rules', join(deploy, 'alerts.yml')])
})

test('each alert fires for what it is for, and is silent just before', { skip }, async () => {
  await run('promtool', ['test', 'rules', 'alerts.test.yml'], { cwd: deploy })
})

test('no alert is without a test, and each says what to do', () => {
  const rules = parse(readFileSync(join(deploy, 'alerts.yml'), 'utf8')) as {
    groups: { rules: { alert: string; labels: object; annotations: Record<string, string> }[] }[]
  }
  const tests = readFileSync(join(deploy, 'alerts.test.yml'), 'utf8')
  for (const { alert, labels, annotations } of rules.groups.flatMap((group) => group.rules)) {
    assert.match(
      tests,
      new RegExp(`ALERTS\\{alertname="${alert}", alertstate="firing".*severity=`),
      alert,
    )
    assert.match(JSON.stringify(labels), /^\{"severity":"(page|ticket)"\}$/, alert)
    assert.ok((annotations['runbook'] ?? '').length > 80, `${alert} has no runbook`)
  }
})

test('hubs are found by the name of their service, one by one', () => {
  const hub = configuration().scrape_configs.find(({ job_name }) => job_name === 'hub')
  const [found] = hub?.dns_sd_configs ?? []
  assert.deepEqual([found?.names, found?.type, found?.port], [['hub'], 'A', 8080])
})

test('metrics are named and explained as Prometheus wants it', { skip }, async () => {
  const hub = await startHub()
  try {
    const child = spawn('promtool', ['check', 'metrics'], { stdio: ['pipe', 'pipe', 'pipe'] })
    let said = ''
    child.stdout.on('data', (chunk) => (said += String(chunk)))
    child.stderr.on('data', (chunk) => (said += String(chunk)))
    child.stdin.end((await scrape(hub)).text)
    const [code] = (await once(child, 'exit')) as [number]
    // prom-client's own metrics of the runtime are as its users know them.
    const ours = said.split('\n').filter((line) => line.startsWith('muster_'))
    assert.deepEqual(ours, [], `exit ${code}`)
  } finally {
    await hub.close()
  }
})

test('every panel has data once agents, commands and requests come and go', { skip }, async (t) => {
  const hub = await startHub()
  const prometheus = await startPrometheus(hub)
  t.after(async () => {
    await prometheus.stop()
    await hub.close()
  })
  const enough = new AbortController()
  const working = (async () => {
    while (!enough.signal.aborted) await work(hub)
  })()
  try {
    const queries = dashboards.flatMap(({ title, panels }) =>
      panels.flatMap((panel) =>
        (panel.targets ?? []).map(({ expr }) => ({ of: `${title}: ${panel.title}`, expr })),
      ),
    )
    assert.ok(queries.length > 50, `only ${queries.length} queries`)
    for (const { of, expr } of queries) {
      const asked = expr.replaceAll('$__rate_interval', '15s').replaceAll('$instance', '.*')
      await until(of, () => prometheus.hasData(asked), 60_000)
    }
  } finally {
    enough.abort()
    await working
  }
})

test('dashboards explain each panel, and share the choice of hubs', () => {
  assert.equal(dashboards.length, 4)
  for (const { uid, panels } of dashboards) {
    assert.match(uid, /^muster-/)
    for (const { title, type, description, targets } of panels) {
      if (type === 'row') continue
      assert.ok((description ?? '').length > 20, `${title} explains nothing`)
      for (const { expr } of targets ?? []) assert.match(expr, /\$instance/, title)
    }
  }
})

const scrape = (hub: TestHub) => hub.get('{origin}/metrics', { token: metricsToken })

/** A bit of everything that is counted. */
async function work(hub: TestHub): Promise<void> {
  const device = await hub.enroll()
  const agent = await FakeAgent.connect(device, hub.origin)
  agent.obey()
  agent.heartbeat({ metrics: { cpuPercent: 1 } })
  const command = { action: 'ping' }
  const answer = await hub.post(`/devices/${device.deviceId}/commands?wait=20`, command)
  assert.equal(answer.body.status, 'completed')
  await hub.get('/devices')
  await hub.get(`/devices/${device.orgId}`)
  await agent.close()
}

/** Prometheus on the configuration of deploy/, but for what only containers have: names, the token's place. */
async function startPrometheus(hub: TestHub) {
  const folder = mkdtempSync(join(tmpdir(), 'muster-prometheus-'))
  const token = join(folder, 'scrape_token')
  writeFileSync(token, metricsToken)
  const config = configuration()
  config.global = { scrape_interval: '1s', evaluation_interval: '1s' }
  config.rule_files = [join(deploy, 'alerts.yml')]
  for (const job of config.scrape_configs) {
    if (job.authorization) job.authorization.credentials_file = token
    if (job.dns_sd_configs === undefined) continue
    delete job.dns_sd_configs
    job.static_configs = [{ targets: [new URL(hub.origin).host] }]
  }
  const file = join(folder, 'prometheus.yml')
  writeFileSync(file, stringify(config))
  const port = await freePort()
  const args = [
    `--config.file=${file}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=127.0.0.1:${port}`,
  ]
  const child = spawn('prometheus', args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  child.stderr.on('data', (chunk) => (log += String(chunk)))
  const api = async (path: string) => {
    const answer = await fetch(`http://127.0.0.1:${port}${path}`)
    return (await answer.json()) as {
      status: string
      error?: string
      data: { result: { value: [number, string] }[]; activeTargets: { health: string }[] }
    }
  }
  await until('Prometheus to scrape the hub', async () => {
    if (child.exitCode !== null) throw new Error(`Prometheus ended: ${log}`)
    const found = await api('/api/v1/targets').catch(() => undefined)
    return found?.data.activeTargets.some(({ health }) => health === 'up')
  })
  return {
    /** Whether a query gives at least one number. */
    async hasData(query: string): Promise<boolean> {
      const { status, error, data } = await api(`/api/v1/query?query=${encodeURIComponent(query)}`)
      assert.equal(status, 'success', `${error} in ${query}`)
      return data.result.some(({ value: [, number] }) => number !== 'NaN')
    },
    async stop() {
      const ended = once(child, 'exit')
      child.kill('SIGKILL')
      await ended
      removeFolder(folder)
    },
  }
}
