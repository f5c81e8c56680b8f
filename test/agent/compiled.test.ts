// The agent in one file: the tests of the agent once more, with the binary in the place of the checkout.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { agentVersion } from '../../agent/version.ts'
import { buildAgent, thisPlatform } from '../../scripts/release/build.ts'
import { removeFolder } from '../support/folders.ts'

// Those that start an agent; the others call its functions.
const files = ['commands', 'connection', 'crash', 'enroll', 'power', 'run', 'terminal']

test('the agent in one file does what the agent of a checkout does', async (t) => {
  const out = mkdtempSync(join(tmpdir(), 'muster-compiled-'))
  t.after(() => removeFolder(out))
  // Its version is what the tests expect of an agent.
  const binary = await buildAgent({ version: agentVersion, platform: thisPlatform(), out })
  const paths = files.map((name) => fileURLToPath(new URL(`${name}.test.ts`, import.meta.url)))
  const { code, stdout } = await runTests(paths, binary)
  assert.equal(code, 0, stdout)
  const count = (what: string) => Number(new RegExp(`^# ${what} (\\d+)$`, 'm').exec(stdout)?.[1])
  assert.ok(count('pass') > 40, `only ${count('pass')} tests passed`)
  assert.equal(count('fail') + count('cancelled'), 0)
})

function runTests(paths: string[], agent: string): Promise<{ code: unknown; stdout: string }> {
  // The variable by which node --test knows that it is inside of itself would make it do nothing.
  const { NODE_TEST_CONTEXT: _inside, ...env } = process.env
  const args = ['--test', '--test-reporter=tap', '--test-concurrency=1', ...paths]
  return new Promise((resolve) => {
    const options = { env: { ...env, MUSTER_TEST_AGENT: agent }, maxBuffer: 64 * 1024 * 1024 }
    execFile(process.execPath, args, options, (error, stdout) => {
      resolve({ code: error?.code ?? 0, stdout })
    })
  })
}
