// The check that the previous version runs on the newer schema, itself checked: it finds that version, lets an addition
// pass, and fails where a migration takes away what old code uses.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { removeFolder } from './support/folders.ts'
import { findPrevious, passesOnSchema, testsOfRoutes } from './support/previous.ts'

const root = join(import.meta.dirname, '..')
const folder = mkdtempSync(join(tmpdir(), 'muster-previous-test-'))
after(() => removeFolder(folder))

describe('the previous version', () => {
  let repository: string
  const git = (...args: string[]) => {
    const author = ['-c', 'user.name=Developer', '-c', 'user.email=dev@example.com']
    const all = ['-C', repository, ...author, ...args]
    return String(execFileSync('git', all, { stdio: ['ignore', 'pipe', 'pipe'] })).trim()
  }
  /** A commit in which the files of `migrations` are these, as name and text. */
  const commit = (migrations: Record<string, string>) => {
    for (const [name, text] of Object.entries(migrations)) {
      writeFileSync(join(repository, 'migrations', name), text)
    }
    git('add', '--all')
    git('commit', '--quiet', '--no-verify', '--allow-empty', '--message', 'change')
    return git('rev-parse', 'HEAD')
  }
  before(() => {
    repository = join(folder, 'repository')
    mkdirSync(join(repository, 'migrations'), { recursive: true })
    execFileSync('git', ['init', '--quiet', repository])
  })

  test('without a tag is the newest commit with fewer migrations, none of them edited since', () => {
    commit({ '0001_a.sql': 'create table a ()' })
    assert.equal(findPrevious(repository), null, 'one migration, and nothing before it')
    const one = commit({})
    const two = commit({ '0002_b.sql': 'create table b ()' })
    assert.equal(findPrevious(repository)?.commit, one)
    commit({ '0003_c.sql': 'create table c ()' })
    assert.equal(findPrevious(repository)?.commit, two)
    commit({ '0002_b.sql': 'create table b (edited int)' })
    const found = findPrevious(repository)
    assert.equal(found?.commit, one)
    assert.match(found?.why ?? '', /^there is no tag yet/)
  })

  test('is the newest tag behind this commit', () => {
    git('tag', 'v0.9.0')
    assert.match(findPrevious(repository)?.why ?? '', /no tag yet/, 'its own tag is not before it')
    const nine = git('rev-parse', 'HEAD')
    commit({})
    assert.deepEqual(findPrevious(repository), {
      commit: nine,
      why: 'the newest tag, v0.9.0',
      sameSchema: true,
    })
    git('tag', 'v0.10.0')
    const ten = git('rev-parse', 'HEAD')
    git('tag', 'nightly')
    commit({ '0004_d.sql': 'create table d ()' })
    assert.deepEqual(findPrevious(repository), {
      commit: ten,
      why: 'the newest tag, v0.10.0',
      sameSchema: false,
    })
    commit({ '0003_c.sql': 'create table c (edited int)', '0004_d.sql': 'create table d ()' })
    assert.equal(findPrevious(repository)?.sameSchema, false)
  })
})

test('its tests are those of routes and of statements', () => {
  const files = testsOfRoutes(root)
  assert.ok(files.length > 25, files.join(' '))
  for (const name of [
    'devices',
    'sites',
    'commands',
    'scripts',
    'alerts',
    'users',
    'event_webhooks',
  ]) {
    assert.ok(files.includes(join('test', `${name}.test.ts`)), name)
  }
  for (const name of ['browser', 'migrate', 'agent_upgrade_binaries', 'list_plans']) {
    assert.ok(!files.includes(join('test', `${name}.test.ts`)), name)
  }
})

for (const [what, statement, expected] of [
  ['a column more is nothing to old code', 'alter table sites add column note text', true],
  ['a column that old code reads is missed', 'alter table sites drop column timezone', false],
] as const) {
  test(`${what}: the check ${expected ? 'passes' : 'fails'}`, async () => {
    const migrations = join(folder, String(expected))
    cpSync(join(root, 'migrations'), migrations, { recursive: true })
    const text = `-- minHub: 0.1.0\n${statement};\n`
    writeFileSync(join(migrations, '9000_newer.sql'), text)
    let said = ''
    const passed = await passesOnSchema({
      root,
      commit: 'HEAD',
      migrations,
      files: [join('test', 'sites.test.ts')],
      onOutput: (output) => (said += output),
    })
    assert.equal(passed, expected, said)
    assert.match(said, expected ? /[1-9]\d* tests pass/ : /failed: test\/sites\.test\.ts/)
  })
}
