// Reading the device: formats by value, this machine for real.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isLoopback, parseHubUrl, socketUrl } from '../../agent/address.ts'
import { fitInventory, readInventory } from '../../agent/inventory.ts'
import { formatLine } from '../../agent/log.ts'
import { cpuPercent, Meter } from '../../agent/metrics.ts'
import { parseOsRelease } from '../../agent/platform.ts'
import { parsePs, readProcesses } from '../../agent/process_list.ts'
import { statField } from '../../agent/processes.ts'
import { parseApk, parseDpkg, parseTabbed } from '../../agent/software.ts'
import { uninstallScript } from '../../agent/uninstall.ts'
import { stateAt } from '../../agent/state.ts'

test('a hub address is an origin, with or without /api/v1', () => {
  for (const path of ['', '/', '/api/v1', '/api/v1/']) {
    assert.equal(parseHubUrl(`https://hub.example${path}`, false), 'https://hub.example')
  }
  assert.equal(parseHubUrl('http://127.0.0.1:8080', false), 'http://127.0.0.1:8080')
  assert.equal(parseHubUrl('http://hub.example', true), 'http://hub.example')
  for (const bad of ['ftp://a', 'hub.example', 'https://u:p@a', 'https://a/?q', 'https://a/b']) {
    assert.throws(() => parseHubUrl(bad, true), /--url/)
  }
  assert.ok(isLoopback('localhost') && isLoopback('[::1]') && !isLoopback('127.0.0.1.example'))
})

test('the socket address is completed, and never weaker than the hub', () => {
  const full = 'wss://hub.example/api/v1/agents/d1/ws'
  assert.equal(socketUrl(full, 'd1', 'https://hub.example'), full)
  assert.equal(socketUrl('wss://hub.example', 'd1', 'https://hub.example'), full)
  assert.throws(() => socketUrl('ws://hub.example', 'd1', 'https://hub.example'), /refused/)
  assert.throws(() => socketUrl('nothing', 'd1', 'https://hub.example'), /unusable/)
})

test('package records of each system are read', () => {
  const dpkg =
    'Package: a\nStatus: install ok installed\nVersion: 1.0\n\n' +
    'Package: gone\nStatus: deinstall ok config-files\nVersion: 2\n\n'
  assert.deepEqual(parseDpkg(dpkg), [{ name: 'a', version: '1.0' }])
  assert.deepEqual(parseApk('P:musl\nV:1.2\n\nP:busybox\nV:1.36\n'), [
    { name: 'musl', version: '1.2' },
    { name: 'busybox', version: '1.36' },
  ])
  assert.deepEqual(parseTabbed('bash\t5.2-1\n'), [{ name: 'bash', version: '5.2-1' }])
  assert.equal(parseOsRelease('NAME="A B"\nPRETTY_NAME=\'C\'\nID=d\n')['PRETTY_NAME'], 'C')
})

test('process records are read, whatever a process calls itself', () => {
  const stat = '42 (odd) name) S 7 8 9'
  assert.deepEqual([statField(stat, 3), statField(stat, 4), statField(stat, 5)], ['S', '7', '8'])
  const [row] = parsePs('  12   1  2048  1,5 root  /usr/sbin/my daemon\n')
  assert.deepEqual(row, {
    pid: 12,
    ppid: 1,
    name: 'my daemon',
    memoryBytes: 2_097_152,
    user: 'root',
    cpu: 1.5,
  })
})

test('this process is in the list of processes with its memory', async () => {
  const own = (await readProcesses()).find(({ pid }) => pid === process.pid)
  assert.ok(own && own.memoryBytes > 1e7 && own.ppid === process.ppid)
})

test('metrics of this machine are percentages', async () => {
  const meter = new Meter()
  const first = await meter.read()
  for (const name of ['memoryPercent', 'diskPercent'] as const) {
    assert.ok((first[name] ?? -1) > 0 && (first[name] ?? 101) <= 100, name)
  }
  assert.equal(cpuPercent({ busy: 10, total: 100 }, { busy: 40, total: 200 }), 30)
  assert.equal(cpuPercent({ busy: 10, total: 100 }, { busy: 10, total: 100 }), 0)
})

test('the inventory of this machine names what lasts and is the same twice', async () => {
  const first = await readInventory()
  assert.deepEqual(await readInventory(), first)
  const hardware = first.hardware as { cpuCount: number; memoryBytes: number }
  assert.ok(hardware.cpuCount > 0 && hardware.memoryBytes > 0)
})

test('an inventory over the bound loses packages, says so, and stays in order', () => {
  const packages = Array.from({ length: 9000 }, (_, at) => ({
    name: `package-é-${at}`,
    version: '1',
  }))
  const frame = fitInventory({ type: 'inventory', os: {} }, packages)
  const software = frame.software as {
    packages: typeof packages
    total: number
    truncated: boolean
  }
  const bytes = Buffer.byteLength(JSON.stringify(frame))
  assert.ok(bytes <= 256 * 1024 && bytes > 255 * 1024)
  assert.deepEqual([software.total, software.truncated], [9000, true])
  assert.deepEqual(software.packages, packages.slice(0, software.packages.length))
})

test('a log line is bounded and keeps its time and message', () => {
  const line = formatLine('t', 'info', 'm', { field: 'x'.repeat(100_000) })
  assert.deepEqual(JSON.parse(line), { time: 't', level: 'info', msg: 'm', fieldsDropped: true })
})

test('the uninstall script quotes the state folder', () => {
  const script = uninstallScript(stateAt("/tmp/it's; here"), 42)
  assert.ok(script.includes(`rm -rf -- '/tmp/it'\\''s; here'`))
  assert.ok(script.includes('kill -0 42'))
})
