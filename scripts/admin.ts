// npm run admin -- invite EMAIL: invites a platform admin, or repeats the invitation of one who has not
// accepted yet, and prints the one-time link. Works on DATABASE_URL or on the PostgreSQL of a running hub.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { invitePlatformAdmin } from '../src/bootstrap.ts'
import { ConfigError, readConfig, type Config } from '../src/config.ts'
import { openDatabase, sqlState, type Database } from '../src/db.ts'
import { AppError } from '../src/errors.ts'
import { limits } from '../src/limits.ts'
import { withoutPasswords } from '../src/log.ts'
import { originOfHubs } from '../src/peers.ts'

const usage = `Usage: npm run admin -- invite EMAIL

Invites EMAIL as a platform admin and prints the link that sets the password. For somebody who has not
accepted yet it makes a new link; the old one ends. Uses DATABASE_URL, else the embedded PostgreSQL of
the hub that runs in DATA_DIR (./data). The link leads to PUBLIC_API_URL, else to where the hub is.`

/** Told to people as it is, without a stack. */
class Refusal extends Error {
  readonly exitCode: number

  constructor(message: string, exitCode = 1) {
    super(message)
    this.exitCode = exitCode
  }
}

try {
  await invite(emailOf(process.argv.slice(2)))
} catch (error) {
  const { message, exitCode } = refusalOf(error)
  process.stderr.write(`${withoutPasswords(message)}\n`)
  process.exitCode = exitCode
}

async function invite(email: string): Promise<void> {
  // What only the hub itself needs is filled in, so that this command makes no secrets.
  const filler = '-'.repeat(32)
  const unneeded = {
    JWT_SECRET: filler,
    AGENT_ENROLLMENT_SECRET: filler,
    METRICS_SCRAPE_TOKEN: filler,
  }
  const config = readConfig({ ...unneeded, ...process.env })
  const url = config.databaseUrl ?? runningUrl(config)
  const db = openDatabase({ url, name: 'admin', connections: 1 })
  try {
    const link = await invitePlatformAdmin(db, email, await originOf(db, config))
    process.stderr.write(
      `${email} sets a password here, once and within ${limits.inviteHours} hours:\n`,
    )
    process.stdout.write(`${link}\n`)
  } finally {
    await db.close()
  }
}

function emailOf(args: string[]): string {
  const { positionals, values } = parseArgs({
    args,
    allowPositionals: true,
    options: { help: { type: 'boolean', short: 'h' } },
  })
  const [command, email, ...rest] = positionals
  if (values.help) throw new Refusal(usage, 0)
  if (command !== 'invite' || email === undefined || rest.length > 0) throw new Refusal(usage, 2)
  if (/^[^\s@]+@[^\s@]+$/.test(email) && email.length <= limits.emailCharsMax) return email
  throw new Refusal(`"${email}" is no e-mail address`, 2)
}

/** PUBLIC_API_URL, else what the hub itself was told or found. */
async function originOf(db: Database, { publicOrigin }: Config): Promise<string> {
  const origin = publicOrigin ?? (await originOfHubs(db))
  if (origin !== undefined) return origin
  throw new Refusal(
    'No hub has told where it is reached: start it, or set PUBLIC_API_URL to its address.',
  )
}

/** The embedded PostgreSQL of a running hub, from what its postmaster wrote about itself. */
function runningUrl({ dataDir }: Config): string {
  const folder = join(dataDir, 'postgres')
  let lines: string[]
  try {
    lines = readFileSync(join(folder, 'cluster', 'postmaster.pid'), 'utf8').split('\n')
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ENOENT')) throw error
    throw new Refusal(
      `No hub runs on ${dataDir}. Start it (npm start) and ask again, set DATA_DIR to its folder, or set DATABASE_URL.`,
    )
  }
  const port = lines[3]?.trim()
  const socketDir = lines[4]?.trim()
  if (socketDir) {
    const host = encodeURIComponent(socketDir)
    return `postgres://muster@localhost:${port}/postgres?host=${host}`
  }
  const password = readFileSync(join(folder, 'password'), 'utf8')
  return `postgres://muster:${password}@127.0.0.1:${port}/postgres`
}

function refusalOf(error: unknown): { message: string; exitCode: number } {
  if (error instanceof Refusal) return error
  if (error instanceof ConfigError) return { message: error.message, exitCode: 78 }
  if (sqlState(error) === '42P01' || sqlState(error) === '22023') {
    const message = 'The database has no tables yet: start the hub, or run npm run migrate.'
    return { message, exitCode: 1 }
  }
  if (sqlState(error) === '42703') {
    const message = 'The database is of an older version: start the hub, or run npm run migrate.'
    return { message, exitCode: 1 }
  }
  if (error instanceof AppError) {
    const cause = error.cause instanceof Error ? ` (${error.cause.message})` : ''
    return { message: `${error.message}${cause}`, exitCode: 1 }
  }
  if (error instanceof TypeError && 'code' in error) {
    return { message: `${error.message}\n\n${usage}`, exitCode: 2 }
  }
  return { message: (error instanceof Error && error.stack) || String(error), exitCode: 1 }
}
