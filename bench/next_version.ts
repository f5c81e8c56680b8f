// A checkout of a version that comes after this one: the same programs under a higher version, and a migration more.
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const checkout = fileURLToPath(new URL('..', import.meta.url))
/** What a hub runs from. */
const parts = ['src', 'workers', 'migrations', 'pages', 'scripts', 'agent']

/** Makes it below `folder`, or finds it there. */
export function nextVersion(folder: string): string {
  const copy = join(folder, 'next-version')
  mkdirSync(copy, { recursive: true })
  for (const part of parts) cpSync(join(checkout, part), join(copy, part), { recursive: true })
  const text = readFileSync(join(checkout, 'package.json'), 'utf8')
  const description = JSON.parse(text) as { version: string }
  const next = { ...description, version: `${description.version.split('.')[0]}.999.0` }
  writeFileSync(join(copy, 'package.json'), JSON.stringify(next))
  const migration = `-- minHub: ${description.version}\nalter table sites add column bench text;\n`
  writeFileSync(join(copy, 'migrations', '9999_bench.sql'), migration)
  try {
    symlinkSync(join(checkout, 'node_modules'), join(copy, 'node_modules'))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  return copy
}
