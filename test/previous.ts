// Rollback safety: node test/previous.ts
// Runs the previous version's tests on the schema of this one. Exit codes: 0 it runs on it, 1 it does not, 75 there is
// no previous version in this clone.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { findPrevious, passesOnSchema } from './support/previous.ts'

const root = join(import.meta.dirname, '..')
const say = (text: string) => process.stdout.write(`${text}\n`)

process.exitCode = await main()

async function main(): Promise<number> {
  const previous = findPrevious(root)
  if (previous === null) {
    say('previous version: this clone holds none (git fetch --unshallow --tags)')
    return 75
  }
  const { commit, why, sameSchema } = previous
  say(`previous version: ${why}`)
  if (sameSchema) {
    say('previous version: it has every migration that is here, so there is nothing to prove')
    return 0
  }
  const onOutput = (text: string) => process.stdout.write(text)
  const migrations = join(root, 'migrations')
  const passed = await passesOnSchema({ root, commit, migrations, onOutput })
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    version: string
  }
  say(
    passed
      ? `previous version: it runs on the schema of ${version}`
      : `previous version: it does NOT run on the schema of ${version}: a rollback would break it. Add first, and take away only what no running version uses`,
  )
  return passed ? 0 : 1
}
