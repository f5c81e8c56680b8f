// What `node --test` runs once around all test files: the PostgreSQL they share. Test processes learn of
// it by the environment, and it ends after them, also after Ctrl-C.
import { fileURLToPath } from 'node:url'
import { startServer, type SharedServer, type TestServer } from './postgres.ts'

let server: TestServer | undefined
/** Hundreds of hubs start here, each with four threads: the types of a file are stripped once for all of them. */
const compiled = fileURLToPath(new URL('../../node_modules/.cache/compiled', import.meta.url))

export async function globalSetup(): Promise<void> {
  process.env['NODE_COMPILE_CACHE'] ??= compiled
  server = await startServer()
  const { url, prefix } = server
  process.env['MUSTER_TEST_SERVER'] = JSON.stringify({ url, prefix } satisfies SharedServer)
}

export async function globalTeardown(): Promise<void> {
  await server?.stop()
}
