// npm run migrate: brings the database of DATABASE_URL up to this version, as a hub does when it starts.
import { fileURLToPath } from 'node:url'
import { hubVersion } from '../src/config.ts'
import { withoutPasswords } from '../src/log.ts'
import { migrate } from '../src/migrate.ts'

const connectionString = process.env['DATABASE_URL']
const directory = fileURLToPath(new URL('../migrations', import.meta.url))

if (!connectionString) {
  stop('DATABASE_URL is not set; the embedded PostgreSQL is migrated by npm start', 78)
}
try {
  const { applied } = await migrate({ connectionString, hubVersion, directory, log: say })
  say(applied.length > 0 ? `Applied: ${applied.join(', ')}` : 'Nothing to migrate.')
} catch (error) {
  const exitCode = error instanceof Error && 'exitCode' in error ? Number(error.exitCode) : 1
  stop(error instanceof Error ? error.message : String(error), exitCode)
}

function stop(message: string, exitCode: number): never {
  process.stderr.write(`${withoutPasswords(message)}\n`)
  process.exit(exitCode)
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}
