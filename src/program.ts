// The hub as a program: what `npm start` runs. Signals stop it, a failure is told in words and ends it with a code.
import { ConfigError } from './config.ts'
import { StartError } from './database.ts'
import { limits } from './limits.ts'
import { withoutPasswords } from './log.ts'
import { run } from './main.ts'

/** Runs a hub until a signal ends it. */
export async function start(): Promise<void> {
  const say = (line: string) => process.stdout.write(`${line}\n`)
  try {
    const hub = await run({ env: process.env, say })
    let signals = 0
    const stop = (signal: string) => {
      if (++signals > 1) process.exit(130)
      say(`${signal}: stopping; once more ends it at once`)
      void hub.close().then(() => process.exit(0), fail)
    }
    process.on('SIGTERM', stop)
    process.on('SIGINT', stop)
    setTimeout(hub.collectGarbage, limits.startedMs).unref()
    // Measuring memory needs the garbage gone.
    process.on('SIGUSR2', hub.collectGarbage)
  } catch (error) {
    fail(error)
  }
}

/** Says why in one message and exits; a stack only for what nobody expected. */
function fail(error: unknown): void {
  const expected = error instanceof ConfigError || error instanceof StartError || isRefusal(error)
  const text = error instanceof Error ? (expected ? error.message : error.stack) : String(error)
  process.stderr.write(`${withoutPasswords(text ?? '')}\n`)
  const exitCode = error instanceof ConfigError ? 78 : isRefusal(error) ? error.exitCode : 1
  process.exit(exitCode)
}

function isRefusal(error: unknown): error is Error & { exitCode: number } {
  return error instanceof Error && 'exitCode' in error && typeof error.exitCode === 'number'
}
