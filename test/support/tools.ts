// Programs of the system that some tests run. Where one is missing such a test says so and is skipped; with CI
// set it fails instead, so that it can't be skipped for ever.
import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** The option `skip` of a test that needs `program`, which Debian's `package` brings. */
export function without(program: string, packageName = program): string | false {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const installed = folders.some((folder) => existsSync(join(folder, program)))
  return installed || process.env['CI'] ? false : `needs ${program}: apt-get install ${packageName}`
}
