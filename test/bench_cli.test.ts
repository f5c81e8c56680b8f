// The bench's command line as a shell sees it: usage, refusals and exit codes. Runs no load.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'

test('the command line prints usage, and ends with 64 when it is misused', () => {
  const run = (...args: string[]) =>
    spawnSync(process.execPath, ['bench/main.ts', ...args], { encoding: 'utf8' })
  const help = run('--help')
  assert.equal(help.status, 0)
  assert.match(help.stdout, /--enrollment-secret SECRET/)
  assert.equal(run('compare', '--help').stdout, help.stdout)
  const missing = run('compare', 'nowhere.json', 'nowhere.json')
  assert.equal(missing.status, 64)
  assert.match(missing.stderr, /^there is no file nowhere\.json\n/)
  const wrong = run('heartbeats', '--agents', 'x')
  assert.equal(wrong.status, 64)
  assert.match(wrong.stderr, /^--agents .*"x"\n.*--help.*\n$/)
  const nothing = run()
  assert.equal(nothing.status, 64)
  assert.match(nothing.stderr, /^name a scenario.*\n\nnpm run bench/)
  const start = ['start', '--url', 'http://127.0.0.1:1', '--email', 'a', '--password', 'b']
  const foreign = run(...start, '--enrollment-secret', 'c')
  assert.equal(foreign.status, 64)
  assert.match(foreign.stderr, /"start" starts its own hub: drop --url/)
  const paced = run('accept', '--rate', '5')
  assert.equal(paced.status, 64)
  assert.match(paced.stderr, /"accept" has no rate: drop --rate/)
  const authority = run('accept', ...start.slice(1), '--enrollment-secret', 'c', '--ca', 'x.pem')
  assert.equal(authority.status, 64)
  assert.match(authority.stderr, /--ca goes with --url https/)
})
